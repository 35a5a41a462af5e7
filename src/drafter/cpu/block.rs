//! The query block through the draft layers: N rows a draft, all drafts of a STEP as one batch
//! (`deepseek-ai/DeepSeek-V4.1-Flash inference/model.py`, `Block`, `DSparkAttention`).
//!
//! Row 0 is the anchor token, the others the noise token. A block's own K=V is seen by all its rows and
//! forgotten afterwards (contract §7.2 step 6).

use std::mem::swap;
use std::ops::{ControlFlow, Range};

use super::Model;
use super::attention::attend;
use super::hyper::{Mixes, collapse, post};
use super::kv::WindowKv;
use super::linear::Products;
use super::moe::Moe;
use super::norm::rms_norm;
use super::rope::{Angles, Turn, table_row};
use crate::drafter::stage::{Stage, StageObserver};
use crate::drafter::weights::LayerWeights;
use crate::plan::{Draft, StepPlan};

/// Memory of the block for up to `rows` = slots · N rows.
pub(super) struct Block {
    /// [rows, streams · hidden]: the residual streams.
    streams: Vec<f32>,
    /// [rows, streams]: pre-mix of the sublayer before.
    pre: Vec<f32>,
    mixes: Mixes,
    /// [streams · hidden]: one row of streams being written.
    next: Vec<f32>,
    /// [rows, hidden]: collapsed streams, finally the head hidden.
    collapsed: Vec<f32>,
    /// [rows, hidden]: their norm, the sublayer's input.
    input: Vec<f32>,
    /// [rows, hidden]: the sublayer's output.
    output: Vec<f32>,
    attention: AttentionMemory,
    moe: Moe,
    /// [rows, chosen]: expert ids as the observer gets them.
    ids: Vec<f32>,
}

struct AttentionMemory {
    angles: Angles,
    /// [rows, q_rank], before and after the norm.
    raw_rank: Vec<f32>,
    rank: Vec<f32>,
    /// [rows, heads, head_dim]
    queries: Vec<f32>,
    /// [rows, head_dim], before and after the norm.
    raw_kv: Vec<f32>,
    kv: Vec<f32>,
    /// [rows, heads, head_dim]
    core: Vec<f32>,
    /// One f32 per row of a draft, head and key.
    scores: Vec<f32>,
    /// [rows, heads / groups · head_dim] and [rows, o_rank]: one output group.
    group_in: Vec<f32>,
    group_out: Vec<f32>,
    /// [rows, groups · o_rank]
    grouped: Vec<f32>,
}

impl Block {
    /// Memory for `slots` drafts.
    pub(super) fn new(model: &Model, slots: usize, window: usize) -> Self {
        let shape = &model.shape;
        let rows = slots * shape.num_spec;
        let width = shape.hyper.streams * shape.hidden;
        Self {
            streams: vec![0.0; rows * width],
            pre: vec![0.0; rows * shape.hyper.streams],
            mixes: Mixes::new(rows, shape.hyper.streams),
            next: vec![0.0; width],
            collapsed: vec![0.0; rows * shape.hidden],
            input: vec![0.0; rows * shape.hidden],
            output: vec![0.0; rows * shape.hidden],
            attention: AttentionMemory::new(model, rows, window),
            moe: Moe::new(rows, &shape.moe),
            ids: vec![0.0; rows * shape.moe.chosen],
        }
    }

    /// Runs every draft of the plan; the head hidden is then [`hidden`](Self::hidden).
    pub(super) fn run(
        &mut self,
        model: &Model,
        products: &mut Products,
        plan: &StepPlan,
        window: &WindowKv,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        self.start(model, plan);
        let rows = plan.drafts.len() * model.shape.num_spec;
        for index in 0..model.weights.layers.len() {
            self.attention_sublayer(model, products, plan, window, index, observer)?;
            self.ffn_sublayer(model, products, rows, index, observer)?;
        }
        let (hidden, streams) = (model.shape.hidden, model.shape.hyper.streams);
        let collapsed = &mut self.collapsed[..rows * hidden];
        let x = &self.streams[..rows * streams * hidden];
        collapse(x, &self.pre, hidden, collapsed, model.precision);
        observer.stage(Stage::Collapse, None, collapsed)
    }

