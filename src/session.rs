//! The worker's side of the session: which frames are admitted, which sequence number was applied last,
//! what every slot holds, and what one STEP therefore asks of the backend (contract §6.2, §7).
//!
//! Pure: bytes in, statuses and a [`StepPlan`] out. The windows a STEP leads to are planned first and
//! take effect with [`Session::commit`], after the backend has stored the rows.
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

use std::num::NonZeroU32;
use std::ops::Range;

use zerocopy::FromBytes;

use crate::geometry::Geometry;
use crate::plan::{Append, Draft, StepPlan};
use crate::protocol::{
    AppHeader, ConfigMismatch, EntryStatus, FrameStatus, HelloReply, HelloRequest, LayoutError,
    Limits, MAGIC, Op, ReqEntry, StepRequest, VERSION, control::reset_mask,
};
use crate::window::{BadEntry, Entry, Generation, Rejection, Window};

/// What one connection has said: the session its own accepted HELLO named (contract-notes D12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    greeted: Option<NonZeroU32>,
}

/// A frame that passed every check up to its entries.
#[derive(Clone, Copy, Debug)]
pub enum Admitted<'a> {
    /// To be judged by [`Session::hello`].
    Hello(&'a HelloRequest),
    /// To be planned by [`Session::plan_step`].
    Step(StepRequest<'a>),
    /// To be applied by [`Session::reset`]: the slot mask.
    Reset(u32),
    /// To be answered with the counters.
    Stats,
    /// To be answered with an empty body.
    Ping,
}

/// Why a frame is answered with an error and not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not a message of this protocol; the connection is closed after the answer (D6).
    #[error("magic is {0:#010x}")]
    Magic(u32),
    /// Another wire version.
    #[error("wire version {0}, this worker speaks {VERSION}")]
    Version(u16),
    /// `body_len` is not the frame's length.
    #[error("body_len is {said}, the frame carries {carried} bytes")]
    BodyLen {
        /// Value of the header.
        said: u32,
        /// Bytes after the header.
        carried: usize,
    },
    /// An operation this listener does not know.
    #[error("unsupported operation {0}")]
    Op(u16),
    /// HELLO with session id 0 (D16).
    #[error("HELLO with session id 0")]
    ZeroSession,
    /// STEP or RESET without an accepted HELLO of this session on this connection.
    #[error("session {0:#010x} is not open on this connection")]
    NoSession(u32),
    /// The sequence number does not grow.
    #[error("seq {seq} is not above {last}")]
    StaleSeq {
        /// Number of the frame.
        seq: u64,
        /// Last one applied.
        last: u64,
    },
    /// A body of the wrong length.
    #[error("{op:?} body has {len} bytes")]
    Body {
        /// The operation.
        op: Op,
        /// Bytes of its body.
        len: usize,
    },
    /// A STEP whose layout does not hold.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No common protocol version.
    #[error("protocol versions {min} to {max}, this worker speaks {VERSION}")]
    Proto {
        /// Lowest the client speaks.
        min: u32,
        /// Highest the client speaks.
        max: u32,
    },
    /// Another checkpoint or Markov cache.
    #[error("identity mismatch: client drafter {} markov {}, worker drafter {} markov {}",
        hex::encode(asked[0]), hex::encode(asked[1]), hex::encode(served[0]), hex::encode(served[1]))]
    Identity {
        /// Drafter and Markov identity of the HELLO.
        asked: Box<[[u8; 32]; 2]>,
        /// The worker's.
        served: Box<[[u8; 32]; 2]>,
    },
    /// Another geometry.
    #[error(transparent)]
    Config(#[from] ConfigMismatch),
}

impl Refused {
    /// Frame status that answers it.
    pub fn status(&self) -> FrameStatus {
        match self {
            Self::Magic(_) | Self::BodyLen { .. } | Self::ZeroSession | Self::Body { .. } => {
                FrameStatus::Malformed
            }
            Self::Version(_) | Self::Proto { .. } => FrameStatus::BadVersion,
            Self::Op(_) => FrameStatus::UnsupportedOp,
            Self::NoSession(_) => FrameStatus::NoSession,
            Self::StaleSeq { .. } => FrameStatus::StaleSeq,
            Self::Layout(e) => e.status(),
            Self::Identity { .. } => FrameStatus::IdentityMismatch,
            Self::Config(_) => FrameStatus::ConfigMismatch,
        }
    }

    /// Whether the connection ends with the answer (contract-notes D6).
    pub fn closes(&self) -> bool {
        matches!(self, Self::Magic(_))
    }

    /// Whether the answer carries the HELLO body (contract-notes D17).
    pub fn answers_hello_body(&self) -> bool {
        matches!(self, Self::Proto { .. } | Self::Identity { .. } | Self::Config(_))
    }
}

/// What became of one entry of a STEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Slot of the entry.
    pub slot: u8,
    /// Status of the reply, unless the backend fails on the entry.
    pub status: EntryStatus,
    /// Rows the anchor attends to; 0 for entries with an error (D34).
    pub window_rows: u16,
    /// Echo of the entry's generation, also when stale.
    pub generation: u32,
    /// Index of the entry's block in the plan.
    pub draft: Option<usize>,
    /// Rows applied.
    pub rows: u32,
    /// Why the entry is bad.
    pub bad: Option<BadEntry>,
}

