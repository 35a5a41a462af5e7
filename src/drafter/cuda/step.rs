//! One STEP: pieces written, copied, launched, results read back.
//!
//! Page-locked memory holds the pieces of all chunks of the largest STEP, so nothing is allocated and no
//! copy waits for staging. Context rows run in chunks of 32, drafts in chunks of as many as 32 rows hold;
//! neither shows in the result.

use std::time::{Duration, Instant};

use super::device::{DeviceError, Pinned};
use super::engine::{Engine, Halt, Watch};
use super::graph::Graphs;
use super::head::RESULT_LISTS;
use super::meta::{MetaLayout, Writer, context_len, inverse_frequencies, place, ring_index};
use super::records::{ROWS_MAX, word};
use super::shape::Shape;
use crate::drafter::{DraftBlocks, MarkovCounters};
use crate::plan::{Draft, RowBlock, StepPlan};

/// Page-locked memory of a STEP and what its chunks are.
pub(super) struct Staging {
    /// Context pieces, then block pieces.
    pieces: Pinned,
    /// Results of every chunk of drafts.
    results: Pinned,
    /// Rotary frequencies.
    inverse: Vec<f32>,
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

/// Sizes of the pieces.
struct Pieces {
    context: usize,
    context_chunks: usize,
    block: usize,
    block_chunks: usize,
    results: usize,
}

impl Pieces {
    fn new(s: &Shape, layout: &MetaLayout) -> Self {
        Self {
            context: 4 * layout.context_words(),
            context_chunks: s.tap_rows.div_ceil(ROWS_MAX),
            block: 4 * layout.block_words(),
            block_chunks: s.slots.div_ceil(s.drafts),
            results: 4 * RESULT_LISTS * s.drafts * s.block,
        }
    }

    /// Bytes of context piece `chunk`.
    fn context(&self, chunk: usize) -> std::ops::Range<usize> {
        chunk * self.context..(chunk + 1) * self.context
    }

    /// Bytes of block piece `chunk`.
    fn block(&self, chunk: usize) -> std::ops::Range<usize> {
        let start = self.context_chunks * self.context + chunk * self.block;
        start..start + self.block
    }

    /// Bytes of the results of `chunk`.
    fn results(&self, chunk: usize) -> std::ops::Range<usize> {
        chunk * self.results..(chunk + 1) * self.results
    }
}

impl Staging {
    /// Page-locked bytes it takes.
    pub(super) fn bytes(shape: &Shape, layout: &MetaLayout) -> usize {
        let pieces = Pieces::new(shape, layout);
        pieces.block(pieces.block_chunks).start + pieces.results(pieces.block_chunks).start
    }

    pub(super) fn new(engine: &Engine) -> Result<Self, DeviceError> {
        let pieces = Pieces::new(&engine.shape, &engine.layout);
        Ok(Self {
            pieces: Pinned::new(&engine.device, pieces.block(pieces.block_chunks).start)?,
            results: Pinned::new(&engine.device, pieces.results(pieces.block_chunks).start)?,
            inverse: inverse_frequencies(&engine.shape),
            context_rows: Vec::with_capacity(pieces.context_chunks),
            head_rows: Vec::with_capacity(pieces.block_chunks),
            places: Vec::with_capacity(ROWS_MAX),
            markov: MarkovCounters::default(),
            host: Duration::ZERO,
        })
    }

    /// How the Markov steps of all STEPs were computed.
    pub(super) fn markov_counters(&self) -> MarkovCounters {
        self.markov
    }

    /// Puts pieces on the device that name no rows and consume no positions.
    pub(super) fn upload_nothing(&mut self, engine: &Engine) -> Result<(), DeviceError> {
        let pieces = Pieces::new(&engine.shape, &engine.layout);
        self.pieces.bytes_mut().fill(0);
        self.upload_context(engine, &pieces, 0)?;
        self.upload_block(engine, &pieces, 0)?;
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
        let pieces = Pieces::new(&engine.shape, &engine.layout);
        self.write_context(engine, &pieces, plan);
        self.write_blocks(engine, &pieces, plan);
        if let Some(used) = used_rows(plan) {
            // SAFETY: the session admits no more rows than `taps` has room for; `run` waits before the
            // caller gets the rows back.
            unsafe { engine.device.upload(engine.buffers.taps, rows.rows(used)) }?;
        }
        for chunk in 0..self.context_rows.len() {
            self.upload_context(engine, &pieces, chunk)?;
            let groups = self.context_rows[chunk].div_ceil(8);
            match graphs {
                Some(graphs) => graphs.context(groups)?,
                None => {
                    self.remember_places(engine, &pieces, chunk);
                    engine.context(groups, &self.places, watch)?;
                }
            }
        }
        let per_chunk = engine.shape.drafts;
        for (chunk, drafts) in plan.drafts.chunks(per_chunk).enumerate() {
            self.upload_block(engine, &pieces, chunk)?;
            let head_rows = self.head_rows[chunk];
            let groups = head_rows.div_ceil(8);
            match graphs {
                Some(graphs) => graphs.block(drafts.len(), groups)?,
                None => {
                    engine.block(drafts.len(), watch)?;
                    engine.head(drafts.len(), groups, head_rows, watch)?;
                }
            }
            let results = &mut self.results.bytes_mut()[pieces.results(chunk)];
            // SAFETY: the list is as long on both sides, and nobody reads it before `run` has waited.
            unsafe { engine.device.download(results, engine.buffers.results) }?;
        }
        Ok(())
    }