    /// Head hidden of the first `rows` rows, [rows, hidden].
    pub(super) fn hidden(&self, rows: usize, hidden: usize) -> &[f32] {
        &self.collapsed[..rows * hidden]
    }

    /// Fills streams with embeddings, angles with positions, and the pre-mix with the identity.
    fn start(&mut self, model: &Model, plan: &StepPlan) {
        let (shape, n) = (&model.shape, model.shape.num_spec);
        let width = shape.hyper.streams * shape.hidden;
        let mut rows = self.streams.chunks_exact_mut(width);
        for (d, draft) in plan.drafts.iter().enumerate() {
            for (j, streams) in rows.by_ref().take(n).enumerate() {
                let token = if j == 0 { draft.anchor_token as usize } else { shape.noise_token };
                let (first, others) = streams.split_at_mut(shape.hidden);
                model.weights.embed.read(token, 0, first);
                others.chunks_exact_mut(shape.hidden).for_each(|s| s.copy_from_slice(first));
                // N is at most 64; positions reach the end of i64.
                let pos = draft.anchor_pos.saturating_add(j as i64);
                let pos = table_row(pos, plan.max_model_len);
                model.rope.set(&mut self.attention.angles, d * n + j, pos);
            }
        }
        for pre in self.pre.chunks_exact_mut(shape.hyper.streams) {
            pre.fill(0.0);
            pre[0] = 1.0;
        }
    }

    fn attention_sublayer(
        &mut self,
        model: &Model,
        products: &mut Products,
        plan: &StepPlan,
        window: &WindowKv,
        index: usize,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (layer, rows) =
            (&model.weights.layers[index], plan.drafts.len() * model.shape.num_spec);
        self.mix(model, rows, Sublayer::Attention, index, observer)?;
        let len = rows * model.shape.hidden;
        let (input, output) = (&self.input[..len], &mut self.output[..len]);
        let memory = &mut self.attention;
        memory.project(model, products, layer, input);
        memory.observe_projections(model, rows, index, observer)?;
        for (d, draft) in plan.drafts.iter().enumerate() {
            memory.attend(model, layer, d, draft, window, index);
        }
        let core = &mut memory.core[..rows * model.shape.query_width()];
        model.precision.round(core);
        observer.stage(Stage::Attention, Some(index), core)?;
        memory.output(model, products, layer, rows, output);
        observer.stage(Stage::AttnOut, Some(index), output)?;
        self.write_back(model, rows);
        let streams = &self.streams[..rows * self.next.len()];
        observer.stage(Stage::StreamsAfterAttn, Some(index), streams)
    }

    fn ffn_sublayer(
        &mut self,
        model: &Model,
        products: &mut Products,
        rows: usize,
        index: usize,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (layer, shape, at) = (&model.weights.layers[index], &model.shape.moe, Some(index));
        self.mix(model, rows, Sublayer::Ffn, index, observer)?;
        let len = rows * shape.hidden;
        let (input, output, moe) = (&self.input[..len], &mut self.output[..len], &mut self.moe);
        moe.route(input, layer, shape);
        observer.stage(Stage::RouterLogits, at, &moe.logits[..rows * shape.experts])?;
        let chosen = rows * shape.chosen;
        // Expert indices are small whole numbers, exact in f32.
        self.ids.iter_mut().zip(&moe.ids).for_each(|(to, &id)| *to = id as f32);
        observer.stage(Stage::RouterIds, at, &self.ids[..chosen])?;
        observer.stage(Stage::RouterWeights, at, &moe.weights[..chosen])?;
        moe.run_experts(input, layer, shape, products);
        observer.stage(Stage::Experts, at, &moe.routed[..len])?;
        moe.run_shared(input, layer, shape, products);
        observer.stage(Stage::SharedExpert, at, &moe.shared[..len])?;
        for (out, (routed, shared)) in output.iter_mut().zip(moe.routed.iter().zip(&moe.shared)) {
            *out = routed + shared;
        }
        model.precision.round(output);
        observer.stage(Stage::MoeOut, at, output)?;
        self.write_back(model, rows);
        let streams = &self.streams[..rows * self.next.len()];
        observer.stage(Stage::StreamsAfterFfn, at, streams)
    }

