//! Saying a repeated thing once in a while: what a peer or a broken device can cause again and again must
//! not fill the log.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The same thing is said at most once in this time.
const EVERY: Duration = Duration::from_secs(10);

/// Memory of one kind of message.
#[derive(Debug, Default)]
pub struct Repeats {
    said: Cell<Option<Instant>>,
    unsaid: Cell<u64>,
}

impl Repeats {
    /// How many were swallowed since the last one, if this one is to be said; else it is swallowed.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let recent = self.said.get().is_some_and(|at| now.saturating_duration_since(at) < EVERY);
        if recent {
            self.unsaid.set(self.unsaid.get() + 1);
            return None;
        }
        self.said.set(Some(now));
        Some(self.unsaid.replace(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_then_one_in_ten_seconds_with_the_number_of_those_between() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        let pass = |ms: u64| repeats.pass(start + Duration::from_millis(ms));
        assert_eq!(pass(0), Some(0));
        assert_eq!((pass(1), pass(9_999)), (None, None));
        assert_eq!(pass(10_000), Some(2));
        assert_eq!((pass(10_001), pass(30_000)), (None, Some(1)));
    }
}
