//! One STEP: pieces written, copied, launched, results read back.
//!
//! Context rows run in chunks of 512, drafts in chunks of as many as 32 rows hold; neither shows in the
//! result. A pass takes a chunk of each: all context comes before any draft, so the last chunk of context rows
//! shares its pass with the first of drafts, and in the common case one pass is the STEP: one copy up, one graph
//! launched, one list of results back. Page-locked memory holds the pieces of all passes of the largest STEP, so
//! nothing is allocated and no copy waits for staging.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::angles::Angles;
use super::device::DeviceError;
use super::engine::{Engine, Halt, Pass, Watch};
use super::graph::Graphs;
use super::head::RESULT_LISTS;
use super::meta::{MetaLayout, Writer, context_len, place, ring_index};
use super::pieces::Pieces;
use super::pinned::Pinned;
use super::records::{CONTEXT_ROWS, word};
use super::shape::Shape;
use crate::buffer::FrameBuffer;
use crate::drafter::{DraftBlocks, DraftError, MarkovCounters};
use crate::plan::{Draft, RowBlock, StepPlan};

/// Page-locked memory of a STEP and what its chunks are.
pub(super) struct Staging {
    sizes: Sizes,
    pieces: Pieces,
    /// Results of every chunk of drafts.
    results: Pinned,
    angles: Angles,
    /// Rows of each context chunk of the STEP in hand.
    context_rows: Vec<usize>,
    /// Head rows of each chunk of drafts.
    head_rows: Vec<usize>,
    /// Places of the rows of one chunk, for a watch.
    places: Vec<usize>,
    /// How the Markov steps of all STEPs were computed.
    markov: MarkovCounters,
    /// Time of the host in the last STEP, beside waiting for the device.
    pub(super) host: Duration,
}

/// Sizes of pieces and results, in bytes.
struct Sizes {
    piece: usize,
    /// Results of a chunk of drafts.
    results: usize,
    /// Chunks of the largest STEP.
    context_chunks: usize,
    block_chunks: usize,
}

impl Sizes {
    fn new(s: &Shape, layout: &MetaLayout) -> Self {
        Self {
            piece: 4 * layout.words(),
            results: 4 * RESULT_LISTS * s.drafts * s.block,
            context_chunks: s.tap_rows.div_ceil(CONTEXT_ROWS),
            block_chunks: s.slots.div_ceil(s.drafts),
        }
    }

    /// Passes of the largest STEP.
    fn passes(&self) -> usize {
        self.context_chunks + self.block_chunks - 1
    }

    /// Bytes of the results of `chunk`.
    fn results(&self, chunk: usize) -> Range<usize> {
        chunk * self.results..(chunk + 1) * self.results
    }
}

impl Staging {
    /// Page-locked bytes it takes, beside the room behind each frame buffer.
    pub(super) fn bytes(shape: &Shape, layout: &MetaLayout) -> usize {
        let sizes = Sizes::new(shape, layout);
        sizes.passes() * sizes.piece + sizes.block_chunks * sizes.results
    }

    pub(super) fn new(engine: &Engine) -> Result<Self, DeviceError> {
        let sizes = Sizes::new(&engine.shape, &engine.layout);
        Ok(Self {
            pieces: Pieces::new(engine, sizes.piece, sizes.passes())?,
            results: Pinned::new(&engine.device, sizes.block_chunks * sizes.results)?,
            angles: Angles::new(&engine.shape),
            context_rows: Vec::with_capacity(sizes.context_chunks),
            head_rows: Vec::with_capacity(sizes.block_chunks),
            places: Vec::with_capacity(CONTEXT_ROWS),
            markov: MarkovCounters::default(),
            host: Duration::ZERO,
            sizes,
        })
    }

    /// A buffer for frames of up to `bytes` bytes, whose rows go to the device in one copy with their piece.
    pub(super) fn frame_buffer(
        &self,
        engine: &Engine,
        bytes: usize,
    ) -> Result<FrameBuffer, DraftError> {
        self.pieces.frame_buffer(engine, bytes)
    }

