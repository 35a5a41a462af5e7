//! The query block through the draft layers. Twin of the CPU backend's `block` and `moe`.

use super::device::DeviceError;
use super::engine::{Engine, Halt, LayerGroups, Norm, Rows, Source, Stored, Watch};
use super::kernels::{Arg, record};
use super::linears::Group;
use super::records::{RouteRecord, word};
use super::upload::{HyperAt, LayerAt};
use crate::drafter::stage::Stage;

/// Where a sublayer's pre-mix comes from and goes to; the two places take turns.
#[derive(Clone, Copy)]
struct PreMix {
    from: u64,
    to: u64,
}

impl Engine {
    /// Runs the block rows of `drafts` drafts as the block piece names them; the hidden rows of the head
    /// are then in `buffers.hidden`.
    pub(super) fn block(&self, drafts: usize, watch: &mut Watch<'_>) -> Result<(), Halt> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        let rows = Rows { at: self.block_meta.rows, bound: drafts * s.block };
        let mut pre = PreMix { from: b.pre_a, to: b.pre_b };
        // SAFETY: arguments as hyper.cu declares them; tokens are below the vocabulary.
        unsafe {
            k.launch(
                k.block_start,
                [s.hidden.div_ceil(512), rows.bound, 1],
                0,
                &[
                    Arg::At(self.weights.embed.at),
                    Arg::Word(self.weights.embed.format),
                    Arg::At(self.block_meta.tokens),
                    Arg::At(b.streams),
                    Arg::At(pre.from),
                    Arg::Word(word(s.hidden)),
                    Arg::At(rows.at),
                ],
            )
        }?;
        for (index, (layer, groups)) in
            self.weights.layers.iter().zip(&self.groups.layers).enumerate()
        {
            self.mix(rows, &layer.hc_attn, layer.attn_norm, pre)?;
            self.show_mix(rows, Sublayer::Attention, pre.to, index, watch)?;
            self.attention_sublayer(rows, layer, groups, index, watch)?;
            self.show_streams(rows, Stage::StreamsAfterAttn, index, watch)?;
            pre = PreMix { from: pre.to, to: pre.from };
            self.mix(rows, &layer.hc_ffn, layer.ffn_norm, pre)?;
            self.show_mix(rows, Sublayer::Ffn, pre.to, index, watch)?;
            self.ffn_sublayer(rows, layer, groups, index, watch)?;
            self.show_streams(rows, Stage::StreamsAfterFfn, index, watch)?;
            pre = PreMix { from: pre.to, to: pre.from };
        }
        // SAFETY: arguments as hyper.cu declares them.
        unsafe {
            k.launch(
                k.hc_collapse,
                [s.hidden.div_ceil(256), rows.bound, 1],
                0,
                &[
                    Arg::At(b.streams),
                    Arg::At(pre.from),
                    Arg::At(b.hidden),
                    Arg::Word(word(s.hidden)),
                    Arg::At(rows.at),
                ],
            )
        }?;
        let len = rows.bound * s.hidden;
        watch.show(self, Stage::Collapse, None, Stored::Bf16, b.hidden, len)
    }

