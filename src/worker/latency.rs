//! Durations of STEPs: percentiles for people, cumulative buckets and a sum for dashboards.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// Longest duration the percentiles tell apart, µs: a minute.
const LATENCY_MAX_US: u64 = 60_000_000;
/// Percentiles need this many samples to be printed (known use: dashboards that divide by them).
const SAMPLES_MIN: u64 = 2;
/// Upper bounds of the buckets, µs: a round's deadline is 50 ms, a draft on a GPU takes one or a few.
pub const BOUNDS_US: [u64; 13] =
    [500, 1_000, 1_500, 2_000, 3_000, 4_000, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 50_000];

/// Samples of one duration. Recording allocates nothing.
#[derive(Clone, Debug)]
pub struct Latency {
    percentiles: Histogram<u64>,
    /// Samples up to each bound and above the one before it.
    buckets: [u64; BOUNDS_US.len()],
    sum_us: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            percentiles: Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("constant bounds"),
            buckets: [0; BOUNDS_US.len()],
            sum_us: 0,
        }
    }
}

impl Latency {
    /// Counts one duration, µs.
    pub fn record(&mut self, us: u32) {
        let us = u64::from(us);
        self.percentiles.saturating_record(us);
        self.sum_us += us;
        if let Some(bucket) = BOUNDS_US.iter().position(|bound| us <= *bound) {
            self.buckets[bucket] += 1;
        }
    }

    /// Adds the keys `NAME_p50`, `_p90`, `_p99`, `_max` from two samples on, and always `NAME_hist`.
    pub fn put(&self, doc: &mut Map<String, Value>, name: &str) {
        let mut below = 0;
        let cumulative = self.buckets.iter().map(|count| {
            below += count;
            below
        });
        let hist = json!({ "le_us": BOUNDS_US, "count": cumulative.collect::<Vec<u64>>(),
            "samples": self.percentiles.len(), "sum_us": self.sum_us });
        doc.insert(format!("{name}_hist"), hist);
        if self.percentiles.len() < SAMPLES_MIN {
            return;
        }
        for (suffix, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            let value = self.percentiles.value_at_quantile(quantile);
            doc.insert(format!("{name}_{suffix}"), value.into());
        }
        doc.insert(format!("{name}_max"), self.percentiles.max().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(samples: &[u32]) -> Value {
        let mut latency = Latency::default();
        samples.iter().for_each(|us| latency.record(*us));
        let mut doc = Map::new();
        latency.put(&mut doc, "x_us");
        doc.into()
    }

    #[test]
    fn buckets_are_cumulative_and_their_bounds_belong_to_them() {
        let doc = put(&[1, 500, 501, 50_000, 50_001, u32::MAX]);
        let counts = doc["x_us_hist"]["count"].as_array().unwrap();
        assert_eq!((&counts[0], &counts[1], &counts[12]), (&json!(2), &json!(3), &json!(4)));
        assert_eq!(doc["x_us_hist"]["samples"], 6);
        assert_eq!(
            doc["x_us_hist"]["sum_us"],
            1 + 500 + 501 + 50_000 + 50_001 + u64::from(u32::MAX)
        );
    }

    #[test]
    fn percentiles_are_absent_below_two_samples() {
        assert!(put(&[]).get("x_us_p50").is_none());
        assert!(put(&[7]).get("x_us_max").is_none());
        assert_eq!(put(&[7, 9])["x_us_max"], 9);
    }
}
