//! What scraping `/metrics` costs a worker: `cargo bench --bench scrape`.
//!
//! One demo worker under replay, in turns without scrapes, with one a second and with ten a second, so that the turns
//! meet the same machine. Two numbers: the CPU time of the control thread per scrape, and the p50 of the worker's own time
//! of a STEP with scrapes over the one without.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs::read_to_string;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::http::get;
use common::process::{Worker, run};
use serde_json::Value;

/// Turns of each rate, and rounds of each.
const TURNS: usize = 5;
const ROUNDS: &str = "300";
/// Scrapes a second.
const RATES: [u32; 3] = [0, 1, 10];
/// Scrapes that are timed without anything else going on.
const SCRAPES: u32 = 2000;

/// Nanoseconds on a CPU of the worker's thread of this name, as the kernel counts them.
fn cpu_ns(worker: &Worker, name: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", worker.id())).unwrap();
    let of_task = |task: std::path::PathBuf| {
        let is_it = read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
        let stat = is_it.then(|| read_to_string(task.join("schedstat")).unwrap());
        stat.map_or(0, |stat| stat.split(' ').next().unwrap().parse().unwrap())
    };
    tasks.map(|task| of_task(task.unwrap().path())).sum()
}

/// Replays with `rate` scrapes a second; the worker's p50 of a STEP, µs.
fn step_p50(worker: &Worker, address: &str, rate: u32) -> f64 {
    let (done, stop) = channel::<()>();
    let scraper = (rate > 0).then(|| {
        let address = address.to_owned();
        thread::spawn(move || {
            let pause = Duration::from_secs(1) / rate;
            while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                assert!(get(&address, "/metrics").body.ends_with("# EOF\n"));
            }
        })
    });
    let endpoint = worker.drafting().to_string();
    let said = run(&[
        "replay",
        "--demo",
        "--rounds",
        ROUNDS,
        "--pace",
        "100",
        "--json",
        "--endpoint",
        &endpoint,
    ]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    drop(done);
    if let Some(scraper) = scraper {
        scraper.join().unwrap();
    }
    let doc: Value = serde_json::from_str(&said.out).unwrap();
    doc["worker_us"]["p50"].as_f64().unwrap()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let worker = Worker::start(&["--demo", "--metrics", "127.0.0.1:0"]);
    let url = worker.ready["metrics"].as_str().unwrap().to_owned();
    let address = url.trim_start_matches("http://").trim_end_matches("/metrics").to_owned();
    step_p50(&worker, &address, 0);

    let (before, started) = (cpu_ns(&worker, "dspark-control"), Instant::now());
    let bytes = (0..SCRAPES).map(|_| get(&address, "/metrics").body.len()).max().unwrap();
    let cpu = cpu_ns(&worker, "dspark-control") - before;
    assert!(cpu > 0, "the control thread was not found");
    let per_scrape = cpu as f64 / f64::from(SCRAPES) / 1e3;
    let elapsed = started.elapsed().as_secs_f64() / f64::from(SCRAPES) * 1e6;
    println!("{bytes} bytes, {per_scrape:.0} µs of CPU and {elapsed:.0} µs elapsed a scrape");
    for rate in &RATES[1..] {
        println!("  at {rate} a second: {:.3} % of one CPU", per_scrape * f64::from(*rate) / 1e4);
    }

    let mut p50: [Vec<f64>; 3] = Default::default();
    for _ in 0..TURNS {
        for (rate, p50) in RATES.iter().zip(&mut p50) {
            p50.push(step_p50(&worker, &address, *rate));
        }
    }
    let [none, one, ten] = p50.each_mut().map(|values| median(values));
    println!("STEP p50 by the worker's clock, median of {TURNS} turns of {ROUNDS} rounds:");
    println!(
        "  {none:.0} µs without, {one:.0} µs at 1 a second ({:.3}), {ten:.0} µs at 10 a second ({:.3})",
        one / none,
        ten / none
    );
}
