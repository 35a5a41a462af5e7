//! What a replay counted and measured. Pure: rounds in, numbers out.

use serde_json::{Value, json};

use super::driver::{Round, RoundTimes};
use super::faults::{FaultCounts, FaultKind};
use super::rank0::{Counters, Outcome};
use crate::protocol::{EntryStatus, StepRequest};

/// What kind of STEP a round sent: their latencies are not comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoundClass {
    /// Only drafting entries with the rows of one verification; the number of them.
    Decode(u16),
    /// Some entry appends a prompt's rows.
    Prefill,
    /// Some entry re-sends a window.
    Resync,
}

impl RoundClass {
    /// Class of a STEP. A verification makes at most N + 1 rows.
    pub fn of(step: &StepRequest<'_>, num_spec: u32) -> Self {
        if step.entries.iter().any(|e| e.resync()) {
            Self::Resync
        } else if step.entries.iter().any(|e| !e.need_draft() || e.n_rows.get() > num_spec + 1) {
            Self::Prefill
        } else {
            Self::Decode(step.header.n_req.get())
        }
    }

    /// Name in reports.
    pub fn name(self) -> String {
        match self {
            Self::Decode(n) => format!("decode {n}"),
            Self::Prefill => "prefill".into(),
            Self::Resync => "resync".into(),
        }
    }
}

/// Percentiles of one latency, µs, nearest-rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// Samples.
    pub count: u64,
    /// Half of the samples are at most this.
    pub p50: u64,
    /// 90 % are.
    pub p90: u64,
    /// 99 % are.
    pub p99: u64,
    /// The largest.
    pub max: u64,
}

impl Percentiles {
    /// Of all samples, sorted in place; `None` without any.
    pub fn of(samples: &mut [u64]) -> Option<Self> {
        samples.sort_unstable();
        let max = *samples.last()?;
        // Nearest rank: the smallest sample that at least q per cent of all are at most.
        let rank = |q: usize| samples[(q * samples.len()).div_ceil(100).max(1) - 1];
        let count = samples.len() as u64;
        Some(Self { count, p50: rank(50), p90: rank(90), p99: rank(99), max })
    }

    /// As a JSON object, µs.
    pub fn json(&self) -> Value {
        json!({ "count": self.count, "p50": self.p50, "p90": self.p90, "p99": self.p99,
            "max": self.max })
    }
}

/// Samples of one class of rounds, µs.
#[derive(Clone, Debug, Default)]
struct Samples {
    round: Vec<u64>,
    corrected: Vec<u64>,
    send: Vec<u64>,
    worker: Vec<u64>,
    link: Vec<u64>,
}

/// Latency metrics of a report, in the order they are printed.
pub const METRICS: [&str; 5] = ["round", "corrected", "send", "worker", "link"];

impl Samples {
    fn metrics(&mut self) -> [&mut Vec<u64>; 5] {
        [&mut self.round, &mut self.corrected, &mut self.send, &mut self.worker, &mut self.link]
    }
}

/// What injected faults of one kind came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultOutcome {
    /// Rounds with the fault that were answered all the same.
    pub answered: u64,
    /// Rounds that failed by it.
    pub failed: u64,
}

/// Counters and samples of one replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// Engine rounds.
    pub rounds: u64,
    /// Rounds left out of the latencies, at the start.
    pub warmup: u64,
    /// Rounds that sent a STEP and failed.
    pub failed: u64,
    /// Failed rounds without an injected fault: the worker's or the link's own.
    pub unexplained: u64,
    /// Rounds that sent nothing: no connection, or an open breaker.
    pub not_sent: u64,
    /// Drafts of requests that a client would consume.
    pub drafts: u64,
    /// Entries by status.
    pub entries: [u64; EntryStatus::ALL.len()],
    /// Rounds that began more than the tolerance later than the pace asked.
    pub late: u64,
    /// Drafts accepted as the trace says: n_rows − 1 of k_window; prefill and resyncs left out.
    pub accepted: u64,
    /// Entries that say so.
    pub accepted_entries: u64,
    /// Faults injected.
    pub faults: FaultCounts,
    outcomes: [FaultOutcome; FaultKind::ALL.len()],
    samples: std::collections::BTreeMap<RoundClass, Samples>,
}

/// When a round was due and when it was begun, µs since the start of the replay.
#[derive(Clone, Copy, Debug)]
pub struct RoundClock {
    /// When the pace wanted it; `None` without a pace.
    pub due_us: Option<u64>,
    /// When it was begun.
    pub begun_us: u64,
}

impl ReplayReport {
    /// An empty report that leaves the first `rounds` rounds out of the latencies.
    pub fn with_warmup(rounds: u64) -> Self {
        Self { warmup: rounds, ..Self::default() }
    }

