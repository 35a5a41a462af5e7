//! Comparing what two backends show of one STEP, stage by stage and row by row.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::stage::{Stage, StageObserver};

/// Everything a STEP showed, under the fixtures' names.
#[derive(Clone, Debug, Default)]
pub struct Record(pub BTreeMap<String, Vec<f32>>);

impl StageObserver for Record {
    fn stage(&mut self, stage: Stage, layer: Option<usize>, values: &[f32]) -> ControlFlow<()> {
        self.0.entry(name(stage, layer)).or_default().extend_from_slice(values);
        ControlFlow::Continue(())
    }
}

/// The fixtures' name of a stage: `layer1.ffn_in`.
pub fn name(stage: Stage, layer: Option<usize>) -> String {
    match layer {
        Some(layer) => format!("layer{layer}.{}", stage.name()),
        None => stage.name().to_owned(),
    }
}

/// The STEP that was shown. Every draft consumes all of its positions.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Draft layers.
    pub layers: usize,
    /// Experts a row takes.
    pub chosen: usize,
    /// Rows of one block, N.
    pub block: usize,
    /// Drafts.
    pub drafts: usize,
    /// Context rows of all slots.
    pub context_rows: usize,
}

impl Shown {
    /// The block row that value row `index` of a stage belongs to; a context row is itself.
    fn block_row(&self, stage: Stage, index: usize) -> usize {
        match stage {
            // Shown position by position, each over all drafts.
            Stage::MarkovBias | Stage::Logits | Stage::Confidence => {
                index % self.drafts * self.block + index / self.drafts
            }
            _ => index,
        }
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Largest relative L2 distance of a row, by stage.
    pub largest: BTreeMap<String, f64>,
    /// Block rows that took other experts.
    pub flipped: BTreeSet<usize>,
    /// Rows beyond the limit and missing stages, in words.
    pub faults: Vec<String>,
}

/// Stages that the CUDA backend keeps in registers and cannot show.
pub const UNSEEN: [Stage; 7] = [
    Stage::ContextKvNorm,
    Stage::BlockKvNorm,
    Stage::Experts,
    Stage::SharedExpert,
    Stage::MarkovBias,
    Stage::Logits,
    Stage::Confidence,
];

/// The limits between two programs with the same roundings, whose sums differ in order only: about twice the
/// largest that the CUDA and the CPU backend were seen to differ by.
pub fn rounding_limit(stage: Stage) -> f64 {
    match stage {
        Stage::RouterIds | Stage::DraftIds => 0.0,
        Stage::MainProj | Stage::MainNorm => 4e-3,
        Stage::ContextKv => 6e-3,
        // Sums whose terms nearly cancel in some rows.
        Stage::Attention | Stage::AttnOut | Stage::RouterLogits | Stage::MoeOut => 5e-2,
        _ => 2e-2,
    }
}

/// Relative L2 distance of each of `rows` rows.
///
/// # Panics
/// If the two are not equally long.
pub fn distances(ours: &[f32], theirs: &[f32], rows: usize) -> Vec<f64> {
    assert_eq!(ours.len(), theirs.len(), "both sides show the same rows");
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

/// Compares the stages of one STEP with `theirs`. Stages that `optional` names may be missing on either
/// side.
///
/// Where a row takes another expert than theirs, a near tie of the router fell the other way. The row is
/// left out from there on, and from the next layer on its whole block, whose rows attend to it.
pub fn compare(
    shown: Shown,
    ours: Record,
    theirs: Record,
    optional: &[Stage],
    limit: impl Fn(Stage) -> f64,
) -> Comparison {
    let (mut ours, mut theirs) = (ours.0, theirs.0);
    sort_choices(shown, &mut ours);
    sort_choices(shown, &mut theirs);
    let mut found = Comparison::default();
    // Layer in which a block row took another expert.
    let mut flips: BTreeMap<usize, usize> = BTreeMap::new();
    for (stage, layer) in in_order(shown.layers) {
        let name = name(stage, layer);
        let (Some(ours), Some(theirs)) = (ours.remove(&name), theirs.remove(&name)) else {
            if !optional.contains(&stage) {
                found.faults.push(format!("stage {name} is missing"));
            }
            continue;
        };
        let of_block = !is_context(stage);
        let at = layer.unwrap_or(shown.layers);
        let rows = if of_block { shown.drafts * shown.block } else { shown.context_rows };
        if ours.len() != theirs.len() || rows == 0 || !ours.len().is_multiple_of(rows) {
            let (ours, theirs) = (ours.len(), theirs.len());
            found.faults.push(format!("{name}: {ours} and {theirs} values of {rows} rows"));
            continue;
        }
        for (index, distance) in distances(&ours, &theirs, rows).into_iter().enumerate() {
            let row = shown.block_row(stage, index);
            let left_out = |(&other, &flip): (&usize, &usize)| {
                other == row || other / shown.block == row / shown.block && flip < at
            };
            if of_block && flips.iter().any(left_out) {
                continue;
            }
            if stage == Stage::RouterIds && distance > 0.0 {
                flips.insert(row, at);
                continue;
            }
            // A distance that is no number is beyond every limit.
            if distance.is_nan() || distance > limit(stage) {
                let most = limit(stage);
                found.faults.push(format!("{name} row {row}: {distance:.1e}, at most {most:.0e}"));
            }
            let seen = found.largest.entry(name.clone()).or_default();
            *seen = seen.max(distance);
        }
    }
    found.faults.extend(theirs.keys().map(|name| format!("stage {name} is shown on one side")));
    found.flipped = flips.into_keys().collect();
    found
}

/// Whether a stage has a row for each context row; the others have one for each block row.
fn is_context(stage: Stage) -> bool {
    use Stage::{ContextKv, ContextKvNorm, MainNorm, MainProj};
    matches!(stage, MainProj | MainNorm | ContextKvNorm | ContextKv)
}

/// All stages in the order of the forward pass.
fn in_order(layers: usize) -> Vec<(Stage, Option<usize>)> {
    let at = |stage| Stage::ALL.iter().position(|&s| s == stage).unwrap_or(0);
    let (context, block) = (at(Stage::ContextKvNorm), at(Stage::AttnPre));
    let head = at(Stage::Collapse);
    let layered = |stages: &'static [Stage]| {
        (0..layers).flat_map(move |layer| stages.iter().map(move |&stage| (stage, Some(layer))))
    };
    let once = |stages: &'static [Stage]| stages.iter().map(|&stage| (stage, None));
    once(&Stage::ALL[..context])
        .chain(layered(&Stage::ALL[context..block]))
        .chain(layered(&Stage::ALL[block..head]))
        .chain(once(&Stage::ALL[head..]))
        .collect()
}

/// Puts the experts of every row into ascending order, their weights with them: the order of nearly equal
/// scores is not what is compared.
fn sort_choices(shown: Shown, tensors: &mut BTreeMap<String, Vec<f32>>) {
    for layer in 0..shown.layers {
        let [ids, weights] = [Stage::RouterIds, Stage::RouterWeights].map(|s| name(s, Some(layer)));
        let Some(mut chosen) = tensors.remove(&ids) else { continue };
        if let Some(weights) = tensors.get_mut(&weights) {
            let rows = chosen.chunks_mut(shown.chosen).zip(weights.chunks_mut(shown.chosen));
            for (ids, weights) in rows {
                let mut pairs: Vec<(f32, f32)> =
                    ids.iter().copied().zip(weights.iter().copied()).collect();
                pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
                for (i, (id, weight)) in pairs.into_iter().enumerate() {
                    (ids[i], weights[i]) = (id, weight);
                }
            }
        }
        tensors.insert(ids, chosen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: Shown = Shown { layers: 1, chosen: 2, block: 2, drafts: 2, context_rows: 1 };

    /// One value a context row, two a block row.
    fn record() -> Record {
        let values = |stage| if is_context(stage) { vec![1.0] } else { [1.0, 2.0].repeat(4) };
        let stages = in_order(1).into_iter();
        Record(stages.map(|(stage, layer)| (name(stage, layer), values(stage))).collect())
    }

    fn compared(change: impl FnOnce(&mut Record)) -> Comparison {
        let mut ours = record();
        change(&mut ours);
        compare(SHOWN, ours, record(), &[Stage::Experts], |_| 1e-3)
    }

    #[test]
    fn a_row_beyond_the_limit_a_missing_stage_and_nan_are_named() {
        assert!(compared(|_| {}).faults.is_empty());
        assert!(compared(|r| drop(r.0.remove("layer0.moe_routed"))).faults.is_empty());
        let missing = compared(|r| drop(r.0.remove("layer0.moe_out"))).faults;
        assert_eq!(missing, ["stage layer0.moe_out is missing"]);
        for wrong in [2.1, f32::NAN] {
            let far = compared(|r| r.0.get_mut("head_hidden").unwrap()[3] = wrong).faults;
            assert_eq!(far.len(), 1);
            assert!(far[0].starts_with("head_hidden row 1: "), "{far:?}");
        }
    }

    #[test]
    fn a_row_with_another_expert_is_left_out_and_later_its_whole_block() {
        let found = compared(|r| {
            r.0.get_mut("layer0.router_ids").unwrap()[0] = 7.0;
            // Row 0 itself at once, its neighbour after the layer.
            r.0.get_mut("layer0.moe_out").unwrap()[0] = 9.0;
            r.0.get_mut("head_hidden").unwrap()[2] = 9.0;
        });
        assert_eq!(found.faults, [""; 0]);
        assert_eq!(found.flipped, BTreeSet::from([0]));
        let other_block = compared(|r| {
            r.0.get_mut("layer0.router_ids").unwrap()[0] = 7.0;
            r.0.get_mut("head_hidden").unwrap()[4] = 9.0;
        });
        assert_eq!(other_block.faults.len(), 1);
    }

    #[test]
    fn the_order_of_a_rows_experts_does_not_matter() {
        let swapped = compared(|r| {
            r.0.get_mut("layer0.router_ids").unwrap()[..2].swap(0, 1);
            r.0.get_mut("layer0.router_weights").unwrap()[..2].swap(0, 1);
        });
        assert!(swapped.faults.is_empty() && swapped.flipped.is_empty());
    }
}
