//! What a replay counted and measured. Pure: rounds in, numbers out.

use serde_json::{Value, json};

use super::driver::Round;
use crate::protocol::{EntryStatus, StepReply};

/// Counters and samples of one replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// Rounds that were tried.
    pub rounds: u64,
    /// Of these, without a usable reply.
    pub failed: u64,
    /// Replies that break a rule of contract §6.3, among the failed.
    pub refused: u64,
    /// Rows sent.
    pub rows: u64,
    /// Draft positions received that a client would consume.
    pub drafts: u64,
    /// Drafts accepted according to the trace: n_rows − 1 of k_window, prefill and resyncs left out.
    pub accepted: u64,
    /// Rounds' entries that say how many drafts were accepted.
    pub accepted_entries: u64,
    /// Entries by status.
    pub entries: [u64; EntryStatus::ALL.len()],
    /// Rounds that began later than the pace asked.
    pub late: u64,
    /// Draft positions compared with recorded ones.
    pub compared: u64,
    /// Of these, equal.
    pub equal: u64,
    /// Blocks compared, and of these, equal in every position.
    pub blocks: [u64; 2],
    total_us: Vec<u64>,
    worker_us: Vec<u64>,
    link_us: Vec<u64>,
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

    fn json(&self) -> Value {
        json!({ "count": self.count, "p50": self.p50, "p90": self.p90, "p99": self.p99,
            "max": self.max })
    }
}

impl ReplayReport {
    /// Counts an answered round.
    pub fn answered(&mut self, round: &Round<'_>) {
        let num_spec = usize::from(round.reply.header.num_spec.get());
        self.rounds += 1;
        self.rows += u64::from(round.step.header.n_rows.get());
        self.total_us.push(round.times.total_us);
        self.worker_us.push(round.times.worker_us);
        self.link_us.push(round.times.link_us());
        for (index, entry) in round.step.entries.iter().enumerate() {
            let Some(status) = round.reply.status(index) else { continue };
            self.entries[status as usize] += 1;
            if entry.need_draft() && status.has_drafts() {
                self.drafts += entry.consumed(num_spec) as u64;
            }
            let rows = u64::from(entry.n_rows.get());
            if entry.k_window > 0 && !entry.resync() && rows > 0 {
                self.accepted += (rows - 1).min(u64::from(entry.k_window));
                self.accepted_entries += 1;
            }
        }
    }

    /// Counts a round without a usable reply.
    pub fn failed(&mut self, refused: bool) {
        self.rounds += 1;
        self.failed += 1;
        self.refused += u64::from(refused);
    }

    /// Compares an answered round with the recorded reply to the same STEP. Positions after the first
    /// mismatch of a block continue another Markov chain and are not counted.
    pub fn compare(&mut self, round: &Round<'_>, recorded: &StepReply<'_>) {
        let num_spec = usize::from(round.reply.header.num_spec.get());
        if recorded.header.n_req.get() != round.reply.header.n_req.get()
            || recorded.header.num_spec.get() != round.reply.header.num_spec.get()
        {
            return;
        }
        for (index, entry) in round.step.entries.iter().enumerate() {
            let drafted = |reply: &StepReply<'_>| {
                entry.need_draft() && reply.status(index).is_some_and(EntryStatus::has_drafts)
            };
            if !(drafted(&round.reply) && drafted(recorded)) {
                continue;
            }
            let n = entry.consumed(num_spec);
            let pairs = round.reply.ids(index).zip(recorded.ids(index)).take(n);
            let equal = pairs.take_while(|(ours, theirs)| ours == theirs).count();
            self.compared += n.min(equal + 1) as u64;
            self.equal += equal as u64;
            self.blocks[0] += 1;
            self.blocks[1] += u64::from(equal == n);
        }
    }

    /// Percentiles of round, worker and link time.
    pub fn latencies(&mut self) -> [(&'static str, Option<Percentiles>); 3] {
        [
            ("round", Percentiles::of(&mut self.total_us)),
            ("worker", Percentiles::of(&mut self.worker_us)),
            ("link", Percentiles::of(&mut self.link_us)),
        ]
    }

    /// The report as JSON; durations in µs.
    pub fn to_json(&mut self) -> Value {
        let mut doc = json!({
            "schema": 1, "rounds": self.rounds, "failed": self.failed, "refused": self.refused,
            "rows": self.rows, "drafts": self.drafts, "late": self.late,
            "accepted": self.accepted, "accepted_entries": self.accepted_entries,
        });
        for status in EntryStatus::ALL {
            doc["entries"][status.name()] = self.entries[*status as usize].into();
        }
        for (name, percentiles) in self.latencies() {
            if let Some(p) = percentiles {
                doc[format!("{name}_us")] = p.json();
            }
        }
        if self.blocks[0] > 0 {
            doc["agreement"] = json!({ "blocks": self.blocks[0], "equal_blocks": self.blocks[1],
                "compared": self.compared, "equal": self.equal });
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
