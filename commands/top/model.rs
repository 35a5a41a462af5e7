//! What is known of the workers: samples in, rates, peaks and history out. Reads no clock and no socket.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;

use super::gpu::Cards;
use super::latency::{Buckets, Estimate};
use crate::acceptance::Acceptance;
use crate::rates::Rates;

/// Points of history kept: more than the widest sparkline shows.
const HISTORY_MAX: usize = 600;
/// Acceptance is shown since the start and over this long.
const LATELY: Duration = Duration::from_secs(30);
/// Clocks of two hosts may part by this much between two samples.
const CLOCKS_PART_S: f64 = 0.1;

/// Everything that is shown.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// Time since the start of the program.
    pub(crate) now: Duration,
    /// In the order of the command line; never empty.
    pub(crate) workers: Vec<Worker>,
    /// The graphics cards of this host.
    pub(crate) cards: Cards,
}

/// One worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    /// Its URL.
    pub(crate) url: String,
    /// Whether it runs on this host, so that this host's cards are its own.
    pub(crate) local: bool,
    /// Whether it answers.
    pub(crate) link: Link,
    /// Its last answer.
    pub(crate) last: Option<Sample>,
    /// What changed from the document before.
    pub(crate) rates: Option<Rates>,
    /// Oldest first; `None` while nothing was known.
    pub(crate) history: VecDeque<Option<Point>>,
    /// The highest values since the start or the last reset.
    pub(crate) peaks: Peaks,
    /// How often it was restarted while it was watched, and when last.
    pub(crate) restarts: (u64, Option<Duration>),
    /// Acceptance counters of the last half minute, oldest first.
    lately: VecDeque<(Duration, Acceptance)>,
}

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// When it was asked for.
    pub(crate) asked: Duration,
    /// When it came.
    pub(crate) at: Duration,
    /// The STATS document.
    pub(crate) doc: Value,
}

/// Whether a worker answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Nothing has been heard yet.
    Asked,
    /// The last question was answered.
    Up,
    /// Questions have failed since then, and why.
    Gone(Duration, String),
}

/// One point of the sparklines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) rounds_per_s: f64,
    pub(crate) rows_per_s: f64,
    /// Worker time of the rounds of this interval; `None` without rounds.
    pub(crate) p50: Option<Estimate>,
    pub(crate) p99: Option<Estimate>,
}

/// The highest values seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Peaks {
    pub(crate) rounds_per_s: Option<f64>,
    pub(crate) rows_per_s: Option<f64>,
    pub(crate) p50: Option<Estimate>,
    pub(crate) p99: Option<Estimate>,
}

impl Model {
    /// Nothing is known yet of the workers at `urls`; beside each, whether it is on this host.
    pub(crate) fn new(urls: impl IntoIterator<Item = (String, bool)>) -> Self {
        let workers = urls.into_iter().map(|(url, local)| Worker::new(url, local)).collect();
        Self { now: Duration::ZERO, workers, cards: Cards::default() }
    }

    /// Takes the answer of a worker that was asked and answered then, or why there is none.
    pub(crate) fn answer(
        &mut self,
        worker: usize,
        [asked, at]: [Duration; 2],
        answer: Result<Value, String>,
    ) {
        self.now = self.now.max(at);
        let Some(worker) = self.workers.get_mut(worker) else { return };
        match answer {
            Ok(doc) => worker.sample(Sample { asked, at, doc }),
            Err(why) => worker.fail(at, why),
        }
    }

    /// Forgets the peaks of every worker.
    pub(crate) fn reset_peaks(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.peaks = Peaks::default());
    }
}

impl Worker {
    fn new(url: String, local: bool) -> Self {
        Self {
            url,
            local,
            link: Link::Asked,
            last: None,
            rates: None,
            history: VecDeque::new(),
            peaks: Peaks::default(),
            restarts: (0, None),
            lately: VecDeque::new(),
        }
    }

