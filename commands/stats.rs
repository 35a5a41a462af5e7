//! `dspark stats`: a worker's counters, once or again and again.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use dspark::worker::metrics::openmetrics;
use serde_json::Value;

use crate::acceptance::{Acceptance, percent, share};
use crate::args::{self, ControlUrl};
use crate::exit::{Code, Failure, Outcome};
use crate::link::round_trips;
use crate::output::{Output, count, micros, table, time};
use crate::query::Query;
use crate::rates::Rates;
use crate::rtt::us;

const EXAMPLES: &str = "\
A text file is replaced in one step and left alone when the worker does not answer: its age tells.

Examples:
  dspark stats
  dspark stats --json | jq '.acceptance'
  dspark stats --watch 1s
  dspark stats --watch 15s --textfile /var/lib/node_exporter/dspark.prom";

/// Arguments of `dspark stats`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    control: ControlUrl,
    /// Print again every TIME, with what changed; --json then prints one object per line
    #[arg(long, value_name = "TIME", value_parser = args::positive_duration)]
    watch: Option<Duration>,
    /// Print OpenMetrics text, the same as 'serve --metrics' answers
    #[arg(long, conflicts_with = "json")]
    openmetrics: bool,
    /// Write OpenMetrics text to a file, for a textfile collector, and print nothing
    #[arg(long, value_name = "PATH", conflicts_with_all = ["json", "openmetrics"])]
    textfile: Option<PathBuf>,
}