    /// Mixes of a sublayer from the streams before it, and its input: the streams collapsed with the
    /// pre-mix of the sublayer before, normed.
    fn mix(
        &mut self,
        model: &Model,
        rows: usize,
        sublayer: Sublayer,
        index: usize,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (shape, layer, at) = (&model.shape, &model.weights.layers[index], Some(index));
        let (weights, norm, [pre, post, comb, input_stage]) = sublayer.parts(layer);
        let x = &self.streams[..rows * self.next.len()];
        self.mixes.compute(x, weights, &shape.hyper);
        let s = shape.hyper.streams;
        observer.stage(pre, at, &self.mixes.pre[..rows * s])?;
        observer.stage(post, at, &self.mixes.post[..rows * s])?;
        observer.stage(comb, at, &self.mixes.comb[..rows * s * s])?;
        let len = rows * shape.hidden;
        let (collapsed, input) = (&mut self.collapsed[..len], &mut self.input[..len]);
        collapse(x, &self.pre, shape.hidden, collapsed, model.precision);
        rms_norm(collapsed, norm, shape.rms_eps, input, model.precision);
        swap(&mut self.pre, &mut self.mixes.pre);
        observer.stage(input_stage, at, input)
    }

    /// Writes the sublayer's output into the streams.
    fn write_back(&mut self, model: &Model, rows: usize) {
        let hidden = model.shape.hidden;
        let streams = &mut self.streams[..rows * self.next.len()];
        post(streams, &self.mixes, &self.output, hidden, &mut self.next, model.precision);
    }
}

#[derive(Clone, Copy)]
enum Sublayer {
    Attention,
    Ffn,
}

impl Sublayer {
    /// Mix weights, norm weight, and the stages of pre, post, comb and input.
    fn parts(
        self,
        layer: &LayerWeights,
    ) -> (&crate::drafter::weights::HyperWeights, &[f32], [Stage; 4]) {
        use Stage::{AttnComb, AttnIn, AttnPost, AttnPre, FfnComb, FfnIn, FfnPost, FfnPre};
        match self {
            Self::Attention => {
                (&layer.hc_attn, &layer.attn_norm, [AttnPre, AttnPost, AttnComb, AttnIn])
            }
            Self::Ffn => (&layer.hc_ffn, &layer.ffn_norm, [FfnPre, FfnPost, FfnComb, FfnIn]),
        }
    }
}

impl AttentionMemory {
    fn new(model: &Model, rows: usize, window: usize) -> Self {
        let (shape, n) = (&model.shape, model.shape.num_spec);
        let dim = shape.attention.head_dim;
        Self {
            angles: model.rope.angles(rows),
            raw_rank: vec![0.0; rows * shape.q_rank],
            rank: vec![0.0; rows * shape.q_rank],
            queries: vec![0.0; rows * shape.query_width()],
            raw_kv: vec![0.0; rows * dim],
            kv: vec![0.0; rows * dim],
            core: vec![0.0; rows * shape.query_width()],
            scores: vec![0.0; n * shape.attention.heads * (window + n)],
            group_in: vec![0.0; rows * shape.query_width() / shape.groups],
            group_out: vec![0.0; rows * shape.o_rank],
            grouped: vec![0.0; rows * shape.groups * shape.o_rank],
        }
    }

