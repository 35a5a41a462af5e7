//! What a round came to, for the engine, the breaker and the statistics.

use super::Owner;
use crate::client::breaker::Facts;
use crate::geometry::Geometry;
use crate::protocol::{EntryStatus, FrameStatus, StepReply};

/// Why a round sent nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// No connection, or none with an accepted HELLO.
    NoConnection,
    /// The breaker is open.
    Cooldown,
    /// The batch is empty.
    Nothing,
    /// The connection is newer than the one the entries were built for (contract §10, v1.8).
    Outdated,
    /// The worker gave a fatal status: the remote drafter is off for good (contract §9.1).
    Disabled,
}

/// Why a STEP got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The deadline passed.
    Timeout,
    /// The connection broke.
    Transport,
}

/// What became of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The STEP was answered with OK.
    Answered,
    /// Nothing was sent.
    NotSent(NotSent),
    /// The STEP got no reply.
    Failed(Failure),
    /// The reply was refused (contract §6.3): see [`Rank0::last_bad_reply`](super::Rank0::last_bad_reply).
    BadReply,
    /// The STEP was answered with a frame error.
    Frame(FrameStatus),
}

/// A finished round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundReport {
    /// What became of it.
    pub outcome: Outcome,
    /// Requests of the STEP that needed drafts.
    pub needed: u32,
    /// Those of them that have drafts; the others are given zeros.
    pub drafted: u32,
}

impl RoundReport {
    /// A round in which nothing happened yet.
    pub const NOTHING: Self =
        Self { outcome: Outcome::NotSent(NotSent::Nothing), needed: 0, drafted: 0 };

    /// What the breaker looks at.
    pub fn facts(&self) -> Facts {
        match self.outcome {
            Outcome::NotSent(_) => Facts::NotSent,
            Outcome::Answered => Facts::Answered { needed: self.needed, drafted: self.drafted },
            Outcome::Failed(_) | Outcome::BadReply | Outcome::Frame(_) => Facts::Failed,
        }
    }

    /// Whether rank 0 gives the connection up: after a timeout a late reply must never land, after a
    /// refused one nothing it says can be trusted (contract §6.3, §7.5).
    pub fn drops_connection(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_) | Outcome::BadReply)
    }
}

/// What one request of the batch got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestResult {
    /// Its slot.
    pub slot: u8,
    /// Its owner.
    pub owner: Owner,
    /// Whether it needed drafts.
    pub need_draft: bool,
    /// Whether its entry re-sent the ring's window.
    pub resync: bool,
    /// Status of the reply; `None` without a usable reply.
    pub status: Option<EntryStatus>,
    /// Rows its anchor attended to.
    pub window_rows: u16,
    /// Whether its drafts may be used; otherwise they are zeros.
    pub usable: bool,
    /// Index of its entry in the STEP; `None` when it was left out.
    pub(super) entry: Option<usize>,
}

/// The drafts of a round as rank 0 broadcasts them: N values for each request of the batch, zeros
/// wherever there is nothing usable (contract §10). Fixed memory.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    num_spec: usize,
    ids: Vec<i32>,
    confidence: Vec<f32>,
    margin: Vec<f32>,
}

impl Answers {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let num_spec = geometry.num_spec as usize;
        let cells = geometry.max_slots as usize * num_spec;
        Self {
            num_spec,
            ids: vec![0; cells],
            confidence: vec![0.0; cells],
            margin: vec![0.0; cells],
        }
    }

    pub(super) fn clear(&mut self) {
        self.ids.fill(0);
        self.confidence.fill(0.0);
        self.margin.fill(0.0);
    }

    /// Takes the drafts of entry `entry` for request `request` of the batch.
    pub(super) fn take(&mut self, request: usize, reply: &StepReply<'_>, entry: usize) {
        let at = request * self.num_spec;
        let put = |to: &mut [f32], from: &mut dyn Iterator<Item = f32>| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from);
        };
        self.ids[at..].iter_mut().zip(reply.ids(entry)).for_each(|(to, id)| *to = id);
        put(&mut self.confidence[at..], &mut reply.confidence(entry));
        put(&mut self.margin[at..], &mut reply.margin(entry));
    }

    pub(super) fn of(&self, request: usize) -> Drafts<'_> {
        let at = request * self.num_spec..(request + 1) * self.num_spec;
        Drafts {
            ids: &self.ids[at.clone()],
            confidence: &self.confidence[at.clone()],
            margin: &self.margin[at],
        }
    }
}

