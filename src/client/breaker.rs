//! When rank 0 may try: the circuit breaker and the reconnect backoff (contract §10).
//!
//! The breaker counts engine rounds, the backoff wall-clock time; they are independent. Neither knows a
//! connection: the caller asks before a round and says afterwards what it was.
#![forbid(unsafe_code)]

use std::time::Duration;

/// `VLLM_DSPARK_REMOTE_TRIP`: failed attempts in a row that open the breaker.
pub const TRIP: u32 = 3;
/// `VLLM_DSPARK_REMOTE_COOLDOWN`: engine rounds the breaker stays open.
pub const COOLDOWN: u64 = 256;
/// First pause before a reconnect.
pub const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a reconnect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// What a round says about the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// A STEP went out and failed, or no request that needed drafts got any.
    Failed,
    /// At least one request that needed drafts got them.
    Succeeded,
    /// Nothing was sent, or the STEP succeeded and nobody needed drafts: drafting was not exercised.
    Neutral,
}

/// What became of the STEP of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facts {
    /// Nothing was sent: no connection, nothing to send, an open breaker, or a connection newer than the
    /// one the entries were built for.
    NotSent,
    /// Timeout, transport error, refused reply or frame error.
    Failed,
    /// The frame was answered with OK.
    Answered {
        /// Requests of the STEP that needed drafts.
        needed: u32,
        /// Those of them that got drafts: status OK or PARTIAL_WINDOW.
        drafted: u32,
    },
}

impl Facts {
    /// Classifies the round (contract §10, v1.8).
    pub fn attempt(self) -> Attempt {
        match self {
            Self::NotSent | Self::Answered { needed: 0, .. } => Attempt::Neutral,
            Self::Failed | Self::Answered { drafted: 0, .. } => Attempt::Failed,
            Self::Answered { .. } => Attempt::Succeeded,
        }
    }
}

/// Where the breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Rounds are tried.
    Closed,
    /// Rounds send nothing.
    Open {
        /// Engine rounds still to be skipped, at least 1.
        left: u64,
    },
    /// The cooldown is over: the next STEP with a request that needs drafts decides.
    Probing,
}

/// The circuit breaker: consecutive failed attempts, and the engine rounds that then send nothing.
///
/// Each engine round is one [`admit`](Self::admit) followed by one [`record`](Self::record).
#[derive(Clone, Debug)]
pub struct Breaker {
    trip: u32,
    cooldown: u64,
    failures: u32,
    state: State,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new(TRIP, COOLDOWN)
    }
}

impl Breaker {
    /// A closed breaker that opens after `trip` failed attempts in a row for `cooldown` engine rounds.
    /// `trip` 0 turns it off: every round tries.
    pub fn new(trip: u32, cooldown: u64) -> Self {
        Self { trip, cooldown, failures: 0, state: State::Closed }
    }

    /// Counts one engine round, connected or not. False while the breaker is open: the round must send
    /// nothing and is counted as `fallback_cooldown`.
    pub fn admit(&mut self) -> bool {
        let State::Open { left } = self.state else { return true };
        self.state = if left > 1 { State::Open { left: left - 1 } } else { State::Probing };
        false
    }

    /// Takes what the round was. A failure while probing opens the breaker again, whether or not the STEP
    /// had a request that needed drafts: the count was never reset. A round that was not admitted is
    /// neutral.
    pub fn record(&mut self, attempt: Attempt) {
        match attempt {
            Attempt::Neutral => {}
            Attempt::Succeeded => {
                self.failures = 0;
                self.state = State::Closed;
            }
            Attempt::Failed => {
                self.failures = self.failures.saturating_add(1);
                if self.trip > 0 && self.failures >= self.trip {
                    let left = self.cooldown;
                    self.state = if left > 0 { State::Open { left } } else { State::Probing };
                }
            }
        }
    }

    /// Where the breaker stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// Failed attempts in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// Pauses between attempts to connect, in wall-clock time: 1 s, doubling up to 30 s, reset by a
/// successful HELLO. Times are durations since any fixed moment.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    pause: Duration,
    not_before: Option<Duration>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(BACKOFF_MIN)
    }
}

impl Backoff {
    /// A backoff whose first pause is `first` instead of the contract's second; zero never pauses.
    pub fn new(first: Duration) -> Self {
        Self { first, pause: first, not_before: None }
    }

    /// Whether a connection may be tried at `now`; the first one may at once.
    pub fn may_connect(&self, now: Duration) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    /// The moment before which nothing is tried, if a transport failure set one.
    pub fn not_before(&self) -> Option<Duration> {
        self.not_before
    }

    /// A connection was lost, dropped, or could not be made or greeted, at `now`.
    pub fn failed(&mut self, now: Duration) {
        self.not_before = Some(now.saturating_add(self.pause));
        self.pause = (self.pause * 2).min(BACKOFF_MAX);
    }

    /// A HELLO was accepted.
    pub fn succeeded(&mut self) {
        *self = Self::new(self.first);
    }
}