/// Prints the counters.
pub(crate) fn run(args: StatsArgs, output: &Output) -> Outcome {
    let mut query = Query::of(&args.control)?;
    let mut before = None;
    loop {
        let endpoint = query.endpoint().clone();
        match query.timed_stats() {
            Ok((doc, asked)) => {
                show(&args, &doc, asked, before.as_ref(), output)?;
                before = Some(doc);
            }
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

fn show(
    args: &StatsArgs,
    doc: &Value,
    asked: Duration,
    before: Option<&Value>,
    output: &Output,
) -> Outcome {
    if let Some(path) = &args.textfile {
        return replace(path, &openmetrics(doc)).map_err(|error| {
            let message = format!("{}: cannot be written: {error}", path.display());
            Failure::new(Code::BadInput, message)
        });
    }
    let rates = before.and_then(|before| Rates::between(before, doc));
    if args.openmetrics {
        output.line(openmetrics(doc).trim_end())?;
    } else if output.json() {
        let mut doc = doc.clone();
        if let Some(doc) = doc.as_object_mut() {
            doc.insert("asking_us".into(), us(asked).into());
            if let Some(rates) = &rates {
                doc.insert("delta".into(), rates.json());
            }
        }
        output.document(&doc, args.watch.is_some())?;
    } else {
        output.line(text(doc, asked))?;
        if let Some(rates) = rates {
            output.line(rates.text())?;
        } else if before.is_some() {
            output.note("the worker was restarted");
        }
    }
    Ok(())
}

/// Writes a file beside `path` and renames it: a reader sees the old text or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = std::fs::File::create(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&beside, path));
    written.inspect_err(|_| {
        // It may not exist, which is as good.
        let _ = std::fs::remove_file(&beside);
    })
}

fn text(doc: &Value, asked: Duration) -> String {
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
            "drafter identity {}  Markov {}  contract {}  wire {}  gpu memory {}",
            string("drafter_identity"),
            string("markov_identity"),
            string("contract"),
            number("wire"),
            match doc["gpu_mem_bytes"].as_u64() {
                Some(bytes) if bytes > 0 => format!("{} bytes", count(bytes)),
                _ => "n/a".into(),
            },
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
        counts(doc, "frames"),
        counts(doc, "entries"),
        counts(doc, "link"),
        acceptance(doc),
        markov(&doc["markov"]),
        latency(doc, "worker_us", "worker"),
        latency(doc, "recv_to_send_us", "received to sent"),
        latency(doc, "receive_us", "receiving"),
    ];
    lines.extend(round_trips(doc).iter().map(|text| format!("link round trip  {text}")));
    lines.push(format!("asking for this  {}", time(asked)));
    lines.push(slots(doc));
    lines.join("\n")
}

/// The counters of one object of STATS; statuses that never occurred are left out, OK is not.
pub(crate) fn counts(doc: &Value, key: &str) -> String {
    let all = doc[key].as_object().into_iter().flatten();
    let shown = all.filter_map(|(name, n)| {
        let n = n.as_u64().filter(|n| *n > 0 || name == "OK")?;
        Some(format!("  {name} {}", count(n)))
    });
    format!("{key}{}", shown.collect::<String>())
}

/// Accepted over verified drafts, per position: what the client's k_window and n_rows say.
fn acceptance(doc: &Value) -> String {
    let acceptance = Acceptance::of(doc);
    let Some(per_round) = acceptance.per_round() else {
        return "acceptance n/a (no verified drafts yet)".into();
    };
    let mut by_position = table(&["position", "verified", "accepted", "rate"]);
    for (position, (counts, rate)) in
        acceptance.positions.iter().zip(acceptance.rates()).enumerate()
    {
        let (verified, accepted) = counts;
        by_position.add_row(vec![
            position.to_string(),
            count(*verified),
            count(*accepted),
            percent(rate, 1),
        ]);
    }
    format!(
        "acceptance  {per_round:.2} drafts a round over {} rounds, {} of {} verified drafts ({})\n\
         a round counts when the engine verified drafts (k_window > 0) and kept rows, resyncs left out;\n\
         a position's rate is accepted over verified there, accepted = n_rows - 1\n{by_position}",
        count(acceptance.rounds),
        count(acceptance.accepted()),
        count(acceptance.verified()),
        percent(acceptance.rate(), 1),
    )
}

/// Which road Markov steps took, and what share of the vocabulary they multiplied.
fn markov(doc: &Value) -> String {
    let number = |key: &str| doc[key].as_u64().unwrap_or(0);
    let (rows, full) = (number("rows"), number("rows_full"));
    if full == 0 {
        return "Markov steps  n/a (nothing drafted yet)".into();
    }
    let roads =
        ["resident", "pruned", "dense"].map(|road| format!("{road} {}", count(number(road))));
    let share = 100.0 * rows as f64 / full as f64;
    format!(
        "Markov steps  {}  rows {} of {} ({share:.2}%)",
        roads.join("  "),
        count(rows),
        count(full)
    )
}

pub(crate) fn latency(doc: &Value, key: &str, label: &str) -> String {
    let value = |suffix: &str| doc[format!("{key}_{suffix}")].as_f64().map(micros);
    match (value("p50"), value("p90"), value("p99"), value("max")) {
        (Some(p50), Some(p90), Some(p99), Some(max)) => {
            format!("{label}  p50 {p50}  p90 {p90}  p99 {p99}  max {max}")
        }
        _ => format!("{label}  n/a (fewer than 2 steps)"),
    }
}

fn slots(doc: &Value) -> String {
    let mut table = table(&SLOT_COLUMNS);
    for slot in doc["slots"].as_array().into_iter().flatten() {
        table.add_row(slot_cells(doc, slot));
    }
    table.to_string()
}

/// Names of what [`slot_cells`] gives.
pub(crate) const SLOT_COLUMNS: [&str; 7] =
    ["slot", "gen", "window", "rows", "drafts", "accepted", "last"];

/// One entry of `slots` as text.
pub(crate) fn slot_cells(doc: &Value, slot: &Value) -> [String; 7] {
    let number = |key: &str| slot[key].as_u64().map_or("-".to_owned(), |n| n.to_string());
    let window = match (slot["lo"].as_i64(), slot["hi"].as_i64()) {
        (Some(lo), Some(hi)) => format!("[{lo},{hi}]"),
        _ => "empty".to_owned(),
    };
    let counted = |key: &str| slot[key].as_u64().unwrap_or(0);
    [
        number("slot"),
        number("generation"),
        window,
        format!("{}/{}", number("rows"), doc["window"].as_u64().unwrap_or(0)),
        number("drafts"),
        percent(share(counted("verified"), counted("accepted")), 0),
        slot["last_status"].as_str().unwrap_or("-").to_owned(),
    ]
}
