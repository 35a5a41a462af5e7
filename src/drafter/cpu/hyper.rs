//! Hyper-connections: four parallel residual streams, mixed before and after each sublayer
//! (`deepseek-ai/DeepSeek-V4.1-Flash inference/model.py`, `Block.hc_pre`, `Block.hc_post`,
//! `hc_split_sinkhorn`).
//!
//! The mix that collapses a sublayer's input is the one the *previous* sublayer produced, so a sublayer's
//! own pre-mix is handed on. Statistics and mixes are f32 of the stored stream.

use super::Precision;
use super::math::{dot, sigmoid};
use super::norm::inverse_rms;
use crate::drafter::weights::HyperWeights;

/// Scale of the post weights: sigmoid alone would halve a sublayer's output on average.
const POST_SCALE: f32 = 2.0;

/// Numbers of the mix that come from the config.
#[derive(Clone, Copy)]
pub(super) struct HyperShape {
    pub(super) streams: usize,
    pub(super) iterations: usize,
    /// Guard of the Sinkhorn divisions and floor of the pre-mix.
    pub(super) eps: f32,
    /// Guard of the RMS statistic.
    pub(super) rms_eps: f32,
}

/// Mixes of some rows.
pub(super) struct Mixes {
    /// [rows, streams]
    pub(super) pre: Vec<f32>,
    /// [rows, streams]
    pub(super) post: Vec<f32>,
    /// [rows, streams, streams], source before destination.
    pub(super) comb: Vec<f32>,
    /// [streams · (2 + streams)]: the projection of one row before its nonlinearities.
    raw: Vec<f32>,
}

impl Mixes {
    /// Memory for `rows` rows.
    pub(super) fn new(rows: usize, streams: usize) -> Self {
        Self {
            pre: vec![0.0; rows * streams],
            post: vec![0.0; rows * streams],
            comb: vec![0.0; rows * streams * streams],
            raw: vec![0.0; streams * (2 + streams)],
        }
    }

    /// Mixes of every row of `x` [rows, streams · hidden].
    pub(super) fn compute(&mut self, x: &[f32], weights: &HyperWeights, shape: &HyperShape) {
        let (s, width) = (shape.streams, weights.function.len() / self.raw.len());
        let rows = self.pre.chunks_exact_mut(s).zip(self.post.chunks_exact_mut(s));
        let rows = rows.zip(self.comb.chunks_exact_mut(s * s));
        for (x, ((pre, post), comb)) in x.chunks_exact(width).zip(rows) {
            let scale = inverse_rms(x, shape.rms_eps);
            for (raw, column) in self.raw.iter_mut().zip(weights.function.chunks_exact(width)) {
                *raw = dot(column, x) * scale;
            }
            split(&self.raw, weights, shape, pre, post, comb);
        }
    }
}

/// Turns one row's projection `raw` into pre-mix, post weights and stream mix.
fn split(
    raw: &[f32],
    weights: &HyperWeights,
    shape: &HyperShape,
    pre: &mut [f32],
    post: &mut [f32],
    comb: &mut [f32],
) {
    let s = shape.streams;
    let [pre_scale, post_scale, comb_scale] = weights.scale;
    let affine = |i: usize, scale: f32| raw[i] * scale + weights.base[i];
    for (i, pre) in pre.iter_mut().enumerate() {
        *pre = sigmoid(affine(i, pre_scale)) + shape.eps;
    }
    for (i, post) in post.iter_mut().enumerate() {
        *post = sigmoid(affine(s + i, post_scale)) * POST_SCALE;
    }
    for (i, comb) in comb.iter_mut().enumerate() {
        *comb = affine(2 * s + i, comb_scale);
    }
    sinkhorn(comb, s, shape.iterations, shape.eps);
}

/// Makes a square of logits nearly doubly stochastic: softmax over each row, a column pass, then
/// `iterations − 1` row and column passes, ending on columns.
fn sinkhorn(comb: &mut [f32], side: usize, iterations: usize, eps: f32) {
    for row in comb.chunks_exact_mut(side) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|v| *v = (*v - max).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = *v / sum + eps);
    }
    columns_to_one(comb, side, eps);
    for _ in 1..iterations {
        for row in comb.chunks_exact_mut(side) {
            let sum: f32 = row.iter().sum::<f32>() + eps;
            row.iter_mut().for_each(|v| *v /= sum);
        }
        columns_to_one(comb, side, eps);
    }
}

fn columns_to_one(comb: &mut [f32], side: usize, eps: f32) {
    for column in 0..side {
        let sum = comb.iter().skip(column).step_by(side).sum::<f32>() + eps;
        comb.iter_mut().skip(column).step_by(side).for_each(|v| *v /= sum);
    }
}

