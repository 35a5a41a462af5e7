//! `dspark ping`: round trips to a worker, or waiting until it is ready.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::args::{self, ControlUrl};
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, micros, time};
use crate::query::Query;

const EXAMPLES: &str = "\
Examples:
  dspark ping
  dspark ping --wait 2m tcp://10.202.28.1:18629 && start-engine
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
}

/// Pings the worker.
pub(crate) fn run(args: PingArgs, output: &Output) -> Outcome {
    let mut query = Query::new(args.control.url, args.control.timeout)?;
    match args.wait {
        Some(limit) => wait(&mut query, args.control.timeout, limit, output),
        None => measure(&mut query, args.count, args.interval, output),
    }
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

fn measure(query: &mut Query, n: u32, interval: Duration, output: &Output) -> Outcome {
    let mut rtts = Vec::new();
    let mut last_error = None;
    for index in 0..n {
        if index > 0 {
            sleep(interval);
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
    let lost = n as usize - rtts.len();
    let summary = Summary::of(&mut rtts);
    if output.json() {
        let doc = json!({ "schema": 1, "endpoint": query.endpoint().to_string(), "sent": n,
            "received": rtts.len(), "lost": lost, "interval_us": us(interval),
            "rtt_us": summary.as_ref().map(Summary::json) });
        output.document(&doc, false)?;
    } else {
        output.line(format_args!("{n} sent, {} received, {lost} lost", rtts.len()))?;
        if let Some(s) = &summary {
            output.line(s.text())?;
        }
    }
    match last_error {
        None => Ok(()),
        Some(error) if rtts.is_empty() => {
            let endpoint = query.endpoint().clone();
            Err(error.failure(&endpoint))
        }
        Some(_) => Err(Failure::new(Code::CheckFailed, format!("{lost} of {n} pings were lost"))),
    }
}

/// Round trips in µs; percentiles are nearest-rank over all of them.
struct Summary {
    min: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
    mean: f64,
    stddev: f64,
}

impl Summary {
    fn of(rtts: &mut [Duration]) -> Option<Self> {
        rtts.sort_unstable();
        let (first, last) = (rtts.first()?, rtts.last()?);
        let rank = |q: f64| {
            let rank = (q * rtts.len() as f64).ceil() as usize;
            us(rtts[rank.clamp(1, rtts.len()) - 1])
        };
        let n = rtts.len() as f64;
        let mean = rtts.iter().map(|t| us(*t)).sum::<f64>() / n;
        let variance = rtts.iter().map(|t| (us(*t) - mean).powi(2)).sum::<f64>() / n;
        Some(Self {
            min: us(*first),
            p50: rank(0.5),
            p90: rank(0.9),
            p99: rank(0.99),
            max: us(*last),
            mean,
            stddev: variance.sqrt(),
        })
    }

    fn json(&self) -> Value {
        json!({ "min": self.min, "p50": self.p50, "p90": self.p90, "p99": self.p99,
            "max": self.max, "mean": self.mean, "stddev": self.stddev })
    }

    fn text(&self) -> String {
        format!(
            "min {}  p50 {}  p90 {}  p99 {}  max {}  mean {}  stddev {}",
            micros(self.min),
            micros(self.p50),
            micros(self.p90),
            micros(self.p99),
            micros(self.max),
            micros(self.mean),
            micros(self.stddev)
        )
    }
}

/// Microseconds with the nanoseconds kept: a loopback round trip is a few of them.
fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
