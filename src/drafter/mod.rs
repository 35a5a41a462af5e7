//! Backends that execute a [`StepPlan`]: store context rows, draft blocks.
//!
//! A backend knows nothing of the wire. [`Drafter`] is the whole interface; [`weights`] finds what every
//! backend computes with, [`stage`] names the values they can be compared at, [`parity`] compares them,
//! [`cpu`] is the reference, and [`cuda`] is what serves.

pub mod cpu;
pub mod cuda;
pub mod parity;
pub mod stage;
pub mod weights;

use crate::buffer::{BufferError, FrameBuffer};
use crate::geometry::Geometry;
use crate::plan::{RowBlock, StepPlan};

/// The drafts of one STEP: for each draft of the plan, in plan order, N ids, confidences and margins.
///
/// Fixed memory for `max_slots` blocks. Positions at or beyond `n_out` hold zeros.
#[derive(Clone, Debug)]
pub struct DraftBlocks {
    num_spec: usize,
    ids: Vec<i32>,
    confidence: Vec<f32>,
    margin: Vec<f32>,
    finite: Vec<bool>,
}

/// One drafted block to be filled by a backend: `N` values each.
pub struct BlockMut<'a> {
    /// Draft token ids in `[0, vocab_size)`.
    pub ids: &'a mut [i32],
    /// Confidences in [0, 1], f32.
    pub confidence: &'a mut [f32],
    /// Top-1 minus top-2 of the values the argmax used, ≥ 0, f32.
    pub margin: &'a mut [f32],
    /// False when a consumed value is not finite: the entry is answered INTERNAL (contract-notes D38).
    pub finite: &'a mut bool,
}

/// One drafted block, to be read.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Draft token ids.
    pub ids: &'a [i32],
    /// Confidences.
    pub confidence: &'a [f32],
    /// Margins.
    pub margin: &'a [f32],
    /// Whether every consumed value is finite.
    pub finite: bool,
}

impl DraftBlocks {
    /// Room for one block per slot.
    pub fn new(geometry: &Geometry) -> Self {
        let (slots, n) = (geometry.max_slots as usize, geometry.num_spec as usize);
        Self {
            num_spec: n,
            ids: vec![0; slots * n],
            confidence: vec![0.0; slots * n],
            margin: vec![0.0; slots * n],
            finite: vec![true; slots],
        }
    }

    /// Zeroes every block.
    pub fn clear(&mut self) {
        self.ids.fill(0);
        self.confidence.fill(0.0);
        self.margin.fill(0.0);
        self.finite.fill(true);
    }

    /// Block of draft `index` of the plan.
    pub fn block(&self, index: usize) -> Block<'_> {
        let at = index * self.num_spec..(index + 1) * self.num_spec;
        Block {
            ids: &self.ids[at.clone()],
            confidence: &self.confidence[at.clone()],
            margin: &self.margin[at],
            finite: self.finite[index],
        }
    }

    /// Block of draft `index` of the plan, to be filled.
    pub fn block_mut(&mut self, index: usize) -> BlockMut<'_> {
        let at = index * self.num_spec..(index + 1) * self.num_spec;
        BlockMut {
            ids: &mut self.ids[at.clone()],
            confidence: &mut self.confidence[at.clone()],
            margin: &mut self.margin[at],
            finite: &mut self.finite[index],
        }
    }
}

/// What a backend is, for the start-up line and STATS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// `cpu` or `cuda`.
    pub backend: &'static str,
    /// Device in words, for example `2 threads`.
    pub device: String,
    /// Rounding of activations: `bf16` or `f32`.
    pub precision: &'static str,
    /// Rounding of logits: `bf16` or `f32`.
    pub logits: &'static str,
    /// Storage of the window KV.
    pub kv: &'static str,
    /// Bytes of device memory held; 0 on the CPU.
    pub gpu_mem_bytes: u64,
}

/// How Markov steps were computed, since the start: positions by road, and rows of the vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkovCounters {
    /// Positions whose bias row was held ready.
    pub resident: u64,
    /// Positions at which rows that cannot be among the best two were left out.
    pub pruned: u64,
    /// Positions at which every row was multiplied.
    pub dense: u64,
    /// Rows multiplied.
    pub rows: u64,
    /// Rows that would have been multiplied if no step had been spared any.
    pub rows_full: u64,
}

/// A backend failed while executing a plan.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// No memory for a buffer.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// The device or library reported an error.
    #[error("{0}")]
    Backend(String),
    /// The device has failed and answers no more: the process must end, so that a supervisor starts another.
    #[error("device lost: {0}")]
    DeviceLost(String),
}

/// A backend. One per process, owned by the drafting thread.
pub trait Drafter {
    /// The geometry served.
    fn geometry(&self) -> &Geometry;

    /// What this backend is.
    fn info(&self) -> BackendInfo;

    /// How its Markov steps were computed, if it counts them.
    fn markov(&self) -> Option<MarkovCounters> {
        None
    }

    /// Keeps an idle device from slowing down. Touches no window and no counter, and takes less time than a
    /// STEP; does nothing where nothing helps.
    ///
    /// # Errors
    /// As [`step`](Self::step), but no slot is emptied.
    fn keep_warm(&mut self) -> Result<(), DraftError> {
        Ok(())
    }

    /// Memory the transport may fill and `step` may read without a further copy.
    ///
    /// # Errors
    /// When the memory cannot be had.
    fn frame_buffer(&self, bytes: usize) -> Result<FrameBuffer, DraftError> {
        Ok(FrameBuffer::new(bytes)?)
    }

    /// Executes a plan: all appends, then the drafts, filling `out` in plan order.
    ///
    /// A request's result does not depend on which other requests share the plan, nor on `n_out`, nor on
    /// how its rows were split over STEPs (contract-notes D41).
    ///
    /// # Errors
    /// After an error the slots named in the plan hold no rows (contract-notes D39).
    fn step(
        &mut self,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        out: &mut DraftBlocks,
    ) -> Result<(), DraftError>;
}