/// Collapses streams `x` [rows, streams · hidden] with `pre` [rows, streams] into `out` [rows, hidden]:
/// f32 sum in stream order, one rounding.
pub(super) fn collapse(
    x: &[f32],
    pre: &[f32],
    hidden: usize,
    out: &mut [f32],
    precision: Precision,
) {
    let streams = x.len() / out.len();
    let rows = x.chunks_exact(streams * hidden).zip(pre.chunks_exact(streams));
    for ((x, pre), out) in rows.zip(out.chunks_exact_mut(hidden)) {
        out.fill(0.0);
        for (x, &weight) in x.chunks_exact(hidden).zip(pre) {
            out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x);
        }
    }
    precision.round(out);
}

/// Writes a sublayer's output back: stream j becomes `post[j] · out + Σ_i comb[i][j] · x[i]`, one
/// rounding. `x` [rows, streams · hidden] is replaced; `next` is scratch of one row.
pub(super) fn post(
    x: &mut [f32],
    mixes: &Mixes,
    out: &[f32],
    hidden: usize,
    next: &mut [f32],
    precision: Precision,
) {
    let width = next.len();
    let streams = width / hidden;
    for (row, (x, out)) in x.chunks_exact_mut(width).zip(out.chunks_exact(hidden)).enumerate() {
        let post = &mixes.post[row * streams..][..streams];
        let comb = &mixes.comb[row * streams * streams..][..streams * streams];
        for (j, next) in next.chunks_exact_mut(hidden).enumerate() {
            next.iter_mut().zip(out).for_each(|(next, out)| *next = post[j] * out);
            for (i, x) in x.chunks_exact(hidden).enumerate() {
                let weight = comb[i * streams + j];
                next.iter_mut().zip(x).for_each(|(next, x)| *next += weight * x);
            }
        }
        x.copy_from_slice(next);
    }
    precision.round(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(actual: &[f32], expected: &[f32]) {
        for (a, e) in actual.iter().zip(expected) {
            assert!((a - e).abs() <= 1e-6 * e.abs().max(1.0), "{actual:?} is not {expected:?}");
        }
    }

    #[rustfmt::skip]
    const COMB_LOGITS: [f32; 16] = [
        2.0, 0.0, 0.0, 0.0,
        0.0, 0.0, 1.0, 0.0,
        1.0, 0.0, 0.0, 0.0,
        0.0, 0.0, 0.0, 0.5,
    ];

    #[rustfmt::skip]
    const COMB: [f32; 16] = [
        0.518_798_7, 0.188_794_4, 0.133_367_9, 0.159_038,
        0.089_949_49, 0.241_865_6, 0.464_439_5, 0.203_744_4,
        0.283_988_2, 0.280_920_1, 0.198_447_2, 0.236_643_5,
        0.107_262_6, 0.288_418_9, 0.203_744_4, 0.400_573_1,
    ];

    #[test]
    fn twenty_sinkhorn_passes_end_on_columns() {
        let mut comb = COMB_LOGITS;
        sinkhorn(&mut comb, 4, 20, 1e-6);
        close(&comb, &COMB);
        for column in 0..4 {
            let sum: f32 = comb.iter().skip(column).step_by(4).sum();
            assert!((sum - 1.0).abs() < 2e-6);
        }
    }

    #[test]
    fn stream_j_takes_the_column_of_the_mix() {
        let mut mixes = Mixes::new(1, 4);
        mixes.comb.copy_from_slice(&COMB);
        mixes.post.copy_from_slice(&[0.1, 0.2, 0.3, 0.4]);
        let mut x = [1.0, 2.0, 3.0, 4.0];
        post(&mut x, &mixes, &[10.0], 1, &mut [0.0; 4], Precision::F32);
        close(&x, &[2.979_712_7, 4.668_961_4, 5.472_566, 6.878_75]);
    }

    #[test]
    fn pre_and_post_are_scaled_sigmoids() {
        let raw: Vec<f32> = (0..24).map(|i| -1.2 + 0.1 * i as f32).collect();
        let base = (0..24).map(|i| if i % 2 == 0 { 0.05 } else { -0.05 }).collect();
        let weights = HyperWeights { function: vec![], base, scale: [0.5, 1.5, 1.0] };
        let shape = HyperShape { streams: 4, iterations: 20, eps: 1e-6, rms_eps: 1e-20 };
        let (mut pre, mut post, mut comb) = ([0.0; 4], [0.0; 4], [0.0; 16]);
        split(&raw, &weights, &shape, &mut pre, &mut post, &mut comb);
        close(&pre, &[0.365_865_4, 0.354_344_7, 0.389_361_8, 0.377_541_7]);
        close(&post, &[0.480_978_2, 0.499_479_8, 0.598_865_7, 0.620_051]);
    }

    #[test]
    fn the_identity_mix_selects_stream_zero() {
        let x = [1.5, -2.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0];
        let mut out = [0.0; 2];
        collapse(&x, &[1.0, 0.0, 0.0, 0.0], 2, &mut out, Precision::Bf16);
        assert_eq!(out, [1.5, -2.0]);
    }
}
