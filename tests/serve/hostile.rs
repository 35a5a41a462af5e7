//! Values no healthy client sends: the worker stays, and what it answers is what rank 0 takes
//! (contract-notes D36, D38, §10).

use std::io::{Read, Write};
use std::net::Shutdown;

use dspark::protocol::refusal::{check_frame, check_reply};
use dspark::protocol::step::{NEW_GEN, RESYNC};
use dspark::protocol::{
    AppHeader, EntryStatus, FrameStatus, HelloReply, Limits, ReqEntry, StepRequest,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::client::{
    Client, Random, Reply, TINY, assert_serves, demo, hello_message, rows, step_message,
};
use crate::common::frames::{entry, new_owner};

const SESSION: u32 = 0x66;

/// A row block of `n` rows in which every value is the same bf16.
fn flat(bits: u16, n: usize) -> Vec<u8> {
    bits.to_le_bytes().repeat(n * TINY.row_bytes() / 2)
}

/// A good row block with one bf16 value replaced.
fn spoiled(bits: u16) -> Vec<u8> {
    let mut block = rows(0, 4);
    block[2 * TINY.row_bytes() + 100..][..2].copy_from_slice(&bits.to_le_bytes());
    block
}

#[test]
fn taps_that_are_no_numbers_cost_only_their_own_entry_and_a_resync_heals_it() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let good = client.step(&[new_owner(0, 1, 0, 4)], &rows(0, 4));
    let [inf, nan, minus_inf] = [0x7f80, 0x7fc1, 0xff80];
    for (generation, bits) in (2..).zip([inf, nan, minus_inf]) {
        for block in [flat(bits, 4), spoiled(bits)] {
            let entries = [new_owner(1, generation, 0, 4), new_owner(2, generation, 0, 4)];
            let reply = client.step(&entries, &[block, rows(0, 4)].concat());
            assert_eq!(reply.entries(), [EntryStatus::Internal, EntryStatus::Ok], "{bits:#x}");
            assert!(reply.drafts(0).iter().all(|cell| *cell == (0, 0, 0)));
            assert_eq!(reply.step().statuses[0].window_rows.get(), 0);
            assert_eq!(reply.drafts(1), good.drafts(0));
            // The rows stay until they are replaced.
            let redraft = ReqEntry { anchor_pos: 4.into(), ..entry(1, generation, 0, 0) };
            assert_eq!(client.step(&[redraft], &[]).entries(), [EntryStatus::Internal]);
            let mut resync = entry(1, generation, 0, 4);
            resync.req_flags |= NEW_GEN | RESYNC;
            let healed = client.step(&[resync], &rows(0, 4));
            assert_eq!(healed.entries(), [EntryStatus::Ok]);
            assert_eq!(healed.drafts(0), good.drafts(0));
        }
    }
    assert_eq!(client.stats()["internal_entries"], 12);
}

#[test]
fn huge_tiny_and_zero_taps_give_drafts_rank_0_takes_or_internal() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let [huge, minus_huge, denormal, minus_zero, zero] = [0x7f7f, 0xff7f, 0x0001, 0x8000, 0];
    for (generation, bits) in (1..).zip([huge, minus_huge, denormal, minus_zero, zero]) {
        for block in [flat(bits, 4), spoiled(bits)] {
            client.seq += 1;
            let entries = [new_owner(0, generation, 0, 4)];
            let message = step_message(client.seq, SESSION, &entries, &block);
            let reply = client.ask(&message);
            rank_0_takes(&message, &reply);
            let internal = reply.entries() == [EntryStatus::Internal];
            assert!(!internal || bits & 0x7fff == 0x7f7f, "{bits:#x} is an ordinary number");
        }
    }
    assert_serves(&worker.drafting());
}

/// Rank 0's own check of a reply to `message`, where the message is a STEP to rank 0.
fn rank_0_takes(message: &[u8], reply: &Reply) {
    let (sent, body) = AppHeader::split(message).unwrap();
    let whole = [reply.header.as_bytes(), &reply.body].concat();
    let (status, _) = check_frame(&sent, &whole).unwrap();
    let row_bytes = u32::try_from(TINY.row_bytes()).unwrap();
    let limits = Limits { max_slots: 4, max_rows_per_step: 512, row_bytes };
    match StepRequest::parse(body, &limits) {
        Ok(step) if status == FrameStatus::Ok => {
            if let Err(refusal) = check_reply(&sent, &step, &TINY, &whole) {
                panic!("rank 0 refuses the reply to {:?}: {refusal}", step.entries);
            }
        }
        _ => assert!(reply.body.is_empty() || status == FrameStatus::Ok),
    }
}

