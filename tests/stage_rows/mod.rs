//! Comparing what two programs show of one STEP of the tiny checkpoint.

#![allow(dead_code)]

use std::collections::BTreeMap;

pub(crate) use dspark::drafter::parity::Record;
use dspark::drafter::parity::{Shown, compare};
use dspark::drafter::stage::Stage;

use crate::cases;

/// Draft layers of the tiny checkpoint, and experts a row takes.
pub(crate) const LAYERS: usize = 3;
const CHOSEN: usize = 3;

/// Compares one STEP of one draft with `theirs` and adds the largest distance of each stage to `largest`.
/// Stages that `optional` names may be missing on either side. Answers how many rows took other experts.
pub(crate) fn compare_step(
    what: &str,
    [ours, theirs]: [BTreeMap<String, Vec<f32>>; 2],
    context_rows: usize,
    optional: &[Stage],
    limit: fn(Stage) -> f64,
    largest: &mut BTreeMap<String, f64>,
) -> usize {
    let shown = Shown { layers: LAYERS, chosen: CHOSEN, block: cases::N, drafts: 1, context_rows };
    let found = compare(shown, Record(ours), Record(theirs), optional, limit);
    assert!(found.faults.is_empty(), "{what}:\n{}", found.faults.join("\n"));
    for (name, distance) in found.largest {
        let seen = largest.entry(name).or_default();
        *seen = seen.max(distance);
    }
    found.flipped.len()
}
