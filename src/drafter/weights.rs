//! The drafter's weights: which tensors it needs, found under the names packs use, checked and typed.
//!
//! A linear is kept as stored (EXL3 or plain), large tables stay shared bytes of the file, everything else
//! becomes f32 without a change of value. Nothing here multiplies; no backend is known.
//!
//! Tensor names are those of the `deepseek-ai/DeepSeek-V4.1-Flash` release; the tensor store knows the
//! other spellings packs use.

mod loader;
mod matrix;
mod report;

pub use matrix::{Float, Matrix};
pub use report::{Ignored, LoadReport, ModuleRow, Problem, WeightsError};

use crate::checkpoint::{Checkpoint, DrafterConfig};
use crate::exl3::Exl3Linear;
use loader::Loader;

/// One linear layer, `y [rows, out] = x [rows, in] · Wᵀ`.
#[derive(Clone)]
pub enum Linear {
    /// A trellis and its scales.
    Exl3(Exl3Linear),
    /// `[out, in]` as stored.
    Dense(Matrix),
}

impl Linear {
    /// Width of the input.
    pub fn in_features(&self) -> usize {
        match self {
            Self::Exl3(linear) => linear.in_features(),
            Self::Dense(matrix) => matrix.cols(),
        }
    }

    /// Width of the output.
    pub fn out_features(&self) -> usize {
        match self {
            Self::Exl3(linear) => linear.out_features(),
            Self::Dense(matrix) => matrix.rows(),
        }
    }
}

/// Mix weights of one sublayer's hyper-connection.
#[derive(Clone, Debug)]
pub struct HyperWeights {
    /// `[streams · (2 + streams), streams · hidden]`, rows pre, post, comb.
    pub function: Vec<f32>,
    /// `[streams · (2 + streams)]`.
    pub base: Vec<f32>,
    /// One factor each for pre, post and comb.
    pub scale: [f32; 3],
}

/// One gated feed-forward network: `w2(silu(w1 x) · w3 x)`.
#[derive(Clone)]
pub struct Expert {
    /// Gate, hidden → inner.
    pub w1: Linear,
    /// Down, inner → hidden.
    pub w2: Linear,
    /// Up, hidden → inner.
    pub w3: Linear,
}

/// One draft layer, checkpoint prefix `mtp.{i}`.
pub struct LayerWeights {
    /// `[hidden]`.
    pub attn_norm: Vec<f32>,
    /// `[hidden]`.
    pub ffn_norm: Vec<f32>,
    /// hidden → q_rank.
    pub wq_a: Linear,
    /// `[q_rank]`.
    pub q_norm: Vec<f32>,
    /// q_rank → heads · head_dim, head-major.
    pub wq_b: Linear,
    /// hidden → head_dim, keys and values at once.
    pub wkv: Linear,
    /// `[head_dim]`.
    pub kv_norm: Vec<f32>,
    /// `[heads]`, one logit a head.
    pub sinks: Vec<f32>,
    /// Per output group: its heads' outputs → o_rank.
    pub wo_a: Vec<Linear>,
    /// groups · o_rank → hidden.
    pub wo_b: Linear,
    /// Mixes around the attention.
    pub hc_attn: HyperWeights,
    /// Mixes around the FFN.
    pub hc_ffn: HyperWeights,
    /// `[experts, hidden]`.
    pub gate: Vec<f32>,
    /// `[experts]`, steers the choice only.
    pub gate_bias: Vec<f32>,
    /// Routed experts.
    pub experts: Vec<Expert>,
    /// The expert every row takes.
    pub shared: Expert,
}

/// All weights of the drafter.
pub struct Weights {
    /// taps · hidden → hidden.
    pub main_proj: Linear,
    /// `[hidden]`.
    pub main_norm: Vec<f32>,
    /// The draft layers in order.
    pub layers: Vec<LayerWeights>,
    /// `[hidden]`: the drafter's own final norm, not the target's.
    pub final_norm: Vec<f32>,
    /// `[vocab, hidden]`, shared with the target.
    pub embed: Matrix,
    /// hidden → vocab, shared with the target.
    pub head: Linear,
    /// `[vocab, markov_rank]`: embedding of the previous token.
    pub markov_embed: Matrix,
    /// `[vocab, markov_rank]`: its projection back to the vocabulary.
    pub markov_head: Matrix,
    /// `[hidden + markov_rank]`: hidden part first.
    pub confidence: Vec<f32>,
}

impl Weights {
    /// Finds and types every tensor of the drafter.
    ///
    /// Where a linear exists both as EXL3 and in a plain form, EXL3 is taken and the choice is reported.
    ///
    /// # Errors
    /// [`WeightsError`] with *every* problem found: tensors missing, unknown (`mtp.*` names nobody
    /// reads), of an unexpected shape, in a form this build cannot compute with, or malformed.
    pub fn load(checkpoint: &Checkpoint) -> Result<(Self, LoadReport), WeightsError> {
        let config = &checkpoint.config;
        let mut loader = Loader::new(&checkpoint.tensors);
        let (hidden, vocab, rank) = (config.hidden, config.vocab_size, config.markov_rank);
        let last = format!("mtp.{}", config.stages.saturating_sub(1));
        let taps = config.tap_layer_ids.len();
        if !config.confidence_head {
            loader.problem(Problem::NoConfidenceHead);
        }
        let weights = Self {
            main_proj: loader.linear("mtp.0.main_proj", taps * hidden, hidden),
            main_norm: loader.plain("mtp.0.main_norm.weight", &[hidden]),
            layers: (0..config.stages).map(|i| layer(&mut loader, config, i)).collect(),
            final_norm: loader.plain(&format!("{last}.norm.weight"), &[hidden]),
            embed: loader.matrix("embed.weight", vocab, hidden),
            head: loader.linear("head", hidden, vocab),
            markov_embed: loader.matrix(&format!("{last}.markov_head.embed.weight"), vocab, rank),
            markov_head: loader.matrix(&format!("{last}.markov_head.head.weight"), vocab, rank),
            confidence: loader
                .plain(&format!("{last}.confidence_head.proj.weight"), &[1, hidden + rank]),
        };
        Ok((weights, loader.finish()?))
    }

