//! The numbers of one drafter as the kernels take them, and which drafters they can serve.

use super::records::ROWS_MAX;
use crate::checkpoint::DrafterConfig;
use crate::geometry::Geometry;

/// Streams the hyper-connection kernels are written for.
const STREAMS: usize = 4;
/// Columns of the flattened streams one block of `hc_mix` reads.
pub(super) const MIX_COLUMNS: usize = 256;
/// Rows of the vocabulary one block of `markov_scan` looks at.
pub(super) const SCAN_ROWS: usize = 256;
/// Shared memory a block may have without asking for more.
const SHARED_BYTES_MAX: usize = 48 << 10;

/// A config the kernels are not written for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("config.json: {field} is {value}, the CUDA kernels take {allowed}")]
pub struct UnsupportedShape {
    /// What the config calls it.
    pub field: &'static str,
    /// Its value.
    pub value: usize,
    /// The accepted values in words.
    pub allowed: &'static str,
}

/// Sizes, counts and constants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) slots: usize,
    pub(super) window: usize,
    /// Rows of one block, N.
    pub(super) block: usize,
    /// Rows of all taps of one STEP at most.
    pub(super) tap_rows: usize,
    /// Drafts that run together, and their rows.
    pub(super) drafts: usize,
    pub(super) rows: usize,
    pub(super) layers: usize,
    pub(super) taps: usize,
    pub(super) hidden: usize,
    pub(super) vocab: usize,
    pub(super) noise_token: u32,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) rotary: usize,
    pub(super) q_rank: usize,
    pub(super) groups: usize,
    pub(super) o_rank: usize,
    pub(super) inner: usize,
    pub(super) experts: usize,
    pub(super) chosen: usize,
    pub(super) markov_rank: usize,
    pub(super) hc_iterations: usize,
    pub(super) hc_eps: f32,
    pub(super) rms_eps: f32,
    pub(super) gate_temp: f32,
    pub(super) routed_scale: f32,
    pub(super) normalise: bool,
    pub(super) limit: f32,
    pub(super) rope_theta: f64,
}

impl Shape {
    /// # Errors
    /// The first number the kernels are not written for.
    pub(super) fn new(
        config: &DrafterConfig,
        geometry: &Geometry,
    ) -> Result<Self, UnsupportedShape> {
        let block = geometry.num_spec as usize;
        let slots = geometry.max_slots as usize;
        let drafts = (ROWS_MAX / block.max(1)).min(slots);
        let shape = Self {
            slots,
            window: geometry.window as usize,
            block,
            tap_rows: geometry.max_rows_per_step as usize,
            drafts,
            rows: drafts * block,
            layers: config.stages,
            taps: config.tap_layer_ids.len() * config.hidden,
            hidden: config.hidden,
            vocab: config.vocab_size,
            noise_token: geometry.noise_token_id,
            heads: config.heads,
            head_dim: config.head_dim,
            rotary: config.rope_dim,
            q_rank: config.q_rank,
            groups: config.o_groups,
            o_rank: config.o_rank,
            inner: config.inter,
            experts: config.experts,
            chosen: config.experts_per_token,
            markov_rank: config.markov_rank,
            hc_iterations: config.hc_iters,
            hc_eps: config.hc_eps,
            rms_eps: config.rms_eps,
            gate_temp: config.gate_temp,
            routed_scale: config.routed_scale,
            normalise: config.norm_topk,
            limit: config.swiglu_limit,
            rope_theta: config.rope_theta,
        };
        shape.check(config)?;
        Ok(shape)
    }

    fn check(&self, config: &DrafterConfig) -> Result<(), UnsupportedShape> {
        let check = |ok: bool, field, value, allowed| {
            if ok { Ok(()) } else { Err(UnsupportedShape { field, value, allowed }) }
        };
        check(self.block <= ROWS_MAX, "dspark_block_size", self.block, "at most 32")?;
        check(config.hc_mult == STREAMS, "hc_mult", config.hc_mult, "4")?;
        check(self.experts <= 256, "dspark_n_routed_experts", self.experts, "at most 256")?;
        let chosen = "1 to 8, not above the number of experts";
        let chosen_fits = (1..=8.min(self.experts)).contains(&self.chosen);
        check(chosen_fits, "dspark_num_experts_per_tok", self.chosen, chosen)?;
        let rank = self.markov_rank;
        check(
            rank <= 256 && rank.is_multiple_of(2),
            "dspark_markov_rank",
            rank,
            "even, at most 256",
        )?;
        let rotary_fits = self.rotary.is_multiple_of(4) && self.rotary <= self.head_dim;
        check(rotary_fits, "qk_rope_head_dim", self.rotary, "multiples of 4 up to head_dim")?;
        check(self.head_dim.is_multiple_of(4), "head_dim", self.head_dim, "multiples of 4")?;
        let fits = self.attention_shared() <= SHARED_BYTES_MAX;
        check(fits, "sliding_window", self.window, "what fits 48 KiB with eight queries")?;
        let fits = self.input_shared() <= SHARED_BYTES_MAX - 1024;
        check(fits, "hidden_size", self.hidden, "at most 12032")
    }

    /// Values of all heads' queries of one row.
    pub(super) fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Cosine and sine pairs of one row.
    pub(super) fn pairs(&self) -> usize {
        self.rotary / 2
    }

    /// Rows grouped by expert: each row once for every expert it chose, and once for the shared one.
    pub(super) fn grouped_rows(&self) -> usize {
        self.rows * (self.chosen + 1)
    }

    /// Expert jobs of one launch at most, the shared expert's among them.
    pub(super) fn expert_jobs(&self, rows: usize) -> usize {
        self.experts.min(rows * self.chosen) + 1
    }

    /// Blocks of `hc_mix`.
    pub(super) fn mix_chunks(&self) -> usize {
        STREAMS * self.hidden / MIX_COLUMNS
    }

    /// Blocks of `markov_scan` for one draft.
    pub(super) fn scan_chunks(&self) -> usize {
        self.vocab.div_ceil(SCAN_ROWS)
    }

    /// Shared memory of `attention`.
    pub(super) fn attention_shared(&self) -> usize {
        4 * 8 * (self.head_dim + self.window + self.block)
    }

    /// Shared memory of `hc_input`.
    pub(super) fn input_shared(&self) -> usize {
        4 * self.hidden
    }
}
