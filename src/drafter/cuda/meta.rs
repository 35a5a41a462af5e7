//! What changes from STEP to STEP, as kernels read it: counts, tokens, positions, places.
//!
//! Kernels take sizes from here and not from their launch, so that one captured graph serves every plan of
//! its bucket. The numbers lie in page-locked memory, one piece a pass, and are copied at once: a part for the
//! drafts, then a part for the context rows, whose last list ends where the rows of the pass do.

use std::ops::Range;

use super::records::{CONTEXT_ROWS, ROWS_MAX};
use super::shape::Shape;

/// Where each list lies, in 32-bit words from the start of its part.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetaLayout {
    pairs: usize,
}

/// Words of the counts at the start of a part.
const COUNTS: usize = 4;
/// Words of a context part before its angles.
const CONTEXT_LISTS: usize = COUNTS + 2 * CONTEXT_ROWS;
/// Words of a block part before its angles.
const BLOCK_LISTS: usize = COUNTS + 8 * ROWS_MAX;

/// Addresses of the context part on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextMeta {
    /// One count: rows.
    pub(super) rows: u64,
    /// `[512]` row of the taps.
    pub(super) tap_rows: u64,
    /// `[512]` row of a layer's window store.
    pub(super) places: u64,
    /// `[512, pairs, 2]` cosine and sine.
    pub(super) angles: u64,
}

/// Addresses of the block part on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockMeta {
    /// One count: block rows.
    pub(super) rows: u64,
    /// One count: rows of the head.
    pub(super) head_rows: u64,
    /// `[32]`
    pub(super) tokens: u64,
    /// `[32]` block row of each head row.
    pub(super) head_source: u64,
    /// `[32, 3]` `DraftKeys` of attention.cu.
    pub(super) keys: u64,
    /// `[32, 3]` `DraftHead` of markov.cu.
    pub(super) heads: u64,
    /// `[32, pairs, 2]`
    pub(super) angles: u64,
}

impl MetaLayout {
    pub(super) fn new(shape: &Shape) -> Self {
        Self { pairs: shape.pairs() }
    }

    /// Words of a piece of `rows` context rows.
    pub(super) fn words_of(&self, rows: usize) -> usize {
        self.block_words() + CONTEXT_LISTS + 2 * rows * self.pairs
    }

    /// Words of the largest piece.
    pub(super) fn words(&self) -> usize {
        self.words_of(CONTEXT_ROWS)
    }

    /// Words of the block part.
    pub(super) fn block_words(&self) -> usize {
        BLOCK_LISTS + 2 * ROWS_MAX * self.pairs
    }

    /// Addresses of the context part of a piece at `at`.
    pub(super) fn context(&self, at: u64) -> ContextMeta {
        let at = at + 4 * self.block_words() as u64;
        let word = |words: usize| at + 4 * words as u64;
        ContextMeta {
            rows: at,
            tap_rows: word(COUNTS),
            places: word(COUNTS + CONTEXT_ROWS),
            angles: word(CONTEXT_LISTS),
        }
    }

    /// Addresses of the block part of a piece at `at`.
    pub(super) fn block(&self, at: u64) -> BlockMeta {
        let word = |words: usize| at + 4 * words as u64;
        BlockMeta {
            rows: at,
            head_rows: word(1),
            tokens: word(COUNTS),
            head_source: word(COUNTS + ROWS_MAX),
            keys: word(COUNTS + 2 * ROWS_MAX),
            heads: word(COUNTS + 5 * ROWS_MAX),
            angles: word(BLOCK_LISTS),
        }
    }

    /// The two parts of a piece, to be written.
    pub(super) fn parts<'a>(&self, piece: &'a mut [u8]) -> (Writer<'a>, Writer<'a>) {
        let (block, context) = piece.split_at_mut(4 * self.block_words());
        (Writer(block), Writer(context))
    }

    /// Place of context row `row` in a written piece.
    pub(super) fn written_place(&self, piece: &[u8], row: usize) -> usize {
        let word = self.block_words() + COUNTS + CONTEXT_ROWS + row;
        u32::from_le_bytes(piece.as_chunks().0[word]) as usize
    }
}

/// Writes words into a part of a piece.
pub(super) struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    /// Sets word `at`.
    pub(super) fn word(&mut self, at: usize, value: u32) {
        self.0[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn words<const N: usize>(&mut self, at: usize, values: [u32; N]) {
        for (i, value) in values.into_iter().enumerate() {
            self.word(at + i, value);
        }
    }

    /// Sets the counts of a context part.
    pub(super) fn context_counts(&mut self, rows: u32) {
        self.words(0, [rows, 0, 0, 0]);
    }

    /// Sets context row `row`.
    pub(super) fn context_row(&mut self, row: usize, tap_row: u32, place: u32) {
        self.word(COUNTS + row, tap_row);
        self.word(COUNTS + CONTEXT_ROWS + row, place);
    }

    /// Words of the angles of context row `row`.
    pub(super) fn context_angles(layout: &MetaLayout, row: usize) -> usize {
        CONTEXT_LISTS + 2 * layout.pairs * row
    }

    /// Sets the counts of a block part.
    pub(super) fn block_counts(&mut self, rows: u32, head_rows: u32) {
        self.words(0, [rows, head_rows, 0, 0]);
    }

    /// Sets the token of block row `row`.
    pub(super) fn block_token(&mut self, row: usize, token: u32) {
        self.word(COUNTS + row, token);
    }

    /// Sets the block row of head row `row`.
    pub(super) fn head_source(&mut self, row: usize, block_row: u32) {
        self.word(COUNTS + ROWS_MAX + row, block_row);
    }

    /// Sets a draft's keys: first row of its slot, ring index of its oldest key, context keys.
    pub(super) fn draft_keys(&mut self, draft: usize, keys: [u32; 3]) {
        self.words(COUNTS + 2 * ROWS_MAX + 3 * draft, keys);
    }

    /// Sets a draft's head: `n_out`, first base row, anchor token.
    pub(super) fn draft_head(&mut self, draft: usize, head: [u32; 3]) {
        self.words(COUNTS + 5 * ROWS_MAX + 3 * draft, head);
    }

    /// Words of the angles of block row `row`.
    pub(super) fn block_angles(layout: &MetaLayout, row: usize) -> usize {
        BLOCK_LISTS + 2 * layout.pairs * row
    }

    /// Sets cosine and sine pairs from word `at` on.
    pub(super) fn angles(&mut self, at: usize, angles: &[u8]) {
        self.0[4 * at..4 * at + angles.len()].copy_from_slice(angles);
    }
}

/// Row of a window store for position `pos` of `slot`.
pub(super) fn place(shape: &Shape, slot: u8, pos: i64) -> usize {
    usize::from(slot) * shape.window + ring_index(shape, pos)
}

/// `pos mod W`.
pub(super) fn ring_index(shape: &Shape, pos: i64) -> usize {
    // W is at most 4096 and the remainder below it, so neither conversion can truncate.
    pos.rem_euclid(shape.window as i64) as usize
}

/// Positions of a context.
///
/// # Panics
/// If there are more than W: the session plans no such context.
pub(super) fn context_len(shape: &Shape, context: &Range<i64>) -> usize {
    let len = if context.start < context.end {
        usize::try_from(context.end.abs_diff(context.start)).unwrap_or(usize::MAX)
    } else {
        0
    };
    assert!(len <= shape.window, "context of {len} rows in a window of {}", shape.window);
    len
}
