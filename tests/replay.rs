//! `dspark replay` as a user runs it: faults of every kind, restarts, policies, comparisons, exit codes.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::process::Worker;
use serde_json::Value;

fn dspark(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dspark")).args(arguments).output().unwrap()
}

fn synth(path: &Path, rounds: &str, requests: &str) {
    let path = path.to_str().unwrap();
    let done = dspark(&[
        "trace",
        "synth",
        "--rounds",
        rounds,
        "--requests",
        requests,
        "--seed",
        "7",
        "-o",
        path,
    ]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Replays with JSON output; the document and the exit code.
fn replay(trace: &Path, endpoint: &str, arguments: &[&str]) -> (Value, i32) {
    let fixed = ["replay", trace.to_str().unwrap(), "-e", endpoint, "--json", "--pace", "max"];
    let patient = ["--timeout", "5s"];
    let own_deadline = arguments.contains(&"--timeout");
    let done = dspark(&[&fixed[..], if own_deadline { &[] } else { &patient }, arguments].concat());
    let text = String::from_utf8_lossy(&done.stdout);
    let doc = serde_json::from_str(&text).unwrap_or(Value::Null);
    (doc, done.status.code().unwrap())
}

const EVERY_FAULT: [&str; 16] = [
    "--fault",
    "close=0.02",
    "--fault",
    "drop=0.02",
    "--fault",
    "delay=900ms@0.02",
    "--fault",
    "garbage=0.02",
    "--fault",
    "truncate=0.02",
    "--fault",
    "stale=0.02",
    "--fault",
    "duplicate=0.02",
    "--fault",
    "half-close=0.02",
];

#[test]
fn windows_survive_every_kind_of_fault() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("a.trace");
    synth(&trace, "300", "1");
    let worker = Worker::start(&["--demo"]);
    let endpoint = worker.drafting().to_string();
    let arguments = [&EVERY_FAULT[..], &["--timeout", "400ms", "--backoff", "0", "--seed", "3"]];
    let (doc, code) = replay(&trace, &endpoint, &arguments.concat());
    assert_eq!(code, 0, "{doc:#}");
    assert_eq!(doc["verdict"]["windows_equal"], true);
    assert_eq!((doc["rounds"].as_u64(), doc["unexplained"].as_u64()), (Some(300), Some(0)));
    for kind in ["close", "drop", "delay", "garbage", "truncate"] {
        let fault = &doc["faults"][kind];
        assert!(fault["injected"].as_u64().unwrap() > 0, "{kind} never happened");
        assert_eq!(fault["failed"], fault["injected"], "{kind} must fail its round");
    }
    for kind in ["stale", "duplicate", "half-close"] {
        let fault = &doc["faults"][kind];
        assert!(fault["injected"].as_u64().unwrap() > 0, "{kind} never happened");
        assert_eq!(fault["answered"], fault["injected"], "{kind} must not fail its round");
    }
    // With no pause before a reconnect only the faults themselves and the breaker lose rounds.
    assert_eq!(doc["fallback"]["no_connection"], 0);
}

#[test]
fn resyncs_reconnects_and_a_restarted_worker_leave_the_right_windows() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("a.trace");
    synth(&trace, "60", "2");
    let mut worker = Worker::start(&["--demo"]);
    let endpoint = worker.drafting().to_string();
    let (doc, code) = replay(&trace, &endpoint, &["--resync-at", "20,40", "--reconnect-at", "30"]);
    assert_eq!((code, &doc["verdict"]["windows_equal"]), (0, &Value::Bool(true)), "{doc:#}");
    assert!(doc["resyncs"].as_u64().unwrap() >= 3);
    assert_eq!(doc["hellos"], 3, "one at the start, one after the reconnect, one for the verdict");
    worker.terminate();
    // The command brings a worker up on the port that the first one has left.
    let pid = dir.path().join("pid");
    let start = format!(
        "{} serve --demo --control off -q --listen {endpoint} >{} 2>&1 & echo $! >{}; sleep 1",
        env!("CARGO_BIN_EXE_dspark"),
        dir.path().join("log").display(),
        pid.display()
    );
    Command::new("sh").args(["-c", &start]).status().unwrap();
    let kill = format!("kill $(cat {}); sleep 0.3; ", pid.display());
    let restart = format!("{kill}{start}");
    let arguments = ["--worker-restart", &restart, "--restart-at", "25", "--backoff", "0"];
    let (doc, code) = replay(&trace, &endpoint, &[&arguments[..], &["--allow-failures"]].concat());
    Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert_eq!((code, &doc["verdict"]["windows_equal"]), (0, &Value::Bool(true)), "{doc:#}");
    assert!(doc["connects"].as_u64().unwrap() >= 2);
}

#[test]
fn a_silent_worker_trips_the_breaker_and_resilience_drafts_locally() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("a.trace");
    synth(&trace, "40", "1");
    let worker = Worker::start(&["--demo"]);
    let endpoint = worker.drafting().to_string();
    let silent = ["--fault", "drop=1", "--timeout", "30ms", "--backoff", "0", "--cooldown", "10"];
    let resilient = [&silent[..], &["--policy", "resilience"]].concat();
    let (doc, code) = replay(&trace, &endpoint, &resilient);
    assert_eq!(code, 0, "{doc:#}");
    // 3 failures open the breaker; then 10 rounds without a STEP and one failing probe, three times over,
    // and 4 rounds of the next cooldown.
    assert_eq!(doc["failed"], 6, "{doc:#}");
    assert_eq!(doc["fallback"]["cooldown"], 34, "{doc:#}");
    assert_eq!((&doc["used"]["remote"], &doc["used"]["zeros"]), (&0.into(), &0.into()));
    assert!(doc["used"]["local"].as_u64().unwrap() > 30);
    let (_, code) = replay(&trace, &endpoint, &[&silent[..], &["--on-fail", "raise"]].concat());
    assert_eq!(code, 1);
}