    /// How the Markov steps of all STEPs were computed.
    pub(super) fn markov_counters(&self) -> MarkovCounters {
        self.markov
    }

    /// Puts a piece on the device that names no rows and consumes no positions.
    pub(super) fn upload_nothing(&mut self, engine: &Engine) -> Result<(), DeviceError> {
        self.pieces.begin(&[]);
        self.pieces.piece(0).fill(0);
        // SAFETY: a piece alone; the wait keeps it unchanged.
        unsafe { self.pieces.upload(engine, 0, &[], self.sizes.piece) }?;
        engine.device.synchronize()
    }

    /// Executes a plan into `out`, whose blocks are zero: from graphs where there are some, else launch by
    /// launch. Nothing is under way when it returns.
    pub(super) fn run(
        &mut self,
        engine: &Engine,
        graphs: Option<&Graphs>,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        out: &mut DraftBlocks,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let started = Instant::now();
        let done = self.launch(engine, graphs, plan, rows, watch);
        let issued = started.elapsed();
        // Copies may still read `rows` and write results, after an error too.
        let waited = engine.device.synchronize();
        done?;
        waited?;
        let finished = Instant::now();
        self.read(engine, plan, out);
        self.host = issued + finished.elapsed();
        Ok(())
    }

    fn launch(
        &mut self,
        engine: &Engine,
        graphs: Option<&Graphs>,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        // All rows from the first one stored on, so that they end with the block.
        let taps = match first_row(plan) {
            Some(first) => rows.rows(first..rows.len()),
            None => &[],
        };
        self.pieces.begin(taps);
        self.write_context(engine, plan, rows.len());
        self.write_blocks(engine, plan);
        let mut drafts = plan.drafts.chunks(engine.shape.drafts).map(<[Draft]>::len);
        let first = self.first_drafting();
        for number in 0..self.context_rows.len().max(first + self.head_rows.len()) {
            let context_rows = self.context_rows.get(number).copied().unwrap_or(0);
            let chunk = number.checked_sub(first).filter(|&chunk| chunk < self.head_rows.len());
            let head_rows = chunk.map_or(0, |chunk| self.head_rows[chunk]);
            let pass = Pass {
                context: Pass::context_bucket(context_rows),
                drafts: chunk.and_then(|_| drafts.next()).unwrap_or(0),
                head: head_rows.div_ceil(8),
            };
            let taps = if number == 0 { taps } else { &[] };
            let bytes = 4 * engine.layout.words_of(context_rows);
            // SAFETY: `write_context` has checked that the rows fit before the piece; `run` waits before the
            // caller gets them back, and before pieces are written again.
            unsafe { self.pieces.upload(engine, number, taps, bytes) }?;
            match graphs {
                Some(graphs) => graphs.launch(pass)?,
                None => {
                    self.remember_places(engine, number, context_rows);
                    engine.pass(pass, &self.places, head_rows, watch)?;
                }
            }
            if let Some(chunk) = chunk {
                let results = &mut self.results.bytes_mut()[self.sizes.results(chunk)];
                // SAFETY: the list is as long on both sides, and nobody reads it before `run` has waited.
                unsafe { engine.device.download(results, engine.buffers.results) }?;
            }
        }
        Ok(())
    }

    /// The first pass that drafts: the last one with context rows.
    fn first_drafting(&self) -> usize {
        self.context_rows.len().saturating_sub(1)
    }

    /// Context parts of the plan's appends from a block of `block` rows, which end where the taps' memory does.
    ///
    /// # Panics
    /// If there are more rows than a STEP may carry: the session admits no such block.
    fn write_context(&mut self, engine: &Engine, plan: &StepPlan, block: usize) {
        let (s, layout) = (&engine.shape, &engine.layout);
        assert!(block <= s.tap_rows, "{block} rows in a STEP of at most {}", s.tap_rows);
        self.context_rows.clear();
        let rows = plan.appends.iter().flat_map(|append| {
            append.rows.clone().zip(append.first_pos..).map(|(row, pos)| (row, append.slot, pos))
        });
        for (i, (row, slot, pos)) in rows.enumerate() {
            let (chunk, at) = (i / CONTEXT_ROWS, i % CONTEXT_ROWS);
            if at == 0 {
                self.context_rows.push(0);
            }
            self.context_rows[chunk] = at + 1;
            let clamped = pos.min(plan.max_model_len - 1);
            let (_, mut piece) = layout.parts(self.pieces.piece(chunk));
            piece.context_counts(word(at + 1));
            piece.context_row(at, word(s.tap_rows - block + row), word(place(s, slot, pos)));
            piece.angles(Writer::context_angles(layout, at), self.angles.at(slot, clamped));
        }
    }

