//! The CPU backend: the whole forward pass, written to be read and compared with.
//!
//! One idea a file. Activations live in f32 arrays; under bf16 precision they hold values rounded to
//! bf16 at the points where the live engine stores one (`vllm-project/vllm
//! vllm/models/deepseek_v41/nvidia/dspark.py`), under f32 precision nothing is rounded. Every sum has an
//! order that depends on neither the batch nor the number of threads, so a request's drafts are the same
//! bits in any company, with any `n_out`, and after any resync (contract-notes D41).

mod attention;
mod block;
mod context;
mod head;
mod hyper;
mod kv;
mod linear;
mod math;
mod moe;
mod norm;
mod parallel;
mod rope;

use std::ops::ControlFlow;

use self::attention::AttentionShape;
use self::block::Block;
use self::context::Context;
use self::head::Head;
use self::hyper::HyperShape;
use self::kv::WindowKv;
use self::linear::{Products, scratch_len};
use self::moe::MoeShape;
use self::rope::Rope;
use super::stage::{StageObserver, Unobserved};
use super::weights::{Linear, LoadReport, Weights, WeightsError};
use super::{BackendInfo, DraftBlocks, DraftError, Drafter, MarkovCounters};
use crate::checkpoint::{Checkpoint, DrafterConfig};
use crate::geometry::{Geometry, GeometryError};
use crate::plan::{RowBlock, StepPlan};

/// Context rows computed at once: a full live window, so that a resync decodes each weight once. 20 MB of
/// live activations.
const CONTEXT_ROWS: usize = 128;
/// Decoded EXL3 weights are kept when all of them fit into this many bytes; the live drafter's 28 GB do
/// not, the demo's 16 MB do.
const DECODED_BYTES_MAX: usize = 256 << 20;

/// Rounding of activations and of the window KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// bf16 activations and KV, f16 EXL3 inputs, f32 sums.
    #[default]
    Bf16,
    /// Nothing is rounded after loading: the ground truth.
    F32,
}

/// Rounding of the base logits, the Markov bias and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Logits {
    /// Each of the three to bf16, as the live engine does: near ties become ties and go to the lower id.
    #[default]
    Bf16,
    /// None.
    F32,
}

/// How a [`CpuDrafter`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Rounding of activations.
    pub precision: Precision,
    /// Rounding of logits.
    pub logits: Logits,
    /// Request slots kept resident.
    pub max_slots: u32,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { precision: Precision::default(), logits: Logits::default(), max_slots: 4 }
    }
}

/// A checkpoint the CPU backend cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The config and the number of slots make no geometry a worker can serve.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The tensors are not the drafter's.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// The CPU backend.
pub struct CpuDrafter {
    geometry: Geometry,
    model: Model,
    report: LoadReport,
    kv: WindowKv,
    products: Products,
    context: Context,
    block: Block,
    head: Head,
}

/// Weights with the numbers that say how to apply them.
struct Model {
    shape: Shape,
    weights: Weights,
    rope: Rope,
    precision: Precision,
    logits: Logits,
}

struct Shape {
    num_spec: usize,
    hidden: usize,
    vocab: usize,
    noise_token: usize,
    q_rank: usize,
    /// Output groups and the rank of each.
    groups: usize,
    o_rank: usize,
    markov_rank: usize,
    rms_eps: f32,
    attention: AttentionShape,
    hyper: HyperShape,
    moe: MoeShape,
}

impl CpuDrafter {
    /// Loads the weights and takes all memory the STEPs will need.
    ///
    /// # Errors
    /// [`CpuError`] when config or tensors do not fit.
    pub fn new(checkpoint: &Checkpoint, options: CpuOptions) -> Result<Self, CpuError> {
        Self::with_chunk(checkpoint, options, CONTEXT_ROWS)
    }

    fn with_chunk(
        checkpoint: &Checkpoint,
        options: CpuOptions,
        chunk: usize,
    ) -> Result<Self, CpuError> {
        let config = &checkpoint.config;
        let geometry = config.geometry(options.max_slots)?;
        let (mut weights, report) = Weights::load(checkpoint)?;
        weights.keep_decoded_within(DECODED_BYTES_MAX);
        let model = Model {
            shape: Shape::new(config, &geometry),
            weights,
            rope: Rope::new(config.rope_theta, config.rope_dim),
            precision: options.precision,
            logits: options.logits,
        };
        let slots = geometry.max_slots as usize;
        let window = geometry.window as usize;
        let chunk = chunk.min(geometry.max_rows_per_step as usize);
        let scratch = model.scratch_len(chunk, slots * model.shape.num_spec);
        let dim = model.shape.attention.head_dim;
        Ok(Self {
            kv: WindowKv::new(model.weights.layers.len(), slots, window, dim),
            products: Products::new(options.precision, scratch),
            context: Context::new(&model, chunk),
            block: Block::new(&model, slots, window),
            head: Head::new(&model, slots),
            geometry,
            model,
            report,
        })
    }

    /// What loading found.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// [`Drafter::step`], shown stage by stage. `Break` if the observer ended it; `out` is then zero.
    ///
    /// # Errors
    /// None that depend on values: what is not finite is reported in `out`.
    pub fn step_observed(
        &mut self,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        out: &mut DraftBlocks,
        observer: &mut dyn StageObserver,
    ) -> Result<ControlFlow<()>, DraftError> {
        out.clear();
        let flow = self.run(plan, rows, out, observer);
        if flow.is_break() {
            out.clear();
        }
        Ok(flow)
    }

