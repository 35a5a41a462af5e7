//! What one STEP asks of a backend: rows to store, blocks to draft (contract §7.2 steps 3 and 5).
//!
//! A plan is made by the session without arithmetic and executed by a backend without judgement: every
//! position, slot and token in it has been checked.
#![forbid(unsafe_code)]

use std::ops::Range;

/// Store rows `rows` of the row block as positions `first_pos ..` of `slot`.
///
/// A backend keeps row data keyed by `pos mod W`; positions no longer in a window are overwritten by
/// later ones, so a roll-back needs no action here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// Slot below `max_slots`.
    pub slot: u8,
    /// Position of the first row, ≥ 0; may exceed `max_model_len` (contract-notes D36).
    pub first_pos: i64,
    /// Indices into the row block, at most W of them.
    pub rows: Range<usize>,
}

/// Draft one block for `slot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Index of the request's entry in the STEP.
    pub entry: usize,
    /// Slot below `max_slots`.
    pub slot: u8,
    /// Context positions the block attends to, at most W, all stored; may be empty (contract-notes D32).
    pub context: Range<i64>,
    /// Token of query row 0, inside the vocabulary.
    pub anchor_token: u32,
    /// Position of query row 0; row j sits at `min(anchor_pos + j, max_model_len − 1)`.
    pub anchor_pos: i64,
    /// Positions the client consumes, 1 ..= N. Later ones are answered with zeros.
    pub n_out: usize,
}

/// Everything one STEP asks of a backend. All appends are executed before the first draft.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Rows to store; at most one per slot.
    pub appends: Vec<Append>,
    /// Blocks to draft, in entry order; at most one per slot.
    pub drafts: Vec<Draft>,
    /// Clamp of query and context positions (contract-notes D20, D36), ≥ 1.
    pub max_model_len: i64,
}

impl StepPlan {
    /// An empty plan with room for `slots` entries, so that planning allocates nothing.
    pub fn with_slots(slots: usize) -> Self {
        Self {
            appends: Vec::with_capacity(slots),
            drafts: Vec::with_capacity(slots),
            max_model_len: 1,
        }
    }

    /// Forgets the last STEP and keeps the memory.
    pub fn clear(&mut self) {
        self.appends.clear();
        self.drafts.clear();
    }

    /// Slots the plan touches, with repetitions.
    pub fn slots(&self) -> impl Iterator<Item = u8> + '_ {
        self.appends.iter().map(|a| a.slot).chain(self.drafts.iter().map(|d| d.slot))
    }
}

/// The row block of a STEP: `len / row_bytes` tap rows, each the little-endian bf16 concatenation of the
/// taps of one position (contract §3).
#[derive(Clone, Copy, Debug)]
pub struct RowBlock<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
}

impl<'a> RowBlock<'a> {
    /// Views `bytes` as whole rows.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of rows: the frame's layout was checked before.
    pub fn new(bytes: &'a [u8], row_bytes: usize) -> Self {
        assert!(
            row_bytes > 0 && bytes.len().is_multiple_of(row_bytes),
            "partial row in a row block"
        );
        Self { bytes, row_bytes }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    /// Whether the block has no row.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of row `index`.
    pub fn row(&self, index: usize) -> &'a [u8] {
        &self.bytes[index * self.row_bytes..][..self.row_bytes]
    }

    /// Bytes of the rows `range`, contiguous.
    pub fn rows(&self, range: Range<usize>) -> &'a [u8] {
        &self.bytes[range.start * self.row_bytes..range.end * self.row_bytes]
    }
}
