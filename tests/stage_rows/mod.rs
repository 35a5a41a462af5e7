//! Comparing what two programs show of one STEP, stage by stage and row by row.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use dspark::drafter::stage::{Stage, StageObserver};

use crate::cases;

/// Draft layers of the tiny checkpoint.
pub(crate) const LAYERS: usize = 3;

/// Everything a STEP showed, under the fixtures' names.
#[derive(Default)]
pub(crate) struct Record(pub(crate) BTreeMap<String, Vec<f32>>);

impl StageObserver for Record {
    fn stage(&mut self, stage: Stage, layer: Option<usize>, values: &[f32]) -> ControlFlow<()> {
        self.0.entry(name(stage, layer)).or_default().extend_from_slice(values);
        ControlFlow::Continue(())
    }
}

pub(crate) fn name(stage: Stage, layer: Option<usize>) -> String {
    match layer {
        Some(layer) => format!("layer{layer}.{}", stage.name()),
        None => stage.name().to_owned(),
    }
}

/// Relative L2 distance of each of `rows` rows.
pub(crate) fn distances(ours: &[f32], theirs: &[f32], rows: usize) -> Vec<f64> {
    assert_eq!(ours.len(), theirs.len());
    let width = ours.len() / rows;
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let rows = ours.chunks_exact(width).zip(theirs.chunks_exact(width));
    rows.map(|(ours, theirs)| {
        let pairs = ours.iter().zip(theirs);
        let difference = norm(&mut pairs.map(|(a, b)| f64::from(*a) - f64::from(*b)));
        difference / norm(&mut theirs.iter().map(|b| f64::from(*b))).max(1e-30)
    })
    .collect()
}

/// All stages in the order of the forward pass.
pub(crate) fn in_order() -> Vec<(Stage, Option<usize>)> {
    let at =
        |stage| Stage::ALL.iter().position(|&s| s == stage).expect("both stages of the choice");
    let (context, block) = (at(Stage::ContextKvNorm), at(Stage::AttnPre));
    let head = at(Stage::Collapse);
    let layered = |stages: &'static [Stage]| {
        (0..LAYERS).flat_map(move |layer| stages.iter().map(move |&stage| (stage, Some(layer))))
    };
    let once = |stages: &'static [Stage]| stages.iter().map(|&stage| (stage, None));
    once(&Stage::ALL[..context])
        .chain(layered(&Stage::ALL[context..block]))
        .chain(layered(&Stage::ALL[block..head]))
        .chain(once(&Stage::ALL[head..]))
        .collect()
}

/// Puts the three experts of every row into ascending order, their weights with them: the order of nearly
/// equal scores is not what is compared.
pub(crate) fn sort_choices(tensors: &mut BTreeMap<String, Vec<f32>>) {
    for layer in 0..LAYERS {
        let [ids, weights] = [Stage::RouterIds, Stage::RouterWeights].map(|s| name(s, Some(layer)));
        let mut ids =
            tensors.remove(&ids).map(|values| (ids, values)).expect("both stages of the choice");
        let weights = tensors.get_mut(&weights).expect("both stages of the choice");
        for (ids, weights) in ids.1.chunks_mut(3).zip(weights.chunks_mut(3)) {
            let mut pairs = [0, 1, 2].map(|i| (ids[i], weights[i]));
            pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (i, (id, weight)) in pairs.into_iter().enumerate() {
                (ids[i], weights[i]) = (id, weight);
            }
        }
        tensors.insert(ids.0, ids.1);
    }
}

/// Compares one STEP's stages with `theirs` and adds the largest distance of each to `largest`. Stages
/// that `optional` names may be missing on either side.
///
/// Where a row takes another expert than theirs, a near tie of the router fell the other way. The row is left
/// out from there on, and from the next layer on the whole block, whose rows attend to it. Answers how many
/// rows did so.
pub(crate) fn compare_step(
    what: &str,
    [mut ours, mut theirs]: [BTreeMap<String, Vec<f32>>; 2],
    context_rows: usize,
    optional: &[Stage],
    limit: fn(Stage) -> f64,
    largest: &mut BTreeMap<String, f64>,
) -> usize {
    sort_choices(&mut ours);
    sort_choices(&mut theirs);
    let mut flipped: BTreeMap<usize, usize> = BTreeMap::new();
    for (stage, layer) in in_order() {
        let name = name(stage, layer);
        let (Some(ours), Some(theirs)) = (ours.remove(&name), theirs.remove(&name)) else {
            assert!(optional.contains(&stage), "{what}: stage {name} is missing");
            continue;
        };
        let of_block = !matches!(
            stage,
            Stage::MainProj | Stage::MainNorm | Stage::ContextKvNorm | Stage::ContextKv
        );
        let at = layer.unwrap_or(LAYERS);
        if of_block && flipped.values().any(|&flip| flip < at) {
            continue;
        }
        let rows = if of_block { cases::N } else { context_rows };
        for (row, distance) in distances(&ours, &theirs, rows).into_iter().enumerate() {
            if of_block && flipped.contains_key(&row) {
                continue;
            }
            if stage == Stage::RouterIds && distance > 0.0 {
                flipped.insert(row, at);
                continue;
            }
            assert!(distance <= limit(stage), "{what} {name} row {row}: {distance:e}");
            let seen = largest.entry(name.clone()).or_default();
            *seen = seen.max(distance);
        }
    }
    assert!(theirs.is_empty(), "stages nobody shows: {:?}", theirs.keys());
    flipped.len()
}
