//! The worked examples of `fixtures/cases` on the CUDA backend, executed on the emulated device and held to
//! what every bf16 implementation is held to.

#![allow(clippy::unwrap_used, missing_docs)]

mod acceptance;
mod cases;
mod gpu;

use acceptance::{accept, blocks};
use cases::{Answer, N, Planned, ROW_BYTES};
use dspark::drafter::cpu::Logits;
use dspark::drafter::cuda::{CudaDrafter, CudaOptions};
use dspark::drafter::stage::StageObserver;
use dspark::drafter::{DraftBlocks, Drafter};
use dspark::plan::RowBlock;

fn run(
    drafter: &mut CudaDrafter,
    planned: &Planned,
    observer: &mut dyn StageObserver,
) -> Vec<Answer> {
    let mut out = DraftBlocks::new(drafter.geometry());
    let rows = RowBlock::new(&planned.rows, ROW_BYTES);
    let flow = drafter.step_observed(&planned.plan, rows, &mut out, observer).unwrap();
    assert!(flow.is_continue());
    let array = |i: usize| {
        let block = out.block(i);
        assert!(block.finite, "draft {i} is not finite");
        let draft_ids: [i32; N] = block.ids.try_into().unwrap();
        let confidence = block.confidence.try_into().unwrap();
        Answer { draft_ids, confidence, margin: block.margin.try_into().unwrap() }
    };
    (0..planned.plan.drafts.len()).map(array).collect()
}

/// Cases that fit the time of an emulated device; `DSPARK_TEST_ALL=1` runs them all.
const CASES: [&str; 9] = [
    "01_fresh_short",
    "02_one_row",
    "04_trailing_window",
    "05_chunked_prefill",
    "07_rollback",
    "08_gap",
    "12_near_max_len",
    "13_four_requests",
    "14_n_out",
];

#[test]
fn worked_examples_stay_within_the_spread_of_roundings() {
    let options = CudaOptions { logits: Logits::F32, graphs: false, ..CudaOptions::default() };
    let mut drafter = gpu::drafter(&cases::checkpoint(), options);
    let all = std::env::var_os("DSPARK_TEST_ALL").is_some();
    let wanted = |name: &str| all || CASES.contains(&name);
    let answers = blocks(wanted, |planned, choices| run(&mut drafter, planned, choices));
    accept("cuda/f32", &answers, 0.0);
}
