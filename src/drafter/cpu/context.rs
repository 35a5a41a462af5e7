//! New context rows: taps to window K=V (`deepseek-ai/DeepSeek-V4.1-Flash inference/model.py`,
//! `forward_embed`, `DSparkAttention`).
//!
//! A row becomes K=V through `main_proj`, its norm and each layer's `wkv` alone; it never meets the
//! layers' residual streams. It depends on its own taps and position only, so rows of all requests run
//! together, in chunks that bound the memory and cannot show in the result.

use std::ops::ControlFlow;

use super::Model;
use super::kv::WindowKv;
use super::linear::Products;
use super::math::widen_bf16;
use super::norm::rms_norm;
use super::rope::{Angles, Turn, table_row};
use crate::drafter::stage::{Stage, StageObserver};
use crate::plan::{RowBlock, StepPlan};

/// One row to store.
#[derive(Clone, Copy)]
struct Row {
    /// Index into the row block.
    index: usize,
    slot: usize,
    pos: i64,
}

/// Memory for one chunk of context rows.
pub(super) struct Context {
    chunk: usize,
    rows: Vec<Row>,
    /// [chunk, taps · hidden]
    taps: Vec<f32>,
    /// [chunk, hidden]: the projection, before its norm.
    projected: Vec<f32>,
    /// [chunk, hidden]
    main_x: Vec<f32>,
    /// [chunk, head_dim]: K=V before its norm.
    raw_kv: Vec<f32>,
    /// [chunk, head_dim]
    kv: Vec<f32>,
    angles: Angles,
}

impl Context {
    /// Memory for `chunk` rows at a time.
    pub(super) fn new(model: &Model, chunk: usize) -> Self {
        let (hidden, dim) = (model.shape.hidden, model.shape.attention.head_dim);
        Self {
            chunk,
            rows: Vec::with_capacity(chunk),
            taps: vec![0.0; chunk * model.weights.main_proj.in_features()],
            projected: vec![0.0; chunk * hidden],
            main_x: vec![0.0; chunk * hidden],
            raw_kv: vec![0.0; chunk * dim],
            kv: vec![0.0; chunk * dim],
            angles: model.rope.angles(chunk),
        }
    }

    /// Stores every row the plan appends.
    pub(super) fn run(
        &mut self,
        model: &Model,
        products: &mut Products,
        plan: &StepPlan,
        block: RowBlock<'_>,
        kv: &mut WindowKv,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let mut rows = plan.appends.iter().flat_map(|append| {
            let slot = usize::from(append.slot);
            append.rows.clone().enumerate().map(move |(i, index)| {
                // An append has at most W rows; the last may sit at the end of i64.
                Row { index, slot, pos: append.first_pos.saturating_add(i as i64) }
            })
        });
        loop {
            self.rows.clear();
            self.rows.extend(rows.by_ref().take(self.chunk));
            if self.rows.is_empty() {
                return ControlFlow::Continue(());
            }
            self.project(model, products, block, observer)?;
            for (i, row) in self.rows.iter().enumerate() {
                let pos = table_row(row.pos, plan.max_model_len);
                model.rope.set(&mut self.angles, i, pos);
            }
            for layer in 0..model.weights.layers.len() {
                self.store(model, products, layer, kv, observer)?;
            }
        }
    }

    /// Taps of the chunk to `main_x`.
    fn project(
        &mut self,
        model: &Model,
        products: &mut Products,
        block: RowBlock<'_>,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (n, weights, precision) = (self.rows.len(), &model.weights, model.precision);
        let width = weights.main_proj.in_features();
        for (row, taps) in self.rows.iter().zip(self.taps.chunks_exact_mut(width)) {
            widen_bf16(block.row(row.index), taps);
        }
        let projected = &mut self.projected[..n * model.shape.hidden];
        products.linear(&weights.main_proj, &self.taps[..n * width], projected);
        precision.round(projected);
        observer.stage(Stage::MainProj, None, projected)?;
        let main_x = &mut self.main_x[..projected.len()];
        rms_norm(projected, &weights.main_norm, model.shape.rms_eps, main_x, precision);
        observer.stage(Stage::MainNorm, None, main_x)
    }

    /// K=V of the chunk in one layer, from `main_x` itself: not through the layer's attention norm.
    fn store(
        &mut self,
        model: &Model,
        products: &mut Products,
        layer: usize,
        window: &mut WindowKv,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (n, weights, precision) =
            (self.rows.len(), &model.weights.layers[layer], model.precision);
        let dim = model.shape.attention.head_dim;
        let (raw, kv) = (&mut self.raw_kv[..n * dim], &mut self.kv[..n * dim]);
        products.linear(&weights.wkv, &self.main_x[..n * model.shape.hidden], raw);
        precision.round(raw);
        rms_norm(raw, &weights.kv_norm, model.shape.rms_eps, kv, precision);
        observer.stage(Stage::ContextKvNorm, Some(layer), kv)?;
        self.angles.rotate(kv, dim, 1, Turn::Forward, precision);
        observer.stage(Stage::ContextKv, Some(layer), kv)?;
        for (row, kv) in self.rows.iter().zip(kv.chunks_exact(dim)) {
            window.store(layer, row.slot, row.pos, kv);
        }
        ControlFlow::Continue(())
    }
}
