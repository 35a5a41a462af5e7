//! Round-trip times of `ping`: percentiles and a histogram.

use std::time::Duration;

use serde_json::{Value, json};

use crate::output::micros;

/// Widest bar of the printed histogram.
const BAR_MAX: usize = 50;

/// Round trips in µs; percentiles are nearest-rank over all of them.
pub(crate) struct Summary {
    min: f64,
    p50: f64,
    p90: f64,
    /// The one that thresholds are compared with.
    pub(crate) p99: f64,
    max: f64,
    mean: f64,
    stddev: f64,
}

impl Summary {
    pub(crate) fn of(rtts: &mut [Duration]) -> Option<Self> {
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

    pub(crate) fn json(&self) -> Value {
        json!({ "min": self.min, "p50": self.p50, "p90": self.p90, "p99": self.p99,
            "max": self.max, "mean": self.mean, "stddev": self.stddev })
    }

    pub(crate) fn text(&self) -> String {
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
pub(crate) fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Counts of round trips between bounds in the steps 1, 2, 5 of each decade, from the first bucket used to
/// the last.
pub(crate) struct Buckets(Vec<(f64, usize)>);

impl Buckets {
    /// Sorts round trips into buckets; a bound belongs to the bucket below it.
    pub(crate) fn of(rtts: &[Duration]) -> Self {
        let mut buckets: Vec<(f64, usize)> = bounds().map(|bound| (bound, 0)).collect();
        for rtt in rtts {
            let bucket = buckets.iter_mut().find(|(bound, _)| us(*rtt) <= *bound);
            // The last bound is longer than any timeout; a longer one is counted there.
            match bucket {
                Some((_, count)) => *count += 1,
                None => buckets.last_mut().expect("constant bounds").1 += 1,
            }
        }
        let used = |(_, count): &(f64, usize)| *count > 0;
        let first = buckets.iter().position(used).unwrap_or(0);
        let end = buckets.iter().rposition(used).map_or(0, |last| last + 1);
        Self(buckets[first..end].to_vec())
    }

    /// `[{"le_us", "count"}]`, each count its own bucket's.
    pub(crate) fn json(&self) -> Value {
        self.0.iter().map(|(bound, n)| json!({ "le_us": bound, "count": n })).collect()
    }

    /// One line a bucket, with a bar.
    pub(crate) fn text(&self) -> String {
        let most = self.0.iter().map(|(_, n)| *n).max().unwrap_or(1).max(1);
        let line = |(bound, n): &(f64, usize)| {
            let bar = "#".repeat((n * BAR_MAX).div_ceil(most));
            format!("<= {:>9}  {n:>7}  {bar}", micros(*bound)).trim_end().to_owned()
        };
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// 1 µs to 500 s.
fn bounds() -> impl Iterator<Item = f64> {
    (0..9).flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_run_from_the_first_used_to_the_last_and_keep_every_sample() {
        let rtts = [8, 10, 11, 180].map(Duration::from_micros);
        assert_eq!(Buckets::of(&rtts).0, [(10.0, 2), (20.0, 1), (50.0, 0), (100.0, 0), (200.0, 1)]);
        assert_eq!(Buckets::of(&[]).text(), "");
        assert_eq!(Buckets::of(&[Duration::from_secs(9_999)]).0, [(5e8, 1)]);
    }
}
