//! One frame in, one reply out: the worker without its sockets (contract §6, §7).
//!
//! [`Worker::handle`] is the road a STEP takes: header, session, layout, plan, backend, reply. The rim
//! around it, listeners and threads, is [`serve`].

pub mod control;
pub mod http;
pub mod latency;
pub mod metrics;
pub mod progress;
pub mod recorder;
pub mod seats;
pub mod serve;
pub mod stats;

use std::time::Instant;

use zerocopy::IntoBytes;

use crate::drafter::{DraftBlocks, DraftError, Drafter};
use crate::geometry::Geometry;
use crate::plan::{RowBlock, StepPlan};
use crate::protocol::reply::{ReplyTimes, set_times};
use crate::protocol::{
    AppHeader, EntryStatus, FrameStatus, HelloReply, HelloRequest, Op, StepReplyWriter, StepRequest,
};
use crate::session::{Admitted, Outcome, Refused, Seat, Session};
use crate::transport::Repeats;
use stats::{SharedStats, StepRecord};

/// A session, a backend, and the memory of one STEP, all taken before the first frame.
pub struct Worker {
    session: Session,
    drafter: Box<dyn Drafter>,
    stats: SharedStats,
    plan: StepPlan,
    outcomes: Vec<Outcome>,
    blocks: DraftBlocks,
    /// When the backend was last used.
    used: Instant,
    /// Whether the backend will never draft again.
    lost: bool,
    failures: Repeats,
    unsound: Repeats,
    refusals: Repeats,
}

/// What to do with the reply that [`Worker::handle`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Send it and go on.
    Reply,
    /// Send it and close the connection (contract-notes D6).
    ReplyAndClose,
    /// Send it and end the worker: the backend will never draft again, a new process may.
    ReplyAndEnd,
}

impl Worker {
    /// A worker that serves `drafter` under the identities in `reply`.
    pub fn new(drafter: Box<dyn Drafter>, reply: HelloReply, stats: SharedStats) -> Self {
        let geometry = *drafter.geometry();
        let slots = geometry.max_slots as usize;
        Self {
            session: Session::new(geometry, reply),
            blocks: DraftBlocks::new(&geometry),
            plan: StepPlan::with_slots(slots),
            outcomes: Vec::with_capacity(slots),
            used: Instant::now(),
            lost: false,
            drafter,
            stats,
            failures: Repeats::default(),
            unsound: Repeats::default(),
            refusals: Repeats::default(),
        }
    }

    /// The backend.
    pub fn drafter(&self) -> &dyn Drafter {
        &*self.drafter
    }

    /// The counters.
    pub fn stats(&self) -> &SharedStats {
        &self.stats
    }

    /// The session state.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// When the backend was last used.
    pub fn used(&self) -> Instant {
        self.used
    }

    /// Keeps an idle backend from slowing down; answers whether it is lost.
    pub fn keep_warm(&mut self) -> bool {
        if let Err(error) = self.drafter.keep_warm() {
            if let Some(unsaid) = self.failures.pass(Instant::now()) {
                tracing::error!(%error, unsaid, "keeping the device warm failed");
            }
            self.lost |= matches!(error, DraftError::DeviceLost(_));
        }
        self.used = Instant::now();
        self.lost
    }

    /// Handles one frame of a connection: applies it or refuses it, and writes the answer, a
    /// whole message, into `reply`. `received` is when the frame's last byte had arrived.
    ///
    /// # Panics
    /// If the frame is shorter than a header: the transport refuses those.
    pub fn handle(
        &mut self,
        seat: &mut Seat,
        frame: &[u8],
        received: Instant,
        reply: &mut Vec<u8>,
    ) -> Handled {
        let (header, body) = AppHeader::split(frame).expect("the transport checks frame lengths");
        let op = Op::from_code(header.op.get());
        match self.answer(seat, &header, body, received, reply) {
            Ok(()) => {
                self.stats.lock().frame(op, FrameStatus::Ok);
                if self.lost { Handled::ReplyAndEnd } else { Handled::Reply }
            }
            Err(refused) => {
                log_refusal(&header, &refused, &self.refusals);
                self.stats.lock().frame(op, refused.status());
                let hello = self.session.hello_reply();
                let body = if refused.answers_hello_body() { hello.as_bytes() } else { &[] };
                write_reply(reply, &header, refused.status(), body);
                if refused.closes() { Handled::ReplyAndClose } else { Handled::Reply }
            }
        }
    }

    fn answer(
        &mut self,
        seat: &mut Seat,
        header: &AppHeader,
        body: &[u8],
        received: Instant,
        reply: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        match self.session.admit(*seat, header, body)? {
            Admitted::Hello(hello) => self.hello(seat, header, hello, reply)?,
            Admitted::Step(step) => {
                self.step(header, &step, received, reply);
            }
            Admitted::Reset(mask) => {
                self.session.reset(header, mask);
                self.stats.lock().windows(&self.session);
                write_reply(reply, header, FrameStatus::Ok, &[]);
            }
            Admitted::Stats => {
                let text = self.stats.snapshot().to_json().to_string();
                write_reply(reply, header, FrameStatus::Ok, text.as_bytes());
            }
            Admitted::Ping => {
                write_reply(reply, header, FrameStatus::Ok, &[]);
            }
        }
        Ok(())
    }

