//! `shadow-diff` on the worked cases: f32 logits against bf16 logits differ in near-ties only.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;
use std::process::Command;

use common::golden::{Pool, TINY, entry};
use common::process::Worker;
use common::{digest_field, fixture, json_files};
use dspark::protocol::step::StepMeta;
use dspark::protocol::{HelloRequest, ReqEntry, StepWriter};
use dspark::trace::{RecordKind, TraceHeader, TraceWriter};
use serde_json::Value;

/// Half a bf16 step of logits between 8 and 16, the largest that the demo's have.
const NEAR_TIE: &str = "0.0625";

/// The 17 cases as one trace: a session a case, engine steps counted through.
fn golden_trace(path: &Path) {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(fixture("tiny/hello.json")).unwrap()).unwrap();
    let (drafter, markov) =
        (digest_field(&golden, "drafter_identity"), digest_field(&golden, "markov_identity"));
    let hello = HelloRequest::new(&TINY, drafter, markov, "golden");
    let header = TraceHeader { hello, created_us: 0, note: String::new() };
    let mut writer = TraceWriter::create(std::fs::File::create(path).unwrap(), &header).unwrap();
    let pool = Pool::open();
    let cases = json_files("cases", "").into_iter().filter(|(name, _)| name != "measured");
    let mut step_id = 0;
    for (session, (_, case)) in (1u32..).zip(cases) {
        for (step, seq) in case["steps"].as_array().unwrap().iter().zip(2u64..) {
            step_id += 1;
            let json = step["entries"].as_array().unwrap();
            let entries: Vec<ReqEntry> = json.iter().map(entry).collect();
            let meta =
                StepMeta { seq, session, step_id, want_margin: true, row_bytes: TINY.row_bytes() };
            let mut message = Vec::new();
            let mut rows = StepWriter::begin(&mut message, meta, &entries);
            for (e, json) in entries.iter().zip(json) {
                let start = json["pool_start"].as_u64().unwrap_or(0) as usize;
                for r in 0..e.n_rows.get() as usize {
                    rows.rows(pool.row(start + r));
                }
            }
            rows.finish();
            writer.record(RecordKind::Request, step_id * 35_000, &message).unwrap();
        }
    }
    writer.finish().unwrap();
}

#[test]
fn f32_and_bf16_logits_differ_in_near_ties_only() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("golden.trace");
    golden_trace(&trace);
    let checkpoint = fixture("tiny");
    let start = |logits: &str| {
        let checkpoint = ["--checkpoint", checkpoint.to_str().unwrap(), "--backend", "cpu"];
        Worker::start(&[&checkpoint[..], &["--logits", logits]].concat())
    };
    let (f32, bf16) = (start("f32"), start("bf16"));
    let (left, right) = (f32.drafting().to_string(), bf16.drafting().to_string());
    let done = Command::new(env!("CARGO_BIN_EXE_dspark"))
        .args(["shadow-diff", &left, &right, "--trace", trace.to_str().unwrap(), "--json"])
        .args(["--near-tie", NEAR_TIE, "--timeout", "10s"])
        .output()
        .unwrap();
    let doc: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0), "{doc:#}");
    assert_eq!((&doc["rounds"], &doc["agreement"]), (&117.into(), &1.0.into()), "{doc:#}");
    // Exact ties go to the lower id on both sides: they show as margin 0 and no mismatch.
    assert!(doc["by_margin"][0]["comparable"].as_u64().unwrap() >= 8, "{doc:#}");
    let mismatches = doc["mismatches"].as_array().unwrap();
    assert!(mismatches.iter().all(|m| m["near_tie"] == true), "{doc:#}");
}
