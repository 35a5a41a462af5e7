//! The STATS document (contract §6.5, contract-notes D43).

use dspark::protocol::control::reset_request;
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC};
use dspark::protocol::{FrameStatus, ReqEntry};
use serde_json::{Value, json};

use crate::client::{Client, demo, eventually, rows};
use crate::common::frames::{entry, new_owner};
use crate::common::process::Worker;

const SESSION: u32 = 0xdead_beef;

/// Every number of the document is finite and not negative; strict JSON has no other kind of number.
fn check_numbers(at: &str, value: &Value) {
    match value {
        Value::Number(n) => assert!(n.as_f64().unwrap() >= 0.0, "{at}: {n}"),
        Value::Null => panic!("{at} is null instead of absent"),
        Value::Array(items) => items.iter().for_each(|item| check_numbers(at, item)),
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| check_numbers(&format!("{at}.{key}"), value));
        }
        Value::Bool(_) | Value::String(_) => {}
    }
}

const LATENCIES: [&str; 8] = [
    "worker_us_p50",
    "worker_us_p90",
    "worker_us_p99",
    "worker_us_max",
    "recv_to_send_us_p50",
    "recv_to_send_us_p90",
    "recv_to_send_us_p99",
    "recv_to_send_us_max",
];

#[test]
fn before_any_step_counters_are_zero_and_what_is_unknown_is_absent() {
    let worker = demo();
    let mut control = Client::connect(&worker.control());
    let stats = control.stats();
    check_numbers("", &stats);
    for key in [
        "session",
        "steps",
        "rows",
        "rows_bytes",
        "drafted_requests",
        "partial_windows",
        "stale_generation",
        "bad_entries",
        "internal_entries",
        "gpu_mem_bytes",
    ] {
        assert_eq!(stats[key], 0, "{key}");
    }
    assert_eq!(stats["accepted_hist"], json!([0, 0, 0, 0, 0, 0]));
    for key in LATENCIES.into_iter().chain(["client", "last_step_age_s"]) {
        assert_eq!(stats.get(key), None, "{key} is not known yet");
    }
    assert!(stats["uptime_s"].is_number());
    assert_eq!((&stats["backend"], &stats["checkpoint"]), (&"cpu".into(), &"demo".into()));
    assert_eq!(stats["slots"].as_array().unwrap().len(), 4);
    for slot in stats["slots"].as_array().unwrap() {
        assert_eq!((slot.get("generation"), slot.get("lo")), (None, None));
    }
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    client.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1));
    for key in LATENCIES {
        assert_eq!(control.stats().get(key), None, "{key} after one STEP");
    }
    client.step(&[entry(0, 1, 1, 1)], &rows(1, 1));
    for key in LATENCIES {
        assert!(control.stats()[key].as_u64().unwrap() > 0, "{key} after two STEPs");
    }
}

/// An entry as `change` makes it.
fn with(mut entry: ReqEntry, change: impl FnOnce(&mut ReqEntry)) -> ReqEntry {
    change(&mut entry);
    entry
}

