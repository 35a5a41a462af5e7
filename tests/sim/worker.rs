//! A worker whose drafts are a hash of what it holds: the real session, trivial storage and arithmetic.
//!
//! Any row that is missing, extra, stale or out of place changes the drafts.

use std::num::NonZeroU32;

use dspark::geometry::Geometry;
use dspark::plan::StepPlan;
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, StepMeta};
use dspark::protocol::{
    AppHeader, FrameStatus, HelloReply, ReqEntry, StepReplyWriter, StepRequest, StepWriter,
};
use dspark::session::{Admitted, Outcome, Seat, Session};
use dspark::window::Window;
use zerocopy::IntoBytes;

/// Bytes of a row in these tests.
pub(crate) const ROW: usize = 4;
/// One row.
pub(crate) type Row = [u8; ROW];

/// N of the test geometry.
const NUM_SPEC: usize = 3;

/// A geometry of `window` rows of four bytes and `slots` slots.
pub(crate) fn geometry(window: u32, slots: u32) -> Geometry {
    let geometry = Geometry {
        num_spec: NUM_SPEC as u32,
        window,
        hidden: 2,
        n_taps: 1,
        tap_layer_ids: [1, 0, 0, 0],
        noise_token_id: 999,
        vocab_size: 1000,
        max_model_len: 1 << 20,
        max_slots: slots,
        max_rows_per_step: 1,
    };
    geometry.with_slots(slots)
}

/// The rule a worker applies to one entry; the contract's unless a test plants a bug.
pub(crate) type StepRule = fn(&mut Worker, &StepRequest<'_>);

/// Session, rows and drafts of one worker process.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) geometry: Geometry,
    pub(crate) session: Session,
    pub(crate) rows: Vec<Vec<Row>>,
    pub(crate) plan: StepPlan,
    pub(crate) outcomes: Vec<Outcome>,
    /// Windows that take the place of the session's under a planted bug in the rule.
    pub(crate) planted: Option<Vec<Window>>,
    rule: StepRule,
    reply: Vec<u8>,
}

impl Worker {
    /// A worker before its first HELLO.
    pub(crate) fn new(geometry: Geometry) -> Self {
        let slots = geometry.max_slots as usize;
        Self {
            session: Session::new(geometry, HelloReply::new(&geometry, [1; 32], [2; 32], "test")),
            rows: vec![vec![[0; ROW]; geometry.window as usize]; slots],
            plan: StepPlan::with_slots(slots),
            outcomes: Vec::with_capacity(slots),
            planted: None,
            rule: plan_by_contract,
            reply: Vec::new(),
            geometry,
        }
    }

    /// Plants a bug: `rule` plans instead of the session, on windows of its own.
    pub(crate) fn plant(&mut self, rule: StepRule) {
        self.planted = Some(vec![Window::default(); self.geometry.max_slots as usize]);
        self.rule = rule;
    }

    /// What every slot holds.
    pub(crate) fn windows(&self) -> &[Window] {
        self.planted.as_deref().unwrap_or_else(|| self.session.windows())
    }

    /// The row stored for a position.
    pub(crate) fn row(&self, slot: usize, pos: i64) -> Row {
        self.rows[slot][pos.rem_euclid(i64::from(self.geometry.window)) as usize]
    }

    /// Answers one frame.
    pub(crate) fn handle(&mut self, seat: &mut Seat, message: &[u8]) -> &[u8] {
        let (header, body) = AppHeader::split(message).expect("a client's frame has a header");
        match self.session.admit(*seat, &header, body) {
            Ok(Admitted::Hello(hello)) => {
                let judged = self.session.hello(seat, &header, hello);
                if let (Ok(true), Some(windows)) = (&judged, &mut self.planted) {
                    windows.fill(Window::default());
                }
                match judged {
                    Ok(_) => self.answer_hello(&header, FrameStatus::Ok),
                    Err(refused) => self.answer_hello(&header, refused.status()),
                }
            }
            Ok(Admitted::Step(step)) => self.step(&header, &step),
            Ok(_) => self.answer_empty(&header, FrameStatus::Ok),
            Err(refused) => self.answer_empty(&header, refused.status()),
        }
        &self.reply
    }

