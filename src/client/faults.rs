//! Link faults for tests of a worker, drawn from a seed: which round has which fault, and which bytes
//! a corrupted reply has.
//!
//! The draw of a round depends on the seed and the round's number alone, never on what earlier rounds
//! came to, so the same seed repeats the same faults against any worker. Carrying a fault out is the
//! connection's business.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::protocol::HEADER_BYTES;
use crate::random::SplitMix64;

/// What happens to the exchange of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The connection is closed after the STEP was sent and before the reply is read.
    Close,
    /// The reply never arrives: the deadline passes and the client closes.
    Drop,
    /// The reply arrives later.
    Delay,
    /// Bytes of the reply are corrupted so that the client must refuse it.
    Garbage,
    /// The reply arrives as a well-framed message that ends early.
    Truncate,
    /// The STEP of an earlier round arrives once more, before this round's; its answer is dropped.
    Stale,
    /// The STEP arrives twice; the second answer is dropped.
    Duplicate,
    /// The client ends its sending direction after the STEP; the reply still arrives.
    HalfClose,
}

impl FaultKind {
    /// Every kind, in the order of [`FaultCounts`].
    pub const ALL: [Self; 8] = [
        Self::Close,
        Self::Drop,
        Self::Delay,
        Self::Garbage,
        Self::Truncate,
        Self::Stale,
        Self::Duplicate,
        Self::HalfClose,
    ];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Drop => "drop",
            Self::Delay => "delay",
            Self::Garbage => "garbage",
            Self::Truncate => "truncate",
            Self::Stale => "stale",
            Self::Duplicate => "duplicate",
            Self::HalfClose => "half-close",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A kind of fault with its probability per round, as written on the command line: `close=0.01`,
/// `delay=60ms@0.05`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultSpec {
    /// What happens.
    pub kind: FaultKind,
    /// Probability per round, 0 ..= 1.
    pub probability: f64,
    /// How late the reply is; zero for every kind but [`FaultKind::Delay`].
    pub delay: Duration,
}

/// A fault that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// No `=`.
    #[error("a fault is written KIND=P or delay=TIME@P, not {0:?}")]
    Form(String),
    /// No such kind.
    #[error("no fault {0:?}; there are {list}", list = FaultKind::ALL.map(FaultKind::name).join(", "))]
    Kind(String),
    /// Not a probability.
    #[error("{0:?} is not a probability between 0 and 1")]
    Probability(String),
    /// Not a time.
    #[error("{0:?} is not a time such as 60ms or 2s")]
    Delay(String),
    /// A time where none belongs, or none where one is needed.
    #[error("{}", if *.needed { "delay needs a time: delay=TIME@P" } else { "only delay takes a time" })]
    Time {
        /// Whether the kind needs one.
        needed: bool,
    },
    /// A kind given twice.
    #[error("{0} is given twice")]
    Twice(FaultKind),
}

impl FromStr for FaultSpec {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (name, value) = text.split_once('=').ok_or_else(|| FaultError::Form(text.into()))?;
        let kind = FaultKind::ALL.into_iter().find(|k| k.name() == name);
        let kind = kind.ok_or_else(|| FaultError::Kind(name.into()))?;
        let (time, chance) = match value.split_once('@') {
            Some((time, chance)) => (Some(time), chance),
            None => (None, value),
        };
        let delay = match (kind, time) {
            (FaultKind::Delay, Some(time)) => parse_time(time)?,
            (FaultKind::Delay, None) => return Err(FaultError::Time { needed: true }),
            (_, Some(_)) => return Err(FaultError::Time { needed: false }),
            (_, None) => Duration::ZERO,
        };
        let probability = chance.parse().ok().filter(|p| (0.0..=1.0).contains(p));
        let probability = probability.ok_or_else(|| FaultError::Probability(chance.into()))?;
        Ok(Self { kind, probability, delay })
    }
}

/// A time with a unit; a bare number is milliseconds.
fn parse_time(text: &str) -> Result<Duration, FaultError> {
    let time = match text.parse() {
        Ok(ms) => Some(Duration::from_millis(ms)),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    time.ok_or_else(|| FaultError::Delay(text.into()))
}

/// The fault of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// How late the reply is, for [`FaultKind::Delay`].
    pub delay: Duration,
    /// Drawn with the fault: which bytes are corrupted, where a reply ends.
    pub entropy: u64,
}