/// Identity, sequence number and windows of the one session a worker serves.
///
/// Invariants: `slots` and `planned` have `max_slots` entries; `planned` equals `slots` outside a STEP.
#[derive(Clone, Debug)]
pub struct Session {
    geometry: Geometry,
    reply: HelloReply,
    limits: Limits,
    id: Option<NonZeroU32>,
    last_seq: u64,
    max_model_len: i64,
    slots: Vec<Window>,
    planned: Vec<Window>,
}

impl Session {
    /// A worker's session state before the first HELLO. `reply` is what every HELLO is answered with.
    pub fn new(geometry: Geometry, reply: HelloReply) -> Self {
        let slots = vec![Window::default(); geometry.max_slots as usize];
        let row_bytes = u32::try_from(geometry.row_bytes()).expect("a row is at most 512 KiB");
        Self {
            limits: Limits {
                max_slots: geometry.max_slots,
                max_rows_per_step: geometry.max_rows_per_step,
                row_bytes,
            },
            max_model_len: i64::from(geometry.max_model_len),
            planned: slots.clone(),
            slots,
            id: None,
            last_seq: 0,
            geometry,
            reply,
        }
    }

    /// The open session, if any.
    pub fn id(&self) -> Option<NonZeroU32> {
        self.id
    }

    /// Sequence number of the last applied frame.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// What every slot holds.
    pub fn windows(&self) -> &[Window] {
        &self.slots
    }

    /// Body of every HELLO reply.
    pub fn hello_reply(&self) -> &HelloReply {
        &self.reply
    }