#[test]
fn positions_at_the_ends_of_i64_are_positions_or_bad_entries() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let ends = [0, 1, 327_679, 327_680, i64::MAX - 200, i64::MAX - 4, i64::MAX - 1, i64::MAX];
    let mut generation = 0;
    for first in ends.into_iter().chain([-1, i64::MIN, i64::MIN + 1]) {
        for n in [0, 1, 4, 128u32] {
            generation += 1;
            client.seq += 1;
            let entries = [new_owner(0, generation, first, n)];
            let message = step_message(client.seq, SESSION, &entries, &rows(0, n as usize));
            let reply = client.ask(&message);
            rank_0_takes(&message, &reply);
            let valid = first >= 0 && n > 0 && first.checked_add(i64::from(n)).is_some();
            let bad = reply.entries() == [EntryStatus::BadEntry];
            assert_eq!(bad, !valid, "first_pos {first}, {n} rows");
        }
    }
    // Without rows first_pos is ignored, whatever it is.
    client.step(&[new_owner(0, generation, 5, 1)], &rows(5, 1));
    for first in [i64::MIN, -1, i64::MAX] {
        let redraft = ReqEntry { first_pos: first.into(), ..entry(0, generation, 0, 0) };
        let redraft = ReqEntry { anchor_pos: 6.into(), ..redraft };
        assert_eq!(client.step(&[redraft], &[]).entries(), [EntryStatus::PartialWindow]);
    }
    assert_serves(&worker.drafting());
}

/// A value that is often an edge of its type.
fn edge(random: &mut Random) -> u64 {
    const EDGES: [u64; 12] =
        [0, 1, 3, 4, 5, 127, 128, 129, 512, u32::MAX as u64, 1 << 31, i64::MAX as u64];
    match random.below(3) {
        0 => random.next(),
        1 => u64::MAX - random.below(3),
        _ => EDGES[usize::try_from(random.below(12)).unwrap()],
    }
}

/// Overwrites one to three fields with edges.
fn disturb(message: &mut [u8], fields: &[(usize, usize)], random: &mut Random) {
    for _ in 0..=random.below(3) {
        let (at, len) = fields[usize::try_from(random.below(fields.len() as u64)).unwrap()];
        message[at..at + len].copy_from_slice(&edge(random).to_le_bytes()[..len]);
    }
}

#[test]
fn every_field_of_a_step_may_hold_anything() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    // Version, op, body_len; StepHeader; both entries. The session, seq and magic are left alone.
    let mut fields = vec![(20, 4), (32, 8), (40, 2), (42, 2), (44, 4), (48, 4), (52, 4), (56, 8)];
    for entry in [64, 96] {
        let entry_fields = [(0, 1), (1, 1), (2, 1), (3, 1), (4, 4), (8, 8), (16, 4), (20, 4)];
        fields.extend(entry_fields.map(|(at, len)| (entry + at, len)));
        fields.push((entry + 24, 8));
    }
    let mut random = Random(1);
    let mut applied = 0;
    for round in 0..600u32 {
        client.seq += 1;
        let entries = [new_owner(0, round, 0, 2), entry(1, round, i64::from(round), 1)];
        let mut message = step_message(client.seq, SESSION, &entries, &rows(0, 3));
        disturb(&mut message, &fields, &mut random);
        let reply = client.ask(&message);
        rank_0_takes(&message, &reply);
        applied += u64::from(reply.status() == FrameStatus::Ok);
    }
    assert!((100..500).contains(&applied), "{applied} of 600 were applied");
    assert_eq!(client.stats()["steps"], applied);
    // Generations may be anywhere now; a new session starts clean.
    let mut client = Client::open(&worker.drafting(), SESSION + 1, 1);
    assert_eq!(client.step(&[new_owner(0, 1, 0, 2)], &rows(0, 2)).entries(), [EntryStatus::Ok]);
}

#[test]
fn every_field_of_a_header_or_hello_may_hold_anything() {
    let worker = demo();
    let mut fields = vec![(4, 2), (6, 2), (8, 8), (16, 4), (20, 4), (24, 4), (28, 4)];
    fields.extend((0..20).map(|index| (32 + 4 * index, 4)));
    fields.extend([(32 + 80, 8), (32 + 112, 8), (32 + 144, 8), (32 + 184, 8)]);
    let mut random = Random(2);
    let mut client = Client::connect(&worker.drafting());
    for _ in 0..600 {
        let mut message = hello_message(random.next(), 1 + random.below(3) as u32);
        disturb(&mut message, &fields, &mut random);
        let (sent, _) = AppHeader::split(&message).unwrap();
        let reply = client.ask(&message);
        let echo = (reply.header.op, reply.header.seq, reply.header.session);
        assert_eq!(echo, (sent.op, sent.seq, sent.session));
        let own = HelloReply::read_from_bytes(&reply.body);
        assert!(reply.body.is_empty() || own.is_ok_and(|own| own.num_spec.get() == 5));
    }
    assert_serves(&worker.drafting());
}

#[test]
fn garbage_gets_an_error_or_the_end_of_its_connection() {
    let worker = demo();
    let mut random = Random(3);
    for round in 0..60u64 {
        let mut bytes: Vec<u8> = (0..400).map(|_| random.next().to_le_bytes()[0]).collect();
        if round % 2 == 0 {
            // A possible length, so that the garbage is read as a frame.
            bytes[..4].copy_from_slice(&(32 + random.below(300) as u32).to_le_bytes());
        }
        let mut client = Client::connect(&worker.drafting());
        client.stream.write_all(&bytes).unwrap();
        // Closed already, perhaps.
        let _ = client.stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // Closing with bytes unread resets the connection; that is an end too.
        let _ = client.stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.len() == 36, "{} bytes", answer.len());
    }
    assert_serves(&worker.drafting());
}
