//! Metrics over HTTP and as a text file, from the built binary under replay.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::http::{Page, exchange, get, request};
use common::process::{Worker, run};
use dspark::protocol::control::empty_request;
use dspark::protocol::{EntryStatus, FrameStatus, Op};
use dspark::transport::Caller;
use serde_json::Value;

/// A demo worker with metrics, and their `HOST:PORT`.
fn worker() -> (Worker, String) {
    let worker = Worker::start(&["--demo", "--metrics", "127.0.0.1:0"]);
    let url = worker.ready["metrics"].as_str().unwrap();
    let address = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap().to_owned();
    (worker, address)
}

fn replay(worker: &Worker, rounds: &str) {
    let endpoint = worker.drafting().to_string();
    let arguments =
        ["replay", "--demo", "--pace", "max", "--rounds", rounds, "--endpoint", &endpoint];
    let said = run(&arguments);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
}

/// A client of the drafting listener that has exchanged a frame.
fn connected(worker: &Worker) -> Caller {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut client = Caller::connect(&worker.drafting(), deadline).unwrap();
    client.call(&[&empty_request(Op::Ping, 1, 0)], deadline).unwrap();
    client
}

/// Samples by series, `name{labels}`; every rule of the line format is checked on the way.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let (mut described, mut samples) = (BTreeSet::new(), BTreeMap::new());
    let mut family = String::new();
    let body = text.strip_suffix("# EOF\n").expect("the end mark");
    for line in body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let (kind, rest) = comment.split_once(' ').unwrap();
            assert!(["HELP", "TYPE", "UNIT"].contains(&kind), "{line}");
            let (name, what) = rest.split_once(' ').unwrap();
            assert!(described.insert(format!("{kind} {name}")), "twice: {line}");
            // Types that both text formats know.
            let known = ["counter", "gauge", "histogram"];
            assert!(kind != "TYPE" || known.contains(&what), "{line}");
            family = name.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(series.starts_with(&family), "{line} is not of {family}");
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {series}");
    }
    samples
}

#[test]
fn metrics_say_what_stats_say_under_the_names_of_vllm() {
    let (worker, address) = worker();
    let before = samples(&get(&address, "/metrics").body);
    assert_eq!(before["dspark_spec_decode_num_drafts_total"], 0.0);
    assert_eq!(before["dspark_session_open"], 0.0);
    replay(&worker, "50");
    let page = get(&address, "/metrics");
    assert_eq!(page.status, 200);
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(page.head.lines().any(|line| line == kind), "{}", page.head);
    let metrics = samples(&page.body);
    let control = worker.control().to_string();
    let stats: Value = serde_json::from_str(&run(&["stats", "--json", &control]).out).unwrap();

    let sum = |key: &str| -> f64 {
        stats["acceptance"][key].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).sum()
    };
    let equal = |series: &str, value: f64| {
        assert_eq!(metrics.get(series), Some(&value), "{series}");
        assert!(value > 0.0, "{series} never counts");
    };
    equal("dspark_spec_decode_num_drafts_total", sum("accepted_hist"));
    equal("dspark_spec_decode_num_draft_tokens_total", sum("verified"));
    equal("dspark_spec_decode_num_accepted_tokens_total", sum("accepted"));
    for position in 0..5 {
        for (name, key) in [("accepted", "accepted"), ("draft", "verified")] {
            let series = format!(
                "dspark_spec_decode_num_{name}_tokens_per_pos_total{{position=\"{position}\"}}"
            );
            equal(&series, stats["acceptance"][key][position].as_f64().unwrap());
        }
    }
    let position5 = "dspark_spec_decode_num_accepted_tokens_per_pos_total{position=\"5\"}";
    assert!(!metrics.contains_key(position5));
    for (series, key) in [
        ("dspark_steps_total", "steps"),
        ("dspark_rows_total", "rows"),
        ("dspark_rows_bytes_total", "rows_bytes"),
        ("dspark_drafted_requests_total", "drafted_requests"),
        ("dspark_worker_seconds_count", "steps"),
        ("dspark_receive_seconds_count", "steps"),
    ] {
        equal(series, stats[key].as_f64().unwrap());
    }
    // The CPU multiplies every row at every position it drafts.
    let markov = |key: &str| stats["markov"][key].as_f64().unwrap();
    equal("dspark_markov_steps_total{road=\"dense\"}", markov("dense"));
    equal("dspark_markov_rows_total", markov("rows_full"));
    equal("dspark_markov_rows_full_total", 512.0 * markov("dense"));
    assert_eq!(metrics["dspark_markov_steps_total{road=\"pruned\"}"], 0.0);
    for status in EntryStatus::ALL {
        let series = format!("dspark_entries_total{{status=\"{status}\"}}");
        assert_eq!(metrics[&series], stats["entries"][status.name()].as_f64().unwrap(), "{series}");
    }
    for status in FrameStatus::ALL {
        assert!(metrics.contains_key(&format!("dspark_frames_total{{status=\"{status}\"}}")));
    }
    let buckets = metrics.iter().filter(|(s, _)| s.starts_with("dspark_worker_seconds_bucket"));
    assert_eq!(buckets.count(), 14, "13 bounds from 0.5 to 50 ms, and infinity");
    equal("dspark_worker_seconds_bucket{le=\"+Inf\"}", stats["steps"].as_f64().unwrap());
    assert_eq!((metrics["dspark_ready"], metrics["dspark_session_open"]), (1.0, 1.0));
}

