//! Rank 0's side of the contract: slots and their ring, the entries of a STEP, sequence numbers and
//! sessions, and what a reply changes (contract §6.3, §7.1, §7.3 to §7.5, §9).
//!
//! Pure: the caller owns the connection and the clock. A round is [`begin`](Rank0::begin), then either
//! [`skip`](Rank0::skip) or [`send`](Rank0::send), then [`judge`](Rank0::judge) or [`fail`](Rank0::fail);
//! each way ends with a [`RoundReport`]. `begin` takes the rows into the ring whatever happens next, so
//! the ring is exact and any window can be sent again. Nothing is allocated in steady state.
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod recover;
mod report;
mod round;
mod session;
mod slot;

use std::num::NonZeroU32;
use std::ops::Range;

pub use recover::Recovery;
pub use report::{Counters, Drafts, Failure, NotSent, Outcome, RequestResult, RoundReport};
pub use round::{EngineRequest, EngineRound, Owner, RoundError};
pub use session::HelloError;
pub use slot::Slot;

use report::Answers;
use session::{Link, Wire};

use crate::geometry::{Geometry, GeometryError};
use crate::protocol::refusal::{CheckedReply, sent_header};
use crate::protocol::step::StepMeta;
use crate::protocol::{
    EntryStatus, FrameStatus, HEADER_BYTES, HelloReply, HelloRequest, Limits, ReqEntry, StepReply,
    StepRequest, StepWriter, check_reply,
};

/// How a rank 0 starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank0Config {
    /// The geometry HELLO asks for.
    pub geometry: Geometry,
    /// Drafter identity HELLO asks for.
    pub drafter_identity: [u8; 32],
    /// Markov identity HELLO asks for; zeros without a cache.
    pub markov_identity: [u8; 32],
    /// Client name, at most 48 ASCII bytes.
    pub client_name: String,
    /// First session id, random.
    pub session: NonZeroU32,
    /// Every slot's generation before its first owner; 0 in a live start.
    pub generation: u32,
}

/// Where the round in hand stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Ended,
    Begun { epoch: u64 },
    Sent,
}

/// Rank 0 without its connection.
///
/// Invariants: a slot that is not dirty holds in the worker, under the current session, exactly the rows
/// of the ring; generations change with owners only; `seq` grows over everything sent.
#[derive(Clone, Debug)]
pub struct Rank0 {
    geometry: Geometry,
    limits: Limits,
    wire: Wire,
    slots: Vec<Slot>,
    phase: Phase,
    step_id: u64,
    want_margin: bool,
    entries: Vec<ReqEntry>,
    /// Ring positions of each entry's rows.
    spans: Vec<Range<i64>>,
    results: Vec<RequestResult>,
    answers: Answers,
    message: Vec<u8>,
    counters: Counters,
    last_bad_reply: Option<String>,
}

impl Rank0 {
    /// Rank 0 before its first connection. All memory is taken here.
    ///
    /// # Errors
    /// When the geometry is not valid.
    pub fn new(config: &Rank0Config) -> Result<Self, GeometryError> {
        let geometry = config.geometry;
        geometry.validate()?;
        let n_slots = geometry.max_slots as usize;
        let row_bytes = geometry.row_bytes();
        let slot = Slot::new(geometry.window, row_bytes, config.generation);
        let hello = HelloRequest::new(
            &geometry,
            config.drafter_identity,
            config.markov_identity,
            &config.client_name,
        );
        let header_bytes = HEADER_BYTES + 64 + 32 * n_slots;
        let row_block = geometry.max_rows_per_step as usize * row_bytes;
        Ok(Self {
            limits: hello.limits(),
            wire: Wire::new(hello, config.session),
            slots: vec![slot; n_slots],
            phase: Phase::Ended,
            step_id: 0,
            want_margin: false,
            entries: Vec::with_capacity(n_slots),
            spans: Vec::with_capacity(n_slots),
            results: Vec::with_capacity(n_slots),
            answers: Answers::new(&geometry),
            message: Vec::with_capacity(header_bytes + row_block),
            counters: Counters { sessions: 1, ..Counters::default() },
            last_bad_reply: None,
            geometry,
        })
    }

    /// A new connection stands; it needs a HELLO before anything else.
    pub fn connected(&mut self) {
        self.wire.link = Link::Ungreeted;
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.wire.link = Link::Down;
    }

    /// Whether the connection stands and a HELLO is due on it: it is new, or the worker asked for one.
    pub fn needs_hello(&self) -> bool {
        self.wire.link == Link::Ungreeted && self.wire.disabled.is_none()
    }

    /// Whether STEPs can be sent: connected and greeted.
    pub fn is_ready(&self) -> bool {
        self.wire.link == Link::Ready && self.wire.disabled.is_none()
    }