    /// Block parts of the plan's drafts, once the context parts are written.
    fn write_blocks(&mut self, engine: &Engine, plan: &StepPlan) {
        let s = &engine.shape;
        let first = self.first_drafting();
        self.head_rows.clear();
        for (chunk, drafts) in plan.drafts.chunks(s.drafts).enumerate() {
            let (mut piece, _) = engine.layout.parts(self.pieces.piece(first + chunk));
            let mut head_rows = 0;
            for (d, draft) in drafts.iter().enumerate() {
                write_draft(
                    &mut piece,
                    engine,
                    &mut self.angles,
                    d,
                    draft,
                    plan.max_model_len,
                    head_rows,
                );
                head_rows += draft.n_out;
            }
            piece.block_counts(word(drafts.len() * s.block), word(head_rows));
            self.head_rows.push(head_rows);
        }
    }

    /// Places of a pass's context rows, read back from its piece.
    fn remember_places(&mut self, engine: &Engine, pass: usize, rows: usize) {
        self.places.clear();
        for row in 0..rows {
            let place = engine.layout.written_place(self.pieces.piece(pass), row);
            self.places.push(place);
        }
    }

    /// Results into the blocks of the plan's drafts.
    fn read(&mut self, engine: &Engine, plan: &StepPlan, out: &mut DraftBlocks) {
        let s = &engine.shape;
        let list = s.drafts * s.block;
        for (index, draft) in plan.drafts.iter().enumerate() {
            let results = &self.results.bytes()[self.sizes.results(index / s.drafts)];
            let words = results.as_chunks::<4>().0;
            let first = index % s.drafts * s.block;
            let value = |kind: usize, j: usize| words[kind * list + first + j];
            let block = out.block_mut(index);
            *block.finite = (0..draft.n_out).all(|j| u32::from_le_bytes(value(3, j)) == 1);
            for j in 0..draft.n_out {
                self.markov.count(u32::from_le_bytes(value(4, j)), s.vocab);
                if *block.finite {
                    block.ids[j] = i32::from_le_bytes(value(0, j));
                    block.confidence[j] = f32::from_le_bytes(value(1, j));
                    block.margin[j] = f32::from_le_bytes(value(2, j));
                }
            }
        }
    }
}

/// One draft of a block part; its head rows start at `head_row`.
fn write_draft(
    piece: &mut Writer<'_>,
    engine: &Engine,
    angles: &mut Angles,
    d: usize,
    draft: &Draft,
    max_model_len: i64,
    head_row: usize,
) {
    let s = &engine.shape;
    let context = context_len(s, &draft.context);
    let oldest = ring_index(s, draft.context.start);
    let slot = usize::from(draft.slot) * s.window;
    piece.draft_keys(d, [word(slot), word(oldest), word(context)]);
    piece.draft_head(d, [word(draft.n_out), word(head_row), draft.anchor_token]);
    for j in 0..s.block {
        let row = d * s.block + j;
        piece.block_token(row, if j == 0 { draft.anchor_token } else { s.noise_token });
        // N is at most 32; positions reach the end of i64.
        let pos = draft.anchor_pos.saturating_add(j as i64).min(max_model_len - 1);
        piece.angles(Writer::block_angles(&engine.layout, row), angles.at(draft.slot, pos));
        if j < draft.n_out {
            piece.head_source(head_row + j, word(row));
        }
    }
}

/// The first row of the block that the plan stores.
fn first_row(plan: &StepPlan) -> Option<usize> {
    plan.appends.iter().filter(|append| !append.rows.is_empty()).map(|a| a.rows.start).min()
}
