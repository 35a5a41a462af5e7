//! Contract §10 as a formula over what has happened, to compare the breaker's state machine with.

use dspark::client::breaker::Attempt;

/// When a round may send: unless `trip` failures stand since the last success and the last of them is at
/// most `cooldown` engine rounds ago.
pub(crate) struct BreakerModel {
    trip: u32,
    cooldown: u64,
    round: u64,
    failures_since_success: u32,
    last_failure: u64,
}

impl BreakerModel {
    pub(crate) fn new(trip: u32, cooldown: u64) -> Self {
        Self { trip, cooldown, round: 0, failures_since_success: 0, last_failure: 0 }
    }

    /// Begins an engine round.
    pub(crate) fn may_send(&mut self) -> bool {
        self.round += 1;
        let tripped = self.trip > 0 && self.failures_since_success >= self.trip;
        !(tripped && self.round - self.last_failure <= self.cooldown)
    }

    pub(crate) fn record(&mut self, attempt: Attempt) {
        match attempt {
            Attempt::Succeeded => self.failures_since_success = 0,
            Attempt::Failed => {
                self.failures_since_success += 1;
                self.last_failure = self.round;
            }
            Attempt::Neutral => {}
        }
    }
}
