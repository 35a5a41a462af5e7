//! What changed between two STATS documents of one worker, and how fast.

use serde_json::{Map, Value, json};

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
pub(crate) struct Rates {
    /// Seconds of the worker's clock between them.
    interval_s: f64,
    counters: Vec<(String, u64)>,
    /// Rounds whose drafts were verified, and drafts accepted and verified in them.
    rounds: u64,
    accepted: u64,
    verified: u64,
}

impl Rates {
    /// `None` when the second document is not a later one of the same worker: it was restarted.
    pub(crate) fn between(before: &Value, after: &Value) -> Option<Self> {
        let uptime = |doc: &Value| doc["uptime_s"].as_f64();
        let interval_s = uptime(after)? - uptime(before)?;
        if interval_s <= 0.0 {
            return None;
        }
        let counters = COUNTERS.iter().filter_map(|path| {
            let at = |doc: &Value| path.iter().fold(doc.clone(), |d, key| d[key].clone()).as_u64();
            Some((path.join("_"), at(after)?.checked_sub(at(before)?)?))
        });
        let sum = |doc: &Value, key: &str| -> u64 {
            let list = doc["acceptance"][key].as_array();
            list.into_iter().flatten().filter_map(Value::as_u64).sum()
        };
        let grown = |key: &str| sum(after, key).saturating_sub(sum(before, key));
        Some(Self {
            interval_s,
            counters: counters.collect(),
            rounds: grown("accepted_hist"),
            accepted: grown("accepted"),
            verified: grown("verified"),
        })
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
            if let Some(n) = self.delta(name) {
                doc.insert(format!("{name}_per_s"), (n as f64 / self.interval_s).into());
            }
        }
        doc.insert("drafts_verified".into(), self.verified.into());
        doc.insert("drafts_accepted".into(), self.accepted.into());
        if self.rounds > 0 {
            let mean = self.accepted as f64 / self.rounds as f64;
            doc.insert("accepted_per_round".into(), json!(mean));
        }
        Value::Object(doc)
    }

    /// One line.
    pub(crate) fn text(&self) -> String {
        let rate = |name: &str| match self.delta(name) {
            Some(n) => format!("{name} +{} ({:.1}/s)", count(n), n as f64 / self.interval_s),
            None => format!("{name} n/a"),
        };
        let plain = |name: &str, label: &str| {
            format!("{label} +{}", self.delta(name).map_or("n/a".into(), count))
        };
        let accepted = match self.rounds {
            0 => "accepted n/a".into(),
            rounds => format!("accepted {:.2} a round", self.accepted as f64 / rounds as f64),
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
    }
}
