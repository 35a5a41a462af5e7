//! Mixture of experts: router, chosen experts, shared expert
//! (`deepseek-ai/DeepSeek-V4.1-Flash inference/model.py`, `Gate`, `Expert`, `MoE`).
//!
//! Rows are grouped by expert, so that each expert's weights are decoded once a STEP however many rows
//! of however many requests chose it. A row's experts are added in ascending order of their index, the
//! shared expert last, all in f32 with one rounding.

use super::linear::Products;
use super::math::{dot, sigmoid, softplus};
use crate::drafter::weights::{Expert, LayerWeights};

/// Numbers of the MoE that come from the config.
#[derive(Clone, Copy)]
pub(super) struct MoeShape {
    pub(super) hidden: usize,
    pub(super) inner: usize,
    pub(super) experts: usize,
    /// Experts a row takes.
    pub(super) chosen: usize,
    /// Router logits are divided by it.
    pub(super) gate_temp: f32,
    /// Factor of the expert weights.
    pub(super) scale: f32,
    /// Whether expert weights are made to sum to one before scaling.
    pub(super) normalise: bool,
    /// SwiGLU clamp; 0 for none.
    pub(super) limit: f32,
}

/// Guard of the renormalisation of expert weights.
const WEIGHT_EPS: f32 = 1e-20;

/// Memory of one MoE layer for some rows; outputs are left here.
pub(super) struct Moe {
    /// [rows, experts]
    pub(super) logits: Vec<f32>,
    /// [rows, chosen], by falling biased score.
    pub(super) ids: Vec<usize>,
    /// [rows, chosen]
    pub(super) weights: Vec<f32>,
    /// [rows, hidden]
    pub(super) routed: Vec<f32>,
    /// [rows, hidden]
    pub(super) shared: Vec<f32>,
    /// [experts]
    scores: Vec<f32>,
    /// (row, weight) pairs of the expert in hand.
    members: Vec<(usize, f32)>,
    /// [rows, hidden]: inputs, then outputs of the expert in hand.
    gathered: Vec<f32>,
    expert_out: Vec<f32>,
    inner: Inner,
}

