//! From hidden rows to tokens: base logits, Markov chain, confidence. Twin of the CPU backend's `head`.

use super::device::DeviceError;
use super::engine::{Engine, Halt, Norm, Rows, Stored, Watch};
use super::kernels::{Arg, record};
use super::records::{TablesRecord, word};
use crate::drafter::MarkovCounters;
use crate::drafter::stage::Stage;

/// Results of one draft position, as they lie in `buffers.results`.
pub(super) const RESULT_LISTS: usize = 5;

/// In the word of rows multiplied: the position's bias row was resident, `RESIDENT` of markov.cu.
const RESIDENT: u32 = 1 << 31;

impl MarkovCounters {
    /// Counts one position of a vocabulary of `vocab` by the word the device left for it.
    pub(super) fn count(&mut self, word: u32, vocab: usize) {
        let (rows, vocab) = (u64::from(word & !RESIDENT), vocab as u64);
        let road = match word & RESIDENT {
            0 if rows < vocab => &mut self.pruned,
            0 => &mut self.dense,
            _ => &mut self.resident,
        };
        *road += 1;
        self.rows += rows;
        self.rows_full += vocab;
    }
}

impl Engine {
    /// Base logits of at most `groups` groups of eight head rows, then all positions of `drafts` drafts.
    /// `head_rows` is the number of rows there are, for the watch.
    pub(super) fn head(
        &self,
        drafts: usize,
        groups: usize,
        head_rows: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        let rows = Rows { at: self.block_meta.head_rows, bound: 8 * groups };
        let (head, weight) = (&self.groups.head, self.weights.final_norm);
        let gather = self.block_meta.head_source;
        self.norm_rotate(head, rows, &Norm { x: b.hidden, gather, weight, y: b.normed })?;
        watch.show(self, Stage::HeadNorm, None, Stored::Bf16, b.normed, head_rows * s.hidden)?;
        self.multiply(head, rows, b.rotated)?;
        // SAFETY: arguments as exl3_finish.cu declares them.
        unsafe {
            k.launch(
                k.exl3_finish_logits,
                [s.vocab.div_ceil(512), rows.bound, 1],
                0,
                &[
                    Arg::At(b.table),
                    Arg::At(head.jobs),
                    Arg::At(rows.at),
                    Arg::At(b.sums),
                    Arg::Word(u32::from(self.round_logits)),
                    Arg::At(b.best),
                ],
            )
        }?;
        watch.show(self, Stage::BaseLogits, None, Stored::F32, b.base, head_rows * s.vocab)?;
        let tables = self.tables();
        for position in 0..s.block {
            self.position(drafts, position, &tables)?;
        }
        let len = drafts * s.block;
        watch.show(self, Stage::DraftIds, None, Stored::Word, self.result(0), len)
    }

    /// Address of a list of `buffers.results`: 0 ids, 1 confidences, 2 margins, 3 soundness, 4 rows read.
    fn result(&self, list: usize) -> u64 {
        self.buffers.results + (4 * list * self.shape.drafts * self.shape.block) as u64
    }

    pub(super) fn tables(&self) -> TablesRecord {
        let (s, w) = (&self.shape, &self.weights);
        TablesRecord {
            base: self.buffers.base,
            head: w.markov_head.at,
            embed: w.markov_embed.at,
            head_norm: w.markov_head_norm,
            embed_norm: w.markov_embed_norm,
            slots: self.resident.slots,
            bias: self.resident.bias,
            head_format: w.markov_head.format,
            embed_format: w.markov_embed.format,
            vocab: word(s.vocab),
            rank: word(s.markov_rank),
            round: u32::from(self.round_logits),
            positions: word(s.block),
        }
    }

    /// One position of every draft that consumes it.
    fn position(
        &self,
        drafts: usize,
        position: usize,
        tables: &TablesRecord,
    ) -> Result<(), DeviceError> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        let heads = self.block_meta.heads;
        let (ids, position) = (self.result(0), word(position));
        // SAFETY: arguments as markov.cu declares them; tokens are below the vocabulary.
        unsafe {
            if self.prune {
                k.launch(
                    k.markov_seed,
                    [(s.vocab / 128).div_ceil(8), drafts, 1],
                    0,
                    &[
                        record(tables),
                        Arg::At(heads),
                        Arg::At(ids),
                        Arg::At(b.best),
                        Arg::Word(position),
                        Arg::At(b.seeds),
                    ],
                )?;
            }
            k.launch(
                k.markov_scan,
                [s.scan_chunks(), drafts.div_ceil(4), 1],
                0,
                &[
                    record(tables),
                    Arg::At(heads),
                    Arg::At(ids),
                    Arg::At(b.seeds),
                    Arg::Word(position),
                    Arg::Word(word(drafts)),
                    Arg::Word(u32::from(self.prune)),
                    Arg::At(b.tops),
                    Arg::At(b.rows_read),
                ],
            )?;
            k.launch(
                k.markov_pick,
                [drafts, 1, 1],
                0,
                &[
                    record(tables),
                    Arg::At(heads),
                    Arg::At(b.tops),
                    Arg::At(b.rows_read),
                    Arg::Word(word(s.scan_chunks())),
                    Arg::Word(position),
                    Arg::At(b.hidden),
                    Arg::Word(word(s.hidden)),
                    Arg::At(self.weights.confidence),
                    Arg::At(ids),
                    Arg::At(self.result(1)),
                    Arg::At(self.result(2)),
                    Arg::At(self.result(3)),
                    Arg::At(self.result(4)),
                ],
            )
        }
    }
}