/// Drafts of one request: N values each, zeros where there are none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafts<'a> {
    /// Draft token ids.
    pub ids: &'a [i32],
    /// Confidences in [0, 1].
    pub confidence: &'a [f32],
    /// Top-1 minus top-2; zeros unless margins were asked for and given.
    pub margin: &'a [f32],
}

/// What rank 0 has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Engine rounds.
    pub rounds: u64,
    /// STEPs sent.
    pub steps: u64,
    /// STEPs answered with OK.
    pub answered: u64,
    /// HELLOs accepted.
    pub hellos: u64,
    /// Sessions started, the first included.
    pub sessions: u64,
    /// Rows sent.
    pub rows: u64,
    /// Entries that re-sent a window.
    pub resyncs: u64,
    /// Rows of those entries.
    pub resync_rows: u64,
    /// Requests given drafts.
    pub drafted_requests: u64,
    /// Entries answered PARTIAL_WINDOW.
    pub partial_windows: u64,
    /// Entries answered STALE_GENERATION.
    pub stale_generations: u64,
    /// Entries answered BAD_ENTRY.
    pub bad_entries: u64,
    /// Entries answered INTERNAL.
    pub internal_entries: u64,
    /// Requests whose rows exceeded what one STEP may carry and that waited for the next round.
    pub left_out: u64,
    /// Rounds without a connection.
    pub fallback_no_connection: u64,
    /// Rounds skipped by the breaker.
    pub fallback_cooldown: u64,
    /// Rounds built for an older connection.
    pub fallback_outdated: u64,
    /// Rounds after a fatal status.
    pub fallback_disabled: u64,
    /// Rounds whose deadline passed.
    pub fallback_timeout: u64,
    /// Rounds whose connection broke.
    pub fallback_transport: u64,
    /// Rounds whose reply was refused (contract §6.3).
    pub fallback_bad_reply: u64,
    /// Rounds answered with a frame error.
    pub fallback_frame_error: u64,
    /// The frame errors among them by status code.
    pub frame_errors: [u64; FrameStatus::ALL.len()],
}

impl Counters {
    pub(super) fn count_outcome(&mut self, report: &RoundReport) {
        self.rounds += 1;
        self.drafted_requests += u64::from(report.drafted);
        let counter = match report.outcome {
            Outcome::Answered => &mut self.answered,
            Outcome::NotSent(NotSent::Nothing) => return,
            Outcome::NotSent(NotSent::NoConnection) => &mut self.fallback_no_connection,
            Outcome::NotSent(NotSent::Cooldown) => &mut self.fallback_cooldown,
            Outcome::NotSent(NotSent::Outdated) => &mut self.fallback_outdated,
            Outcome::NotSent(NotSent::Disabled) => &mut self.fallback_disabled,
            Outcome::Failed(Failure::Timeout) => &mut self.fallback_timeout,
            Outcome::Failed(Failure::Transport) => &mut self.fallback_transport,
            Outcome::BadReply => &mut self.fallback_bad_reply,
            Outcome::Frame(status) => {
                self.frame_errors[status.code() as usize] += 1;
                &mut self.fallback_frame_error
            }
        };
        *counter += 1;
    }

    pub(super) fn count_status(&mut self, status: EntryStatus) {
        match status {
            EntryStatus::Ok => {}
            EntryStatus::PartialWindow => self.partial_windows += 1,
            EntryStatus::StaleGeneration => self.stale_generations += 1,
            EntryStatus::BadEntry => self.bad_entries += 1,
            EntryStatus::Internal => self.internal_entries += 1,
        }
    }
}
