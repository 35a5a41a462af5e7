//! `dspark ping`: round trips to a worker, or waiting until it is ready.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use dspark::worker::progress::progress;
use serde_json::json;

use crate::args::{self, ControlUrl};
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, micros, time};
use crate::query::Query;
use crate::rtt::{Buckets, Summary, us};

const EXAMPLES: &str = "\
Exits with 0, with 1 above --crit, after a lost ping or a failed --check, with 3 without any reply.

Examples:
  dspark ping
  dspark ping --wait 2m tcp://10.202.28.1:18629 && start-engine
  dspark ping --count 1 --check --crit 5ms
  dspark ping --count 1000 --interval 0 --histogram
  dspark ping --count 1000 --interval 0 --json | jq .rtt_us.p99";

/// Between two attempts of `--wait`.
const RETRY: Duration = Duration::from_millis(100);

/// Arguments of `dspark ping`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PingArgs {
    #[command(flatten)]
    control: ControlUrl,
    /// Number of pings
    #[arg(short, long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Pause between pings
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = args::duration)]
    interval: Duration,
    /// Retry until the first reply, for at most this long, then stop
    #[arg(long, value_name = "TIME", value_parser = args::positive_duration)]
    wait: Option<Duration>,
    /// Print how the round trips are distributed
    #[arg(long)]
    histogram: bool,
    /// Remark when the p99 is above TIME; the exit code stays 0
    #[arg(long, value_name = "TIME", value_parser = args::positive_duration)]
    warn: Option<Duration>,
    /// Exit with 1 when the p99 is above TIME
    #[arg(long, value_name = "TIME", value_parser = args::positive_duration)]
    crit: Option<Duration>,
    /// Exit with 1 when the worker answers but its drafting has stalled
    #[arg(long)]
    check: bool,
    /// How long a stall is one, for --check
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = args::positive_duration)]
    stall: Duration,
    /// For --check: the engine always has requests, so that a session without STEPs is a stall
    #[arg(long, requires = "check")]
    busy: bool,
}

impl PingArgs {
    /// What a p99 in µs is to the thresholds.
    fn verdict(&self, p99: f64) -> &'static str {
        let above = |limit: Option<Duration>| limit.is_some_and(|limit| p99 > us(limit));
        if above(self.crit) {
            "crit"
        } else if above(self.warn) {
            "warn"
        } else {
            "ok"
        }
    }
}

/// Pings the worker.
pub(crate) fn run(args: PingArgs, output: &Output) -> Outcome {
    let mut query = Query::of(&args.control)?;
    match args.wait {
        Some(limit) => wait(&mut query, args.control.asking.timeout, limit, output)?,
        None => measure(&mut query, &args, output)?,
    }
    if args.check { check(&mut query, &args) } else { Ok(()) }
}

/// Asks STATS whether drafting makes progress: a PING is answered by another thread.
fn check(query: &mut Query, args: &PingArgs) -> Outcome {
    query.set_timeout(args.control.asking.timeout);
    let endpoint = query.endpoint().clone();
    let stats = query.stats().map_err(|error| error.failure(&endpoint))?;
    progress(&stats, args.stall, args.busy).map_err(|stall| {
        Failure::new(Code::CheckFailed, format!("{endpoint}: answers, but does not draft: {stall}"))
            .hint("see its log; a supervisor's watchdog restarts it")
    })
}

/// Pings until the first reply, each attempt within `timeout` and all of them within `limit`.
fn wait(query: &mut Query, timeout: Duration, limit: Duration, output: &Output) -> Outcome {
    let started = Instant::now();
    loop {
        query.set_timeout(timeout.min(limit.saturating_sub(started.elapsed())));
        let error = match query.ping() {
            Ok(rtt) => {
                let doc = json!({ "schema": 1, "endpoint": query.endpoint().to_string(),
                    "waited_us": us(started.elapsed() - rtt), "rtt_us": us(rtt) });
                let text = format!("ready after {}", time(started.elapsed() - rtt));
                return if output.json() {
                    output.document(&doc, false)
                } else {
                    output.line(text)
                }
                .map_err(Failure::from);
            }
            Err(error) => error,
        };
        let endpoint = query.endpoint().clone();
        if error.is_final() {
            return Err(error.failure(&endpoint));
        }
        if started.elapsed() + RETRY >= limit {
            return Err(error.failure(&endpoint).hint(format!("waited {}", time(limit))));
        }
        sleep(RETRY);
    }
}

fn measure(query: &mut Query, args: &PingArgs, output: &Output) -> Outcome {
    let mut rtts = Vec::new();
    let mut last_error = None;
    let n = args.count;
    for index in 0..n {
        if index > 0 {
            sleep(args.interval);
        }
        match query.ping() {
            Ok(rtt) => {
                rtts.push(rtt);
                if !output.json() {
                    output.note(format_args!("reply from {}: {}", query.endpoint(), time(rtt)));
                }
            }
            Err(error) => {
                output.note(format_args!("no reply from {}: {error}", query.endpoint()));
                last_error = Some(error);
            }
        }
    }
    let summary = Summary::of(&mut rtts);
    print(query, args, &rtts, summary.as_ref(), output)?;
    match last_error {
        None => judge(args, summary.as_ref(), output),
        Some(error) if rtts.is_empty() => {
            let endpoint = query.endpoint().clone();
            Err(error.failure(&endpoint))
        }
        Some(_) => {
            let lost = n as usize - rtts.len();
            Err(Failure::new(Code::CheckFailed, format!("{lost} of {n} pings were lost")))
        }
    }
}

fn print(
    query: &Query,
    args: &PingArgs,
    rtts: &[Duration],
    summary: Option<&Summary>,
    output: &Output,
) -> Outcome {
    let (n, received) = (args.count, rtts.len());
    let lost = n as usize - received;
    let buckets = args.histogram.then(|| Buckets::of(rtts));
    if output.json() {
        let mut doc = json!({ "schema": 1, "endpoint": query.endpoint().to_string(), "sent": n,
            "received": received, "lost": lost, "interval_us": us(args.interval),
            "rtt_us": summary.map(Summary::json) });
        if let Some(summary) = summary {
            doc["verdict"] = args.verdict(summary.p99).into();
        }
        if let Some(buckets) = buckets {
            doc["histogram"] = buckets.json();
        }
        output.document(&doc, false)?;
        return Ok(());
    }
    output.line(format_args!("{n} sent, {received} received, {lost} lost"))?;
    if let Some(summary) = summary {
        output.line(summary.text())?;
    }
    if let Some(buckets) = buckets.filter(|_| received > 0) {
        output.line(buckets.text())?;
    }
    Ok(())
}

/// Compares the p99 with the thresholds.
fn judge(args: &PingArgs, summary: Option<&Summary>, output: &Output) -> Outcome {
    let Some(summary) = summary else { return Ok(()) };
    let above = |limit: Option<Duration>| {
        let limit = limit.map_or_else(String::new, time);
        format!("p99 {} is above {limit}", micros(summary.p99))
    };
    match args.verdict(summary.p99) {
        "crit" => Err(Failure::new(Code::CheckFailed, above(args.crit))),
        "warn" => {
            output.note(format_args!("warning: {}", above(args.warn)));
            Ok(())
        }
        _ => Ok(()),
    }
}
