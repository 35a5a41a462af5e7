//! Acceptance as STATS counts it: drafts that the engine verified and accepted, by position.
//!
//! A round counts when the engine verified drafts (k_window > 0) and kept rows, resyncs left out; accepted
//! are n_rows - 1 of them.

use serde_json::Value;

/// Counts of verified and accepted drafts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acceptance {
    /// Rounds that count.
    pub(crate) rounds: u64,
    /// Drafts verified and accepted at each position.
    pub(crate) positions: Vec<(u64, u64)>,
}

impl Acceptance {
    /// The counts of a STATS document; what it does not say counts as nothing.
    pub(crate) fn of(doc: &Value) -> Self {
        let list = |key: &str| {
            let values = doc["acceptance"][key].as_array();
            values.into_iter().flatten().filter_map(Value::as_u64)
        };
        Self {
            rounds: list("accepted_hist").fold(0, u64::saturating_add),
            positions: list("verified").zip(list("accepted")).collect(),
        }
    }

    /// What was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = earlier.positions.iter().copied().chain(std::iter::repeat((0, 0)));
        let grown = self.positions.iter().zip(before);
        Self {
            rounds: self.rounds.saturating_sub(earlier.rounds),
            positions: grown
                .map(|(now, before)| {
                    (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1))
                })
                .collect(),
        }
    }

    /// Drafts verified, at all positions.
    pub(crate) fn verified(&self) -> u64 {
        self.positions.iter().fold(0, |sum, (verified, _)| sum.saturating_add(*verified))
    }

    /// Drafts accepted, at all positions.
    pub(crate) fn accepted(&self) -> u64 {
        self.positions.iter().fold(0, |sum, (_, accepted)| sum.saturating_add(*accepted))
    }

    /// Drafts accepted in a round, on average.
    pub(crate) fn per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.accepted() as f64 / self.rounds as f64)
    }

    /// Accepted over verified drafts, at all positions.
    pub(crate) fn rate(&self) -> Option<f64> {
        share(self.verified(), self.accepted())
    }

    /// Accepted over verified drafts, position by position; `None` where nothing was verified.
    pub(crate) fn rates(&self) -> impl Iterator<Item = Option<f64>> {
        self.positions.iter().map(|(verified, accepted)| share(*verified, *accepted))
    }
}

/// `accepted` over `verified`.
pub(crate) fn share(verified: u64, accepted: u64) -> Option<f64> {
    (verified > 0).then(|| accepted as f64 / verified as f64)
}

/// A share in per cent, or `n/a`.
pub(crate) fn percent(share: Option<f64>, digits: usize) -> String {
    share.map_or("n/a".to_owned(), |share| format!("{:.digits$}%", 100.0 * share))
}