    /// The HELLO to send. `new_session` is asked for a random session id when a new session is due.
    ///
    /// # Panics
    /// If a STEP is out: one request at a time.
    pub fn hello(&mut self, new_session: impl FnOnce() -> NonZeroU32) -> &[u8] {
        assert_ne!(self.phase, Phase::Sent, "a STEP is out");
        let renewed = self.wire.write_hello(&mut self.message, new_session);
        self.counters.sessions += u64::from(renewed);
        &self.message
    }

    /// Judges the reply to the HELLO sent last. An accepted one makes every live slot dirty: what the
    /// worker kept cannot be known (contract §7.4). After an error the connection is given up.
    ///
    /// # Errors
    /// Why the session is not open.
    pub fn judge_hello(&mut self, reply: &[u8]) -> Result<HelloReply, HelloError> {
        let hello = self.wire.judge_hello(&self.message, reply);
        if hello.is_ok() {
            self.counters.hellos += 1;
            self.resync_all();
        } else {
            self.wire.link = Link::Down;
        }
        hello
    }

    /// The next HELLO opens a new session, which drops every window and generation of the worker.
    pub fn start_session(&mut self) {
        self.wire.renew_session();
    }

    /// Marks every live slot dirty, so that each is sent whole when it next appears.
    pub fn resync_all(&mut self) {
        self.slots.iter_mut().for_each(Slot::resync);
    }

    /// Takes a round: owners, ring, entries. What is sent afterwards is decided here, for the
    /// connection that stands now.
    ///
    /// # Errors
    /// When no engine makes this round; nothing is taken then, and the round is not open.
    ///
    /// # Panics
    /// If the round before is still open.
    pub fn begin(&mut self, round: &EngineRound<'_>) -> Result<(), RoundError> {
        assert_eq!(self.phase, Phase::Ended, "one round at a time");
        round.validate(&self.geometry)?;
        self.phase = Phase::Begun { epoch: self.wire.epoch };
        self.step_id = round.step_id;
        self.want_margin = round.want_margin;
        self.entries.clear();
        self.spans.clear();
        self.results.clear();
        self.answers.clear();
        let mut rows_left = u64::from(self.geometry.max_rows_per_step);
        for request in round.requests {
            let slot = &mut self.slots[usize::from(request.slot)];
            let (entry, span) = slot.take(request, round.rows, self.geometry.window);
            let rows = u64::from(entry.n_rows.get());
            let fits = rows <= rows_left;
            if fits {
                rows_left -= rows;
            } else {
                // More live windows than one STEP holds: this one is sent whole in a later round.
                slot.set_dirty(true);
                self.counters.left_out += 1;
            }
            self.results.push(RequestResult {
                slot: request.slot,
                owner: request.owner,
                need_draft: request.need_draft,
                resync: entry.resync(),
                status: None,
                window_rows: 0,
                usable: false,
                entry: fits.then_some(self.entries.len()),
            });
            if fits {
                self.entries.push(entry);
                self.spans.push(span);
            }
        }
        Ok(())
    }

    /// Ends the round without sending: every slot of it is dirty (contract §10).
    ///
    /// # Panics
    /// If no round is open, or its STEP was sent.
    pub fn skip(&mut self, why: NotSent) -> RoundReport {
        assert!(matches!(self.phase, Phase::Begun { .. }), "skip ends a round that was not sent");
        for result in &self.results {
            self.slots[usize::from(result.slot)].set_dirty(true);
        }
        self.end(Outcome::NotSent(why))
    }

    /// Writes the STEP of the round and returns it, to be sent at once.
    ///
    /// # Errors
    /// The ended round, when it cannot be sent: no greeted connection, an empty batch, a connection newer
    /// than the one the entries were built for, or a worker that is off for good.
    ///
    /// # Panics
    /// If no round is open, or its STEP was sent.
    pub fn send(&mut self) -> Result<&[u8], RoundReport> {
        let Phase::Begun { epoch } = self.phase else { panic!("send follows begin") };
        if let Some(why) = self.obstacle(epoch) {
            return Err(self.skip(why));
        }
        let meta = StepMeta {
            seq: self.wire.next_seq(),
            session: self.wire.session.get(),
            step_id: self.step_id,
            want_margin: self.want_margin,
            row_bytes: self.geometry.row_bytes(),
        };
        let mut writer = StepWriter::begin(&mut self.message, meta, &self.entries);
        for (entry, span) in self.entries.iter().zip(&self.spans) {
            let slot = &self.slots[usize::from(entry.slot)];
            for piece in slot.ring().rows(span.clone()) {
                writer.rows(piece);
            }
            let rows = u64::from(entry.n_rows.get());
            self.counters.rows += rows;
            if entry.resync() {
                self.counters.resyncs += 1;
                self.counters.resync_rows += rows;
            }
        }
        writer.finish();
        self.counters.steps += 1;
        self.phase = Phase::Sent;
        Ok(&self.message)
    }

