//! Stage 4: whole STEPs of the demo checkpoint. Graphs against launches, a STEP against itself, less
//! consumed positions against all, all of them bit for bit; and every stage against the CPU backend.

use std::error::Error;

use dspark::checkpoint::Checkpoint;
use dspark::drafter::cpu::{CpuDrafter, CpuOptions, Logits, Precision};
use dspark::drafter::cuda::{CudaDrafter, CudaOptions};
use dspark::drafter::parity::{Comparison, Record, Shown, UNSEEN, compare, rounding_limit};
use dspark::drafter::stage::Stage as Point;
use dspark::drafter::{DraftBlocks, Drafter};
use dspark::plan::{RowBlock, StepPlan};

use super::kernels::FILL;
use super::report::{Case, Section, StageReport};
use super::requests::{Bits, Part, bits, plan, rows};
use super::{Context, Stage};

type Failed = Box<dyn Error>;

/// Rows of each slot: totals just below, at and above each group of eight rows, the 32 of a narrow launch and the
/// 128 of a tile of a wide one, which is a whole window; and four windows.
const ROWS: [&[usize]; 17] = [
    &[1],
    &[7],
    &[8],
    &[9],
    &[127],
    &[128],
    &[8, 7],
    &[8, 8],
    &[9, 8],
    &[1, 128],
    &[8, 8, 7],
    &[8, 8, 8],
    &[8, 9, 8],
    &[8, 8, 8, 7],
    &[8, 8, 8, 8],
    &[9, 8, 8, 8],
    &[128, 128, 128, 128],
];
/// The same for an emulated device, which takes its time.
const FEW_ROWS: [&[usize]; 2] = [&[7], &[9, 8, 8, 8]];

pub(super) fn run(context: &Context) -> StageReport {
    match check(context) {
        Ok(report) => report,
        Err(error) => StageReport::only(Stage::Step, Case::new("step").failed(error.to_string())),
    }
}

fn check(context: &Context) -> Result<StageReport, Failed> {
    let mut drafters = Drafters::new(context)?;
    let mut report = StageReport::new(Stage::Step);
    let columns =
        ["repeats", "graph_is_eager", "prefix", "worst", "share_of_limit", "other_experts"];
    let mut section = Section::new("rows of each slot", &columns);
    let batches = if context.emulated() { &FEW_ROWS[..] } else { &ROWS[..] };
    for (index, rows) in batches.iter().enumerate() {
        let name = rows.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
        if context.wants(&name) {
            section.cases.push(drafters.judge(name, index, rows)?);
        }
    }
    if context.emulated() {
        let (few, all) = (FEW_ROWS.len(), ROWS.len());
        report.notes.push(format!("{few} of {all} cases: the device is emulated"));
    }
    report.notes.push(
        "worst: the stage that uses most of its limit beside the CPU backend, and how much of it"
            .into(),
    );
    report.sections.push(section);
    Ok(report)
}

struct Drafters {
    graph: CudaDrafter,
    eager: CudaDrafter,
    cpu: CpuDrafter,
    layers: usize,
    chosen: usize,
    out: DraftBlocks,
}

impl Drafters {
    fn new(context: &Context) -> Result<Self, Failed> {
        let checkpoint = Checkpoint::demo()?;
        let logits = Logits::F32;
        let device = context.device.ordinal;
        let options = CudaOptions { device, logits, fill: FILL, ..CudaOptions::default() };
        // What memory held before must not show either.
        let eager = CudaOptions { graphs: false, prune: false, fill: 0, ..options };
        let cpu = CpuOptions { precision: Precision::Bf16, logits, max_slots: options.max_slots };
        let graph = CudaDrafter::new(&checkpoint, options)?;
        Ok(Self {
            out: DraftBlocks::new(graph.geometry()),
            graph,
            eager: CudaDrafter::new(&checkpoint, eager)?,
            cpu: CpuDrafter::new(&checkpoint, cpu)?,
            layers: checkpoint.config.stages,
            chosen: checkpoint.config.experts_per_token,
        })
    }