#[test]
fn health_answers_and_other_requests_are_refused() {
    let (worker, address) = worker();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(&address, path).status, 200, "{path}");
    }
    let head = request(&address, "HEAD", "/metrics");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(get(&address, "/").status, 404);
    let post = request(&address, "POST", "/metrics");
    assert!(post.status == 405 && post.head.contains("allow: GET, HEAD"), "{}", post.head);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000));
    let refused = |page: Page| (400..500).contains(&page.status) || page.head.is_empty();
    assert!(refused(exchange(&address, long.as_bytes())));
    let many = "X: y\r\n".repeat(200);
    assert!(refused(exchange(&address, format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes())));
    // Neither a silent client nor one that speaks another protocol stands in the way of the next.
    let _silent = TcpStream::connect(&address).unwrap();
    assert!(refused(exchange(&address, b"\x20\x00\x00\x00DSPK\r\n\r\n")));
    assert_eq!(get(&address, "/healthz").status, 200);
    // One that never ends its head is closed.
    let started = Instant::now();
    let mut slow = TcpStream::connect(&address).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    std::io::Write::write_all(&mut slow, b"GET /metr").unwrap();
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).unwrap();
    assert!(started.elapsed() >= Duration::from_secs(4), "{:?}", started.elapsed());
    drop(worker);
}

#[test]
fn nothing_listens_for_http_unless_it_is_asked_for_and_wildcards_are_refused() {
    let worker = Worker::start(&["--demo"]);
    assert_eq!(worker.ready["metrics"], Value::Null);
    for address in ["0.0.0.0:0", "[::]:0"] {
        let said = run(&[
            "serve",
            "--demo",
            "--control",
            "off",
            "--listen",
            "tcp://127.0.0.1:0",
            "--metrics",
            address,
        ]);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains("would listen on every interface"), "{}", said.err);
    }
}

#[test]
fn round_trips_of_the_link_are_exported_while_a_client_is_connected() {
    if !common::kernel_tells_round_trips() {
        return;
    }
    let (worker, address) = worker();
    let listener = worker.drafting();
    let series = |name: &str| format!("dspark_link_{name}{{listener=\"{listener}\"}}");
    let scraped = || samples(&get(&address, "/metrics").body);
    assert!(!scraped().contains_key(&series("rtt_seconds")), "nobody is there");
    let client = connected(&worker);
    let metrics = scraped();
    for name in ["rtt_min_seconds", "rtt_seconds"] {
        let seconds = metrics[&series(name)];
        assert!(seconds > 0.0 && seconds < 1.0, "{name} {seconds}");
    }
    assert!(metrics.contains_key(&series("rtt_deviation_seconds")));
    assert_eq!(metrics[&series("retransmits")], 0.0);
    drop(client);
    let deadline = Instant::now() + Duration::from_secs(20);
    while scraped().contains_key(&series("rtt_seconds")) {
        assert!(Instant::now() < deadline, "the series outlives its connection");
    }
}

#[test]
fn scrapes_during_a_replay_fail_no_round() {
    let (worker, address) = worker();
    let scraping = std::thread::spawn(move || {
        (0..20).all(|_| get(&address, "/metrics").body.ends_with("# EOF\n"))
    });
    replay(&worker, "40");
    assert!(scraping.join().unwrap());
}

#[test]
fn the_command_prints_the_same_names_and_replaces_a_text_file_in_one_step() {
    let (worker, address) = worker();
    replay(&worker, "12");
    let client = connected(&worker);
    let control = worker.control().to_string();
    let names = |text: &str| samples(text).into_keys().collect::<Vec<_>>();
    let served = names(&get(&address, "/metrics").body);
    let said = run(&["stats", "--openmetrics", &control]);
    assert_eq!((said.code, names(&said.out)), (Some(0), served.clone()));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dspark.prom");
    std::fs::write(&path, "old").unwrap();
    let said = run(&["stats", "--textfile", path.to_str().unwrap(), &control]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), ""), "{}", said.err);
    assert_eq!(names(&std::fs::read_to_string(&path).unwrap()), served);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    let nowhere = folder.path().join("no/such/dspark.prom");
    let said = run(&["stats", "--textfile", nowhere.to_str().unwrap(), &control]);
    assert_eq!(said.code, Some(5), "{}", said.err);
    // A worker that is gone leaves the last text where it is.
    drop((client, worker));
    let said = run(&["stats", "--textfile", path.to_str().unwrap(), &control]);
    assert_eq!(said.code, Some(3));
    assert!(!std::fs::read_to_string(&path).unwrap().is_empty());
}

/// Metric names in an expression of the dashboard.
fn named(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("dspark_"))
}

#[test]
fn the_dashboard_names_only_what_is_exported() {
    let (worker, address) = worker();
    replay(&worker, "12");
    let _client = connected(&worker);
    let series = samples(&get(&address, "/metrics").body);
    let exported: BTreeSet<&str> =
        series.keys().map(|series| series.split('{').next().unwrap()).collect();
    let text = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/grafana-dspark.json"),
    );
    let dashboard: Value = serde_json::from_str(&text.unwrap()).unwrap();
    let linked = common::kernel_tells_round_trips();
    let mut used = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            for name in named(target["expr"].as_str().unwrap()) {
                if !linked && name.starts_with("dspark_link_r") {
                    continue;
                }
                assert!(exported.contains(name), "{name} of {} is not exported", panel["title"]);
                used += 1;
            }
        }
    }
    assert!(used >= 20, "{used} names");
    let variables = dashboard["templating"]["list"].to_string();
    assert!(exported.contains("dspark_build_info") && variables.contains("dspark_build_info"));
}