#[test]
fn counters_are_what_was_sent() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let k = |k_window| move |e: &mut ReqEntry| e.k_window = k_window;
    // Prefill of two slots: append only, then with a draft.
    client.step(
        &[with(new_owner(0, 1, 0, 8), |e| e.req_flags &= !NEED_DRAFT), new_owner(1, 1, 9, 2)],
        &[rows(0, 8), rows(9, 2)].concat(),
    );
    // Verified rounds: 4 rows of k 5, 6 of 5, 1 of 4, 9 of 5 and 3 of k 255, in slots 0 and 1.
    client.step(&[with(entry(0, 1, 8, 4), k(5))], &rows(8, 4));
    client.step(&[with(entry(0, 1, 12, 6), k(5))], &rows(12, 6));
    client.step(&[with(entry(0, 1, 18, 1), k(4))], &rows(18, 1));
    client.step(&[with(entry(0, 1, 19, 9), k(5))], &rows(19, 9));
    client.step(&[with(entry(1, 1, 11, 3), k(255))], &rows(11, 3));
    // Not counted as acceptance: a resync, a re-draft, and entries that are refused.
    client.step(
        &[with(entry(0, 1, 0, 28), |e| (e.req_flags |= NEW_GEN | RESYNC, e.k_window = 5).1)],
        &rows(0, 28),
    );
    client.step(&[with(entry(0, 1, 0, 0), |e| (e.anchor_pos = 28.into(), e.k_window = 5).1)], &[]);
    client.step(&[with(entry(0, 0, 28, 1), k(5))], &rows(28, 1));
    client.step(&[with(entry(1, 1, 14, 1), |e| e.anchor_pos = 99.into())], &rows(14, 1));
    client.seq += 1;
    client.ask(&reset_request(client.seq, SESSION, 0b10));
    client.ask(&reset_request(client.seq, SESSION, 0b10));
    let stats = client.stats();
    check_numbers("", &stats);
    let row_count = 8 + 2 + 4 + 6 + 1 + 9 + 3 + 28;
    for (key, expected) in [
        ("session", json!(SESSION)),
        ("client", json!("socket")),
        ("steps", json!(10)),
        ("rows", json!(row_count)),
        ("rows_bytes", json!(row_count * 1536)),
        ("drafted_requests", json!(8)),
        ("partial_windows", json!(2)),
        ("stale_generation", json!(1)),
        ("bad_entries", json!(1)),
        ("internal_entries", json!(0)),
        // Accepted: 3 of 5, 5 of 5, 0 of 4, 5 of 5 (never more than was verified), 2 of N.
        ("accepted_hist", json!([1, 0, 1, 1, 0, 2])),
        ("requests", json!({ "hello": 1, "step": 10, "reset": 2, "stats": 0, "ping": 0 })),
    ] {
        assert_eq!(stats[key], expected, "{key}");
    }
    assert_eq!(stats["acceptance"]["verified"], json!([5, 5, 5, 5, 4]));
    assert_eq!(stats["acceptance"]["accepted"], json!([4, 4, 3, 2, 2]));
    assert_eq!((&stats["frames"]["OK"], &stats["frames"]["STALE_SEQ"]), (&12.into(), &1.into()));
    let entries: u64 =
        stats["entries"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(entries, 11);
    let slot = &stats["slots"][0];
    assert_eq!((&slot["lo"], &slot["hi"], &slot["generation"]), (&0.into(), &27.into(), &1.into()));
    assert_eq!((&slot["verified"], &slot["accepted"]), (&19.into(), &13.into()));
    let slot = &stats["slots"][1];
    assert_eq!((slot.get("lo"), &slot["generation"]), (None, &1.into()));
    assert_eq!((&slot["verified"], &slot["accepted"]), (&5.into(), &2.into()));
    assert_eq!(stats["slots"][0]["last_status"], "STALE_GENERATION");
    let document = worker_document(&worker);
    for key in ["steps", "rows", "accepted_hist", "entries", "acceptance"] {
        assert_eq!(document[key], stats[key], "{key} is the same at the control listener");
    }
}

#[test]
fn a_drafting_connection_has_round_trips_while_it_lives() {
    if !crate::common::kernel_tells_round_trips() {
        return;
    }
    let worker = demo();
    let listen = json!(worker.drafting().to_string());
    let seat = || worker_document(&worker)["listeners"].clone();
    assert_eq!(seat(), json!([{ "listen": listen }]), "nobody is there");

    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    client.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1));
    let listeners = seat();
    let connection = &listeners[0]["connection"];
    assert!(connection["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{listeners}");
    for key in ["min_rtt_us", "rtt_us"] {
        let us = connection[key].as_u64().unwrap_or_else(|| panic!("{key}: {listeners}"));
        assert!((1..1_000_000).contains(&us), "{key}: {listeners}");
    }
    assert_eq!((listeners[0]["listen"].clone(), &connection["retransmits"]), (listen, &0.into()));
    // The drafting thread does not ask the kernel.
    let own = client.stats();
    let own = own["listeners"][0]["connection"].as_object().unwrap();
    assert_eq!(own.keys().collect::<Vec<_>>(), ["age_s", "peer"]);

    let newer = Client::open(&worker.drafting(), SESSION, 9);
    let peer = seat()[0]["connection"]["peer"].clone();
    assert_ne!(peer, connection["peer"], "the newest is the one that is served");
    drop((client, newer));
    eventually("the seat is empty", || seat()[0].get("connection").is_none());
}

#[test]
fn every_listener_names_its_own_connection() {
    if !crate::common::kernel_tells_round_trips() {
        return;
    }
    let worker = Worker::start(&["--demo", "--listen", "tcp://127.0.0.1:0"]);
    let second = worker.ready["drafting"][1].as_str().unwrap().parse().unwrap();
    let mut client = Client::connect(&second);
    assert_eq!(client.ping(), FrameStatus::Ok);
    let stats = worker_document(&worker);
    let listeners = stats["listeners"].as_array().unwrap();
    let listens: Vec<_> = listeners.iter().map(|listener| listener["listen"].clone()).collect();
    assert_eq!(worker.ready["drafting"], json!(listens));
    let connected = listeners.iter().map(|listener| listener["connection"]["rtt_us"].is_u64());
    assert_eq!(connected.collect::<Vec<_>>(), [false, true]);
}

fn worker_document(worker: &Worker) -> Value {
    crate::client::stats_of(worker)
}