/// Values between the products of a feed-forward network, [rows, inner] each.
struct Inner {
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl Moe {
    /// Memory for `rows` rows.
    pub(super) fn new(rows: usize, shape: &MoeShape) -> Self {
        Self {
            logits: vec![0.0; rows * shape.experts],
            ids: vec![0; rows * shape.chosen],
            weights: vec![0.0; rows * shape.chosen],
            routed: vec![0.0; rows * shape.hidden],
            shared: vec![0.0; rows * shape.hidden],
            scores: vec![0.0; shape.experts],
            members: Vec::with_capacity(rows),
            gathered: vec![0.0; rows * shape.hidden],
            expert_out: vec![0.0; rows * shape.hidden],
            inner: Inner { gate: vec![0.0; rows * shape.inner], up: vec![0.0; rows * shape.inner] },
        }
    }

    /// Chooses experts for each row of `x` [rows, hidden]: `logits`, `ids` and `weights`.
    pub(super) fn route(&mut self, x: &[f32], layer: &LayerWeights, shape: &MoeShape) {
        let rows = x.chunks_exact(shape.hidden).zip(self.logits.chunks_exact_mut(shape.experts));
        let choices = self.ids.chunks_exact_mut(shape.chosen);
        let choices = choices.zip(self.weights.chunks_exact_mut(shape.chosen));
        for ((x, logits), (ids, weights)) in rows.zip(choices) {
            for (logit, gate) in logits.iter_mut().zip(layer.gate.chunks_exact(shape.hidden)) {
                *logit = dot(gate, x) / shape.gate_temp;
            }
            choose(logits, &layer.gate_bias, shape, &mut self.scores, ids, weights);
        }
    }

    /// Runs the chosen experts on `x` [rows, hidden] and adds their weighted outputs in `routed`.
    pub(super) fn run_experts(
        &mut self,
        x: &[f32],
        layer: &LayerWeights,
        shape: &MoeShape,
        products: &mut Products,
    ) {
        let hidden = shape.hidden;
        self.routed[..x.len()].fill(0.0);
        for (e, expert) in layer.experts.iter().enumerate() {
            self.members.clear();
            let choices =
                self.ids.chunks_exact(shape.chosen).zip(self.weights.chunks(shape.chosen));
            for (row, (ids, weights)) in choices.take(x.len() / hidden).enumerate() {
                let chosen = ids.iter().zip(weights).find(|&(&id, _)| id == e);
                self.members.extend(chosen.map(|(_, &weight)| (row, weight)));
            }
            let rows = self.members.len();
            if rows == 0 {
                continue;
            }
            for (&(row, _), to) in self.members.iter().zip(self.gathered.chunks_exact_mut(hidden)) {
                to.copy_from_slice(&x[row * hidden..][..hidden]);
            }
            let inputs = &self.gathered[..rows * hidden];
            let out = &mut self.expert_out[..rows * hidden];
            self.inner.feed_forward(expert, inputs, out, shape, products);
            for (&(row, weight), from) in self.members.iter().zip(self.expert_out.chunks(hidden)) {
                let sum = self.routed[row * hidden..][..hidden].iter_mut();
                sum.zip(from).for_each(|(sum, value)| *sum += weight * value);
            }
        }
    }

    /// Runs the shared expert on `x` [rows, hidden] into `shared`.
    pub(super) fn run_shared(
        &mut self,
        x: &[f32],
        layer: &LayerWeights,
        shape: &MoeShape,
        products: &mut Products,
    ) {
        let out = &mut self.shared[..x.len()];
        self.inner.feed_forward(&layer.shared, x, out, shape, products);
    }
}

/// Scores are `sqrt(softplus(logit))`. The bias steers the choice and nothing else; ties go to the lower
/// expert. A score that is no number counts as the lowest, so that a broken row still names experts that
/// exist, and its weights stay no numbers.
fn choose(
    logits: &[f32],
    bias: &[f32],
    shape: &MoeShape,
    scores: &mut [f32],
    ids: &mut [usize],
    weights: &mut [f32],
) {
    for (score, &logit) in scores.iter_mut().zip(logits) {
        *score = softplus(logit).sqrt();
    }
    for rank in 0..ids.len() {
        let mut best: Option<(usize, f32)> = None;
        for (e, (score, bias)) in scores.iter().zip(bias).enumerate() {
            if ids[..rank].contains(&e) {
                continue;
            }
            let value = score + bias;
            let value = if value.is_nan() { f32::NEG_INFINITY } else { value };
            if best.is_none_or(|(_, top)| value > top) {
                best = Some((e, value));
            }
        }
        let (e, _) = best.expect("a row takes at most as many experts as there are");
        (ids[rank], weights[rank]) = (e, scores[e]);
    }
    if shape.normalise {
        let sum = weights.iter().sum::<f32>() + WEIGHT_EPS;
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= shape.scale);
}

impl Inner {
    /// `out` [rows, hidden] = w2(silu(min(w1 x, limit)) · clamp(w3 x, ±limit)), f32 between the
    /// products.
    fn feed_forward(
        &mut self,
        expert: &Expert,
        x: &[f32],
        out: &mut [f32],
        shape: &MoeShape,
        products: &mut Products,
    ) {
        let len = x.len() / shape.hidden * shape.inner;
        let (gate, up) = (&mut self.gate[..len], &mut self.up[..len]);
        products.linear(&expert.w1, x, gate);
        products.linear(&expert.w3, x, up);
        for (gate, &up) in gate.iter_mut().zip(&*up) {
            *gate = swiglu(*gate, up, shape.limit);
        }
        products.linear(&expert.w2, gate, out);
    }
}

/// The gate is clamped from above before silu, the other factor on both sides. NaN passes through.
fn swiglu(gate: f32, up: f32, limit: f32) -> f32 {
    if limit == 0.0 {
        return gate * sigmoid(gate) * up;
    }
    // `f32::min` would replace NaN by the limit.
    let gate = if gate > limit { limit } else { gate };
    gate * sigmoid(gate) * up.clamp(-limit, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MoeShape = MoeShape {
        hidden: 1,
        inner: 1,
        experts: 5,
        chosen: 3,
        gate_temp: 1.0,
        scale: 1.5,
        normalise: true,
        limit: 10.0,
    };

    fn chosen(logits: [f32; 5], bias: [f32; 5]) -> ([usize; 3], [f32; 3]) {
        let (mut ids, mut weights) = ([0; 3], [0.0; 3]);
        choose(&logits, &bias, &SHAPE, &mut [0.0; 5], &mut ids, &mut weights);
        (ids, weights)
    }

    #[test]
    fn the_bias_chooses_and_does_not_weigh() {
        let (ids, weights) = chosen([-2.0, 0.0, 1.0, 3.0, 0.5], [0.0, 1.2, 0.0, -1.0, 0.3]);
        assert_eq!(ids, [1, 4, 2]);
        for (weight, expected) in weights.iter().zip([0.421_122_4, 0.499_220_3, 0.579_657_2]) {
            assert!((weight - expected).abs() < 1e-6, "{weights:?}");
        }
    }

    #[test]
    fn equal_scores_go_to_the_lower_expert() {
        let (ids, _) = chosen([1.0, 2.0, 1.0, 2.0, 1.0], [0.0; 5]);
        assert_eq!(ids, [1, 3, 0]);
    }

    #[test]
    fn a_row_of_nan_names_experts_that_exist_and_weighs_nan() {
        let (ids, weights) = chosen([f32::NAN; 5], [0.0; 5]);
        assert_eq!(ids, [0, 1, 2]);
        assert!(weights.iter().all(|w| w.is_nan()));
        let (ids, _) = chosen([f32::NAN, f32::INFINITY, 0.0, f32::NEG_INFINITY, 1.0], [0.0; 5]);
        assert_eq!(ids, [1, 4, 2]);
    }

    #[test]
    fn the_gate_is_clamped_from_above_only() {
        let silu10 = 10.0 * sigmoid(10.0);
        assert_eq!(swiglu(30.0, 2.0, 10.0), silu10 * 2.0);
        assert_eq!(swiglu(30.0, -20.0, 10.0), silu10 * -10.0);
        assert_eq!(swiglu(-20.0, 1.0, 10.0), -20.0 * sigmoid(-20.0));
        assert_eq!(swiglu(30.0, 20.0, 0.0), 30.0 * sigmoid(30.0) * 20.0);
        assert!(swiglu(f32::NAN, 1.0, 10.0).is_nan() && swiglu(1.0, f32::NAN, 10.0).is_nan());
    }
}
