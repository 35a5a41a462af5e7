//! The worked examples of `fixtures/cases` on the tiny checkpoint: 115 drafted blocks, answered by every
//! precision of the CPU backend and held against numbers computed by other programs.

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::OnceLock;

use cases::{Answer, N, Spread};
use dspark::drafter::cpu::{Logits, Precision};
use dspark::drafter::stage::{Stage, StageObserver};

/// Expert choices by layer: sorted ids of every row.
#[derive(Default, PartialEq)]
struct Choices(HashMap<usize, Vec<f32>>);

impl StageObserver for Choices {
    fn stage(&mut self, stage: Stage, layer: Option<usize>, values: &[f32]) -> ControlFlow<()> {
        if stage == Stage::RouterIds {
            self.0.insert(layer.unwrap(), values.to_vec());
        }
        ControlFlow::Continue(())
    }
}

impl Choices {
    /// Expert sets of the rows of draft number `d`, order within a row forgotten.
    fn of_draft(&self, d: usize) -> Vec<Vec<u32>> {
        let mut layers: Vec<_> = self.0.iter().collect();
        layers.sort_by_key(|(layer, _)| **layer);
        let rows = layers.iter().flat_map(|(_, ids)| ids[d * N * 3..(d + 1) * N * 3].chunks(3));
        rows.map(|row| {
            let mut row: Vec<u32> = row.iter().map(|&id| id as u32).collect();
            row.sort_unstable();
            row
        })
        .collect()
    }
}

/// One drafted block with everything it is judged by.
struct Block {
    name: String,
    ours: Answer,
    truth: Answer,
    stable: bool,
    spread: Spread,
    experts: Vec<Vec<u32>>,
    n_out: usize,
}

fn blocks(precision: Precision, logits: Logits) -> Vec<Block> {
    let pool = cases::pool();
    let mut blocks = Vec::new();
    // One backend for all cases: a case starts with rows of its own, so what is left in the slots cannot
    // show.
    let mut drafter = cases::drafter(precision, logits);
    for case in cases::cases() {
        for step in &case.steps {
            let planned = cases::plan(step, &pool);
            let mut choices = Choices::default();
            let answers = cases::run_observed(&mut drafter, &planned, &mut choices);
            for (d, (ours, &entry)) in answers.into_iter().zip(&planned.entries).enumerate() {
                let expect = &step.expect[entry];
                blocks.push(Block {
                    name: format!("{} step {} entry {entry}", case.name, step.step_id),
                    ours,
                    truth: expect.flavour("f32").unwrap(),
                    stable: expect.stable,
                    spread: expect.spread.clone().unwrap(),
                    experts: choices.of_draft(d),
                    n_out: planned.plan.drafts[d].n_out,
                });
            }
        }
    }
    assert_eq!(blocks.len(), 115);
    blocks
}

/// The f32 answers, computed once for all tests.
fn truths() -> &'static [Block] {
    static TRUTHS: OnceLock<Vec<Block>> = OnceLock::new();
    TRUTHS.get_or_init(|| blocks(Precision::F32, Logits::F32))
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, f32::max)
}

/// Two reference programs differ by 1e-5 in confidence and 3e-5 in margin; the limits are ten and thirty
/// times that. Measured here: 6e-6 and 4e-5.
#[test]
fn f32_answers_every_block_as_the_references_do() {
    let blocks = truths();
    let (mut confidence, mut margin) = (0f32, 0f32);
    for block in blocks {
        assert_eq!(block.ours.draft_ids, block.truth.draft_ids, "{}", block.name);
        let difference =
            |a: &[f32; N], b: &[f32; N]| largest(a.iter().zip(b).map(|(a, b)| (a - b).abs()));
        confidence = confidence.max(difference(&block.ours.confidence, &block.truth.confidence));
        margin = margin.max(difference(&block.ours.margin, &block.truth.margin));
    }
    println!("f32: confidence within {confidence:e}, margin within {margin:e}");
    assert!(confidence <= 1e-4 && margin <= 1e-3);
}

/// What a bf16 implementation is held to; `step` is added to margins where logits are bf16.
fn accept(precision: Precision, logits: Logits, step: f32) {
    let blocks = blocks(precision, logits);
    let (mut equal, mut stable_differ, mut unexplained) = (0, Vec::new(), Vec::new());
    let (mut positions, mut outside) = (0usize, 0usize);
    let mut confidences = Vec::new();
    for (block, f32_block) in blocks.iter().zip(truths()) {
        let (ours, truth) = (&block.ours, &block.truth);
        let first = (0..N).find(|&j| ours.draft_ids[j] != truth.draft_ids[j]);
        let other_experts = block.experts != f32_block.experts;
        equal += usize::from(first.is_none());
        if let Some(j) = first {
            println!(
                "{}: position {j} differs, f32 margin {}, other experts {other_experts}",
                block.name, truth.margin[j]
            );
            if block.stable {
                stable_differ.push((&block.name, other_experts));
            } else if truth.margin[j] >= 0.25 && !other_experts {
                unexplained.push(&block.name);
            }
        }
        // Positions after the first difference follow another chain and are not comparable.
        for j in 0..first.map_or(block.n_out, |j| j.min(block.n_out)) {
            let confidence = (ours.confidence[j] - truth.confidence[j]).abs();
            let margin = (ours.margin[j] - truth.margin[j]).abs();
            positions += 1;
            confidences.push(confidence);
            let close = confidence <= (2.0 * block.spread.confidence[j]).max(0.03)
                && margin <= (2.0 * block.spread.margin[j]).max(0.2) + step;
            outside += usize::from(!close);
        }
    }
    confidences.sort_by(f32::total_cmp);
    let median = confidences[confidences.len() / 2];
    println!(
        "{precision:?}/{logits:?}: {equal} of {} blocks equal, {outside} of {positions} positions outside, \
         confidence median {median:e} largest {:e}",
        blocks.len(),
        confidences.last().unwrap()
    );
    assert!(unexplained.is_empty(), "{unexplained:?}");
    assert!(
        stable_differ.len() <= 1 && stable_differ.iter().all(|(_, other)| *other),
        "{stable_differ:?}"
    );
    assert!(outside * 100 <= positions, "{outside} of {positions} positions");
    assert!(equal >= 108, "{equal} of 115 blocks");
    assert!(median < 0.005, "{median}");
}

/// Measured: 115 blocks equal, no position outside, median confidence difference 1.3e-3.
#[test]
fn bf16_activations_with_f32_logits_stay_within_the_spread_of_roundings() {
    accept(Precision::Bf16, Logits::F32, 0.0);
}

/// The margin gets one bf16 step more. Measured: 114 blocks equal (the other has an f32 margin of 0.03), no
/// position outside, median confidence difference 1.3e-3.
#[test]
fn bf16_activations_with_bf16_logits_stay_within_the_spread_of_roundings() {
    accept(Precision::Bf16, Logits::Bf16, 0.0625);
}
