//! Requests that are put together into STEPs, and every bit of what comes back.

#![allow(dead_code)]

use dspark::buffer::FrameBuffer;
use dspark::drafter::cuda::CudaDrafter;
use dspark::drafter::stage::StageObserver;
use dspark::drafter::{DraftBlocks, Drafter};
use dspark::plan::{Append, Draft, RowBlock, StepPlan};

use crate::cases::{self, N, ROW_BYTES, W};

const MAX_MODEL_LEN: i64 = 327_680;

/// One request's part of a STEP.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) slot: u8,
    pub(crate) first_pos: i64,
    pub(crate) rows: Vec<u8>,
    /// Context and anchor; none for an append.
    pub(crate) draft: Option<(std::ops::Range<i64>, u32, usize)>,
}

impl Request {
    /// Appends pool rows `pool_start ..` and drafts after them, over a window that starts at `lo`.
    pub(crate) fn new(slot: u8, first_pos: i64, n: usize, pool_start: usize, lo: i64) -> Self {
        let pool = cases::pool();
        let rows: Vec<u8> = (0..n).flat_map(|r| pool.row(pool_start + r)).copied().collect();
        let anchor = first_pos + n as i64;
        let token = (pool_start % 512) as u32;
        Self { slot, first_pos, rows, draft: Some((lo.max(anchor - W)..anchor, token, N)) }
    }

    pub(crate) fn n_out(mut self, n_out: usize) -> Self {
        self.draft.as_mut().expect("a step").2 = n_out;
        self
    }

    pub(crate) fn append_only(mut self) -> Self {
        self.draft = None;
        self
    }
}

/// What came back for one draft: every bit of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bits {
    pub(crate) finite: bool,
    pub(crate) ids: Vec<i32>,
    pub(crate) confidence: Vec<u32>,
    pub(crate) margin: Vec<u32>,
}

impl Bits {
    /// Checks that the first `n` positions are those of `full` and that the others are zero.
    pub(crate) fn assert_begins(&self, n: usize, full: &Self) {
        assert_eq!(self.ids[..n], full.ids[..n]);
        assert_eq!(self.confidence[..n], full.confidence[..n]);
        assert_eq!(self.margin[..n], full.margin[..n]);
        assert!(self.ids[n..].iter().all(|&id| id == 0));
        assert!(self.confidence[n..].iter().chain(&self.margin[n..]).all(|&bits| bits == 0));
    }
}

/// Requests as one STEP: its plan and its rows.
fn planned(requests: &[Request]) -> (StepPlan, Vec<u8>) {
    let mut plan = StepPlan { max_model_len: MAX_MODEL_LEN, ..StepPlan::default() };
    let mut rows = Vec::new();
    for (entry, request) in requests.iter().enumerate() {
        let (slot, first_pos) = (request.slot, request.first_pos);
        let at = rows.len() / ROW_BYTES;
        rows.extend_from_slice(&request.rows);
        if !request.rows.is_empty() {
            plan.appends.push(Append { slot, first_pos, rows: at..rows.len() / ROW_BYTES });
        }
        if let Some((context, anchor_token, n_out)) = request.draft.clone() {
            let anchor_pos = context.end;
            plan.drafts.push(Draft { entry, slot, context, anchor_token, anchor_pos, n_out });
        }
    }
    (plan, rows)
}

/// Runs them as one STEP that is shown to `observer`.
pub(crate) fn observed(
    drafter: &mut CudaDrafter,
    requests: &[Request],
    observer: &mut dyn StageObserver,
) {
    let (plan, rows) = planned(requests);
    let mut out = DraftBlocks::new(drafter.geometry());
    let flow = drafter.step_observed(&plan, RowBlock::new(&rows, ROW_BYTES), &mut out, observer);
    assert!(flow.expect("a step").is_continue());
}

/// Runs requests as one STEP over rows in memory of their own.
pub(crate) fn step(drafter: &mut dyn Drafter, requests: &[Request]) -> Vec<Bits> {
    let (plan, rows) = planned(requests);
    run(drafter, &plan, &rows)
}

/// The same over rows at the end of a frame, as a worker receives them, behind `unused` rows that nobody stores.
pub(crate) fn step_in(
    drafter: &mut dyn Drafter,
    frame: &mut FrameBuffer,
    requests: &[Request],
    unused: usize,
) -> Vec<Bits> {
    let (mut plan, rows) = planned(requests);
    for append in &mut plan.appends {
        append.rows = append.rows.start + unused..append.rows.end + unused;
    }
    let len = unused * ROW_BYTES + rows.len();
    frame.frame_mut(len)[unused * ROW_BYTES..].copy_from_slice(&rows);
    run(drafter, &plan, frame.frame(len))
}

fn run(drafter: &mut dyn Drafter, plan: &StepPlan, rows: &[u8]) -> Vec<Bits> {
    let mut out = DraftBlocks::new(drafter.geometry());
    drafter.step(plan, RowBlock::new(rows, ROW_BYTES), &mut out).expect("a step");
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
    (0..plan.drafts.len())
        .map(|d| out.block(d))
        .map(|b| Bits {
            finite: b.finite,
            ids: b.ids.to_vec(),
            confidence: bits(b.confidence),
            margin: bits(b.margin),
        })
        .collect()
}

/// Four requests of different lengths and places.
pub(crate) fn four() -> Vec<Request> {
    let requests = [(0, 0, 128, 10), (1, 900, 6, 300), (2, 5, 1, 77), (3, 0, 60, 440)];
    requests.map(|(slot, pos, n, pool)| Request::new(slot, pos, n, pool, pos)).to_vec()
}

pub(crate) fn zeros() -> Bits {
    Bits { finite: false, ids: vec![0; N], confidence: vec![0; N], margin: vec![0; N] }
}