    fn answer_empty(&mut self, header: &AppHeader, status: FrameStatus) {
        self.reply.clear();
        self.reply.extend_from_slice(header.reply(status, 0).as_bytes());
    }

    fn answer_hello(&mut self, header: &AppHeader, status: FrameStatus) {
        let body = *self.session.hello_reply();
        self.reply.clear();
        self.reply.extend_from_slice(header.reply(status, 128).as_bytes());
        self.reply.extend_from_slice(body.as_bytes());
    }

    fn step(&mut self, header: &AppHeader, step: &StepRequest<'_>) {
        (self.rule)(self, step);
        for append in &self.plan.appends {
            for (pos, row) in (append.first_pos..).zip(append.rows.clone()) {
                let at = pos.rem_euclid(i64::from(self.geometry.window)) as usize;
                let bytes = step.rows[row * ROW..][..ROW].try_into().expect("a row");
                self.rows[usize::from(append.slot)][at] = bytes;
            }
        }
        let margins = step.want_margin();
        let n_req = step.header.n_req.get();
        let mut reply = std::mem::take(&mut self.reply);
        let step_id = step.header.step_id.get();
        let mut writer =
            StepReplyWriter::begin(&mut reply, header, step_id, n_req, NUM_SPEC as u16, margins);
        for (entry, outcome) in self.outcomes.iter().enumerate() {
            let Outcome { status, window_rows, generation, .. } = *outcome;
            writer.status(entry, status, window_rows, generation);
            if let Some(index) = outcome.draft {
                let draft = &self.plan.drafts[index];
                let (ids, confidence, margin) = self.draft(index);
                let n = draft.n_out;
                writer.block(entry, &ids[..n], &confidence[..n], &margin[..n]);
            }
        }
        self.reply = reply;
        self.session.commit(header);
    }

    /// One block: every value depends on every context row, its position, the anchor and the slot's
    /// context length.
    fn draft(&self, index: usize) -> ([i32; NUM_SPEC], [f32; NUM_SPEC], [f32; NUM_SPEC]) {
        let draft = &self.plan.drafts[index];
        let mut hash = mix(u64::from(draft.anchor_token) << 32 ^ draft.anchor_pos as u64);
        for pos in draft.context.clone() {
            let row = u32::from_le_bytes(self.row(usize::from(draft.slot), pos));
            hash = mix(hash ^ u64::from(row));
        }
        let mut block = ([0; NUM_SPEC], [0.0; NUM_SPEC], [0.0; NUM_SPEC]);
        for j in 0..NUM_SPEC {
            hash = mix(hash);
            block.0[j] = (hash % u64::from(self.geometry.vocab_size)) as i32;
            block.1[j] = (hash >> 32 & 0xff) as f32 / 255.0;
            block.2[j] = (hash >> 40 & 0xff) as f32;
        }
        block
    }
}

/// A STEP of nobody under the open session: three rows for one slot, NEW_GEN, this generation.
pub(crate) fn foreign_step(worker: &Worker, slot: u8, generation: u32) -> Vec<u8> {
    let entry = ReqEntry {
        slot,
        req_flags: NEED_DRAFT | NEW_GEN,
        k_window: 0,
        n_out: 0,
        generation: generation.into(),
        first_pos: 0.into(),
        n_rows: 3.into(),
        anchor_token: 7.into(),
        anchor_pos: 3.into(),
    };
    let meta = StepMeta {
        seq: worker.session.last_seq() + 1,
        session: worker.session.id().map_or(0, NonZeroU32::get),
        step_id: 0,
        want_margin: false,
        row_bytes: ROW,
    };
    let mut message = Vec::new();
    let mut writer = StepWriter::begin(&mut message, meta, &[entry]);
    writer.rows(&[0; 3 * ROW]);
    writer.finish();
    message
}

fn plan_by_contract(worker: &mut Worker, step: &StepRequest<'_>) {
    worker.session.plan_step(step, &mut worker.plan, &mut worker.outcomes);
}

/// The finalizer of SplitMix64.
pub(crate) fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