impl Fault {
    /// Corrupts a reply to a STEP so that rank 0 has to refuse it: one byte that is compared with the
    /// request, or every byte.
    pub fn garble(&self, reply: &mut [u8]) {
        let mut rng = SplitMix64::new(self.entropy);
        let flip = u8::try_from(rng.next() % 255 + 1).expect("1 ..= 255");
        if rng.next().is_multiple_of(4) {
            for byte in reply.iter_mut() {
                *byte ^= rng.next().to_le_bytes()[0];
            }
            // The noise may have hit the magic or not; what follows makes sure that it is wrong.
            if let Some(first) = reply.first_mut() {
                *first = b'D' ^ flip;
            }
            return;
        }
        // Everything up to `status` is echoed or fixed, and so are step_id, n_req and num_spec.
        let fields = (0..24).chain(HEADER_BYTES..HEADER_BYTES + 12);
        let n = fields.clone().filter(|at| *at < reply.len()).count() as u64;
        let pick = rng.next() % n.max(1);
        if let Some(at) = fields.filter(|at| *at < reply.len()).zip(0..).find(|(_, i)| *i == pick) {
            reply[at.0] ^= flip;
        }
    }

    /// Bytes that arrive of a reply of `len` bytes, fewer than `len`.
    pub fn truncated_len(&self, len: usize) -> usize {
        let short = SplitMix64::new(self.entropy).next() % (len as u64).max(1);
        usize::try_from(short).expect("below len")
    }
}

/// Which round has which fault.
#[derive(Clone, Debug)]
pub struct FaultSchedule {
    seed: u64,
    specs: Vec<FaultSpec>,
}

impl FaultSchedule {
    /// A schedule of `specs`, repeated by the same `seed`.
    ///
    /// # Errors
    /// [`FaultError::Twice`] when a kind occurs twice.
    pub fn new(seed: u64, specs: &[FaultSpec]) -> Result<Self, FaultError> {
        for (i, spec) in specs.iter().enumerate() {
            if specs[..i].iter().any(|s| s.kind == spec.kind) {
                return Err(FaultError::Twice(spec.kind));
            }
        }
        Ok(Self { seed, specs: specs.to_vec() })
    }

    /// The fault of round `round`. Every kind is drawn on its own; of several that hit, one is taken at
    /// random, so a round has at most one.
    pub fn at(&self, round: u64) -> Option<Fault> {
        let mut hit = None;
        let mut hits = 0;
        for spec in &self.specs {
            let mut rng = self.stream(round, spec.kind);
            if rng.unit() < spec.probability {
                hits += 1;
                let entropy = rng.next();
                if rng.next().is_multiple_of(hits) {
                    hit = Some(Fault { kind: spec.kind, delay: spec.delay, entropy });
                }
            }
        }
        hit
    }

    fn stream(&self, round: u64, kind: FaultKind) -> SplitMix64 {
        SplitMix64::at(self.seed, round, kind.index() as u64)
    }
}

/// How often each kind of fault occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; FaultKind::ALL.len()]);

impl FaultCounts {
    /// Counts one fault.
    pub fn record(&mut self, kind: FaultKind) {
        self.0[kind.index()] += 1;
    }

    /// How often `kind` occurred.
    pub fn get(&self, kind: FaultKind) -> u64 {
        self.0[kind.index()]
    }