    /// Judges a frame in the order of contract-notes D5: magic, version, body_len, op, session, seq,
    /// layout. Changes nothing.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn admit<'a>(
        &self,
        seat: Seat,
        header: &AppHeader,
        body: &'a [u8],
    ) -> Result<Admitted<'a>, Refused> {
        let op = check_header(header, body)?;
        let length = || Refused::Body { op, len: body.len() };
        match op {
            Op::Hello => {
                let id = NonZeroU32::new(header.session.get()).ok_or(Refused::ZeroSession)?;
                if self.id == Some(id) {
                    self.check_seq(header)?;
                }
                HelloRequest::ref_from_bytes(body).map(Admitted::Hello).map_err(|_| length())
            }
            Op::Step => {
                self.check_session(seat, header)?;
                self.check_seq(header)?;
                Ok(Admitted::Step(StepRequest::parse(body, &self.limits)?))
            }
            Op::Reset => {
                self.check_session(seat, header)?;
                self.check_seq(header)?;
                reset_mask(body).map(Admitted::Reset).ok_or_else(length)
            }
            Op::Stats | Op::Ping if !body.is_empty() => Err(length()),
            Op::Stats => Ok(Admitted::Stats),
            Op::Ping => Ok(Admitted::Ping),
        }
    }

    /// Judges an admitted HELLO: protocol range, identities, configuration (contract-notes D18). An
    /// accepted one opens or continues the session; a refused one changes nothing at all (D15). Returns
    /// whether the session is new, and with it every window and generation dropped.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub fn hello(
        &mut self,
        seat: &mut Seat,
        header: &AppHeader,
        hello: &HelloRequest,
    ) -> Result<bool, Refused> {
        let (min, max) = (hello.proto_min.get(), hello.proto_max.get());
        if !(min..=max).contains(&u32::from(VERSION)) {
            return Err(Refused::Proto { min, max });
        }
        let asked = [hello.drafter_identity, hello.markov_identity];
        let served = [self.reply.drafter_identity, self.reply.markov_identity];
        if asked != served {
            return Err(Refused::Identity { asked: asked.into(), served: served.into() });
        }
        if let Some(mismatch) = hello.config_mismatch(&self.geometry) {
            return Err(mismatch.into());
        }
        let id = NonZeroU32::new(header.session.get()).ok_or(Refused::ZeroSession)?;
        let new = self.id != Some(id);
        if new {
            self.slots.fill(Window::default());
            self.planned.fill(Window::default());
        }
        self.id = Some(id);
        self.last_seq = header.seq.get();
        self.max_model_len = match hello.max_model_len.get() {
            0 => i64::from(self.geometry.max_model_len),
            n => i64::from(n),
        };
        seat.greeted = Some(id);
        Ok(new)
    }

    /// Empties the windows of the slots in `mask`; bits without a slot are ignored (contract-notes D30).
    pub fn reset(&mut self, header: &AppHeader, mask: u32) {
        for (slot, window) in self.slots.iter_mut().enumerate() {
            if mask >> slot & 1 == 1 {
                window.empty();
            }
        }
        self.planned.copy_from_slice(&self.slots);
        self.last_seq = header.seq.get();
    }

    /// Applies §7.2 to every entry of a STEP and writes what the backend must do into `plan` and what
    /// becomes of each entry into `outcomes`. Takes effect with [`commit`](Self::commit).
    pub fn plan_step(
        &mut self,
        step: &StepRequest<'_>,
        plan: &mut StepPlan,
        outcomes: &mut Vec<Outcome>,
    ) {
        plan.clear();
        plan.max_model_len = self.max_model_len;
        outcomes.clear();
        self.planned.copy_from_slice(&self.slots);
        for (index, (wire, rows)) in step.entry_rows().enumerate() {
            outcomes.push(self.plan_entry(index, wire, rows, plan));
        }
    }

    /// One entry: the window rule on the planned windows, then what it asks of the backend.
    fn plan_entry(
        &mut self,
        index: usize,
        wire: &ReqEntry,
        rows: Option<Range<usize>>,
        plan: &mut StepPlan,
    ) -> Outcome {
        let anchor_token = u32::try_from(wire.anchor_token.get()).ok();
        let anchor_token = anchor_token.filter(|t| *t < self.geometry.vocab_size);
        let entry = Entry {
            generation: Generation(wire.generation.get()),
            new_gen: wire.new_gen(),
            need_draft: wire.need_draft(),
            first_pos: wire.first_pos.get(),
            n_rows: wire.n_rows.get(),
            rows_fit: rows.is_some(),
            anchor_pos: wire.anchor_pos.get(),
            anchor_token_valid: anchor_token.is_some(),
        };
        let mut outcome = Outcome {
            slot: wire.slot,
            status: EntryStatus::Ok,
            window_rows: 0,
            generation: entry.generation.0,
            draft: None,
            rows: 0,
            bad: None,
        };
        let window = &mut self.planned[usize::from(wire.slot)];
        let applied = match window.apply(&entry, self.geometry.window) {
            Ok(applied) => applied,
            Err(Rejection::Stale { .. }) => {
                outcome.status = EntryStatus::StaleGeneration;
                return outcome;
            }
            Err(Rejection::Bad(bad)) => {
                outcome.status = EntryStatus::BadEntry;
                outcome.bad = Some(bad);
                return outcome;
            }
        };
        outcome.rows = entry.n_rows;
        outcome.window_rows = u16::try_from(applied.window_rows()).expect("W is at most 4096");
        if let Some(rows) = rows.filter(|r| !r.is_empty()) {
            plan.appends.push(Append { slot: wire.slot, first_pos: entry.first_pos, rows });
        }
        if let Some(anchor_token) = anchor_token.filter(|_| entry.need_draft) {
            if applied.is_partial() {
                outcome.status = EntryStatus::PartialWindow;
            }
            outcome.draft = Some(plan.drafts.len());
            plan.drafts.push(Draft {
                entry: index,
                slot: wire.slot,
                context: applied.context,
                anchor_token,
                anchor_pos: entry.anchor_pos,
                n_out: wire.consumed(self.geometry.num_spec as usize),
            });
        }
        outcome
    }

    /// The planned STEP was executed: its windows and its seq take effect.
    pub fn commit(&mut self, header: &AppHeader) {
        self.slots.copy_from_slice(&self.planned);
        self.last_seq = header.seq.get();
    }

    /// The backend failed on the planned STEP: as [`commit`](Self::commit), but the slots the plan touched
    /// are left empty and their entries become INTERNAL, so that a resync restores a known state
    /// (contract-notes D39).
    pub fn commit_failed(&mut self, header: &AppHeader, plan: &StepPlan, outcomes: &mut [Outcome]) {
        for outcome in outcomes {
            if plan.slots().any(|slot| slot == outcome.slot) {
                self.planned[usize::from(outcome.slot)].empty();
                outcome.status = EntryStatus::Internal;
                outcome.window_rows = 0;
                outcome.rows = 0;
                outcome.draft = None;
            }
        }
        self.commit(header);
    }

    fn check_session(&self, seat: Seat, header: &AppHeader) -> Result<(), Refused> {
        let session = header.session.get();
        let id = NonZeroU32::new(session);
        if id.is_some() && self.id == id && seat.greeted == id {
            Ok(())
        } else {
            Err(Refused::NoSession(session))
        }
    }

    fn check_seq(&self, header: &AppHeader) -> Result<(), Refused> {
        let seq = header.seq.get();
        if seq > self.last_seq {
            Ok(())
        } else {
            Err(Refused::StaleSeq { seq, last: self.last_seq })
        }
    }
}

/// Judges what every listener judges: magic, version, body_len, op.
///
/// # Errors
/// The first broken rule.
pub fn check_header(header: &AppHeader, body: &[u8]) -> Result<Op, Refused> {
    if header.magic.get() != MAGIC {
        return Err(Refused::Magic(header.magic.get()));
    }
    if header.version.get() != VERSION {
        return Err(Refused::Version(header.version.get()));
    }
    if header.body_len.get() as usize != body.len() {
        return Err(Refused::BodyLen { said: header.body_len.get(), carried: body.len() });
    }
    Op::from_code(header.op.get()).ok_or(Refused::Op(header.op.get()))
}
