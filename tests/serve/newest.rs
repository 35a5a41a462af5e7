//! The newest connection wins, whatever the older one does (contract §7.5, contract-notes D2, D9 to D11).

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dspark::protocol::control::empty_request;
use dspark::protocol::{FrameStatus, Op};
use socket2::{Domain, SockRef, Socket, Type};

use crate::client::{
    Client, assert_serves, demo, descriptors, eventually, framed, hello_message, link, memory_kib,
    rows, stats_of, step_message,
};
use crate::common::frames::{entry, new_owner};

const SESSION: u32 = 0x77;

#[test]
fn a_newcomer_that_says_nothing_displaces_the_client_before_it() {
    let worker = demo();
    let mut first = Client::open(&worker.drafting(), SESSION, 1);
    let idle = Client::connect(&worker.drafting());
    first.assert_closed();
    eventually("both are counted", || {
        let stats = stats_of(&worker);
        (link(&stats, "connections"), link(&stats, "displaced")) == (2, 1)
    });
    drop(idle);
}

#[test]
fn half_a_frame_delays_nobody_and_is_discarded() {
    let worker = demo();
    let mut first = Client::open(&worker.drafting(), SESSION, 1);
    let step = framed(&step_message(2, SESSION, &[new_owner(0, 1, 0, 8)], &rows(0, 8)));
    first.stream.write_all(&step[..step.len() / 2]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let started = Instant::now();
    let mut second = Client::connect(&worker.drafting());
    assert_eq!(second.ask(&hello_message(3, SESSION)).status(), FrameStatus::Ok);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    first.assert_closed();
    // The rest comes too late to be anything; a reset is as good an answer as none.
    let _ = first.stream.write_all(&step[step.len() / 2..]);
    let stats = second.stats();
    assert_eq!((&stats["steps"], &stats["rows"]), (&0.into(), &0.into()));
}

/// A connection that the worker can hardly send anything to.
fn narrow(address: SocketAddr) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(1024).unwrap();
    socket.connect(&address.into()).unwrap();
    Client { stream: socket.into(), session: 0, seq: 0 }
}

fn address(endpoint: &dspark::transport::Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.host.parse().unwrap(), endpoint.port)
}

#[test]
fn a_client_that_never_reads_holds_the_seat_for_a_second_at_most() {
    let worker = demo();
    // 4,000 STATS replies of 2 KiB are more than any socket buffers hold.
    let requests = framed(&empty_request(Op::Stats, 1, 0)).repeat(4000);
    let mut deaf = narrow(address(&worker.drafting()));
    deaf.stream.write_all(&requests).unwrap();
    eventually("the worker is stuck", || {
        let count = |doc: serde_json::Value| doc["requests"]["stats"].as_u64().unwrap();
        let before = count(stats_of(&worker));
        std::thread::sleep(Duration::from_millis(150));
        before > 0 && count(stats_of(&worker)) == before
    });
    assert_serves(&worker.drafting());
    let stats = stats_of(&worker);
    assert!(stats["requests"]["stats"].as_u64().unwrap() < 4000, "the worker was never stuck");
    let lost = link(&stats, "dropped_replies") + link(&stats, "unsent_replies");
    assert_eq!(lost, 1, "the reply it was stuck with is counted");
}

#[test]
fn a_client_that_only_sends_is_displaced_like_any_other() {
    let worker = demo();
    let flood = Client::connect(&worker.drafting());
    let mut stream = flood.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let pings = framed(&empty_request(Op::Ping, 1, 0)).repeat(1000);
        let mut sent = 0u64;
        while stream.write_all(&pings).is_ok() {
            sent += 1000;
        }
        sent
    });
    eventually("the flood arrives", || {
        stats_of(&worker)["requests"]["ping"].as_u64().unwrap() > 1000
    });
    assert_serves(&worker.drafting());
    drop(flood);
    assert!(sending.join().unwrap() > 0);
}

#[test]
fn sixty_silent_connections_leave_the_seat_to_the_last() {
    let worker = demo();
    let before = descriptors(&worker);
    let mut silent: Vec<_> = (0..60).map(|_| Client::connect(&worker.drafting())).collect();
    let mut last = Client::open(&worker.drafting(), SESSION, 1);
    silent.iter_mut().for_each(Client::assert_closed);
    assert_eq!(last.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1)).status(), FrameStatus::Ok);
    let stats = last.stats();
    assert_eq!((link(&stats, "connections"), link(&stats, "displaced")), (61, 60));
    drop(last);
    eventually("descriptors are closed", || descriptors(&worker) <= before);
}

#[test]
fn three_hundred_reconnects_continue_one_session_and_leak_nothing() {
    let worker = demo();
    let mut first = Client::open(&worker.drafting(), SESSION, 1);
    first.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1));
    let before = (descriptors(&worker), memory_kib(&worker, "VmRSS"));
    let row = rows(1, 1);
    for round in 1..=300 {
        let mut client = Client::open(&worker.drafting(), SESSION, 2 * round as u64 + 1);
        let reply = client.step(&[entry(0, 1, round, 1)], &row);
        assert_eq!(reply.step().statuses[0].window_rows.get(), (round + 1).min(128) as u16);
    }
    let stats = stats_of(&worker);
    assert_eq!((link(&stats, "connections"), &stats["steps"]), (301, &301.into()));
    eventually("descriptors are closed", || descriptors(&worker) <= before.0);
    let grown = memory_kib(&worker, "VmRSS").saturating_sub(before.1);
    assert!(grown < 4 * 1024, "{grown} KiB after 300 reconnects");
}

#[test]
fn two_clients_in_turn_are_both_served() {
    let worker = demo();
    for turn in 0..20u64 {
        // Each brings its own session, so that the other's windows are gone.
        let session = 1 + u32::try_from(turn % 2).unwrap();
        let mut client = Client::open(&worker.drafting(), session, turn + 1);
        assert_eq!(client.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1)).status(), FrameStatus::Ok);
    }
    assert_eq!(stats_of(&worker)["steps"], 20);
}

#[test]
fn a_reset_before_the_reply_is_read_ends_only_that_connection() {
    let worker = demo();
    for turn in 0..10u64 {
        let mut client = Client::open(&worker.drafting(), SESSION, 2 * turn + 1);
        client.send(&step_message(2 * turn + 2, SESSION, &[new_owner(0, 1, 0, 64)], &rows(0, 64)));
        SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        assert_serves(&worker.drafting());
    }
}

#[test]
fn requests_in_hand_are_answered_after_the_client_has_said_its_last() {
    let worker = demo();
    let mut client = Client::connect(&worker.drafting());
    client.send(&hello_message(1, SESSION));
    client.send(&step_message(2, SESSION, &[new_owner(0, 1, 0, 2)], &rows(0, 2)));
    client.half_close();
    assert_eq!(client.recv().status(), FrameStatus::Ok);
    assert_eq!(client.recv().step().statuses[0].window_rows.get(), 2);
    client.assert_closed();
}
