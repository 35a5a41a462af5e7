//! Frames that are well framed and wrong: which status, and that nothing of them is applied
//! (contract §9.1, contract-notes D5 to D8, D13, D17 to D19 and §5).

use dspark::protocol::control::{empty_request, reset_request};
use dspark::protocol::{AppHeader, EntryStatus, FrameStatus, HelloReply, Op, ReqEntry};
use zerocopy::{FromBytes, IntoBytes};

use crate::client::{Client, TINY, demo, hello_message, rows, step_message};
use crate::common::frames::{entry, new_owner};

const SESSION: u32 = 0x33;
/// Byte offsets in a STEP message: header, StepHeader at 32, entries at 64.
const BODY_LEN: usize = 20;
const N_REQ: usize = 32 + 8;
const N_ROWS: usize = 32 + 12;
const ROW_BYTES: usize = 32 + 16;
const ROWS_OFFSET: usize = 32 + 20;

/// A good STEP of two entries with three rows each, changed.
fn step(seq: u64, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let entries = [new_owner(0, 1, 0, 3), new_owner(1, 1, 0, 3)];
    let mut message = step_message(seq, SESSION, &entries, &rows(0, 6));
    change(&mut message);
    message
}

fn put<const N: usize>(at: usize, bytes: [u8; N]) -> impl FnOnce(&mut Vec<u8>) {
    move |message| message[at..at + N].copy_from_slice(&bytes)
}

/// Cuts or extends a message and keeps `body_len` true.
fn resize(len: impl FnOnce(usize) -> usize) -> impl FnOnce(&mut Vec<u8>) {
    move |message| {
        message.resize(len(message.len()), 0);
        let body_len = u32::try_from(message.len() - 32).unwrap();
        message[BODY_LEN..][..4].copy_from_slice(&body_len.to_le_bytes());
    }
}

fn refused_steps(seq: u64) -> Vec<(&'static str, Vec<u8>, FrameStatus)> {
    use FrameStatus::{BadVersion, Capacity, Malformed, NoSession, StaleSeq, UnsupportedOp};
    let u32_at = |at, value: u32| step(seq, put(at, value.to_le_bytes()));
    let u16_at = |at, value: u16| step(seq, put(at, value.to_le_bytes()));
    vec![
        ("version 2", u16_at(4, 2), BadVersion),
        ("body_len 0", u32_at(BODY_LEN, 0), Malformed),
        ("body_len + 1", step(seq, |m| m[BODY_LEN] += 1), Malformed),
        ("op 0", u16_at(6, 0), UnsupportedOp),
        ("op 6", u16_at(6, 6), UnsupportedOp),
        ("op 65535", u16_at(6, u16::MAX), UnsupportedOp),
        ("session 0", u32_at(16, 0), NoSession),
        ("another session", u32_at(16, SESSION + 1), NoSession),
        ("seq 0", step(0, |_| {}), StaleSeq),
        ("the last seq", step(seq - 1, |_| {}), StaleSeq),
        ("empty", step(seq, resize(|_| 32)), Malformed),
        ("31 bytes", step(seq, resize(|_| 32 + 31)), Malformed),
        ("cut entry", step(seq, resize(|_| 64 + 63)), Malformed),
        ("n_req 0", u16_at(N_REQ, 0), Malformed),
        ("n_req 5", u16_at(N_REQ, 5), Capacity),
        ("n_req 65535", u16_at(N_REQ, u16::MAX), Capacity),
        ("row_bytes", u32_at(ROW_BYTES, 1538), Malformed),
        ("513 rows", u32_at(N_ROWS, 513), Capacity),
        ("2^32 - 1 rows", u32_at(N_ROWS, u32::MAX), Capacity),
        ("rows_offset 0", u32_at(ROWS_OFFSET, 0), Malformed),
        ("rows_offset 64", u32_at(ROWS_OFFSET, 64), Malformed),
        ("rows_offset 96", u32_at(ROWS_OFFSET, 96), Malformed),
        ("rows_offset 129", u32_at(ROWS_OFFSET, 129), Malformed),
        ("rows_offset past the end", u32_at(ROWS_OFFSET, 1 << 30), Malformed),
        ("rows_offset 2^32 - 64", u32_at(ROWS_OFFSET, u32::MAX - 63), Malformed),
        ("a row short", step(seq, resize(|len| len - TINY.row_bytes())), Malformed),
        ("a byte long", step(seq, resize(|len| len + 1)), Malformed),
        ("slot 4", step(seq, put(64, [4])), Malformed),
        ("slot twice", step(seq, put(64, [1])), Malformed),
        ("a row without entry", u32_at(64 + 16, 2), Malformed),
        ("RESET of 3 bytes", reset(seq, 3), Malformed),
        ("RESET of 5 bytes", reset(seq, 5), Malformed),
        ("RESET with the last seq", reset_request(seq - 1, SESSION, 1), StaleSeq),
        ("PING with a body", with_body(Op::Ping, seq), Malformed),
        ("STATS with a body", with_body(Op::Stats, seq), Malformed),
        ("HELLO with the last seq", hello_message(seq - 1, SESSION), StaleSeq),
        ("HELLO with session 0", hello_message(seq, 0), Malformed),
        ("HELLO of 191 bytes", hello(seq, resize(|_| 32 + 191)), Malformed),
        ("HELLO of version 2", hello(seq, put(4, 2u16.to_le_bytes())), BadVersion),
    ]
}

fn reset(seq: u64, len: usize) -> Vec<u8> {
    let mut message = reset_request(seq, SESSION, 1);
    resize(|_| 32 + len)(&mut message);
    message
}

fn with_body(op: Op, seq: u64) -> Vec<u8> {
    let mut message = empty_request(op, seq, SESSION).to_vec();
    resize(|len| len + 1)(&mut message);
    message
}

