//! The 17 worked cases through the built binary: a process, a socket, frames of the contract.
//!
//! `dspark serve` with nothing rounded must give the ids of the `f32` flavour in all 115 blocks, exact ties
//! included; statuses, echoes and zeros are exact.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::golden::{Pool, play, soon};
use common::process::Worker;
use common::{fixture, json_files};
use dspark::protocol::{ReqEntry, StepReply};
use dspark::transport::Caller;
use serde_json::Value;

/// Two reference programs differ by 1e-5 and 3e-5 (fixtures/README.md); ten times that, rounded.
const CONFIDENCE_TOLERANCE: f64 = 1e-4;
const MARGIN_TOLERANCE: f64 = 1e-3;

/// Largest differences and the number of blocks seen.
#[derive(Default)]
struct Seen {
    steps: usize,
    blocks: usize,
    confidence: f64,
    margin: f64,
}

fn check_entry(
    at: &str,
    sent: &ReqEntry,
    expect: &Value,
    index: usize,
    reply: &StepReply<'_>,
    seen: &mut Seen,
) {
    let status = reply.status(index).unwrap();
    assert_eq!(u64::from(status.code()), expect["status"].as_u64().unwrap(), "{at}: status");
    let rows = u64::from(reply.statuses[index].window_rows.get());
    // The contract leaves refused entries open; its notes decide on 0 (D34).
    assert_eq!(rows, expect["window_rows"].as_u64().unwrap_or(0), "{at}: window_rows");
    let Some(golden) = expect.get("f32") else {
        assert!(reply.ids(index).all(|id| id == 0), "{at}: ids of an undrafted entry");
        return;
    };
    seen.blocks += 1;
    let ids: Vec<i64> = reply.ids(index).map(i64::from).collect();
    let golden_ids: Vec<i64> =
        golden["draft_ids"].as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect();
    assert_eq!(ids, golden_ids, "{at}: draft ids");
    let consumed = sent.consumed(5);
    for j in 0..5 {
        let confidence = f64::from(reply.confidence(index).nth(j).unwrap());
        let margin = f64::from(reply.margin(index).nth(j).unwrap());
        if j >= consumed {
            assert_eq!((confidence, margin), (0.0, 0.0), "{at}: position {j} is not consumed");
            continue;
        }
        let confidence = (confidence - golden["confidence"][j].as_f64().unwrap()).abs();
        let margin = (margin - golden["margin"][j].as_f64().unwrap()).abs();
        assert!(confidence <= CONFIDENCE_TOLERANCE, "{at}: confidence {j} off by {confidence}");
        assert!(margin <= MARGIN_TOLERANCE, "{at}: margin {j} off by {margin}");
        seen.confidence = seen.confidence.max(confidence);
        seen.margin = seen.margin.max(margin);
    }
}

#[test]
fn the_served_binary_answers_every_worked_case() {
    let checkpoint = fixture("tiny");
    let mut worker = Worker::start(&[
        "--checkpoint",
        checkpoint.to_str().unwrap(),
        "--backend",
        "cpu",
        "--precision",
        "f32",
        "--logits",
        "f32",
    ]);
    let pool = Pool::open();
    let mut caller = Caller::connect(&worker.drafting(), soon()).unwrap();
    let mut seen = Seen::default();
    for (session, (name, case)) in
        (1u32..).zip(json_files("cases", "").into_iter().filter(|(n, _)| n != "measured"))
    {
        play(&mut caller, session, &case, &pool, |step, entries, reply| {
            for (index, expect) in step["expect"].as_array().unwrap().iter().enumerate() {
                let at = format!("{name} step {} entry {index}", step["step_id"]);
                check_entry(&at, &entries[index], expect, index, reply, &mut seen);
            }
            seen.steps += 1;
        });
    }
    assert_eq!((seen.steps, seen.blocks), (117, 115));
    println!("largest difference: confidence {:.1e}, margin {:.1e}", seen.confidence, seen.margin);
    worker.terminate();
}
