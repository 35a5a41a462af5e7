//! The worked examples of `fixtures/cases`, read and turned into plans.
//!
//! The window rule is tested elsewhere; here the windows are taken as the examples state them.

#![allow(dead_code)]

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use dspark::checkpoint::{Checkpoint, Dtype};
use dspark::drafter::cpu::{CpuDrafter, CpuOptions, Logits, Precision};
use dspark::drafter::stage::StageObserver;
use dspark::drafter::{DraftBlocks, Drafter};
use dspark::plan::{Append, Draft, RowBlock, StepPlan};
use serde::Deserialize;

mod pool;

pub(crate) use pool::Pool;

/// A dtype by its name in tensor files, to write tensors anew.
pub(crate) fn plain(dtype: &Dtype) -> safetensors::Dtype {
    match dtype {
        Dtype::Bf16 => safetensors::Dtype::BF16,
        Dtype::F16 => safetensors::Dtype::F16,
        Dtype::F32 => safetensors::Dtype::F32,
        Dtype::I16 => safetensors::Dtype::I16,
        Dtype::I32 => safetensors::Dtype::I32,
        other => panic!("{other:?}"),
    }
}

/// Bytes of one tap row of the tiny checkpoint.
pub(crate) const ROW_BYTES: usize = 3 * 256 * 2;
/// Window of the tiny checkpoint.
pub(crate) const W: i64 = 128;
/// Block rows.
pub(crate) const N: usize = 5;

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
}

#[derive(Deserialize)]
pub(crate) struct Step {
    pub(crate) step_id: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) expect: Vec<Expect>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct Entry {
    pub(crate) slot: u8,
    pub(crate) need_draft: bool,
    pub(crate) n_out: usize,
    pub(crate) first_pos: i64,
    pub(crate) n_rows: usize,
    pub(crate) anchor_token: u32,
    pub(crate) anchor_pos: i64,
    pub(crate) pool_start: usize,
}

#[derive(Deserialize)]
pub(crate) struct Expect {
    pub(crate) status: u8,
    pub(crate) window: Option<[i64; 2]>,
    #[serde(default)]
    pub(crate) stable: bool,
    pub(crate) spread: Option<Spread>,
    #[serde(flatten)]
    pub(crate) flavours: HashMap<String, serde_json::Value>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct Spread {
    pub(crate) confidence: [f32; N],
    pub(crate) margin: [f32; N],
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Answer {
    pub(crate) draft_ids: [i32; N],
    pub(crate) confidence: [f32; N],
    pub(crate) margin: [f32; N],
}

impl Expect {
    /// The answer in one flavour; entries that are not drafted have none.
    pub(crate) fn flavour(&self, name: &str) -> Option<Answer> {
        let value = self.flavours.get(name)?;
        Some(serde_json::from_value(value.clone()).expect("an answer"))
    }

    pub(crate) fn accepted(&self) -> bool {
        self.status <= 1
    }
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/cases").join(name)
}

/// All cases, by name.
pub(crate) fn cases() -> Vec<Case> {
    let mut paths: Vec<PathBuf> = fs::read_dir(fixture(""))
        .expect("fixtures/cases")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.ends_with(".json") && name.starts_with(|c: char| c.is_ascii_digit())
        })
        .collect();
    paths.sort();
    assert_eq!(paths.len(), 17);
    let read = |path: &PathBuf| fs::read(path).expect("a case");
    paths.iter().map(|path| serde_json::from_slice(&read(path)).expect("a case")).collect()
}

pub(crate) fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).expect("a case of that name")
}

/// The pool of tap rows.
pub(crate) fn pool() -> Pool {
    Pool::open()
}

pub(crate) fn checkpoint() -> Checkpoint {
    Checkpoint::demo().expect("the tiny checkpoint")
}

pub(crate) fn drafter(precision: Precision, logits: Logits) -> CpuDrafter {
    CpuDrafter::new(&checkpoint(), CpuOptions { precision, logits, max_slots: 4 }).expect("weights")
}

/// A STEP ready to run.
pub(crate) struct Planned {
    pub(crate) plan: StepPlan,
    pub(crate) rows: Vec<u8>,
    /// Entry of each draft of the plan.
    pub(crate) entries: Vec<usize>,
}

/// The plan of `step`: rows and drafts of the entries that were accepted.
pub(crate) fn plan(step: &Step, pool: &Pool) -> Planned {
    let mut plan = StepPlan { max_model_len: 327_680, ..StepPlan::default() };
    let (mut rows, mut entries) = (Vec::new(), Vec::new());
    for (index, (entry, expect)) in step.entries.iter().zip(&step.expect).enumerate() {
        let at = rows.len() / ROW_BYTES;
        (0..entry.n_rows).for_each(|r| rows.extend_from_slice(pool.row(entry.pool_start + r)));
        if !expect.accepted() {
            continue;
        }
        if entry.n_rows > 0 {
            let (slot, first_pos) = (entry.slot, entry.first_pos);
            plan.appends.push(Append { slot, first_pos, rows: at..at + entry.n_rows });
        }
        if entry.need_draft {
            entries.push(index);
            plan.drafts.push(Draft {
                entry: index,
                slot: entry.slot,
                context: context(entry.anchor_pos, expect.window),
                anchor_token: entry.anchor_token,
                anchor_pos: entry.anchor_pos,
                n_out: if entry.n_out == 0 { N } else { entry.n_out },
            });
        }
    }
    Planned { plan, rows, entries }
}

/// Positions a block at `anchor` sees of a window `[lo, hi]`.
fn context(anchor: i64, window: Option<[i64; 2]>) -> std::ops::Range<i64> {
    match window {
        Some([lo, hi]) => lo.max(anchor - W)..anchor.min(hi + 1),
        None => anchor..anchor,
    }
}

/// Runs a STEP and returns its answers in plan order.
pub(crate) fn run(drafter: &mut CpuDrafter, planned: &Planned) -> Vec<Answer> {
    let mut out = DraftBlocks::new(drafter.geometry());
    let rows = RowBlock::new(&planned.rows, ROW_BYTES);
    drafter.step(&planned.plan, rows, &mut out).expect("a step");
    answers(&out, planned.plan.drafts.len())
}

/// The same, observed.
pub(crate) fn run_observed(
    drafter: &mut CpuDrafter,
    planned: &Planned,
    observer: &mut dyn StageObserver,
) -> Vec<Answer> {
    let mut out = DraftBlocks::new(drafter.geometry());
    let rows = RowBlock::new(&planned.rows, ROW_BYTES);
    let flow = drafter.step_observed(&planned.plan, rows, &mut out, observer).expect("a step");
    assert!(flow.is_continue(), "the observer stopped the step");
    answers(&out, planned.plan.drafts.len())
}

fn answers(out: &DraftBlocks, drafts: usize) -> Vec<Answer> {
    let array = |i: usize| {
        let block = out.block(i);
        assert!(block.finite, "draft {i} is not finite");
        Answer {
            draft_ids: block.ids.try_into().expect("N ids"),
            confidence: block.confidence.try_into().expect("N confidences"),
            margin: block.margin.try_into().expect("N margins"),
        }
    };
    (0..drafts).map(array).collect()
}
