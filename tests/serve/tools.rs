//! `ping` and `stats` against a live worker, and against none.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use dspark::protocol::{AppHeader, FrameStatus};
use serde_json::Value;
use zerocopy::IntoBytes;

use crate::client::{Client, demo, framed, link, rows, stats_of};
use crate::common::frames::new_owner;
use crate::common::process::{dspark, run};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A loopback URL on which nobody listens.
fn nobody() -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("tcp://127.0.0.1:{port}")
}

#[test]
fn ping_measures_round_trips_finer_than_a_microsecond() {
    let worker = demo();
    let url = worker.control().to_string();
    let said = run(&["ping", "--json", "--count", "50", "--interval", "0", &url]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let doc = json(&said.out);
    assert_eq!((&doc["sent"], &doc["received"], &doc["lost"]), (&50.into(), &50.into(), &0.into()));
    let rtt = |key: &str| doc["rtt_us"][key].as_f64().unwrap();
    let ranks = ["min", "p50", "p90", "p99", "max"].map(rtt);
    assert!(ranks[0] > 0.0 && ranks.is_sorted(), "{ranks:?}");
    assert!(rtt("mean") >= rtt("min") && rtt("stddev") >= 0.0);
    let said = run(&["ping", "--count", "2", "--interval", "1ms", &url]);
    assert_eq!(said.code, Some(0));
    assert!(said.out.starts_with("2 sent, 2 received, 0 lost\nmin "), "{}", said.out);
    assert_eq!(said.err.lines().count(), 2, "{}", said.err);
}

#[test]
fn ping_without_any_reply_exits_with_3_and_with_some_lost_with_1() {
    let said = run(&["ping", "--count", "2", "--interval", "0", "--json", &nobody()]);
    assert_eq!(said.code, Some(3));
    let doc = json(&said.out);
    assert_eq!(
        (&doc["received"], &doc["lost"], &doc["rtt_us"]),
        (&0.into(), &2.into(), &Value::Null)
    );
    // Answers the first PING, then hangs up and is gone.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let once = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut request = [0; 36];
        stream.read_exact(&mut request).unwrap();
        let (header, _) = AppHeader::split(&request[4..]).unwrap();
        stream.write_all(&framed(header.reply(FrameStatus::Ok, 0).as_bytes())).unwrap();
    });
    let said = run(&["ping", "--count", "3", "--interval", "50ms", &url]);
    once.join().unwrap();
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.out.starts_with("3 sent, 1 received, 2 lost"), "{}", said.out);
    assert!(said.err.contains("2 of 3 pings were lost"), "{}", said.err);
}

#[test]
fn ping_wait_returns_with_the_first_reply_or_at_its_limit() {
    let worker = demo();
    let said = run(&["ping", "--json", "--wait", "20s", &worker.control().to_string()]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(json(&said.out)["rtt_us"].as_f64().unwrap() > 0.0);
    let started = Instant::now();
    let said = run(&["ping", "--wait", "250ms", &nobody()]);
    assert_eq!(said.code, Some(3));
    assert!(started.elapsed() >= Duration::from_millis(100), "it tries again");
    // Nobody accepts here, so that a PING is never answered: the limit cuts the attempt's own time short.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let started = Instant::now();
    let said = run(&["ping", "--timeout", "30s", "--wait", "300ms", &url]);
    assert_eq!(said.code, Some(3));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // What this build cannot do will not come by waiting.
    let started = Instant::now();
    assert_eq!(run(&["ping", "--wait", "1m", "o1tcp://127.0.0.1:9"]).code, Some(6));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn stats_prints_the_document_or_a_summary() {
    let worker = demo();
    let url = worker.control().to_string();
    let said = run(&["stats", &url]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("acceptance n/a"), "{}", said.out);
    let nobody_there = format!("link round trip  n/a (no client on {})", worker.drafting());
    assert!(said.out.contains(&nobody_there), "{}", said.out);
    assert!(said.out.contains("worker  n/a (fewer than 2 steps)"), "{}", said.out);
    let mut client = Client::open(&worker.drafting(), 7, 1);
    for generation in 1..4 {
        client.step(&[new_owner(0, generation, 0, 3)], &rows(0, 3));
    }
    let said = run(&["stats", "--json", &url]);
    let doc = json(&said.out);
    assert_eq!((&doc["steps"], &doc["schema"]), (&3.into(), &1.into()));
    assert!(doc["asking_us"].as_f64().unwrap() > 0.0, "{doc}");
    let said = run(&["stats", &url]);
    let round_trip = said.out.lines().find(|line| line.starts_with("link round trip  min "));
    assert!(round_trip.is_some_and(|line| line.contains(" µs  smoothed ")), "{}", said.out);
    assert!(said.out.contains("\nasking for this  "), "{}", said.out);
    assert!(said.out.contains("session 0x00000007  client socket"), "{}", said.out);
    assert!(said.out.contains("steps 3  rows 9  drafted 3"), "{}", said.out);
    assert!(!said.out.contains("NaN"), "{}", said.out);
    assert_eq!(link(&stats_of(&worker), "displaced"), 0);
    assert_eq!(run(&["stats", &nobody()]).code, Some(3));
}

#[test]
fn a_reader_that_goes_away_ends_stats_quietly() {
    let worker = demo();
    let url = worker.control().to_string();
    for format in [&["--json"][..], &[]] {
        let mut command = dspark(&[&["stats", "--watch", "20ms", &url], format].concat());
        let mut watch =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start stats");
        let mut lines = BufReader::new(watch.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        if !format.is_empty() {
            assert_eq!(json(&line)["steps"], 0, "one document a line");
        }
        drop(lines);
        let ended = watch.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    }
}

#[test]
fn stats_watch_outlives_a_restart_of_the_worker() {
    let mut worker = demo();
    let url = worker.control().to_string();
    let mut command = dspark(&["stats", "--json", "--watch", "20ms", &url]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    worker.terminate();
    assert!(errors.next().unwrap().unwrap().contains(&url));
    let again = ["serve", "--demo", "--json", "-q", "--listen", "tcp://127.0.0.1:0"];
    let mut command = dspark(&again);
    let _worker = crate::common::process::Worker::launch(command.args(["--control", &url]));
    let quiet = lines.by_ref().take(2).map(|line| json(&line.unwrap())["steps"].clone());
    assert!(quiet.eq([0, 0]));
    let more = lines.next().unwrap().unwrap();
    assert_eq!(json(&more)["steps"], 0);
    watch.kill().unwrap();
    watch.wait().unwrap();
}
