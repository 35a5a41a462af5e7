//! One session for the whole worker, over reconnects and listeners (contract §7.5, contract-notes D12
//! to D16).

use dspark::protocol::{EntryStatus, FrameStatus, ReqEntry};

use crate::client::{Client, demo, hello_message, rows, step_message};
use crate::common::frames::{entry, new_owner};
use crate::common::process::Worker;

const ONE: u32 = 0x1111;
const TWO: u32 = 0x2222;

/// One row for slot 0 at `position`.
fn row(seq: u64, session: u32, position: i64) -> Vec<u8> {
    step_message(seq, session, &[entry(0, 5, position, 1)], &rows(position, 1))
}

/// A draft for slot 0 without new rows.
fn redraft(seq: u64, session: u32, generation: u32, anchor_pos: i64) -> Vec<u8> {
    let entry = ReqEntry { anchor_pos: anchor_pos.into(), ..entry(0, generation, 0, 0) };
    step_message(seq, session, &[entry], &[])
}

#[test]
fn listeners_share_the_session_and_each_connection_needs_its_own_hello() {
    let worker = Worker::start(&["--demo", "--listen", "tcp://127.0.0.1:0"]);
    let second = worker.ready["drafting"][1].as_str().unwrap().parse().unwrap();
    let mut a = Client::open(&worker.drafting(), ONE, 1);
    let mut b = Client::connect(&second);
    assert_eq!(a.ask(&row(2, ONE, 0)).entries(), [EntryStatus::Ok]);
    assert_eq!(b.ask(&row(3, ONE, 1)).status(), FrameStatus::NoSession);
    assert_eq!(b.ask(&hello_message(2, ONE)).status(), FrameStatus::StaleSeq);
    assert_eq!(b.ask(&hello_message(3, ONE)).status(), FrameStatus::Ok);
    assert_eq!(b.ask(&row(4, ONE, 1)).step().statuses[0].window_rows.get(), 2);
    assert_eq!(a.ask(&row(4, ONE, 2)).status(), FrameStatus::StaleSeq);
    assert_eq!(a.ask(&row(5, ONE, 2)).step().statuses[0].window_rows.get(), 3);
    // Another session takes the worker over; the old one must not reach into it.
    assert_eq!(b.ask(&hello_message(1, TWO)).status(), FrameStatus::Ok);
    assert_eq!(a.ask(&row(6, ONE, 3)).status(), FrameStatus::NoSession);
    assert_eq!(a.ask(&row(2, TWO, 3)).status(), FrameStatus::NoSession);
    assert_eq!(b.ask(&redraft(2, TWO, 5, 3)).entries(), [EntryStatus::BadEntry]);
    assert_eq!(a.ping(), FrameStatus::Ok);
}

#[test]
fn a_reconnect_keeps_windows_and_the_last_sequence_number() {
    let worker = demo();
    let connect = || Client::connect(&worker.drafting());
    let mut client = Client::open(&worker.drafting(), ONE, 10);
    assert_eq!(client.ask(&row(1 << 40, ONE, 0)).entries(), [EntryStatus::Ok]);
    drop(client);
    let mut client = connect();
    let late = (1 << 40) + 1;
    assert_eq!(client.ask(&row(late, ONE, 1)).status(), FrameStatus::NoSession);
    assert_eq!(client.ask(&hello_message(11, ONE)).status(), FrameStatus::StaleSeq);
    assert_eq!(client.ask(&row(late, ONE, 1)).status(), FrameStatus::NoSession);
    assert_eq!(client.ask(&hello_message(late, ONE)).status(), FrameStatus::Ok);
    assert_eq!(client.ask(&row(late, ONE, 1)).status(), FrameStatus::StaleSeq);
    assert_eq!(client.ask(&redraft(late + 1, ONE, 5, 1)).entries(), [EntryStatus::Ok]);
    assert_eq!(client.ask(&redraft(u64::MAX, ONE, 5, 1)).entries(), [EntryStatus::Ok]);
    // The last number there is ends the session, not the worker.
    assert_eq!(client.ask(&row(u64::MAX, ONE, 1)).status(), FrameStatus::StaleSeq);
    assert_eq!(connect().ask(&hello_message(u64::MAX, ONE)).status(), FrameStatus::StaleSeq);
    assert_eq!(connect().ask(&hello_message(0, TWO)).status(), FrameStatus::Ok);
}

#[test]
fn a_new_session_drops_windows_and_generations() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), ONE, 1);
    assert_eq!(client.ask(&row(2, ONE, 0)).entries(), [EntryStatus::Ok]);
    let older = step_message(3, ONE, &[new_owner(0, 4, 0, 1)], &rows(0, 1));
    assert_eq!(client.ask(&older).entries(), [EntryStatus::StaleGeneration]);
    let mut client = Client::open(&worker.drafting(), TWO, 1);
    let older = step_message(2, TWO, &[entry(0, 4, 0, 1)], &rows(0, 1));
    assert_eq!(client.ask(&older).entries(), [EntryStatus::Ok]);
    assert_eq!(client.ask(&redraft(3, TWO, 4, 1)).entries(), [EntryStatus::Ok]);
}

#[test]
fn session_zero_is_no_session() {
    let worker = demo();
    let mut client = Client::connect(&worker.drafting());
    assert_eq!(client.ask(&hello_message(1, 0)).status(), FrameStatus::Malformed);
    assert_eq!(client.ask(&row(2, 0, 0)).status(), FrameStatus::NoSession);
    assert_eq!(client.ask(&hello_message(1, ONE)).status(), FrameStatus::Ok);
    assert_eq!(client.ask(&row(2, 0, 0)).status(), FrameStatus::NoSession);
    assert_eq!(client.ask(&row(2, ONE, 0)).entries(), [EntryStatus::Ok]);
}

#[test]
fn a_refused_hello_changes_nothing_and_another_may_follow() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), ONE, 1);
    assert_eq!(client.ask(&row(2, ONE, 0)).entries(), [EntryStatus::Ok]);
    for session in [ONE, TWO] {
        let mut other = hello_message(3, session);
        other[32 + 80] ^= 1;
        assert_eq!(client.ask(&other).status(), FrameStatus::IdentityMismatch);
    }
    assert_eq!(client.ask(&redraft(3, ONE, 5, 1)).entries(), [EntryStatus::Ok]);
    assert_eq!(client.ask(&hello_message(4, ONE)).status(), FrameStatus::Ok);
    assert_eq!(client.ask(&redraft(5, ONE, 5, 1)).entries(), [EntryStatus::Ok]);
}