    /// Mixes of a sublayer from the streams before it, and its input.
    fn mix(&self, rows: Rows, hyper: &HyperAt, norm: u64, pre: PreMix) -> Result<(), DeviceError> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        // SAFETY: arguments as hyper.cu declares them.
        unsafe {
            k.launch(
                k.hc_mix,
                [s.mix_chunks(), 1, 1],
                0,
                &[
                    Arg::At(b.streams),
                    Arg::At(hyper.function),
                    Arg::At(b.mix_parts),
                    Arg::Word(word(s.hidden)),
                    Arg::At(rows.at),
                ],
            )?;
            k.launch(
                k.hc_input,
                [rows.bound, 1, 1],
                s.input_shared(),
                &[
                    Arg::At(b.streams),
                    Arg::At(b.mix_parts),
                    Arg::Word(word(s.mix_chunks())),
                    Arg::At(hyper.base),
                    Arg::At(hyper.scale),
                    Arg::At(pre.from),
                    Arg::At(pre.to),
                    Arg::At(b.post),
                    Arg::At(b.comb),
                    Arg::At(norm),
                    Arg::At(b.input),
                    Arg::Word(word(s.hidden)),
                    Arg::Word(word(s.hc_iterations)),
                    Arg::Float(s.hc_eps),
                    Arg::Float(s.rms_eps),
                    Arg::At(rows.at),
                ],
            )
        }
    }

    /// Outputs of the last layer of attention into `buffers.output` and the streams.
    fn finish_post(&self, group: &Group, rows: Rows) -> Result<(), DeviceError> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        // SAFETY: arguments as exl3_finish.cu declares them.
        unsafe {
            k.launch(
                k.exl3_finish_post,
                [s.hidden.div_ceil(512), rows.bound, 1],
                0,
                &[
                    Arg::At(b.table),
                    Arg::At(group.jobs),
                    Arg::At(rows.at),
                    Arg::At(b.sums),
                    Arg::At(b.streams),
                    Arg::At(b.post),
                    Arg::At(b.comb),
                ],
            )
        }
    }

    /// `buffers.input` to `buffers.output` through attention, and that into the streams.
    fn attention_sublayer(
        &self,
        rows: Rows,
        layer: &LayerAt,
        groups: &LayerGroups,
        index: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let (s, b, meta, at) = (&self.shape, &self.buffers, &self.block_meta, Some(index));
        let n = rows.bound;
        let input = Source { x: b.input, pitch: s.hidden, gather: 0, angles: 0 };
        self.rotate(&groups.q_kv, rows, &input)?;
        self.multiply(&groups.q_kv, rows, b.rotated)?;
        self.finish(&groups.q_kv, rows, 0)?;
        let norm = Norm { x: b.raw_rank, gather: 0, weight: layer.q_norm, y: b.rank };
        self.norm_rotate(&groups.q_b, rows, &norm)?;
        watch.show(self, Stage::QueryRank, at, Stored::Bf16, b.rank, n * s.q_rank)?;
        self.multiply(&groups.q_b, rows, b.rotated)?;
        self.finish(&groups.q_b, rows, meta.angles)?;
        watch.show(self, Stage::Query, at, Stored::Bf16, b.queries, n * s.query_width())?;
        self.kv_store(rows, meta.angles, 0, b.block_kv, index, 1, s.rows)?;
        watch.show(self, Stage::BlockKv, at, Stored::Bf16, b.block_kv, n * s.head_dim)?;
        self.attend(rows, layer, index)?;
        watch.show(self, Stage::Attention, at, Stored::Bf16, b.core, n * s.query_width())?;
        let core = Source { x: b.core, pitch: s.query_width(), gather: 0, angles: meta.angles };
        self.rotate(&groups.o_a, rows, &core)?;
        self.multiply(&groups.o_a, rows, b.rotated)?;
        self.finish_rotate(&groups.o_a, &groups.o_b, rows)?;
        self.multiply(&groups.o_b, rows, b.rotated)?;
        self.finish_post(&groups.o_b, rows)?;
        watch.show(self, Stage::AttnOut, at, Stored::Bf16, b.output, n * s.hidden)
    }

    /// Attention itself.
    fn attend(&self, rows: Rows, layer: &LayerAt, index: usize) -> Result<(), DeviceError> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        let window = b.window + (2 * index * s.slots * s.window * s.head_dim) as u64;
        let grid = [s.heads, rows.bound / s.block, s.block.div_ceil(8)];
        // SAFETY: arguments as attention.cu declares them; keys lie within their slot's window.
        unsafe {
            k.launch(
                k.attention,
                grid,
                s.attention_shared(),
                &[
                    Arg::At(b.queries),
                    Arg::At(window),
                    Arg::At(b.block_kv),
                    Arg::At(layer.sinks),
                    Arg::At(self.block_meta.keys),
                    Arg::At(b.core),
                    Arg::Word(word(s.block)),
                    Arg::Word(word(s.head_dim)),
                    Arg::Word(word(s.window)),
                    Arg::At(rows.at),
                ],
            )
        }
    }

    /// `buffers.input` to `buffers.output` through the mixture of experts, and that into the streams.
    fn ffn_sublayer(
        &self,
        rows: Rows,
        layer: &LayerAt,
        groups: &LayerGroups,
        index: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let (s, b, at, n) = (&self.shape, &self.buffers, Some(index), rows.bound);
        self.choose_experts(rows, layer)?;
        watch.show(self, Stage::RouterLogits, at, Stored::F32, b.router, n * s.experts)?;
        watch.show(self, Stage::RouterIds, at, Stored::Word, b.ids, n * s.chosen)?;
        watch.show(self, Stage::RouterWeights, at, Stored::F32, b.weights, n * s.chosen)?;
        // The grids are made for the experts this many rows can choose, not for all there is room for.
        let jobs = s.expert_jobs(n);
        let gate_up = Group { count: 2 * jobs, ..groups.gate_up.clone() };
        let down = Group { count: jobs, ..groups.down.clone() };
        let source = Source { x: b.input, pitch: s.hidden, gather: b.gather, angles: 0 };
        self.rotate(&gate_up, rows, &source)?;
        self.multiply(&gate_up, rows, b.rotated)?;
        self.between(rows, &gate_up, &down)?;
        self.multiply(&down, rows, b.rotated_inner)?;
        self.combine(rows, &down)?;
        watch.show(self, Stage::MoeOut, at, Stored::Bf16, b.output, n * s.hidden)
    }

    /// Router: logits, choice, jobs.
    fn choose_experts(&self, rows: Rows, layer: &LayerAt) -> Result<(), DeviceError> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        let route = RouteRecord {
            experts: word(s.experts),
            chosen: word(s.chosen),
            normalise: u32::from(s.normalise),
            scale: s.routed_scale,
            first_linear: word(layer.experts),
            jobs: word(s.expert_jobs(s.rows)),
            rows_max: word(s.rows),
            gate_sums: word(self.weights.table.sums(layer.experts)),
            down_sums: word(self.weights.table.sums(layer.experts + 2)),
        };
        // SAFETY: arguments as moe.cu declares them.
        unsafe {
            k.launch(
                k.router_logits,
                [s.experts, rows.bound.div_ceil(8), 1],
                0,
                &[
                    Arg::At(b.input),
                    Arg::At(layer.gate),
                    Arg::At(b.router),
                    Arg::Word(word(s.hidden)),
                    Arg::Word(word(s.experts)),
                    Arg::Float(s.gate_temp),
                    Arg::At(rows.at),
                ],
            )?;
            k.launch(
                k.route,
                [1, 1, 1],
                0,
                &[
                    Arg::At(b.router),
                    Arg::At(layer.gate_bias),
                    record(&route),
                    Arg::At(b.ids),
                    Arg::At(b.weights),
                    Arg::At(b.places),
                    Arg::At(b.factors),
                    Arg::At(b.owners),
                    Arg::At(b.gather),
                    Arg::At(b.gate_up_jobs),
                    Arg::At(b.down_jobs),
                    Arg::At(rows.at),
                ],
            )
        }
    }

    /// From the sums of gates and ups to the rotated inputs of downs.
    fn between(&self, rows: Rows, gate_up: &Group, down: &Group) -> Result<(), DeviceError> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        // SAFETY: arguments as exl3_finish.cu declares them.
        unsafe {
            k.launch(
                k.exl3_finish_swiglu,
                [s.inner.div_ceil(512), rows.bound, down.count],
                0,
                &[
                    Arg::At(b.table),
                    Arg::At(gate_up.jobs),
                    Arg::At(down.jobs),
                    Arg::At(rows.at),
                    Arg::At(b.sums),
                    Arg::Float(s.limit),
                    Arg::At(b.rotated_inner),
                ],
            )
        }
    }

    /// Experts' outputs, weighted and added, into `buffers.output` and the streams.
    fn combine(&self, rows: Rows, down: &Group) -> Result<(), DeviceError> {
        let (s, b, k) = (&self.shape, &self.buffers, &self.kernels);
        // SAFETY: arguments as moe.cu declares them; the router names jobs of `down`.
        unsafe {
            k.launch(
                k.moe_combine,
                [s.hidden.div_ceil(512), rows.bound, 1],
                0,
                &[
                    Arg::At(b.table),
                    Arg::At(down.jobs),
                    Arg::At(b.sums),
                    Arg::At(b.owners),
                    Arg::At(b.places),
                    Arg::At(b.factors),
                    Arg::At(b.output),
                    Arg::At(b.streams),
                    Arg::At(b.post),
                    Arg::At(b.comb),
                    Arg::Word(word(s.chosen)),
                    Arg::Word(word(s.hidden)),
                    Arg::At(rows.at),
                ],
            )
        }
    }

    fn show_mix(
        &self,
        rows: Rows,
        sublayer: Sublayer,
        pre: u64,
        index: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let (b, at, n) = (&self.buffers, Some(index), rows.bound);
        let [pre_stage, post, comb, input] = sublayer.stages();
        watch.show(self, pre_stage, at, Stored::F32, pre, n * 4)?;
        watch.show(self, post, at, Stored::F32, b.post, n * 4)?;
        watch.show(self, comb, at, Stored::F32, b.comb, n * 16)?;
        watch.show(self, input, at, Stored::Bf16, b.input, n * self.shape.hidden)
    }

    fn show_streams(
        &self,
        rows: Rows,
        stage: Stage,
        index: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        let len = rows.bound * 4 * self.shape.hidden;
        watch.show(self, stage, Some(index), Stored::Bf16, self.buffers.streams, len)
    }
}

#[derive(Clone, Copy)]
enum Sublayer {
    Attention,
    Ffn,
}

impl Sublayer {
    /// Stages of pre, post, comb and input.
    fn stages(self) -> [Stage; 4] {
        use Stage::{AttnComb, AttnIn, AttnPost, AttnPre, FfnComb, FfnIn, FfnPost, FfnPre};
        match self {
            Self::Attention => [AttnPre, AttnPost, AttnComb, AttnIn],
            Self::Ffn => [FfnPre, FfnPost, FfnComb, FfnIn],
        }
    }
}
