//! Sink attention of the block rows over their window and over each other
//! (`deepseek-ai/DeepSeek-V4.1-Flash inference/model.py`, `DSparkAttention`).
//!
//! One key head serves all query heads, and values are the keys. There is no mask: every block row sees
//! the whole context and all block rows, later ones too. The sink joins the denominator only and is not
//! scaled.

use super::math::dot;
use super::parallel;

/// Head counts and widths.
#[derive(Clone, Copy)]
pub(super) struct AttentionShape {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
}

/// Keys one draft's rows see: context runs in position order, then the block's own rows, each
/// `[n, head_dim]`.
pub(super) type Keys<'a> = [&'a [f32]; 3];

/// Attention of one draft: `q` [N, heads, head_dim], `sinks` [heads], into `out` of `q`'s shape.
/// `scores` is scratch with room for one f32 per (row, head, key).
pub(super) fn attend(
    shape: AttentionShape,
    q: &[f32],
    keys: Keys<'_>,
    sinks: &[f32],
    out: &mut [f32],
    scores: &mut [f32],
) {
    let dim = shape.head_dim;
    let n_keys = keys.iter().map(|run| run.len() / dim).sum::<usize>();
    let queries = q.len() / dim;
    let scores = &mut scores[..queries * n_keys];
    let work = 2 * queries * n_keys * dim;
    parallel::for_each_pair(out, dim, scores, n_keys, work, |index, out, scores| {
        let q = &q[index * dim..][..dim];
        attend_one(q, keys, sinks[index % shape.heads], out, scores);
    });
}

/// One head of one row: scores are `q · key / sqrt(head_dim)`, all sums f32 in key order.
fn attend_one(q: &[f32], keys: Keys<'_>, sink: f32, out: &mut [f32], scores: &mut [f32]) {
    let dim = q.len();
    let scale = 1.0 / (dim as f32).sqrt();
    let rows = || keys.into_iter().flat_map(|run| run.chunks_exact(dim));
    for (score, key) in scores.iter_mut().zip(rows()) {
        *score = scale * dot(q, key);
    }
    let max = scores.iter().copied().fold(sink, f32::max);
    let mut total = 0.0;
    out.fill(0.0);
    for (score, key) in scores.iter().zip(rows()) {
        let weight = (score - max).exp();
        total += weight;
        out.iter_mut().zip(key).for_each(|(out, key)| *out += weight * key);
    }
    total += (sink - max).exp();
    out.iter_mut().for_each(|v| *v /= total);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sink_takes_mass_and_gives_no_value() {
        let mut out = [0.0; 2];
        let keys: Keys<'_> = [&[1.0, 0.0], &[0.0, 2.0], &[-1.0, 1.0]];
        attend_one(&[1.0, 0.5], keys, 0.3, &mut out, &mut [0.0; 3]);
        assert!((out[0] - 0.217_070_45).abs() < 1e-6 && (out[1] - 0.779_011_54).abs() < 1e-6);
    }

    #[test]
    fn a_block_without_context_attends_to_itself() {
        let shape = AttentionShape { heads: 1, head_dim: 1 };
        let mut out = [0.0; 2];
        let keys: Keys<'_> = [&[], &[], &[1.0, 3.0]];
        attend(shape, &[0.0, 0.0], keys, &[f32::NEG_INFINITY], &mut out, &mut [0.0; 4]);
        assert_eq!(out, [2.0, 2.0], "both rows see both rows, the later one too");
    }

    #[test]
    fn a_nan_key_makes_the_output_nan() {
        let mut out = [0.0];
        attend_one(&[1.0], [&[f32::NAN], &[1.0], &[]], 0.0, &mut out, &mut [0.0; 2]);
        assert!(out[0].is_nan());
    }
}