fn hello(seq: u64, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = hello_message(seq, SESSION);
    change(&mut message);
    message
}

#[test]
fn a_refused_frame_gets_its_status_and_changes_nothing() {
    let worker = crate::common::process::Worker::start(&["--demo"]);
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    assert_eq!(client.ask(&step(2, |_| {})).status(), FrameStatus::Ok);
    let before = client.stats();
    for (name, message, status) in refused_steps(3) {
        let (sent, _) = AppHeader::split(&message).unwrap();
        let reply = client.ask(&message);
        assert_eq!(reply.status(), status, "{name}");
        let echo = (reply.header.op, reply.header.seq, reply.header.session);
        assert_eq!(echo, (sent.op, sent.seq, sent.session), "{name}");
        assert_eq!((reply.header.version.get(), reply.header.flags.get()), (1, 0), "{name}");
        assert!(reply.body.is_empty(), "{name}");
    }
    let after = client.stats();
    for key in ["steps", "rows", "entries", "session", "drafted_requests"] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(link(&after), (1, 0));
    // The sequence number they all carried is still free, and the windows are what they were.
    let redraft = [entry(0, 1, 3, 0), entry(1, 1, 3, 0)];
    let reply = client.ask(&step_message(3, SESSION, &redraft, &[]));
    assert_eq!(reply.entries(), [EntryStatus::Ok; 2]);
}

fn link(stats: &serde_json::Value) -> (u64, u64) {
    let count = |name: &str| stats["link"][name].as_u64().unwrap();
    (count("connections"), count("displaced"))
}

#[test]
fn a_wrong_magic_is_malformed_and_ends_the_connection() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    assert_eq!(client.ask(&step(2, |m| m[0] ^= 1)).status(), FrameStatus::Malformed);
    client.assert_closed();
    let mut client = Client::open(&worker.drafting(), SESSION, 3);
    assert_eq!(client.ask(&step(4, |_| {})).status(), FrameStatus::Ok);
}

#[test]
fn a_refused_hello_shows_the_workers_own_values() {
    use FrameStatus::{BadVersion, ConfigMismatch, IdentityMismatch};
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let wrong = |at: usize| hello(2, move |m| m[32 + at] ^= 0x40);
    let mut cases = vec![
        ("proto 2 to 3", hello(2, put(32, [2, 0, 0, 0, 3, 0, 0, 0])), BadVersion),
        ("drafter identity", wrong(80), IdentityMismatch),
        ("last digest byte", wrong(111), IdentityMismatch),
        ("no Markov identity", hello(2, put(32 + 112, [0; 32])), IdentityMismatch),
    ];
    for (name, at) in [
        ("num_spec", 8),
        ("window", 12),
        ("hidden", 16),
        ("n_taps", 20),
        ("first tap", 24),
        ("last tap", 32),
        ("payload_kind", 40),
        ("row_bytes", 44),
        ("noise_token_id", 48),
        ("vocab_size", 52),
        ("sample_mode", 68),
    ] {
        cases.push((name, wrong(at), ConfigMismatch));
    }
    for (name, message, status) in cases {
        let reply = client.ask(&message);
        assert_eq!(reply.status(), status, "{name}");
        let own = HelloReply::read_from_bytes(&reply.body).unwrap();
        assert_eq!((own.max_slots.get(), own.window.get(), own.num_spec.get()), (4, 128, 5));
    }
    for at in [36, 56, 60, 64, 72, 76, 144] {
        let mut fresh = Client::connect(&worker.drafting());
        let reply = fresh.ask(&hello(2 + at as u64, move |m| m[32 + at] ^= 0x40));
        assert_eq!(reply.status(), FrameStatus::Ok, "byte {at} is never a reason");
    }
}

#[test]
fn a_bad_entry_leaves_its_neighbours_alone() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let good = new_owner(3, 1, 0, 2);
    let mut alone = Client::open(&worker.drafting(), SESSION + 1, 1);
    let expected = alone.step(&[good], &rows(0, 2)).drafts(0);
    client = Client::open(&worker.drafting(), SESSION, client.seq + 1);
    let change = |f: &dyn Fn(&mut ReqEntry)| {
        let mut bad = new_owner(0, 1, 0, 2);
        f(&mut bad);
        bad
    };
    for bad in [
        change(&|e| e.anchor_pos = 3.into()),
        change(&|e| e.anchor_token = (-1).into()),
        change(&|e| e.anchor_token = 512.into()),
        change(&|e| (e.first_pos, e.anchor_pos) = ((-1).into(), 1.into())),
        change(&|e| e.first_pos = i64::MAX.into()),
    ] {
        let block = [rows(0, 2), rows(0, 2)].concat();
        let reply = client.step(&[bad, good], &block);
        assert_eq!(reply.entries(), [EntryStatus::BadEntry, EntryStatus::Ok], "{bad:?}");
        assert_eq!(reply.step().statuses[0].window_rows.get(), 0);
        assert!(reply.drafts(0).iter().all(|cell| *cell == (0, 0, 0)));
        assert_eq!(reply.drafts(1), expected, "the rows of a bad entry are skipped (D25)");
    }
    // More rows claimed than the block has, the sum beyond 2^32: only that entry is bad.
    client.seq += 1;
    let mut message =
        step_message(client.seq, SESSION, &[good, new_owner(0, 1, 0, 1)], &rows(0, 3));
    message[96 + 16..][..4].copy_from_slice(u32::MAX.as_bytes());
    let reply = client.ask(&message);
    assert_eq!(reply.entries(), [EntryStatus::Ok, EntryStatus::BadEntry]);
    assert_eq!(reply.drafts(0), expected);
}
