//! `dspark stats`: a worker's counters, once or again and again.

use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::args::{self, ControlUrl};
use crate::exit::Outcome;
use crate::output::{Output, count, micros, table};
use crate::query::Query;

/// Arguments of `dspark stats`.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    control: ControlUrl,
    /// Print again every TIME; --json then prints one object per line
    #[arg(long, value_name = "TIME", value_parser = args::positive_duration)]
    watch: Option<Duration>,
}

/// Prints the counters.
pub(crate) fn run(args: StatsArgs, output: &Output) -> Outcome {
    let mut query = Query::new(args.control.url, args.control.timeout)?;
    loop {
        let endpoint = query.endpoint().clone();
        match query.stats() {
            Ok(doc) if output.json() => output.document(&doc, args.watch.is_some())?,
            Ok(doc) => output.line(text(&doc))?,
            // A watcher outlives the worker's restart.
            Err(error) if args.watch.is_some() => output.note(format_args!("{endpoint}: {error}")),
            Err(error) => return Err(error.failure(&endpoint)),
        }
        match args.watch {
            Some(interval) => sleep(interval),
            None => return Ok(()),
        }
    }
}

fn text(doc: &Value) -> String {
    let string = |key: &str| doc[key].as_str().unwrap_or("n/a").to_owned();
    let number = |key: &str| doc[key].as_u64().map_or("n/a".to_owned(), count);
    let session = doc["session"].as_u64().unwrap_or(0);
    let mut lines = vec![
        format!(
            "{} {}  checkpoint {}  backend {} ({})  precision {}  logits {}  kv {}",
            string("worker"),
            string("version"),
            string("checkpoint"),
            string("backend"),
            string("device"),
            string("precision"),
            string("logits"),
            string("kv"),
        ),
        format!(
            "up {:.0} s  session {}  client {}",
            doc["uptime_s"].as_f64().unwrap_or(0.0),
            if session == 0 { "none".into() } else { format!("{session:#010x}") },
            string("client"),
        ),
        format!(
            "steps {}  rows {}  drafted {}  partial {}  stale {}  bad {}  internal {}",
            number("steps"),
            number("rows"),
            number("drafted_requests"),
            number("partial_windows"),
            number("stale_generation"),
            number("bad_entries"),
            number("internal_entries"),
        ),
        acceptance(doc),
        latency(doc, "worker_us", "worker"),
        latency(doc, "recv_to_send_us", "received to sent"),
    ];
    lines.push(slots(doc));
    lines.join("\n")
}

/// Accepted over verified drafts, per position: what the client's k_window and n_rows say.
fn acceptance(doc: &Value) -> String {
    let list = |key: &str| -> Vec<u64> {
        let values = doc["acceptance"][key].as_array();
        values.into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    let (verified, accepted) = (list("verified"), list("accepted"));
    let entries: u64 = list("accepted_hist").iter().sum();
    if entries == 0 {
        return "acceptance n/a (no verified drafts yet)".into();
    }
    let positions = verified.iter().zip(&accepted).map(|(v, a)| match v {
        0 => "n/a".to_owned(),
        v => format!("{:.0}%", 100.0 * *a as f64 / *v as f64),
    });
    let positions: Vec<_> = positions.collect();
    let mean = accepted.iter().sum::<u64>() as f64 / entries as f64;
    format!(
        "accepted {mean:.2} drafts a round over {} rounds  by position {}",
        count(entries),
        positions.join(" ")
    )
}

fn latency(doc: &Value, key: &str, label: &str) -> String {
    let value = |suffix: &str| doc[format!("{key}_{suffix}")].as_f64().map(micros);
    match (value("p50"), value("p90"), value("p99"), value("max")) {
        (Some(p50), Some(p90), Some(p99), Some(max)) => {
            format!("{label}  p50 {p50}  p90 {p90}  p99 {p99}  max {max}")
        }
        _ => format!("{label}  n/a (fewer than 2 steps)"),
    }
}

fn slots(doc: &Value) -> String {
    let mut table = table(&["slot", "gen", "window", "rows", "drafts", "accepted", "last"]);
    let width = doc["window"].as_u64().unwrap_or(0);
    for slot in doc["slots"].as_array().into_iter().flatten() {
        let number = |key: &str| slot[key].as_u64().map_or("-".to_owned(), |n| n.to_string());
        let window = match (slot["lo"].as_i64(), slot["hi"].as_i64()) {
            (Some(lo), Some(hi)) => format!("[{lo},{hi}]"),
            _ => "empty".to_owned(),
        };
        let verified = slot["verified"].as_u64().unwrap_or(0);
        let accepted = match slot["accepted"].as_u64() {
            Some(accepted) if verified > 0 => {
                format!("{:.0}%", 100.0 * accepted as f64 / verified as f64)
            }
            _ => "n/a".to_owned(),
        };
        table.add_row(vec![
            number("slot"),
            number("generation"),
            window,
            format!("{}/{width}", number("rows")),
            number("drafts"),
            accepted,
            slot["last_status"].as_str().unwrap_or("-").to_owned(),
        ]);
    }
    table.to_string()
}
