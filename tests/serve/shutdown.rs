//! How a worker ends and starts again.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use dspark::protocol::{AppHeader, FrameStatus};

use crate::client::{Client, assert_serves, demo, hello_message, rows, step_message};
use crate::common::frames::new_owner;
use crate::common::process::{Worker, dspark, run};

const SESSION: u32 = 0x5d;

#[test]
fn sigterm_and_sigint_end_the_worker_with_0_as_soon_as_it_is_ready() {
    for signal in ["TERM", "INT"] {
        for _ in 0..3 {
            assert_eq!(demo().signal(signal).code(), Some(0), "SIG{signal}");
        }
    }
}

#[test]
fn a_step_sent_before_sigterm_is_answered_whole_or_not_at_all() {
    for _ in 0..5 {
        let mut worker = demo();
        let mut client = Client::open(&worker.drafting(), SESSION, 1);
        client.send(&step_message(2, SESSION, &[new_owner(0, 1, 0, 128)], &rows(0, 128)));
        assert_eq!(worker.signal("TERM").code(), Some(0));
        let mut answer = Vec::new();
        // Bytes the worker did not read reset the connection.
        let _ = client.stream.read_to_end(&mut answer);
        if !answer.is_empty() {
            let (header, body) = AppHeader::split(&answer[4..]).unwrap();
            assert_eq!(header.frame_status(), Some(FrameStatus::Ok));
            assert_eq!(header.body_len.get() as usize, body.len());
        }
    }
}

#[test]
fn a_client_in_the_middle_of_anything_does_not_delay_the_end() {
    let mut worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let step = step_message(2, SESSION, &[new_owner(0, 1, 0, 2)], &rows(0, 2));
    std::io::Write::write_all(&mut client.stream, &step[..100]).unwrap();
    let _control = Client::connect(&worker.control());
    let started = std::time::Instant::now();
    worker.terminate();
    assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
}

#[test]
fn a_worker_restarts_on_its_port_at_once() {
    let mut worker = demo();
    let endpoint = worker.drafting().to_string();
    let control = worker.control().to_string();
    for signal in ["TERM", "KILL"] {
        let mut client = Client::open(&worker.drafting(), SESSION, 1);
        client.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1));
        worker.signal(signal);
        let again =
            ["serve", "--demo", "--json", "-q", "--listen", &endpoint, "--control", &control];
        worker = Worker::launch(&mut dspark(&again));
        assert_eq!(worker.drafting().to_string(), endpoint);
        let mut client = Client::connect(&worker.drafting());
        assert_eq!(client.ask(&hello_message(1, SESSION + 1)).status(), FrameStatus::Ok);
    }
}

#[test]
fn a_second_worker_on_a_port_in_use_ends_with_3_and_harms_nobody() {
    let worker = demo();
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let (used, control) = (worker.drafting().to_string(), worker.control().to_string());
    let free = "tcp://127.0.0.1:0";
    for (listen, control) in [(used.as_str(), free), (free, control.as_str()), (free, &used)] {
        let said = run(&["serve", "--demo", "--listen", listen, "--control", control]);
        assert_eq!(said.code, Some(3), "{}", said.err);
        assert!(said.err.contains("is in use"), "{}", said.err);
        assert!(said.out.is_empty());
    }
    assert_eq!(client.ping(), FrameStatus::Ok, "its client is still connected");
    assert_serves(&worker.control());
}

#[test]
fn a_worker_outlives_the_readers_of_its_output() {
    // A log pipe that breaks must not take the drafter down with it.
    let arguments = ["serve", "--demo", "--json", "--listen", "tcp://127.0.0.1:0", "-vv"];
    let mut command = dspark(&arguments);
    command.args(["--control", "tcp://127.0.0.1:0"]).stderr(Stdio::piped());
    let mut worker = Worker::launch(&mut command);
    let mut log = Some(BufReader::new(worker.stderr()));
    for session in 1..20 {
        let mut client = Client::open(&worker.drafting(), session, 1);
        assert_eq!(client.step(&[new_owner(0, 1, 0, 1)], &rows(0, 1)).status(), FrameStatus::Ok);
        if let Some(mut log) = log.take() {
            let mut line = String::new();
            log.read_line(&mut line).unwrap();
            assert!(!line.is_empty(), "the worker logs");
        }
    }
    worker.terminate();
}
