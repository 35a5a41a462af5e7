//! Everything the forward pass writes, taken before the first STEP; and the plan of it all that is printed.

use std::fmt;

use super::device::{DeviceError, DeviceMemory};
use super::meta::MetaLayout;
use super::records::{CONTEXT_ROWS, ROWS_MAX, TOP_BYTES};
use super::shape::Shape;
use super::upload::WeightsAt;

/// Memory that must stay free beside the plan: the driver's own for modules and graphs.
pub(super) const RESERVE_BYTES: u64 = 192 << 20;

macro_rules! buffers {
    ($shape:ident, $sizes:ident, $layout:ident; $($(#[$doc:meta])* $name:ident = $bytes:expr;)*) => {
        /// Addresses of the working memory.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Buffers { $($(#[$doc])* pub(super) $name: u64,)* }

        impl Buffers {
            /// Names and bytes of all buffers.
            pub(super) fn plan(
                $shape: &Shape,
                $sizes: &Sizes,
                $layout: &MetaLayout,
            ) -> Vec<(&'static str, usize)> {
                vec![$((stringify!($name), $bytes),)*]
            }

            /// Takes all buffers, every byte of them set to `fill`.
            pub(super) fn take(
                $shape: &Shape,
                $sizes: &Sizes,
                $layout: &MetaLayout,
                memory: &mut DeviceMemory,
                fill: u8,
            ) -> Result<Self, DeviceError> {
                Ok(Self { $($name: memory.take($bytes, fill)?,)* })
            }
        }
    };
}

/// Sizes that depend on how layers are split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// f16 values of rotated inputs of the largest launch.
    rotated: usize,
    /// f32 partial sums of the largest launch.
    sums: usize,
    /// Layers in the table, and jobs of all fixed groups.
    layers: usize,
    jobs: usize,
}

buffers! { s, sizes, layout;
    /// `[tap_rows, taps]` bf16, then the piece of a pass: they come in one copy
    taps = tap_bytes(s) + 4 * layout.words();
    /// `LinearRecord`s
    table = 64 * sizes.layers;
    /// `JobRecord`s of the fixed groups
    jobs = 40 * sizes.jobs;
    /// `[layers, slots · window, head_dim]` bf16
    window = 2 * s.layers * s.slots * s.window * s.head_dim;
    /// f16
    rotated = 2 * sizes.rotated;
    /// `[grouped rows, inner]` f16
    rotated_inner = 2 * s.grouped_rows() * s.inner;
    /// f32
    sums = 4 * sizes.sums;
    /// `[512, hidden]` bf16
    projected = 2 * CONTEXT_ROWS * s.hidden;
    main_x = 2 * CONTEXT_ROWS * s.hidden;
    /// `[layers, 512, head_dim]` bf16
    raw_kv = 2 * s.layers * CONTEXT_ROWS * s.head_dim;
    /// `[rows, 4, hidden]` bf16
    streams = 2 * s.rows * 4 * s.hidden;
    /// `[rows, 4]` f32; the two take turns
    pre_a = 16 * s.rows;
    pre_b = 16 * s.rows;
    post = 16 * s.rows;
    /// `[rows, 4, 4]` f32
    comb = 64 * s.rows;
    /// `[chunks, 32, 25]` f32
    mix_parts = 4 * s.mix_chunks() * ROWS_MAX * 25;
    /// `[rows, hidden]` bf16
    input = 2 * s.rows * s.hidden;
    output = 2 * s.rows * s.hidden;
    /// `[rows, q_rank]` bf16
    raw_rank = 2 * s.rows * s.q_rank;
    rank = 2 * s.rows * s.q_rank;
    /// `[rows, heads, head_dim]` bf16
    queries = 2 * s.rows * s.query_width();
    core = 2 * s.rows * s.query_width();
    /// `[rows, head_dim]` bf16
    block_kv = 2 * s.rows * s.head_dim;
    /// `[rows, experts]` f32
    router = 4 * s.rows * s.experts;
    /// `[rows, chosen]`
    ids = 4 * s.rows * s.chosen;
    weights = 4 * s.rows * s.chosen;
    places = 4 * s.rows * s.chosen;
    factors = 4 * s.rows * s.chosen;
    /// `[rows · chosen + 1]` indices of `down_jobs`
    owners = 4 * (s.rows * s.chosen + 1);
    /// `[2, grouped rows]` u32
    gather = 8 * s.grouped_rows();
    /// `JobRecord`s that the router writes
    gate_up_jobs = 80 * s.expert_jobs(s.rows);
    down_jobs = 40 * s.expert_jobs(s.rows);
    /// `[rows, hidden]` bf16
    hidden = 2 * s.rows * s.hidden;
    normed = 2 * s.rows * s.hidden;
    /// `[rows, vocab]` f32
    base = 4 * s.rows * s.vocab;
    /// `[rows, vocab / 128]` u32
    best = 4 * s.rows * (s.vocab / 128);
    /// `[drafts, vocab / 128]` f32
    seeds = 4 * s.drafts * (s.vocab / 128);
    tops = TOP_BYTES * s.drafts * s.scan_chunks();
    rows_read = 4 * s.drafts * s.scan_chunks();
    /// `[5, drafts, N]`: ids, confidences, margins, soundness, rows multiplied
    results = 20 * s.drafts * s.block;
}

impl Buffers {
    /// Address of the piece of a pass.
    pub(super) fn meta(&self, shape: &Shape) -> u64 {
        self.taps + tap_bytes(shape) as u64
    }
}

/// Bytes of all tap rows of the largest STEP.
fn tap_bytes(shape: &Shape) -> usize {
    2 * shape.tap_rows * shape.taps
}

impl Sizes {
    pub(super) fn new(s: &Shape, weights: &WeightsAt) -> Self {
        let table = &weights.table;
        let of = |rows: usize, layers: &[usize]| {
            rows * layers.iter().map(|&l| table.sums(l)).sum::<usize>()
        };
        let all_kv: Vec<usize> = weights.layers.iter().map(|l| l.wkv).collect();
        let context = of(CONTEXT_ROWS, &[weights.main_proj]).max(of(CONTEXT_ROWS, &all_kv));
        let mut sums = context.max(of(ROWS_MAX, &[weights.head]));
        let mut jobs = 2 + all_kv.len();
        for layer in &weights.layers {
            let (gate, down) = (layer.experts, layer.experts + 2);
            let experts = s.grouped_rows() * (2 * table.sums(gate)).max(table.sums(down));
            let groups = [&[layer.wq_a, layer.wkv][..], &[layer.wq_b], &layer.wo_a, &[layer.wo_b]];
            sums = groups
                .iter()
                .map(|layers| of(ROWS_MAX, layers))
                .fold(sums.max(experts), usize::max);
            jobs += groups.iter().map(|layers| layers.len()).sum::<usize>();
        }
        let context = CONTEXT_ROWS * s.taps.max(s.layers * s.hidden);
        let block = [2 * s.hidden, s.q_rank, s.query_width(), s.groups * s.o_rank];
        let block = block.map(|width| ROWS_MAX * width).into_iter().fold(context, usize::max);
        let rotated = block.max(2 * s.grouped_rows() * s.hidden);
        Self { rotated, sums, layers: table.records.len(), jobs }
    }
}

/// What the backend will hold, and what the device has.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the window KV.
    pub window: u64,
    /// Bytes of everything else the forward pass writes.
    pub working: u64,
    /// Bytes of the Markov bias rows that are held ready, and how many rows.
    pub markov: u64,
    /// See `markov`.
    pub markov_rows: u64,
    /// Bytes of page-locked host memory beside the frame buffers.
    pub pinned: u64,
    /// Free bytes of the device before anything was taken.
    pub free: u64,
    /// All bytes of the device.
    pub total: u64,
}

impl MemoryPlan {
    /// Device bytes of the plan.
    pub fn device(&self) -> u64 {
        self.weights + self.window + self.working + self.markov
    }

    /// Bytes that may be taken beside the plan.
    pub fn spare(&self) -> u64 {
        self.free.saturating_sub(self.device() + RESERVE_BYTES)
    }

    /// Whether the device has that much, and some to spare for the driver.
    pub fn fits(&self) -> bool {
        self.device() + RESERVE_BYTES <= self.free
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        write!(
            f,
            "weights {:.1} MB, window {:.1} MB, working memory {:.1} MB, {} Markov rows {:.1} MB: \
             {:.1} MB of {:.1} MB free; \
             page-locked {:.1} MB",
            mb(self.weights),
            mb(self.window),
            mb(self.working),
            self.markov_rows,
            mb(self.markov),
            mb(self.device()),
            mb(self.free),
            mb(self.pinned)
        )
    }
}