    /// Queries and the block's own K=V from `x` [rows, hidden], before rotation. There is no norm per
    /// head: V4.1 dropped it.
    fn project(&mut self, model: &Model, products: &mut Products, layer: &LayerWeights, x: &[f32]) {
        let (shape, precision) = (&model.shape, model.precision);
        let rows = x.len() / shape.hidden;
        let len = rows * shape.q_rank;
        let (raw, rank) = (&mut self.raw_rank[..len], &mut self.rank[..len]);
        products.linear(&layer.wq_a, x, raw);
        precision.round(raw);
        rms_norm(raw, &layer.q_norm, shape.rms_eps, rank, precision);
        let queries = &mut self.queries[..rows * shape.query_width()];
        products.linear(&layer.wq_b, rank, queries);
        precision.round(queries);
        let len = rows * shape.attention.head_dim;
        let (raw, kv) = (&mut self.raw_kv[..len], &mut self.kv[..len]);
        products.linear(&layer.wkv, x, raw);
        precision.round(raw);
        rms_norm(raw, &layer.kv_norm, shape.rms_eps, kv, precision);
    }

    /// Rotates what [`project`](Self::project) left and shows it.
    fn observe_projections(
        &mut self,
        model: &Model,
        rows: usize,
        index: usize,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (shape, precision, at) = (&model.shape, model.precision, Some(index));
        let (heads, dim) = (shape.attention.heads, shape.attention.head_dim);
        observer.stage(Stage::QueryRank, at, &self.rank[..rows * shape.q_rank])?;
        let queries = &mut self.queries[..rows * shape.query_width()];
        self.angles.rotate(queries, dim, heads, Turn::Forward, precision);
        observer.stage(Stage::Query, at, queries)?;
        let kv = &mut self.kv[..rows * dim];
        observer.stage(Stage::BlockKvNorm, at, kv)?;
        self.angles.rotate(kv, dim, 1, Turn::Forward, precision);
        observer.stage(Stage::BlockKv, at, kv)
    }

    /// Attention of draft number `d`, unrounded.
    fn attend(
        &mut self,
        model: &Model,
        layer: &LayerWeights,
        d: usize,
        draft: &Draft,
        window: &WindowKv,
        index: usize,
    ) {
        let (shape, n) = (&model.shape, model.shape.num_spec);
        let rows = |width: usize| -> Range<usize> { d * n * width..(d + 1) * n * width };
        let [older, newer] = window.context(index, usize::from(draft.slot), &draft.context);
        let keys = [older, newer, &self.kv[rows(shape.attention.head_dim)]];
        let (q, out) = (&self.queries[rows(shape.query_width())], rows(shape.query_width()));
        attend(shape.attention, q, keys, &layer.sinks, &mut self.core[out], &mut self.scores);
    }

    /// Turns `core` back, since values carry the rotation of their keys, and projects it group by group
    /// into `out` [rows, hidden].
    fn output(
        &mut self,
        model: &Model,
        products: &mut Products,
        layer: &LayerWeights,
        rows: usize,
        out: &mut [f32],
    ) {
        let (shape, precision) = (&model.shape, model.precision);
        let (heads, dim) = (shape.attention.heads, shape.attention.head_dim);
        let core = &mut self.core[..rows * shape.query_width()];
        self.angles.rotate(core, dim, heads, Turn::Inverse, precision);
        let (group, rank) = (shape.query_width() / shape.groups, shape.o_rank);
        let group_in = &mut self.group_in[..rows * group];
        let group_out = &mut self.group_out[..rows * rank];
        let grouped = &mut self.grouped[..rows * shape.groups * rank];
        for (g, wo_a) in layer.wo_a.iter().enumerate() {
            let heads = core.chunks_exact(group).skip(g).step_by(shape.groups);
            for (to, from) in group_in.chunks_exact_mut(group).zip(heads) {
                to.copy_from_slice(from);
            }
            products.linear(wo_a, group_in, group_out);
            let parts = grouped.chunks_exact_mut(rank).skip(g).step_by(shape.groups);
            for (to, from) in parts.zip(group_out.chunks_exact(rank)) {
                to.copy_from_slice(from);
            }
        }
        precision.round(grouped);
        products.linear(&layer.wo_b, grouped, out);
        precision.round(out);
    }
}
