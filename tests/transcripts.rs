//! The golden sessions and the golden malformed frames, played against a [`Session`] (contract §5 to §9).
//!
//! Whatever a frame is answered with, the worker goes on: after each malformed one nothing has changed and
//! a correct STEP is served.
#![allow(clippy::unwrap_used)]

mod common;

use common::frames::{self, Answer, handle};
use common::{MINI, hex_field, json_files};
use dspark::protocol::{FrameStatus, HelloReply, HelloRequest, ReqEntry};
use dspark::session::{Seat, Session};
use dspark::window::Window;
use serde_json::Value;
use zerocopy::FromBytes;

/// The session id of the golden frames.
const SESSION: u32 = 0x1D5A_7C3E;

/// The message of the golden HELLO that the mini worker accepts, and that worker.
fn worker() -> (Session, Vec<u8>) {
    let (_, frame) = json_files("wire", "hello-mini").remove(0);
    let message = hex_field(&frame, "message_hex");
    let hello = HelloRequest::ref_from_bytes(&message[32..]).unwrap();
    let reply =
        HelloReply::new(&MINI, hello.drafter_identity, hello.markov_identity, "golden worker");
    (Session::new(MINI, reply), message)
}

/// Frame status and entries are as `expected` says; `window_rows` null is bounded only.
fn assert_answer(what: &str, answer: &Answer, entries: &[ReqEntry], expected: &Value) {
    let status = u32::try_from(expected["frame_status"].as_u64().unwrap()).unwrap();
    let refused = &answer.refused;
    assert_eq!(Some(answer.status), FrameStatus::from_code(status), "{what}: {refused:?}");
    assert_eq!(answer.status.name(), expected["name"], "{what}");
    let Some(wanted) = expected.get("entries").and_then(Value::as_array) else {
        assert!(answer.outcomes.is_empty(), "{what}");
        return;
    };
    assert_eq!(answer.outcomes.len(), wanted.len(), "{what}");
    for (i, (outcome, wanted)) in answer.outcomes.iter().zip(wanted).enumerate() {
        assert_eq!(outcome.status.code(), wanted["status"], "{what}: status of entry {i}");
        assert_eq!(outcome.status.name(), wanted["name"], "{what}: status of entry {i}");
        assert_eq!(outcome.generation, wanted["generation"], "{what}: echo of entry {i}");
        if wanted["window_rows"].is_null() {
            let anchor = entries[i].anchor_pos.get();
            let most = anchor.clamp(0, i64::from(MINI.window));
            assert!(i64::from(outcome.window_rows) <= most, "{what}: rows of entry {i}");
        } else {
            assert_eq!(outcome.window_rows, wanted["window_rows"], "{what}: rows of entry {i}");
        }
    }
}

fn spans(windows: &[Window]) -> Vec<Value> {
    let span = |w: &Window| w.span.map_or(Value::Null, |s| serde_json::json!([s.lo, s.hi]));
    windows.iter().map(span).collect()
}

/// The entries of a golden STEP, read without judging its layout.
fn entries_of(message: &[u8], n: usize) -> Vec<ReqEntry> {
    let entry = |i: usize| ReqEntry::read_from_bytes(&message[64 + 32 * i..96 + 32 * i]).unwrap();
    (0..n).map(entry).collect()
}

#[test]
fn golden_sessions_are_answered_frame_by_frame() {
    let (mut sessions, mut sent) = (0, 0);
    for (name, transcript) in json_files("wire", "session-") {
        let (mut session, _) = worker();
        let mut seat = Seat::default();
        for event in transcript["events"].as_array().unwrap() {
            let what = format!("{name}: {}", event["do"].as_str().unwrap());
            if event.get("send_hex").is_none() {
                // The only other thing a client does is to come back on a new connection.
                assert!(what.ends_with("closes the connection and opens a new one"), "{what}");
                seat = Seat::default();
                continue;
            }
            let message = hex_field(event, "send_hex");
            let answer = handle(&mut session, &mut seat, &message, false);
            let entries = entries_of(&message, answer.outcomes.len());
            assert_answer(&what, &answer, &entries, event);
            if let Some(after) = event.get("windows_after") {
                assert_eq!(&Value::from(spans(session.windows())), after, "{what}");
            }
            sent += 1;
        }
        sessions += 1;
    }
    assert_eq!((sessions, sent), (8, 62));
}

#[test]
fn golden_malformed_frames_change_nothing_and_the_next_step_is_served() {
    let mut seen = 0;
    for (name, frame) in json_files("wire", "malformed-") {
        let (mut session, hello) = worker();
        let mut seat = Seat::default();
        let greeted = !frame["state"].as_str().unwrap().starts_with("no HELLO");
        if greeted {
            let answer = handle(&mut session, &mut seat, &hello, false);
            assert_eq!(answer.status, FrameStatus::Ok, "{name}");
        }
        let before = (session.id(), session.last_seq(), session.windows().to_vec());
        let message = hex_field(&frame, "message_hex");
        assert_eq!(frame["tcp_prefix"], message.len(), "{name}");
        let answer = handle(&mut session, &mut seat, &message, false);
        let entries = entries_of(&message, answer.outcomes.len());
        assert_answer(&name, &answer, &entries, &frame["expect"]);
        let closes = answer.refused.as_ref().is_some_and(|r| r.closes());
        assert_eq!(closes, name == "malformed-magic", "{name}");
        if answer.status == FrameStatus::Ok {
            // Every entry of these is refused: no rows, but the STEP counts and a generation may stay.
            assert!(answer.plan.appends.is_empty() && answer.plan.drafts.is_empty(), "{name}");
            assert!(session.windows().iter().all(|w| w.span.is_none()), "{name}");
        } else {
            let after = (session.id(), session.last_seq(), session.windows().to_vec());
            assert_eq!(before, after, "{name}");
        }
        if !greeted || closes {
            seat = Seat::default();
            let mut again = hello.clone();
            again[8..16].copy_from_slice(&50u64.to_le_bytes());
            let answer = handle(&mut session, &mut seat, &again, false);
            assert_eq!(answer.status, FrameStatus::Ok, "{name}");
        }
        let entries = [frames::new_owner(0, 1, 0, 3), frames::new_owner(3, 1, 0, 2)];
        let step = frames::step(&MINI, 100, SESSION, &entries, false);
        let answer = handle(&mut session, &mut seat, &step, false);
        assert_eq!(answer.status, FrameStatus::Ok, "{name}");
        let rows: Vec<u16> = answer.outcomes.iter().map(|o| o.window_rows).collect();
        assert_eq!((rows, answer.plan.drafts.len()), (vec![3, 2], 2), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 53);
}
