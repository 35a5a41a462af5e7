//! What changed between two STATS documents of one worker, and how fast.

use serde_json::{Map, Value, json};

use crate::acceptance::Acceptance;
use crate::output::count;

/// Counters of STATS that are compared; paths of keys.
const COUNTERS: [&[&str]; 11] = [
    &["steps"],
    &["rows"],
    &["rows_bytes"],
    &["drafted_requests"],
    &["partial_windows"],
    &["stale_generation"],
    &["bad_entries"],
    &["internal_entries"],
    &["link", "connections"],
    &["link", "displaced"],
    &["link", "dropped_replies"],
];

/// The differences of two documents.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    /// Seconds of the worker's clock between them.
    interval_s: f64,
    counters: Vec<(String, u64)>,
    acceptance: Acceptance,
}

impl Rates {
    /// `None` when the second document is not a later one of the same worker: it was restarted.
    pub(crate) fn between(before: &Value, after: &Value) -> Option<Self> {
        let uptime = |doc: &Value| doc["uptime_s"].as_f64();
        let interval_s = uptime(after)? - uptime(before)?;
        if interval_s <= 0.0 {
            return None;
        }
        let mut counters = Vec::with_capacity(COUNTERS.len());
        for path in COUNTERS {
            let at = |doc: &Value| path.iter().try_fold(doc, |d, key| d.get(key))?.as_u64();
            if let (Some(before), Some(after)) = (at(before), at(after)) {
                // A counter of one worker never shrinks.
                counters.push((path.join("_"), after.checked_sub(before)?));
            }
        }
        let acceptance = Acceptance::of(after).since(&Acceptance::of(before));
        Some(Self { interval_s, counters, acceptance })
    }

    /// How fast a counter grew, where both documents have it.
    pub(crate) fn per_s(&self, name: &str) -> Option<f64> {
        Some(self.delta(name)? as f64 / self.interval_s)
    }

    fn delta(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|(known, _)| known == name).map(|(_, n)| *n)
    }

    /// The object `delta` of a `--watch --json` line. Nothing verified: no `accepted_per_round`.
    pub(crate) fn json(&self) -> Value {
        let mut doc: Map<String, Value> =
            self.counters.iter().map(|(name, n)| (name.clone(), (*n).into())).collect();
        doc.insert("interval_s".into(), self.interval_s.into());
        for name in ["steps", "rows", "rows_bytes"] {
            if let Some(rate) = self.per_s(name) {
                doc.insert(format!("{name}_per_s"), rate.into());
            }
        }
        doc.insert("drafts_verified".into(), self.acceptance.verified().into());
        doc.insert("drafts_accepted".into(), self.acceptance.accepted().into());
        if let Some(mean) = self.acceptance.per_round() {
            doc.insert("accepted_per_round".into(), json!(mean));
        }
        Value::Object(doc)
    }

    /// One line.
    pub(crate) fn text(&self) -> String {
        let rate = |name: &str| match (self.delta(name), self.per_s(name)) {
            (Some(n), Some(rate)) => format!("{name} +{} ({rate:.1}/s)", count(n)),
            _ => format!("{name} n/a"),
        };
        let plain = |name: &str, label: &str| {
            format!("{label} +{}", self.delta(name).map_or("n/a".into(), count))
        };
        let accepted = match self.acceptance.per_round() {
            None => "accepted n/a".into(),
            Some(mean) => format!("accepted {mean:.2} a round"),
        };
        format!(
            "last {:.1} s  {}  {}  {accepted}  {}  {}  {}  {}  {}",
            self.interval_s,
            rate("steps"),
            rate("rows"),
            plain("partial_windows", "partial"),
            plain("stale_generation", "stale"),
            plain("bad_entries", "bad"),
            plain("internal_entries", "internal"),
            plain("link_displaced", "displaced"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(uptime: f64, steps: u64, hist: [u64; 2], accepted: u64) -> Value {
        json!({ "uptime_s": uptime, "steps": steps, "rows": 10 * steps,
            "acceptance": { "accepted_hist": hist, "verified": [hist[0] + hist[1]],
                "accepted": [accepted] } })
    }

    #[test]
    fn rates_are_differences_over_the_workers_own_clock() {
        let rates = Rates::between(&doc(1.0, 10, [1, 1], 1), &doc(3.0, 16, [2, 4], 4)).unwrap();
        let json = rates.json();
        assert_eq!((&json["steps"], &json["steps_per_s"]), (&json!(6), &json!(3.0)));
        assert_eq!((&json["drafts_verified"], &json["drafts_accepted"]), (&json!(4), &json!(3)));
        assert_eq!(json["accepted_per_round"], json!(0.75));
        assert!(rates.text().starts_with("last 2.0 s  steps +6 (3.0/s)  rows +60 (30.0/s)  "));
    }

    #[test]
    fn nothing_verified_is_not_a_division_by_zero() {
        let rates = Rates::between(&doc(1.0, 1, [0, 0], 0), &doc(2.0, 2, [0, 0], 0)).unwrap();
        assert!(rates.json().get("accepted_per_round").is_none());
        assert!(rates.text().contains("accepted n/a"));
    }

    #[test]
    fn a_restarted_worker_has_no_rates() {
        assert!(Rates::between(&doc(9.0, 9, [0, 0], 0), &doc(0.5, 1, [0, 0], 0)).is_none());
        // Its successor may already be older than it was when it was asked last.
        assert!(Rates::between(&doc(9.0, 9, [0, 0], 0), &doc(10.0, 1, [0, 0], 0)).is_none());
    }
}