#[test]
fn a_recorded_replay_agrees_with_itself_and_shadow_diff_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    synth(&path("a.trace"), "50", "2");
    let worker = Worker::start(&["--demo"]);
    let endpoint = worker.drafting().to_string();
    let recorded = path("r.trace");
    let output = ["--margins", "-o", recorded.to_str().unwrap()];
    let csv = path("rounds.csv");
    let log = ["--round-log", csv.to_str().unwrap()];
    let (_, code) = replay(&path("a.trace"), &endpoint, &[&output[..], &log].concat());
    assert_eq!(code, 0);
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 51);
    let (doc, code) = replay(&recorded, &endpoint, &["--min-agreement", "1"]);
    assert_eq!((code, &doc["recorded"]["agreement"]), (0, &1.0.into()), "{doc:#}");
    let plain = path("a.trace");
    let expect = ["--expect", recorded.to_str().unwrap(), "--min-agreement", "1"];
    let (doc, code) = replay(&plain, &endpoint, &expect);
    assert_eq!((code, &doc["recorded"]["agreement"]), (0, &1.0.into()), "{doc:#}");
    // A cut replays on its own and drafts what the whole trace drafted.
    let cut = path("cut.trace");
    let done = dspark(&[
        "trace",
        "cut",
        recorded.to_str().unwrap(),
        "20..50",
        "-o",
        cut.to_str().unwrap(),
    ]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let (doc, code) = replay(&cut, &endpoint, &["--min-agreement", "1"]);
    assert_eq!((code, &doc["recorded"]["agreement"]), (0, &1.0.into()), "{doc:#}");
    // Two parts follow each other under sessions of their own.
    let merged = path("m.trace");
    let done = dspark(&[
        "trace",
        "merge",
        recorded.to_str().unwrap(),
        cut.to_str().unwrap(),
        "-o",
        merged.to_str().unwrap(),
    ]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let (doc, code) = replay(&merged, &endpoint, &["--min-agreement", "1"]);
    assert_eq!((code, &doc["rounds"]), (0, &81.into()), "{doc:#}");
}

#[test]
fn swapped_taps_are_found_by_shadow_diff() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    synth(Path::new(&path("a.trace")), "30", "1");
    swap_taps(&path("a.trace"), &path("swapped.trace"));
    let worker = Worker::start(&["--demo"]);
    let endpoint = worker.drafting().to_string();
    for name in ["a", "swapped"] {
        let (source, target) = (path(&format!("{name}.trace")), path(&format!("{name}.drafts")));
        let (_, code) = replay(Path::new(&source), &endpoint, &["--margins", "-o", &target]);
        assert_eq!(code, 0);
    }
    let done = dspark(&["shadow-diff", &path("a.drafts"), &path("swapped.drafts"), "--json"]);
    let doc: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(1), "{doc:#}");
    let first = doc["steady"]["positions"][0]["agreement"].as_f64().unwrap();
    assert!(first < 0.5, "position 0 agrees in {first} of the blocks");
    let svg = path("p.svg");
    let done = dspark(&["shadow-diff", &path("a.drafts"), &path("a.drafts"), "--plot", &svg]);
    assert!(done.status.success());
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
}

/// Rewrites every STEP with the first and the last tap of each row exchanged.
fn swap_taps(from: &str, to: &str) {
    use dspark::protocol::{AppHeader, Op};
    use dspark::trace::{TraceReader, TraceWriter};
    let mut reader = TraceReader::open(std::fs::File::open(from).unwrap(), from).unwrap();
    let file = std::fs::File::create(to).unwrap();
    let mut writer = TraceWriter::create(file, reader.header()).unwrap();
    while let Some(record) = reader.next_record().unwrap() {
        let mut message = record.payload.to_vec();
        let (header, body) = AppHeader::split(record.payload).unwrap();
        if header.op.get() == Op::Step.code() && message.len() > 96 {
            let offset = u32::from_le_bytes(body[20..24].try_into().unwrap()) as usize;
            for row in message[32 + offset..].chunks_mut(1536) {
                let (first, rest) = row.split_at_mut(1024);
                first[..512].swap_with_slice(&mut rest[..512]);
            }
        }
        writer.record(record.kind, record.time_us, &message).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_second_worker_serves_as_the_local_drafter() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("a.trace");
    synth(&trace, "30", "2");
    let (remote, local) = (Worker::start(&["--demo"]), Worker::start(&["--demo"]));
    let (endpoint, second) = (remote.drafting().to_string(), local.drafting().to_string());
    let shadow = ["--policy", "shadow", "--local", &second, "--min-agreement", "1"];
    let (doc, code) = replay(&trace, &endpoint, &shadow);
    assert_eq!((code, &doc["local"]["agreement"]), (0, &1.0.into()), "{doc:#}");
    assert!(doc["local"]["blocks"].as_u64().unwrap() > 30);
}
