//! Stage 3: the same results from machine code and from what the driver makes of PTX.

use std::time::Instant;

use dspark::checkpoint::Checkpoint;
use dspark::drafter::cuda::cases::{LayerCase, distance};
use dspark::drafter::cuda::{CudaDrafter, CudaError, CudaOptions, LayerCheck};
use dspark::drafter::{DraftBlocks, DraftError, Drafter};
use dspark::plan::RowBlock;

use super::kernels::FILL;
use super::report::{Case, Section, StageReport};
use super::requests::{Bits, Part, bits, plan, rows};
use super::{Context, Stage};

pub(super) fn run(context: &Context) -> StageReport {
    match check(context) {
        Ok(report) => report,
        Err(error) => {
            StageReport::only(Stage::Images, Case::new("images").failed(error.to_string()))
        }
    }
}

fn check(context: &Context) -> Result<StageReport, CudaError> {
    let mut report = StageReport::new(Stage::Images);
    let mut loading = Section::new("image", &["load_us"]);
    let load = |ptx| -> Result<(LayerCheck, Case), CudaError> {
        let started = Instant::now();
        let check = LayerCheck::with_images(context.device.ordinal, ptx)?;
        let us = started.elapsed().as_secs_f64() * 1e6;
        let case = Case::new(check.arch()).figure("load_us", us);
        Ok((check, case))
    };
    let (own, own_case) = load(false)?;
    loading.cases.push(own_case);
    if own.arch().starts_with("compute_") {
        let why = format!("the images for this device are {} already", own.arch());
        loading.cases.push(Case::skipped("machine code", why));
        report.sections.push(loading);
        return Ok(report);
    }
    let (ptx, ptx_case) = match load(true) {
        Ok(loaded) => loaded,
        // A folder of fresh images need not have PTX; the built-in pack has.
        Err(error) => {
            loading.cases.push(Case::new("PTX").failed(error.to_string()));
            report.sections.push(loading);
            return Ok(report);
        }
    };
    loading.cases.push(ptx_case);
    report.sections.push(loading);

    let mut layers = Section::new("case", &["other_values", "difference", "limit"]);
    for case in LayerCase::all().iter().filter(|case| !case.large && context.wants(&case.name())) {
        layers.cases.push(layer(case, [&own, &ptx])?);
    }
    report.sections.push(layers);
    let mut steps = Section::new("step", &["same_bits", "same_tokens"]);
    let name = "9+8+8+8 rows";
    if context.wants(name) {
        steps.cases.push(match draft(context) {
            Ok([own, ptx]) => step(Case::new(name), &own, &ptx),
            Err(error) => Case::new(name).failed(error.to_string()),
        });
    }
    report.sections.push(steps);
    report.notes.push(
        "the same bits are expected, but only what is beyond roundings fails: two compilers, one source"
            .into(),
    );
    Ok(report)
}

fn layer(case: &LayerCase, checks: [&LayerCheck; 2]) -> Result<Case, CudaError> {
    let [own, ptx] = checks.map(|check| case.run(check, FILL));
    let (own, ptx) = (own?.y, ptx?.y);
    let others = own.iter().zip(&ptx).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let difference = distance(&ptx, &own, case.shape[1]);
    let judged = Case::new(case.name())
        .figure("other_values", others)
        .figure("difference", difference)
        .figure("limit", case.limit());
    Ok(if difference > case.limit() {
        judged.failed(format!("{difference:.1e} apart, at most {:.1e}", case.limit()))
    } else {
        judged
    })
}

/// Drafts of one STEP of four requests, with the device's own image and from PTX.
fn draft(context: &Context) -> Result<[Vec<Bits>; 2], Box<dyn std::error::Error>> {
    let checkpoint = Checkpoint::demo()?;
    let one = |ptx| -> Result<Vec<Bits>, Box<dyn std::error::Error>> {
        let device = context.device.ordinal;
        let options = CudaOptions { device, fill: FILL, ptx, ..CudaOptions::default() };
        Ok(four(&mut CudaDrafter::new(&checkpoint, options)?)?)
    };
    Ok([one(false)?, one(true)?])
}

fn four(drafter: &mut CudaDrafter) -> Result<Vec<Bits>, DraftError> {
    let geometry = *drafter.geometry();
    let n_out = geometry.num_spec as usize;
    let part = |(slot, rows)| Part { slot, lo: 0, first_pos: 0, rows, n_out };
    let parts: Vec<Part> = (0u8..).zip([9, 8, 8, 8]).map(part).collect();
    let bytes = rows(&geometry, &parts);
    let mut out = DraftBlocks::new(&geometry);
    drafter.step(
        &plan(&geometry, &parts),
        RowBlock::new(&bytes, geometry.row_bytes()),
        &mut out,
    )?;
    Ok(bits(&out, parts.len()))
}

fn step(case: Case, own: &[Bits], ptx: &[Bits]) -> Case {
    let ids = |drafts: &[Bits]| drafts.iter().map(|bits| bits.ids.clone()).collect::<Vec<_>>();
    let case = case.figure("same_bits", own == ptx).figure("same_tokens", ids(own) == ids(ptx));
    let faults = ptx.iter().zip(own).filter_map(|(ptx, own)| ptx.disagreement(own));
    faults.fold(case, |case, why| case.failed(why))
}