    fn upload_context(
        &self,
        engine: &Engine,
        pieces: &Pieces,
        chunk: usize,
    ) -> Result<(), DeviceError> {
        let piece = &self.pieces.bytes()[pieces.context(chunk)];
        // SAFETY: the piece has room; it is not written again before the stream has passed.
        unsafe { engine.device.upload(engine.buffers.meta_context, piece) }
    }

    fn upload_block(
        &self,
        engine: &Engine,
        pieces: &Pieces,
        chunk: usize,
    ) -> Result<(), DeviceError> {
        let piece = &self.pieces.bytes()[pieces.block(chunk)];
        // SAFETY: as above.
        unsafe { engine.device.upload(engine.buffers.meta_block, piece) }
    }

    /// Context pieces of the plan's appends.
    fn write_context(&mut self, engine: &Engine, pieces: &Pieces, plan: &StepPlan) {
        let s = &engine.shape;
        let first = used_rows(plan).map_or(0, |used| used.start);
        self.context_rows.clear();
        let rows = plan.appends.iter().flat_map(|append| {
            append.rows.clone().zip(append.first_pos..).map(|(row, pos)| (row, append.slot, pos))
        });
        let mut count = 0;
        for (i, (row, slot, pos)) in rows.enumerate() {
            let (chunk, at) = (i / ROWS_MAX, i % ROWS_MAX);
            if at == 0 {
                self.context_rows.push(0);
            }
            self.context_rows[chunk] = at + 1;
            let mut piece = Writer(&mut self.pieces.bytes_mut()[pieces.context(chunk)]);
            piece.context_counts(word(at + 1));
            piece.context_row(at, word(row - first), word(place(s, slot, pos)));
            let pos = pos.min(plan.max_model_len - 1);
            piece.angles(Writer::context_angles(&engine.layout, at), &self.inverse, pos);
            count = i + 1;
        }
        debug_assert!(count <= s.tap_rows, "more rows than a STEP may carry");
    }

    /// Block pieces of the plan's drafts.
    fn write_blocks(&mut self, engine: &Engine, pieces: &Pieces, plan: &StepPlan) {
        let s = &engine.shape;
        self.head_rows.clear();
        for (chunk, drafts) in plan.drafts.chunks(s.drafts).enumerate() {
            let mut piece = Writer(&mut self.pieces.bytes_mut()[pieces.block(chunk)]);
            let mut head_rows = 0;
            for (d, draft) in drafts.iter().enumerate() {
                write_draft(
                    &mut piece,
                    engine,
                    &self.inverse,
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

    /// Places of a chunk's rows, read back from its piece.
    fn remember_places(&mut self, engine: &Engine, pieces: &Pieces, chunk: usize) {
        let at = engine.layout.context(0).places;
        // An offset within one piece.
        let at = usize::try_from(at).expect("a small offset");
        let piece = &self.pieces.bytes()[pieces.context(chunk)];
        let words = piece[at..].as_chunks::<4>().0.iter().take(self.context_rows[chunk]);
        self.places.clear();
        self.places.extend(words.map(|&w| u32::from_le_bytes(w) as usize));
    }

    /// Results into the blocks of the plan's drafts.
    fn read(&mut self, engine: &Engine, plan: &StepPlan, out: &mut DraftBlocks) {
        let s = &engine.shape;
        let pieces = Pieces::new(s, &engine.layout);
        let list = s.drafts * s.block;
        for (index, draft) in plan.drafts.iter().enumerate() {
            let results = &self.results.bytes()[pieces.results(index / s.drafts)];
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

/// One draft of a block piece; its head rows start at `head_row`.
fn write_draft(
    piece: &mut Writer<'_>,
    engine: &Engine,
    inverse: &[f32],
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
        piece.angles(Writer::block_angles(&engine.layout, row), inverse, pos);
        if j < draft.n_out {
            piece.head_source(head_row + j, word(row));
        }
    }
}

/// The span of the row block that the plan stores.
fn used_rows(plan: &StepPlan) -> Option<std::ops::Range<usize>> {
    let rows = plan.appends.iter().filter(|a| !a.rows.is_empty());
    let start = rows.clone().map(|a| a.rows.start).min()?;
    let end = rows.map(|a| a.rows.end).max()?;
    Some(start..end)
}