    /// All faults.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every kind with its count.
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> + '_ {
        FaultKind::ALL.into_iter().map(|kind| (kind, self.get(kind)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> FaultSpec {
        text.parse().unwrap()
    }

    #[test]
    fn a_fault_reads_as_it_is_written() {
        assert_eq!(
            spec("delay=60ms@0.05"),
            FaultSpec {
                kind: FaultKind::Delay,
                probability: 0.05,
                delay: Duration::from_millis(60)
            }
        );
        assert_eq!(spec("delay=60@1").delay, Duration::from_millis(60));
        for kind in FaultKind::ALL.into_iter().filter(|k| *k != FaultKind::Delay) {
            assert_eq!(spec(&format!("{kind}=0.25")).kind, kind);
        }
    }

    #[test]
    fn a_fault_that_cannot_be_meant_is_refused_with_its_reason() {
        let error = |text: &str| text.parse::<FaultSpec>().unwrap_err().to_string();
        assert_eq!(error("close"), "a fault is written KIND=P or delay=TIME@P, not \"close\"");
        assert!(error("clsoe=0.1").starts_with("no fault \"clsoe\"; there are close, drop, delay"));
        assert_eq!(error("close=1.5"), "\"1.5\" is not a probability between 0 and 1");
        assert_eq!(error("drop=-0.1"), "\"-0.1\" is not a probability between 0 and 1");
        assert_eq!(error("drop=NaN"), "\"NaN\" is not a probability between 0 and 1");
        assert_eq!(error("delay=0.1"), "delay needs a time: delay=TIME@P");
        assert_eq!(error("drop=5ms@0.1"), "only delay takes a time");
        assert_eq!(error("delay=soon@0.1"), "\"soon\" is not a time such as 60ms or 2s");
        assert_eq!(error("delay=-5ms@0.1"), "\"-5ms\" is not a time such as 60ms or 2s");
        let twice = [spec("drop=0.1"), spec("drop=0.2")];
        assert_eq!(FaultSchedule::new(0, &twice).unwrap_err().to_string(), "drop is given twice");
    }

    #[test]
    fn a_round_has_the_same_fault_whenever_it_is_asked() {
        let specs = FaultKind::ALL.map(|kind| {
            let time = if kind == FaultKind::Delay { "60ms@" } else { "" };
            spec(&format!("{kind}={time}0.1"))
        });
        let schedule = FaultSchedule::new(7, &specs).unwrap();
        let forward: Vec<_> = (0..500).map(|r| schedule.at(r)).collect();
        let backward: Vec<_> = (0..500).rev().map(|r| schedule.at(r)).collect();
        assert!(forward.iter().eq(backward.iter().rev()));
        let other = FaultSchedule::new(8, &specs).unwrap();
        assert!((0..500).any(|r| other.at(r) != schedule.at(r)));
    }

    #[test]
    fn a_kind_hits_as_often_as_its_probability_says() {
        let schedule = FaultSchedule::new(3, &[spec("drop=0.01")]).unwrap();
        let hits = (0..100_000).filter(|r| schedule.at(*r).is_some()).count();
        // Binomial: mean 1000, standard deviation 31.5; five of them on either side.
        assert!((843..=1157).contains(&hits), "{hits}");
        let always = FaultSchedule::new(3, &[spec("drop=1")]).unwrap();
        assert!((0..1000).all(|r| always.at(r).is_some()));
        let never = FaultSchedule::new(3, &[spec("drop=0")]).unwrap();
        assert!((0..1000).all(|r| never.at(r).is_none()));
    }

    #[test]
    fn of_two_certain_faults_each_wins_about_half_the_rounds() {
        let schedule = FaultSchedule::new(5, &[spec("drop=1"), spec("close=1")]).unwrap();
        let mut counts = FaultCounts::default();
        (0..10_000).filter_map(|r| schedule.at(r)).for_each(|f| counts.record(f.kind));
        assert_eq!(counts.total(), 10_000);
        assert!((4_750..=5_250).contains(&counts.get(FaultKind::Drop)), "{counts:?}");
        assert_eq!(counts.iter().map(|(_, n)| n).sum::<u64>(), counts.total());
    }

    #[test]
    fn a_truncated_reply_is_shorter_and_a_garbled_one_differs() {
        for entropy in 0..2_000 {
            let fault = Fault { kind: FaultKind::Garbage, delay: Duration::ZERO, entropy };
            assert!(fault.truncated_len(112) < 112);
            let mut reply = [b'D'; 112];
            fault.garble(&mut reply);
            assert_ne!(reply, [b'D'; 112]);
            fault.garble(&mut []);
        }
        assert_eq!(
            Fault { kind: FaultKind::Truncate, delay: Duration::ZERO, entropy: 1 }.truncated_len(0),
            0
        );
    }
}