    fn sample(&mut self, sample: Sample) {
        self.link = Link::Up;
        let (at, before) = (sample.at, self.last.take());
        self.rates = before.as_ref().and_then(|before| rates(before, &sample));
        if let Some(before) = before {
            let point = self.rates.as_ref().map(|rates| point(rates, &before.doc, &sample.doc));
            match &point {
                Some(point) => self.peaks.raise(point),
                None => {
                    self.restarts = (self.restarts.0 + 1, Some(at));
                    self.lately.clear();
                }
            }
            self.remember(point);
        }
        self.lately.push_back((at, Acceptance::of(&sample.doc)));
        while self.lately.get(1).is_some_and(|(next, _)| *next + LATELY <= at)
            || self.lately.len() > HISTORY_MAX
        {
            self.lately.pop_front();
        }
        self.last = Some(sample);
    }

    fn fail(&mut self, at: Duration, why: String) {
        let since = match &self.link {
            Link::Gone(since, _) => *since,
            Link::Asked | Link::Up => at,
        };
        self.link = Link::Gone(since, why);
        self.rates = None;
        if self.last.is_some() {
            self.remember(None);
        }
    }

    fn remember(&mut self, point: Option<Point>) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(point);
    }

    /// Whether the last question was answered.
    pub(crate) fn is_up(&self) -> bool {
        self.link == Link::Up
    }

    /// The last document, `null` before the first: every key is absent then.
    pub(crate) fn doc(&self) -> &Value {
        static NOTHING: Value = Value::Null;
        self.last.as_ref().map_or(&NOTHING, |sample| &sample.doc)
    }

    /// Acceptance since the worker's start.
    pub(crate) fn acceptance(&self) -> Acceptance {
        Acceptance::of(self.doc())
    }

    /// Acceptance of the last half minute, or of as long as the worker has been watched, and how long.
    pub(crate) fn acceptance_lately(&self) -> Option<(Duration, Acceptance)> {
        let (from, first) = self.lately.front()?;
        let (to, last) = self.lately.back()?;
        (from < to).then(|| (*to - *from, last.since(first)))
    }
}

/// The rates between two samples; `None` when the second is not of the same run of the worker.
fn rates(before: &Sample, after: &Sample) -> Option<Rates> {
    let rates = Rates::between(&before.doc, &after.doc)?;
    // A successor may be older than its predecessor was, and may have counted more: its start tells. It
    // lies as long before the answer as the document says, and the answer between question and arrival.
    let started = |sample: &Sample| {
        let uptime = sample.doc["uptime_s"].as_f64()?;
        Some((sample.asked.as_secs_f64() - uptime, sample.at.as_secs_f64() - uptime))
    };
    let ((early, late), (next_early, next_late)) = (started(before)?, started(after)?);
    let same = next_early <= late + CLOCKS_PART_S && early <= next_late + CLOCKS_PART_S;
    same.then_some(rates)
}

/// What the sparklines show of an interval.
fn point(rates: &Rates, before: &Value, after: &Value) -> Point {
    let buckets = |doc| Buckets::of(doc, "worker_us");
    let lately = buckets(after).since(&buckets(before));
    Point {
        rounds_per_s: rates.per_s("steps").unwrap_or(0.0),
        rows_per_s: rates.per_s("rows").unwrap_or(0.0),
        p50: lately.quantile(0.5),
        p99: lately.quantile(0.99),
    }
}

impl Peaks {
    fn raise(&mut self, point: &Point) {
        raise(&mut self.rounds_per_s, Some(point.rounds_per_s));
        raise(&mut self.rows_per_s, Some(point.rows_per_s));
        raise(&mut self.p50, point.p50);
        raise(&mut self.p99, point.p99);
    }
}

fn raise<T: Copy + PartialOrd>(peak: &mut Option<T>, value: Option<T>) {
    // `None` is less than any value.
    if value > *peak {
        *peak = value;
    }
}
