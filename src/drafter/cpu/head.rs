//! From hidden rows to tokens: base logits, Markov chain, argmax, confidence
//! (`deepseek-ai/DeepSeek-V4.1-Flash inference/model.py`, `forward_head`).
//!
//! Position j's logits are biased by the token chosen at j − 1 (the anchor for j = 0), so positions run
//! one after the other, all drafts of a STEP side by side.

use std::ops::ControlFlow;

use super::linear::Products;
use super::math::{dot, round_bf16, sigmoid};
use super::norm::rms_norm;
use super::{Logits, Model};
use crate::drafter::stage::{Stage, StageObserver};
use crate::drafter::{DraftBlocks, MarkovCounters};
use crate::plan::StepPlan;

/// Memory of the head for up to `slots` drafts.
pub(super) struct Head {
    /// Per draft: its first row among the rows below `n_out`.
    first: Vec<usize>,
    /// Per draft: the token that biases the next position.
    previous: Vec<usize>,
    /// Drafts that consume the position in hand.
    active: Vec<usize>,
    /// [slots · N, hidden]
    normed: Vec<f32>,
    /// [slots · N, vocab]
    base: Vec<f32>,
    /// [slots, markov_rank]
    embedding: Vec<f32>,
    /// [slots, vocab]: bias, then the sum.
    logits: Vec<f32>,
    /// [slots]
    confidence: Vec<f32>,
    /// [slots · N]: ids as the observer gets them.
    ids: Vec<f32>,
    markov: MarkovCounters,
}

impl Head {
    /// Memory for `slots` drafts.
    pub(super) fn new(model: &Model, slots: usize) -> Self {
        let (shape, rows) = (&model.shape, slots * model.shape.num_spec);
        Self {
            first: Vec::with_capacity(slots),
            previous: Vec::with_capacity(slots),
            active: Vec::with_capacity(slots),
            normed: vec![0.0; rows * shape.hidden],
            base: vec![0.0; rows * shape.vocab],
            embedding: vec![0.0; slots * shape.markov_rank],
            logits: vec![0.0; slots * shape.vocab],
            confidence: vec![0.0; slots],
            ids: Vec::with_capacity(rows),
            markov: MarkovCounters::default(),
        }
    }

    /// How biases were computed: always over every row.
    pub(super) fn markov(&self) -> MarkovCounters {
        self.markov
    }

    /// Drafts from `hidden` [drafts · N, hidden] into `out`, whose blocks are zero.
    pub(super) fn run(
        &mut self,
        model: &Model,
        products: &mut Products,
        plan: &StepPlan,
        hidden: &[f32],
        out: &mut DraftBlocks,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        self.base_logits(model, products, plan, hidden, observer)?;
        self.previous.clear();
        self.previous.extend(plan.drafts.iter().map(|draft| draft.anchor_token as usize));
        for position in 0..model.shape.num_spec {
            self.active.clear();
            let consuming = plan.drafts.iter().enumerate().filter(|(_, d)| position < d.n_out);
            self.active.extend(consuming.map(|(d, _)| d).filter(|&d| out.block(d).finite));
            if self.active.is_empty() {
                break;
            }
            self.biased_logits(model, products, position, observer)?;
            self.confidences(model, position, hidden, observer)?;
            self.pick(model, position, out);
        }
        self.ids.clear();
        for d in 0..plan.drafts.len() {
            let block = out.block_mut(d);
            if !*block.finite {
                block.ids.fill(0);
                block.confidence.fill(0.0);
                block.margin.fill(0.0);
            }
            // Ids are below 2^24, exact in f32.
            self.ids.extend(block.ids.iter().map(|&id| id as f32));
        }
        observer.stage(Stage::DraftIds, None, &self.ids)
    }

    /// Head output of the rows below `n_out` of every draft.
    fn base_logits(
        &mut self,
        model: &Model,
        products: &mut Products,
        plan: &StepPlan,
        hidden: &[f32],
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (shape, weights) = (&model.shape, &model.weights);
        let width = shape.hidden;
        self.first.clear();
        let mut rows = 0;
        for (draft, hidden) in plan.drafts.iter().zip(hidden.chunks(shape.num_spec * width)) {
            self.first.push(rows);
            let consumed = &hidden[..draft.n_out * width];
            let normed = &mut self.normed[rows * width..][..consumed.len()];
            rms_norm(consumed, &weights.final_norm, shape.rms_eps, normed, model.precision);
            rows += draft.n_out;
        }
        let normed = &self.normed[..rows * width];
        observer.stage(Stage::HeadNorm, None, normed)?;
        let base = &mut self.base[..rows * shape.vocab];
        products.linear(&weights.head, normed, base);
        model.logits.round(base);
        observer.stage(Stage::BaseLogits, None, base)
    }