    fn hello(
        &mut self,
        seat: &mut Seat,
        header: &AppHeader,
        hello: &HelloRequest,
        reply: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let new = self.session.hello(seat, header, hello)?;
        let client = hello.client_name();
        tracing::info!(
            session = format_args!("{:#010x}", header.session.get()),
            client,
            "{}",
            if new { "session opened" } else { "session continued" }
        );
        self.stats.lock().hello(&self.session, client);
        write_reply(reply, header, FrameStatus::Ok, self.session.hello_reply().as_bytes());
        Ok(())
    }

    /// Plan, execute, commit, write. A STEP that gets here is applied, whatever the backend does.
    fn step(
        &mut self,
        header: &AppHeader,
        step: &StepRequest<'_>,
        received: Instant,
        reply: &mut Vec<u8>,
    ) {
        let started = Instant::now();
        let geometry = *self.drafter.geometry();
        self.session.plan_step(step, &mut self.plan, &mut self.outcomes);
        let rows = RowBlock::new(step.rows, geometry.row_bytes());
        match self.drafter.step(&self.plan, rows, &mut self.blocks) {
            Ok(()) => {
                self.session.commit(header);
                self.judge_blocks(&geometry);
            }
            Err(error) => {
                if let Some(unsaid) = self.failures.pass(Instant::now()) {
                    tracing::error!(
                        %error,
                        unsaid,
                        "drafting failed; the slots of this STEP are empty now"
                    );
                }
                self.lost |= matches!(error, DraftError::DeviceLost(_));
                self.session.commit_failed(header, &self.plan, &mut self.outcomes);
            }
        }
        let worker_us = micros(started);
        self.write_step(header, step, &geometry, reply);
        let times = ReplyTimes { worker_us, recv_to_send_us: micros(received).max(worker_us) };
        set_times(reply, times);
        self.used = Instant::now();
        self.stats.lock().step(
            &self.session,
            &StepRecord {
                entries: step.entries,
                outcomes: &self.outcomes,
                appends: &self.plan.appends,
                worker_us: times.worker_us,
                recv_to_send_us: times.recv_to_send_us,
                markov: self.drafter.markov(),
            },
        );
    }

    /// Turns entries whose block rank 0 would refuse into INTERNAL: one such entry would cost the whole
    /// reply and the connection (contract-notes D38). The rows stay until rank 0 resyncs the slot.
    fn judge_blocks(&mut self, geometry: &Geometry) {
        for outcome in &mut self.outcomes {
            let Some(draft) = outcome.draft else { continue };
            let consumed = self.plan.drafts[draft].n_out;
            let block = self.blocks.block(draft);
            let sound = block.finite
                && block.ids[..consumed]
                    .iter()
                    .all(|id| u32::try_from(*id).is_ok_and(|id| id < geometry.vocab_size))
                && block.confidence[..consumed].iter().all(|c| (0.0..=1.0).contains(c))
                && block.margin[..consumed].iter().all(|m| m.is_finite() && *m >= 0.0);
            if !sound {
                if let Some(unsaid) = self.unsound.pass(Instant::now()) {
                    let slot = outcome.slot;
                    tracing::warn!(slot, unsaid, "drafts are not finite; entry is INTERNAL");
                }
                outcome.status = EntryStatus::Internal;
                outcome.window_rows = 0;
                outcome.draft = None;
            }
        }
    }

    fn write_step(
        &self,
        header: &AppHeader,
        step: &StepRequest<'_>,
        geometry: &Geometry,
        reply: &mut Vec<u8>,
    ) {
        let num_spec = u16::try_from(geometry.num_spec).expect("N is at most 64");
        let mut writer = StepReplyWriter::begin(
            reply,
            header,
            step.header.step_id.get(),
            step.header.n_req.get(),
            num_spec,
            step.want_margin(),
        );
        for (entry, outcome) in self.outcomes.iter().enumerate() {
            writer.status(entry, outcome.status, outcome.window_rows, outcome.generation);
            if let Some(draft) = outcome.draft {
                let n = self.plan.drafts[draft].n_out;
                let block = self.blocks.block(draft);
                writer.block(entry, &block.ids[..n], &block.confidence[..n], &block.margin[..n]);
            }
        }
    }
}

/// A reply message with this body.
pub(crate) fn write_reply(
    message: &mut Vec<u8>,
    request: &AppHeader,
    status: FrameStatus,
    body: &[u8],
) {
    let len = u32::try_from(body.len()).expect("a reply is at most 64 KiB");
    message.clear();
    message.extend_from_slice(request.reply(status, len).as_bytes());
    message.extend_from_slice(body);
}

/// A refused HELLO disables rank 0's remote drafter for good, so a person must see it; the rest is part
/// of a client's recovery.
fn log_refusal(header: &AppHeader, refused: &Refused, repeats: &Repeats) {
    let session = header.session.get();
    if refused.answers_hello_body() {
        if let Some(unsaid) = repeats.pass(Instant::now()) {
            let session = format_args!("{session:#010x}");
            tracing::error!(session, unsaid, "HELLO refused: {refused}");
        }
    } else {
        let status = refused.status();
        tracing::debug!(session = format_args!("{session:#010x}"), %status, "refused: {refused}");
    }
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}