    fn judge(&mut self, name: String, index: usize, counts: &[usize]) -> Result<Case, Failed> {
        let geometry = *self.graph.geometry();
        let (n, row_bytes) = (geometry.num_spec as usize, geometry.row_bytes());
        // A place of its own for each case, so that no window holds another's rows.
        let first_pos = 1000 * (1 + i64::try_from(index)?);
        let parts: Vec<Part> = (0u8..)
            .zip(counts)
            .map(|(slot, &rows)| Part { slot, lo: first_pos, first_pos, rows, n_out: n })
            .collect();
        let bytes = rows(&geometry, &parts);
        let block = RowBlock::new(&bytes, row_bytes);
        let full = plan(&geometry, &parts);
        // Consuming less changes nothing of the rest: a first position here, all but one there.
        let fewer = parts.iter().enumerate();
        let fewer: Vec<Part> = fewer
            .map(|(i, part)| Part { n_out: if i == 0 { 1 } else { n - 1 }, ..*part })
            .collect();

        let first = self.graphs(&full, block)?;
        let repeats = self.graphs(&full, block)? == first;
        let prefixes: Vec<Bits> =
            first.iter().zip(&fewer).map(|(bits, part)| bits.prefix(part.n_out)).collect();
        let prefix = self.graphs(&plan(&geometry, &fewer), block)? == prefixes;

        let (mut ours, mut theirs) = (Record::default(), Record::default());
        let _ = self.eager.step_observed(&full, block, &mut self.out, &mut ours)?;
        let graph_is_eager = bits(&self.out, parts.len()) == first;
        let _ = self.cpu.step_observed(&full, block, &mut self.out, &mut theirs)?;
        let expected = bits(&self.out, parts.len());
        let shown = Shown {
            layers: self.layers,
            chosen: self.chosen,
            block: n,
            drafts: parts.len(),
            context_rows: counts.iter().sum(),
        };
        let optional = [&UNSEEN[..], &[Point::DraftIds]].concat();
        let mut found = compare(shown, ours, theirs, &optional, rounding_limit);
        found.largest.remove(Point::DraftIds.name());
        found.faults.retain(|fault| !fault.starts_with(Point::DraftIds.name()));

        let (worst, share) = worst(&found);
        let mut case = Case::new(name)
            .figure("repeats", repeats)
            .figure("graph_is_eager", graph_is_eager)
            .figure("prefix", prefix)
            .figure("worst", worst)
            .figure("share_of_limit", share)
            .figure("other_experts", found.flipped.len());
        for (holds, otherwise) in [
            (first.iter().all(|bits| bits.finite), "a draft is not finite"),
            (repeats, "the same STEP twice gave other bits"),
            (graph_is_eager, "graphs gave other bits than launches"),
            (prefix, "consuming fewer positions changed the others"),
        ] {
            if !holds {
                case.fail(otherwise);
            }
        }
        if let Some(fault) = found.faults.first() {
            case.fail(format!("{fault} (and {} more)", found.faults.len() - 1));
        }
        // Near ties of the router that fall the other way: one row of a block now and then.
        if found.flipped.len() > parts.len() + 1 {
            case.fail(format!("{} rows took other experts", found.flipped.len()));
        }
        for (index, (ours, theirs)) in first.iter().zip(&expected).enumerate() {
            let flipped = found.flipped.iter().any(|row| row / n == index);
            if let Some(why) = ours.disagreement(theirs).filter(|_| !flipped) {
                case.fail(format!("draft {index}, {why}"));
            }
        }
        Ok(case)
    }

    fn graphs(&mut self, plan: &StepPlan, rows: RowBlock<'_>) -> Result<Vec<Bits>, Failed> {
        self.graph.step(plan, rows, &mut self.out)?;
        Ok(bits(&self.out, plan.drafts.len()))
    }
}

/// The stage that uses the largest share of its limit.
fn worst(found: &Comparison) -> (String, f64) {
    let share = |(name, distance): (&String, &f64)| {
        let stage = name.rsplit('.').next().and_then(Point::from_name)?;
        let limit = rounding_limit(stage);
        (limit > 0.0).then(|| (name.clone(), distance / limit))
    };
    let shares = found.largest.iter().filter_map(share);
    shares.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
}