    /// Ends the round whose STEP got no reply. The connection is given up: a late reply must not land.
    ///
    /// # Panics
    /// If no STEP is out.
    pub fn fail(&mut self, failure: Failure) -> RoundReport {
        assert_eq!(self.phase, Phase::Sent, "fail ends a STEP that was sent");
        self.wire.link = Link::Down;
        self.lose(Outcome::Failed(failure))
    }

    /// Ends the round with the reply to its STEP, after checking every value of it (contract §6.3).
    ///
    /// # Panics
    /// If no STEP is out.
    pub fn judge(&mut self, reply: &[u8]) -> RoundReport {
        assert_eq!(self.phase, Phase::Sent, "a reply follows a STEP");
        let body = &self.message[HEADER_BYTES..];
        let step = StepRequest::parse(body, &self.limits).expect("a STEP of ours keeps the layout");
        match check_reply(&sent_header(&self.message), &step, &self.geometry, reply) {
            Err(refusal) => {
                self.last_bad_reply = Some(refusal.to_string());
                self.wire.link = Link::Down;
                self.lose(Outcome::BadReply)
            }
            Ok(CheckedReply::Frame(status)) => {
                self.wire.frame_error(status);
                self.lose(Outcome::Frame(status))
            }
            Ok(CheckedReply::Step(reply)) => self.answered(&reply),
        }
    }

    /// What every request of the round got, in batch order.
    pub fn results(&self) -> &[RequestResult] {
        &self.results
    }

    /// The drafts of request `request` of the batch: zeros unless its result is usable.
    ///
    /// # Panics
    /// If the batch is smaller.
    pub fn drafts(&self, request: usize) -> Drafts<'_> {
        assert!(request < self.results.len(), "no such request in the batch");
        self.answers.of(request)
    }

    /// The geometry HELLO asks for.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Every slot.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Why the last refused reply was refused.
    pub fn last_bad_reply(&self) -> Option<&str> {
        self.last_bad_reply.as_deref()
    }

    /// The fatal status that turned the remote drafter off, if one did.
    pub fn disabled(&self) -> Option<FrameStatus> {
        self.wire.disabled
    }

    /// The session id in use.
    pub fn session(&self) -> NonZeroU32 {
        self.wire.session
    }

    /// Requests without rows that draft again at every live slot's last anchor: a round that shows
    /// whether the worker's windows are right, and resyncs those that are dirty.
    pub fn redraft(&self, requests: &mut Vec<EngineRequest>) {
        requests.clear();
        for (index, slot) in (0u8..).zip(&self.slots) {
            if let (Some(owner), Some(span)) = (slot.owner(), slot.window().span) {
                requests.push(EngineRequest {
                    slot: index,
                    owner,
                    first_pos: span.hi + 1,
                    rows: 0..0,
                    anchor_token: slot.anchor_token(),
                    anchor_pos: span.hi + 1,
                    k_window: 0,
                    need_draft: true,
                    n_out: 0,
                });
            }
        }
    }

    fn obstacle(&self, epoch: u64) -> Option<NotSent> {
        if self.wire.disabled.is_some() {
            Some(NotSent::Disabled)
        } else if self.wire.link != Link::Ready {
            Some(NotSent::NoConnection)
        } else if epoch != self.wire.epoch {
            Some(NotSent::Outdated)
        } else if self.entries.is_empty() {
            Some(NotSent::Nothing)
        } else {
            None
        }
    }

    /// The STEP had no usable reply: whether the worker applied it cannot be known, so its slots are
    /// dirty (contract §7.4).
    fn lose(&mut self, outcome: Outcome) -> RoundReport {
        for entry in &self.entries {
            self.slots[usize::from(entry.slot)].set_dirty(true);
        }
        self.end(outcome)
    }

    fn answered(&mut self, reply: &StepReply<'_>) -> RoundReport {
        for (request, result) in self.results.iter_mut().enumerate() {
            let Some(entry) = result.entry else { continue };
            let status = reply.status(entry).expect("a checked reply has known statuses");
            self.counters.count_status(status);
            // Only OK makes a slot clean, and nothing else does (contract-notes D44).
            self.slots[usize::from(result.slot)].set_dirty(status != EntryStatus::Ok);
            if status == EntryStatus::StaleGeneration {
                // The worker's state is not what this rank 0 left; only a new session clears it (§9.2).
                self.wire.renew_session();
            }
            result.status = Some(status);
            result.window_rows = reply.statuses[entry].window_rows.get();
            result.usable = result.need_draft && status.has_drafts();
            if result.usable {
                self.answers.take(request, reply, entry);
            }
        }
        self.end(Outcome::Answered)
    }

    fn end(&mut self, outcome: Outcome) -> RoundReport {
        self.phase = Phase::Ended;
        let sent = self.results.iter().filter(|r| r.entry.is_some() && r.need_draft);
        let count = |n: usize| u32::try_from(n).expect("at most max_slots requests");
        let report = RoundReport {
            outcome,
            needed: count(sent.clone().count()),
            drafted: count(sent.filter(|r| r.usable).count()),
        };
        self.counters.count_outcome(&report);
        report
    }
}
