//! When rounds are sent.

use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dspark::client::report::RoundClock;

/// A round begun this much after it was due is late; less is the scheduler's doing.
const LATE: Duration = Duration::from_millis(1);

/// `--pace`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// As recorded.
    Recorded,
    /// As fast as replies come.
    Max,
    /// At a fixed rate.
    PerSecond(f64),
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "recorded" => Ok(Self::Recorded),
            "max" => Ok(Self::Max),
            rate => match rate.parse::<f64>() {
                Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(Self::PerSecond(rate)),
                _ => Err("not 'recorded', 'max' or a rate per second".into()),
            },
        }
    }
}

/// The clock of a replay. Engine time is the pace's; without one it is the trace's, so that a reconnect
/// backoff lasts as many rounds as it would have.
///
/// A synchronous engine waits for each reply, so a late one moves every later round (contract §4.2). An
/// asynchronous one goes on while the request is in flight: the schedule stands, and a round that finds
/// the reply missing begins late.
pub(crate) struct Pacer {
    pace: Pace,
    asynchronous: bool,
    /// How far late replies have moved the schedule.
    moved: Duration,
    started: Instant,
    first_us: Option<u64>,
}

/// A round that may begin.
pub(crate) struct Due {
    /// For the report.
    pub(crate) clock: RoundClock,
    /// Engine time.
    pub(crate) now: Duration,
    /// Whether it begins late.
    pub(crate) late: bool,
}

impl Pacer {
    pub(crate) fn new(pace: Pace, asynchronous: bool) -> Self {
        let (started, moved) = (Instant::now(), Duration::ZERO);
        Self { pace, asynchronous, moved, started, first_us: None }
    }

    /// µs since the start.
    pub(crate) fn elapsed_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Waits until round `index` (0 is the first), recorded at `time_us`, is due.
    pub(crate) fn wait(&mut self, index: u64, time_us: u64) -> Due {
        let recorded = time_us.saturating_sub(*self.first_us.get_or_insert(time_us));
        let recorded = Duration::from_micros(recorded);
        let due = match self.pace {
            Pace::Recorded => Some(recorded),
            Pace::Max => None,
            Pace::PerSecond(rate) => Some(Duration::from_secs_f64(index as f64 / rate)),
        };
        let due = due.map(|due| due + self.moved);
        let mut late = false;
        if let Some(due) = due {
            let now = self.started.elapsed();
            match due.checked_sub(now) {
                Some(left) => sleep(left),
                None => {
                    late = now - due > LATE;
                    if !self.asynchronous {
                        self.moved += now - due;
                    }
                }
            }
        }
        let due_us = due.map(|due| u64::try_from(due.as_micros()).unwrap_or(u64::MAX));
        let clock = RoundClock { due_us, begun_us: self.elapsed_us() };
        Due { clock, now: due.unwrap_or(recorded), late }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_pace_engine_time_is_the_traces() {
        let mut pacer = Pacer::new(Pace::Max, false);
        assert_eq!(pacer.wait(0, 5_000_000).now, Duration::ZERO);
        let due = pacer.wait(1, 65_000_000);
        assert_eq!((due.now, due.late, due.clock.due_us), (Duration::from_secs(60), false, None));
    }

    #[test]
    fn a_round_that_was_due_long_ago_is_late() {
        let mut pacer = Pacer::new(Pace::PerSecond(1000.0), true);
        pacer.started -= Duration::from_secs(1);
        let due = pacer.wait(10, 0);
        assert!(due.late && due.clock.begun_us >= 1_000_000);
        assert_eq!(due.clock.due_us, Some(10_000));
        assert!(pacer.wait(20, 0).late, "the schedule of an asynchronous engine stands");
    }

    #[test]
    fn a_late_reply_moves_the_schedule_of_a_synchronous_engine() {
        let mut pacer = Pacer::new(Pace::PerSecond(1.0), false);
        pacer.started -= Duration::from_secs(60);
        assert!(pacer.wait(1, 0).late);
        pacer.started -= Duration::from_secs(1);
        let next = pacer.wait(2, 0);
        assert!(next.clock.due_us.is_some_and(|due| due >= 61_000_000));
    }
}