    /// Logits of `position` for the active drafts: base plus the bias of each one's previous token.
    fn biased_logits(
        &mut self,
        model: &Model,
        products: &mut Products,
        position: usize,
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (weights, vocab, rank) = (&model.weights, model.shape.vocab, model.shape.markov_rank);
        for (&d, embedding) in self.active.iter().zip(self.embedding.chunks_exact_mut(rank)) {
            weights.markov_embed.read(self.previous[d], 0, embedding);
        }
        let logits = &mut self.logits[..self.active.len() * vocab];
        let embeddings = &self.embedding[..self.active.len() * rank];
        products.matrix(&weights.markov_head, embeddings, logits);
        self.markov.dense += self.active.len() as u64;
        self.markov.rows += logits.len() as u64;
        self.markov.rows_full += logits.len() as u64;
        model.logits.round(logits);
        observer.stage(Stage::MarkovBias, None, logits)?;
        for (&d, logits) in self.active.iter().zip(logits.chunks_exact_mut(vocab)) {
            let base = &self.base[(self.first[d] + position) * vocab..][..vocab];
            logits.iter_mut().zip(base).for_each(|(bias, base)| *bias += base);
        }
        model.logits.round(logits);
        observer.stage(Stage::Logits, None, logits)
    }

    fn confidences(
        &mut self,
        model: &Model,
        position: usize,
        hidden: &[f32],
        observer: &mut dyn StageObserver,
    ) -> ControlFlow<()> {
        let (shape, weights) = (&model.shape, &model.weights.confidence);
        let embeddings = self.embedding.chunks_exact(shape.markov_rank);
        let drafts = self.active.iter().zip(embeddings).zip(&mut self.confidence);
        for ((&d, embedding), value) in drafts {
            let row = d * shape.num_spec + position;
            let hidden = &hidden[row * shape.hidden..][..shape.hidden];
            *value = confidence(weights, hidden, embedding);
        }
        observer.stage(Stage::Confidence, None, &self.confidence[..self.active.len()])
    }

    /// Takes the best token of each active draft, or gives the draft up.
    fn pick(&mut self, model: &Model, position: usize, out: &mut DraftBlocks) {
        let rows = self.logits.chunks_exact(model.shape.vocab).zip(&self.confidence);
        for (&d, (logits, &confidence)) in self.active.iter().zip(rows) {
            let block = out.block_mut(d);
            match top(logits).filter(|_| confidence.is_finite()) {
                Some(Top { id, margin }) => {
                    // The vocabulary has at most 2^24 tokens.
                    block.ids[position] = id as i32;
                    block.confidence[position] = confidence;
                    block.margin[position] = margin;
                    self.previous[d] = id;
                }
                None => *block.finite = false,
            }
        }
    }
}

impl Logits {
    /// Rounds in place where logits are kept as bf16.
    fn round(self, values: &mut [f32]) {
        if self == Self::Bf16 {
            round_bf16(values);
        }
    }
}

/// The best two of a row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Top {
    /// Index of the largest value, the lowest on ties.
    id: usize,
    /// Largest value minus the second largest, 0 on ties.
    margin: f32,
}

/// The best two of `logits`; `None` if one is no number or the best or the margin is infinite, which
/// must not be answered (contract-notes D38).
fn top(logits: &[f32]) -> Option<Top> {
    let (mut id, mut best, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    let mut nan = false;
    for (i, &value) in logits.iter().enumerate() {
        nan |= value.is_nan();
        if value > best {
            (id, best, second) = (i, value, best);
        } else if value > second {
            second = value;
        }
    }
    // Adding zero turns the -0.0 of a tie between zeros into +0.0 (contract-notes D40).
    let margin = best - second + 0.0;
    (!nan && best.is_finite() && margin.is_finite()).then_some(Top { id, margin })
}

/// Confidence of one position from its hidden row *before* the final norm and the embedding of the
/// *previous* token, in [0, 1] or no number. `weights` [hidden + rank], hidden part first.
fn confidence(weights: &[f32], hidden: &[f32], previous: &[f32]) -> f32 {
    let (for_hidden, for_previous) = weights.split_at(hidden.len());
    sigmoid(dot(for_hidden, hidden) + dot(for_previous, previous))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_id_wins_a_tie_with_margin_zero() {
        assert_eq!(top(&[1.0, 3.0, 2.0, 3.0]), Some(Top { id: 1, margin: 0.0 }));
        assert_eq!(top(&[3.0, 1.0, 2.5]), Some(Top { id: 0, margin: 0.5 }));
        assert_eq!(top(&[1.0, 2.5, 3.0]), Some(Top { id: 2, margin: 0.5 }));
        assert_eq!(top(&[-0.0, 0.0]).unwrap().margin.to_bits(), 0, "zeros are positive");
    }

    #[test]
    fn rows_without_a_finite_best_have_no_winner() {
        assert_eq!(top(&[1.0, f32::NAN, 2.0]), None);
        assert_eq!(top(&[f32::NAN; 3]), None);
        assert_eq!(top(&[f32::NEG_INFINITY; 3]), None);
        assert_eq!(top(&[1.0, f32::INFINITY]), None);
        assert_eq!(top(&[f32::MAX, -f32::MAX]), None, "the margin overflows");
        assert!(top(&[1.0, f32::NEG_INFINITY, 0.0]).is_some());
    }

    #[test]
    fn confidence_is_the_sigmoid_of_both_parts() {
        // 0.8473 is the logit of 0.7.
        let confidence = |h: f32, e: f32| confidence(&[1.0, 2.0], &[h], &[e]);
        assert!((confidence(0.4473, 0.2) - 0.7).abs() < 1e-4);
        assert!(confidence(f32::NAN, 0.0).is_nan());
        assert_eq!(confidence(0.0, f32::INFINITY), 1.0);
    }
}
