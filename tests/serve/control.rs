//! The control listener: for anybody, at any time, without touching the drafting session
//! (contract-notes D1), and PINGs on the drafting listener (contract §6.6).

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dspark::protocol::control::{empty_request, reset_request};
use dspark::protocol::{EntryStatus, FrameStatus, Op};

use crate::client::{
    Client, assert_serves, demo, framed, hello_message, link, rows, stats_of, step_message,
};
use crate::common::frames::{entry, new_owner};

const SESSION: u32 = 0xc0;

#[test]
fn more_clients_than_seats_wait_for_a_seat() {
    let worker = demo();
    let mut clients: Vec<_> = (0..20).map(|_| Client::connect(&worker.control())).collect();
    let waiting = clients.split_off(16);
    for client in &mut clients {
        assert_eq!(client.ping(), FrameStatus::Ok);
        assert_eq!(client.stats()["steps"], 0);
    }
    drop(clients);
    for mut client in waiting {
        assert_eq!(client.ping(), FrameStatus::Ok);
    }
}

#[test]
fn other_operations_are_unsupported_and_malformed_frames_are_refused() {
    use FrameStatus::{BadVersion, Malformed, UnsupportedOp};
    let worker = demo();
    let mut client = Client::connect(&worker.control());
    let ping = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = empty_request(Op::Ping, 5, 6).to_vec();
        change(&mut message);
        message
    };
    let step = step_message(2, SESSION, &[new_owner(0, 1, 0, 1)], &rows(0, 1));
    for (name, message, status) in [
        ("HELLO", hello_message(1, SESSION), UnsupportedOp),
        ("STEP", step, UnsupportedOp),
        ("RESET", reset_request(3, SESSION, u32::MAX), UnsupportedOp),
        ("op 6", ping(&|m| m[6] = 6), UnsupportedOp),
        ("version 2", ping(&|m| m[4] = 2), BadVersion),
        ("body_len 1", ping(&|m| m[20] = 1), Malformed),
        ("PING with a body", ping(&|m| (m[20] = 1, m.push(0)).1), Malformed),
        ("STATS with a body", ping(&|m| (m[6] = 4, m[20] = 1, m.push(0)).2), Malformed),
    ] {
        assert_eq!(client.ask(&message).status(), status, "{name}");
    }
    assert_eq!(client.ping(), FrameStatus::Ok, "all of that kept the connection open");
    assert_eq!(client.ask(&ping(&|m| m[0] = 0)).status(), Malformed);
    client.assert_closed();
    for len in [0, 31, 5000, u32::MAX] {
        let mut client = Client::connect(&worker.control());
        client.stream.write_all(&len.to_le_bytes()).unwrap();
        client.assert_closed();
    }
    assert_serves(&worker.control());
    assert_eq!(stats_of(&worker)["session"], 0);
}

#[test]
fn polling_never_disturbs_the_drafting_session() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let (done, polls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let mut poll = Client::connect(&worker.control());
                    assert_eq!(poll.ping(), FrameStatus::Ok);
                    assert!(poll.stats()["steps"].as_u64().unwrap() <= 100);
                    polls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for position in 0..100 {
            let mut next = entry(0, 1, position, 1);
            next.anchor_token = i32::try_from(position).unwrap().into();
            assert_eq!(client.step(&[next], &rows(position, 1)).entries(), [EntryStatus::Ok]);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(polls.load(Ordering::Relaxed) > 3);
    let stats = stats_of(&worker);
    assert_eq!((link(&stats, "connections"), link(&stats, "displaced")), (1, 0));
    assert_eq!((&stats["steps"], &stats["session"]), (&100.into(), &SESSION.into()));
}

#[test]
fn thousands_of_pings_on_the_drafting_listener_change_nothing() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    client.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1));
    let pings: Vec<u8> =
        (0..50).flat_map(|seq| framed(&empty_request(Op::Ping, 1000 + seq, 0))).collect();
    for _ in 0..100 {
        client.stream.write_all(&pings).unwrap();
        for seq in 0..50 {
            let reply = client.recv();
            assert_eq!((reply.header.seq.get(), reply.status()), (1000 + seq, FrameStatus::Ok));
        }
    }
    // Sequence number 3 is still free: none of the pings counted.
    let reply = client.step(&[entry(0, 1, 1, 1)], &rows(1, 1));
    assert_eq!(reply.step().statuses[0].window_rows.get(), 2);
    assert_eq!(client.stats()["requests"]["ping"], 5000);
}