    fn run(
        &mut self,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        out: &mut DraftBlocks,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (model, products) = (&self.model, &mut self.products);
        self.context.run(model, products, plan, rows, &mut self.kv, observer)?;
        if plan.drafts.is_empty() {
            return ControlFlow::Continue(());
        }
        self.block.run(model, products, plan, &self.kv, observer)?;
        let rows = plan.drafts.len() * model.shape.num_spec;
        let hidden = self.block.hidden(rows, model.shape.hidden);
        self.head.run(model, products, plan, hidden, out, observer)
    }
}

impl Drafter for CpuDrafter {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn info(&self) -> BackendInfo {
        let name = |bf16: bool| if bf16 { "bf16" } else { "f32" };
        let precision = name(self.model.precision == Precision::Bf16);
        let threads = rayon::current_num_threads();
        BackendInfo {
            backend: "cpu",
            device: format!("{threads} thread{}", if threads == 1 { "" } else { "s" }),
            precision,
            logits: name(self.model.logits == Logits::Bf16),
            kv: precision,
            gpu_mem_bytes: 0,
        }
    }

    fn markov(&self) -> Option<MarkovCounters> {
        Some(self.head.markov())
    }

    fn step(
        &mut self,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        out: &mut DraftBlocks,
    ) -> Result<(), DraftError> {
        // An observer that sees nothing never breaks.
        self.step_observed(plan, rows, out, &mut Unobserved).map(|_| ())
    }
}

impl Precision {
    /// Rounds stored activations in place.
    fn round(self, values: &mut [f32]) {
        if self == Self::Bf16 {
            math::round_bf16(values);
        }
    }
}

impl Shape {
    fn new(config: &DrafterConfig, geometry: &Geometry) -> Self {
        Self {
            num_spec: geometry.num_spec as usize,
            hidden: config.hidden,
            vocab: config.vocab_size,
            noise_token: config.noise_token_id,
            q_rank: config.q_rank,
            groups: config.o_groups,
            o_rank: config.o_rank,
            markov_rank: config.markov_rank,
            rms_eps: config.rms_eps,
            attention: AttentionShape { heads: config.heads, head_dim: config.head_dim },
            hyper: HyperShape {
                streams: config.hc_mult,
                iterations: config.hc_iters,
                eps: config.hc_eps,
                rms_eps: config.rms_eps,
            },
            moe: MoeShape {
                hidden: config.hidden,
                inner: config.inter,
                experts: config.experts,
                chosen: config.experts_per_token,
                gate_temp: config.gate_temp,
                scale: config.routed_scale,
                normalise: config.norm_topk,
                limit: config.swiglu_limit,
            },
        }
    }

    /// Values of all heads' queries of one row.
    fn query_width(&self) -> usize {
        self.attention.heads * self.attention.head_dim
    }
}

impl Model {
    /// f32s of scratch for the largest product: `chunk` context rows or `rows` block rows at once.
    fn scratch_len(&self, chunk: usize, rows: usize) -> usize {
        let weights = &self.weights;
        let context = weights.layers.iter().map(|l| &l.wkv).chain([&weights.main_proj]);
        let markov = Linear::Dense(weights.markov_head.clone());
        let block = weights.linears().chain([&markov]);
        let context = context.map(|linear| scratch_len(linear, chunk));
        context.chain(block.map(|linear| scratch_len(linear, rows))).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Append, Draft};

    /// Two slots, appends of different lengths, drafts of both, over a made-up row block.
    fn drafts(drafter: &mut CpuDrafter) -> Vec<(Vec<i32>, Vec<f32>, Vec<f32>)> {
        let row = drafter.geometry().row_elems();
        let tap =
            |i: usize| half::bf16::from_f32(((i * 2_654_435_761) % 8191) as f32 / 4096.0 - 1.0);
        let rows: Vec<u8> = (0..90 * row).flat_map(|i| tap(i).to_le_bytes()).collect();
        let append = |slot, rows| Append { slot, first_pos: 0, rows };
        let draft = |slot: u8, anchor_pos: i64| Draft {
            entry: usize::from(slot),
            slot,
            context: 0..anchor_pos,
            anchor_token: 3,
            anchor_pos,
            n_out: 5,
        };
        let plan = StepPlan {
            appends: vec![append(0, 0..77), append(1, 77..90)],
            drafts: vec![draft(0, 77), draft(1, 13)],
            max_model_len: 327_680,
        };
        let mut out = DraftBlocks::new(drafter.geometry());
        drafter.step(&plan, RowBlock::new(&rows, 2 * row), &mut out).unwrap();
        let copy = |b: super::super::Block<'_>| {
            assert!(b.finite);
            (b.ids.to_vec(), b.confidence.to_vec(), b.margin.to_vec())
        };
        (0..2).map(|d| copy(out.block(d))).collect()
    }

    #[test]
    fn neither_the_chunk_nor_kept_weights_show_in_a_draft() {
        let checkpoint = Checkpoint::demo().unwrap();
        let mut usual = CpuDrafter::new(&checkpoint, CpuOptions::default()).unwrap();
        let expected = drafts(&mut usual);
        for chunk in [1, 7, 80] {
            let options = CpuOptions::default();
            let mut other = CpuDrafter::with_chunk(&checkpoint, options, chunk).unwrap();
            assert_eq!(drafts(&mut other), expected, "chunks of {chunk} rows");
        }
        let (weights, _) = Weights::load(&checkpoint).unwrap();
        usual.model.weights = weights;
        assert_eq!(drafts(&mut usual), expected, "weights decoded in every product");
    }

    #[test]
    fn a_backend_says_what_it_is() {
        let options = CpuOptions { precision: Precision::F32, ..CpuOptions::default() };
        let info = CpuDrafter::new(&Checkpoint::demo().unwrap(), options).unwrap().info();
        assert_eq!(
            (info.backend, info.precision, info.logits, info.kv),
            ("cpu", "f32", "bf16", "f32")
        );
        assert_eq!(info.gpu_mem_bytes, 0);
    }
}
