//! Percentiles of what happened lately: STATS gives them since the start, and its buckets at any time.
//!
//! They are estimates, linear inside a bucket; beyond the last bound only the bound is known.

use serde_json::Value;

/// The cumulative buckets of one duration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buckets {
    /// Upper bounds in µs, and samples up to each.
    below: Vec<(u64, u64)>,
    /// All samples.
    samples: u64,
}

/// An estimated percentile.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Estimate {
    /// Microseconds.
    pub(crate) us: f64,
    /// Whether the real one is above.
    pub(crate) beyond: bool,
}

impl Buckets {
    /// The object `NAME_hist` of a STATS document; empty where there is none.
    pub(crate) fn of(doc: &Value, name: &str) -> Self {
        let hist = &doc[format!("{name}_hist")];
        let list = |key: &str| hist[key].as_array().into_iter().flatten().map(Value::as_u64);
        let below = list("le_us").zip(list("count")).map(|(le, count)| Some((le?, count?)));
        Self {
            below: below.collect::<Option<_>>().unwrap_or_default(),
            samples: hist["samples"].as_u64().unwrap_or(0),
        }
    }

    /// Samples counted since `earlier`. Other bounds are another program's: nothing is known then.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let bounds = |buckets: &Self| buckets.below.iter().map(|(le, _)| *le).collect::<Vec<_>>();
        if bounds(self) != bounds(earlier) {
            return Self::default();
        }
        let pairs = self.below.iter().zip(&earlier.below);
        Self {
            below: pairs.map(|(now, before)| (now.0, now.1.saturating_sub(before.1))).collect(),
            samples: self.samples.saturating_sub(earlier.samples),
        }
    }

    /// The duration that a share `q` of the samples does not exceed; `None` without samples.
    pub(crate) fn quantile(&self, q: f64) -> Option<Estimate> {
        if self.samples == 0 {
            return None;
        }
        let rank = (q * self.samples as f64).max(1.0);
        let (mut low, mut passed) = (0, 0);
        for &(bound, below) in &self.below {
            if below as f64 >= rank && below > passed {
                let part = (rank - passed as f64) / (below - passed) as f64;
                let us = low as f64 + part * bound.saturating_sub(low) as f64;
                return Some(Estimate { us, beyond: false });
            }
            (low, passed) = (bound, below.max(passed));
        }
        Some(Estimate { us: low as f64, beyond: true })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn buckets(count: [u64; 3], samples: u64) -> Buckets {
        let hist = json!({ "le_us": [500, 1000, 2000], "count": count, "samples": samples });
        Buckets::of(&json!({ "x_us_hist": hist }), "x_us")
    }

    #[test]
    fn percentiles_are_linear_inside_a_bucket() {
        let all = buckets([10, 20, 20], 20);
        assert_eq!(all.quantile(0.25), Some(Estimate { us: 250.0, beyond: false }));
        assert_eq!(all.quantile(0.5), Some(Estimate { us: 500.0, beyond: false }));
        assert_eq!(all.quantile(0.75), Some(Estimate { us: 750.0, beyond: false }));
    }

    #[test]
    fn beyond_the_last_bound_only_the_bound_is_known() {
        let late = buckets([0, 0, 1], 2);
        assert_eq!(late.quantile(0.99), Some(Estimate { us: 2000.0, beyond: true }));
        assert_eq!(late.quantile(0.5), Some(Estimate { us: 2000.0, beyond: false }));
    }

    #[test]
    fn only_what_came_since_counts_and_nothing_is_no_percentile() {
        let (before, after) = (buckets([10, 10, 10], 10), buckets([10, 14, 14], 14));
        assert_eq!(after.since(&before).quantile(1.0).map(|e| e.us), Some(1000.0));
        assert_eq!(after.since(&after).quantile(0.5), None);
        // A restarted worker, other bounds, or counts that make no sense: no panic, no figure.
        assert_eq!(before.since(&after).quantile(0.5), None);
        assert_eq!(after.since(&Buckets::default()), Buckets::default());
        assert!(buckets([9, 3, 1], 9).quantile(0.5).is_some());
        assert_eq!(
            Buckets::of(&json!({ "x_us_hist": { "le_us": [-1], "count": [1] } }), "x_us")
                .quantile(0.5),
            None
        );
    }
}