    /// Counts a round; `step` is the STEP as it was sent.
    pub fn round(
        &mut self,
        round: &Round,
        step: Option<&StepRequest<'_>>,
        num_spec: u32,
        clock: RoundClock,
    ) {
        self.rounds += 1;
        if let Some(kind) = round.fault {
            self.faults.record(kind);
        }
        let fault = round.fault.map(|kind| &mut self.outcomes[kind as usize]);
        match (round.report.outcome, fault) {
            (Outcome::Answered, Some(fault)) => fault.answered += 1,
            (Outcome::Answered, None) => {}
            (Outcome::NotSent(_), _) => self.not_sent += 1,
            (_, Some(fault)) => {
                fault.failed += 1;
                self.failed += 1;
            }
            (_, None) => {
                self.failed += 1;
                self.unexplained += 1;
            }
        }
        if let (Some(times), Some(step)) = (round.times, step)
            && self.rounds > self.warmup
        {
            self.sample(RoundClass::of(step, num_spec), times, clock);
        }
    }

    /// Counts one entry of an answered STEP.
    pub fn entry(&mut self, status: EntryStatus, consumed: Option<usize>) {
        self.entries[status as usize] += 1;
        self.drafts += consumed.map_or(0, |n| n as u64);
    }

    /// Counts what the engine accepted of a request's drafts, as recorded.
    pub fn acceptance(&mut self, n_rows: u64, k_window: u8) {
        if k_window > 0 && n_rows > 0 {
            self.accepted += (n_rows - 1).min(u64::from(k_window));
            self.accepted_entries += 1;
        }
    }

    /// What the faults of one kind came to.
    pub fn fault(&self, kind: FaultKind) -> FaultOutcome {
        self.outcomes[kind as usize]
    }

    fn sample(&mut self, class: RoundClass, times: RoundTimes, clock: RoundClock) {
        let samples = self.samples.entry(class).or_default();
        samples.round.push(times.total_us);
        samples.send.push(times.send_us);
        samples.worker.push(times.worker_us);
        samples.link.push(times.link_us());
        if let Some(due) = clock.due_us {
            // What the engine would have waited, had it kept its pace: lateness counts.
            samples.corrected.push(times.total_us + clock.begun_us.saturating_sub(due));
        }
    }

    /// Percentiles of every metric over all classes.
    pub fn latencies(&self) -> Vec<(&'static str, Option<Percentiles>)> {
        let mut all = Samples::default();
        for samples in self.samples.values() {
            let mut samples = samples.clone();
            for (all, part) in all.metrics().into_iter().zip(samples.metrics()) {
                all.append(part);
            }
        }
        METRICS.into_iter().zip(all.metrics().map(|m| Percentiles::of(m))).collect()
    }

    /// Percentiles of the round time by class.
    pub fn classes(&self) -> Vec<(RoundClass, Percentiles)> {
        let of = |(class, samples): (&RoundClass, &Samples)| {
            Percentiles::of(&mut samples.round.clone()).map(|p| (*class, p))
        };
        self.samples.iter().filter_map(of).collect()
    }

    /// The report as JSON; durations in µs.
    pub fn to_json(&self, counters: &Counters) -> Value {
        let mut doc = json!({
            "schema": 1, "rounds": self.rounds, "failed": self.failed,
            "unexplained": self.unexplained, "not_sent": self.not_sent, "steps": counters.steps,
            "rows": counters.rows, "resyncs": counters.resyncs, "resync_rows": counters.resync_rows,
            "drafts": self.drafts, "late": self.late, "warmup_rounds": self.warmup,
            "accepted": self.accepted, "accepted_entries": self.accepted_entries,
            "hellos": counters.hellos, "sessions": counters.sessions,
            "fallback": {
                "no_connection": counters.fallback_no_connection,
                "cooldown": counters.fallback_cooldown,
                "outdated": counters.fallback_outdated,
                "disabled": counters.fallback_disabled,
                "timeout": counters.fallback_timeout,
                "transport": counters.fallback_transport,
                "bad_reply": counters.fallback_bad_reply,
                "frame_error": counters.fallback_frame_error,
            },
        });
        for status in EntryStatus::ALL {
            doc["entries"][status.name()] = self.entries[*status as usize].into();
        }
        for (name, percentiles) in self.latencies() {
            if let Some(p) = percentiles {
                doc[format!("{name}_us")] = p.json();
            }
        }
        for (class, percentiles) in self.classes() {
            doc["classes_us"][class.name()] = percentiles.json();
        }
        for (kind, n) in self.faults.iter().filter(|(_, n)| *n > 0) {
            let outcome = self.fault(kind);
            doc["faults"][kind.name()] = json!({ "injected": n, "answered": outcome.answered,
                "failed": outcome.failed });
        }
        doc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut samples: Vec<u64> = (1..=200).rev().collect();
        let p = Percentiles::of(&mut samples).unwrap();
        assert_eq!((p.count, p.p50, p.p90, p.p99, p.max), (200, 100, 180, 198, 200));
        assert_eq!(Percentiles::of(&mut [7]).unwrap().p99, 7);
        assert_eq!(Percentiles::of(&mut []), None);
    }
}
