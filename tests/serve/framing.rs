//! Lengths and pieces of frames (contract §5, contract-notes D4, D9).

use std::io::Write;
use std::time::Duration;

use dspark::protocol::control::empty_request;
use dspark::protocol::{AppHeader, FrameStatus, Op};
use zerocopy::IntoBytes;

use crate::client::{
    Client, TINY, assert_serves, demo, descriptors, eventually, framed, hello_message, link,
    memory_kib, rows, stats_of, step_message,
};
use crate::common::frames::{entry, new_owner};
use crate::common::{hex_field, json_files};

const SESSION: u32 = 0x51;
const MIB: usize = 1 << 20;

#[test]
fn every_stream_fixture_gets_the_replies_it_names() {
    let worker = demo();
    for (name, fixture) in json_files("wire", "stream-") {
        let stream = hex_field(&fixture, "stream_hex");
        let mut client = Client::connect(&worker.drafting());
        client.stream.write_all(&stream).unwrap();
        let expect = fixture["expect"].as_str().unwrap();
        let replies = match expect.split_once(' ').unwrap().0 {
            "no" => 0,
            "one" => 1,
            "two" => 2,
            other => panic!("{name}: {other}"),
        };
        for index in 0..replies {
            let reply = client.recv();
            let sent = AppHeader::split(&stream[index * 36 + 4..]).unwrap().0;
            assert_eq!(reply.status(), FrameStatus::Ok, "{name}");
            assert_eq!(reply.header.seq, sent.seq, "{name}");
        }
        if replies == 0 {
            client.assert_closed();
        }
        assert_serves(&worker.drafting());
    }
}

#[test]
fn a_length_outside_its_limits_closes_the_connection_and_costs_no_memory() {
    let worker = demo();
    assert_serves(&worker.drafting());
    let before = (descriptors(&worker), memory_kib(&worker, "VmHWM"));
    for len in [0, 31, 16 * MIB as u32 + 1, u32::MAX] {
        for _ in 0..10 {
            let mut client = Client::connect(&worker.drafting());
            client.stream.write_all(&len.to_le_bytes()).unwrap();
            client.assert_closed();
        }
        assert_serves(&worker.drafting());
    }
    assert_eq!(link(&stats_of(&worker), "bad_lengths"), 40);
    eventually("descriptors are closed", || descriptors(&worker) <= before.0);
    let grown = memory_kib(&worker, "VmHWM") - before.1;
    assert!(grown < 4 * 1024, "{grown} KiB for frames that were never read");
}

#[test]
fn a_frame_cut_anywhere_is_not_applied() {
    let worker = demo();
    let mut seq = 1;
    let mut client = Client::open(&worker.drafting(), SESSION, seq);
    let first = client.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1));
    assert_eq!(first.status(), FrameStatus::Ok);
    let whole = |seq| framed(&step_message(seq, SESSION, &[entry(0, 1, 1, 1)], &rows(1, 1)));
    let len = whole(0).len();
    let cuts = (1..=4).chain([5, 35, 36, 37, 67, 68, 99, 100, 131, 132, 133, 1000, len - 1]);
    let (mut n, mut held) = (0, None);
    for cut in cuts {
        seq += 2;
        let mut client = Client::open(&worker.drafting(), SESSION, seq);
        client.stream.write_all(&whole(seq + 1)[..cut]).unwrap();
        n += 1;
        // Alternately the end of the connection and a newer one cut the frame off.
        if n % 2 == 0 {
            drop(client);
            eventually("the cut is seen", || link(&stats_of(&worker), "cut_frames") == n / 2);
        } else {
            held = Some(client);
        }
    }
    drop(held);
    let stats = stats_of(&worker);
    assert_eq!((&stats["steps"], &stats["rows"]), (&1.into(), &1.into()));
    assert_eq!(stats["slots"][0]["hi"], 0);
    let mut client = Client::open(&worker.drafting(), SESSION, seq + 2);
    assert_eq!(client.step(&[entry(0, 1, 1, 1)], &rows(1, 1)).step().statuses[0].window_rows, 2);
}

#[test]
fn a_frame_may_arrive_in_any_pieces() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let message = |seq, slot| step_message(seq, SESSION, &[new_owner(slot, 1, 0, 2)], &rows(0, 2));
    let whole = client.ask(&message(2, 0));
    for byte in framed(&message(3, 1)) {
        client.stream.write_all(&[byte]).unwrap();
    }
    let bytewise = client.recv();
    for segment in framed(&message(4, 2)).chunks(1448) {
        client.stream.write_all(segment).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let segments = client.recv();
    assert_eq!(bytewise.drafts(0), whole.drafts(0));
    assert_eq!(segments.drafts(0), whole.drafts(0));
    assert_eq!(client.stats()["steps"], 3);
}

#[test]
fn frames_in_one_segment_are_answered_in_order() {
    let worker = demo();
    let mut client = Client::connect(&worker.drafting());
    let frames = [
        hello_message(1, SESSION),
        step_message(2, SESSION, &[new_owner(0, 1, 0, 1)], &rows(0, 1)),
        step_message(3, SESSION, &[entry(0, 1, 1, 1)], &rows(1, 1)),
        empty_request(Op::Ping, 4, SESSION).to_vec(),
    ];
    let segment: Vec<u8> = frames.iter().flat_map(|message| framed(message)).collect();
    client.stream.write_all(&segment).unwrap();
    for (seq, op) in (1..=4).zip([Op::Hello, Op::Step, Op::Step, Op::Ping]) {
        let reply = client.recv();
        assert_eq!((reply.header.seq.get(), reply.header.op.get()), (seq, op.code()));
        assert_eq!(reply.status(), FrameStatus::Ok);
    }
}

#[test]
fn the_largest_step_is_served_and_the_frame_limit_is_16_mib() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let before = memory_kib(&worker, "VmRSS");
    let entries: Vec<_> = (0..4).map(|slot| new_owner(slot, 1, 0, 128)).collect();
    let block: Vec<u8> = rows(0, 128).repeat(4);
    let plain = client.step(&entries, &block);
    // The row block may lie anywhere behind the entries: here at the end of the largest aligned frame.
    let body_len = 16 * MIB - 64;
    let rows_offset = (body_len - 512 * TINY.row_bytes()) as u32;
    client.seq += 1;
    let mut message = step_message(client.seq, SESSION, &entries, &block);
    message[20..24].copy_from_slice(&(body_len as u32).to_le_bytes());
    message[32 + 20..][..4].copy_from_slice(&rows_offset.to_le_bytes());
    message.truncate(message.len() - block.len());
    message.resize(32 + rows_offset as usize, 0);
    message.extend_from_slice(&block);
    let largest = client.ask(&message);
    for slot in 0..4 {
        assert_eq!(largest.drafts(slot), plain.drafts(slot));
    }
    // A whole frame at the limit is read and judged: a PING has no body.
    let body_len = (16 * MIB - 32) as u32;
    let mut message = AppHeader::request(Op::Ping, 1, 0, body_len).as_bytes().to_vec();
    message.resize(16 * MIB, 0);
    assert_eq!(client.ask(&message).status(), FrameStatus::Malformed);
    assert_eq!(client.ping(), FrameStatus::Ok);
    let grown = memory_kib(&worker, "VmRSS").saturating_sub(before);
    assert!(grown < 24 * 1024, "{grown} KiB beyond the one frame buffer of 16 MiB");
}