    /// Every linear of the drafter.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.main_proj, &self.head].into_iter().chain(self.layers.iter().flat_map(|layer| {
            let experts = layer.experts.iter().chain([&layer.shared]);
            [&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_b]
                .into_iter()
                .chain(&layer.wo_a)
                .chain(experts.flat_map(|e| [&e.w1, &e.w2, &e.w3]))
        }))
    }

    fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let layers = self.layers.iter_mut().flat_map(LayerWeights::linears_mut);
        [&mut self.main_proj, &mut self.head].into_iter().chain(layers)
    }

    /// Keeps the decoded matrix of every EXL3 linear if all of them together stay within `bytes_max`
    /// bytes as f32; a product is then a plain matrix product. Results are the same bits either way.
    pub fn keep_decoded_within(&mut self, bytes_max: usize) -> bool {
        let bytes = |linear: &Linear| match linear {
            Linear::Exl3(exl3) => 4 * exl3.in_features() * exl3.out_features(),
            Linear::Dense(_) => 0,
        };
        let fits = self.linears().map(bytes).sum::<usize>() <= bytes_max;
        if fits {
            for linear in self.linears_mut() {
                if let Linear::Exl3(exl3) = linear {
                    exl3.keep_decoded();
                }
            }
        }
        fits
    }
}

impl LayerWeights {
    fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let experts = self.experts.iter_mut().chain([&mut self.shared]);
        let experts = experts.flat_map(|e| [&mut e.w1, &mut e.w2, &mut e.w3]);
        [&mut self.wq_a, &mut self.wq_b, &mut self.wkv, &mut self.wo_b]
            .into_iter()
            .chain(&mut self.wo_a)
            .chain(experts)
    }
}

fn layer(loader: &mut Loader<'_>, config: &DrafterConfig, index: usize) -> LayerWeights {
    let name = |part: &str| format!("mtp.{index}.{part}");
    let (hidden, heads, dim) = (config.hidden, config.heads, config.head_dim);
    let (groups, o_rank) = (config.o_groups, config.o_rank);
    let expert = |loader: &mut Loader<'_>, prefix: &str| Expert {
        w1: loader.linear(&format!("{prefix}.w1"), hidden, config.inter),
        w2: loader.linear(&format!("{prefix}.w2"), config.inter, hidden),
        w3: loader.linear(&format!("{prefix}.w3"), hidden, config.inter),
    };
    LayerWeights {
        attn_norm: loader.plain(&name("attn_norm.weight"), &[hidden]),
        ffn_norm: loader.plain(&name("ffn_norm.weight"), &[hidden]),
        wq_a: loader.linear(&name("attn.wq_a"), hidden, config.q_rank),
        q_norm: loader.plain(&name("attn.q_norm.weight"), &[config.q_rank]),
        wq_b: loader.linear(&name("attn.wq_b"), config.q_rank, heads * dim),
        wkv: loader.linear(&name("attn.wkv"), hidden, dim),
        kv_norm: loader.plain(&name("attn.kv_norm.weight"), &[dim]),
        sinks: loader.plain(&name("attn.attn_sink"), &[heads]),
        wo_a: loader.grouped(&name("attn.wo_a"), groups, heads / groups * dim, o_rank),
        wo_b: loader.linear(&name("attn.wo_b"), groups * o_rank, hidden),
        hc_attn: hyper(loader, config, &name("hc_attn")),
        hc_ffn: hyper(loader, config, &name("hc_ffn")),
        gate: loader.plain(&name("ffn.gate.weight"), &[config.experts, hidden]),
        gate_bias: loader.plain(&name("ffn.gate.bias"), &[config.experts]),
        experts: (0..config.experts)
            .map(|e| expert(loader, &name(&format!("ffn.experts.{e}"))))
            .collect(),
        shared: expert(loader, &name("ffn.shared_experts")),
    }
}

fn hyper(loader: &mut Loader<'_>, config: &DrafterConfig, prefix: &str) -> HyperWeights {
    let streams = config.hc_mult;
    let mixes = streams * (2 + streams);
    let scale = loader.plain(&format!("{prefix}_scale"), &[3]);
    HyperWeights {
        function: loader.plain(&format!("{prefix}_fn"), &[mixes, streams * config.hidden]),
        base: loader.plain(&format!("{prefix}_base"), &[mixes]),
        // A tensor that failed to load is empty, and its problem is recorded.
        scale: scale.try_into().unwrap_or([0.0; 3]),
    }
}
