//! Stage 2: quantised layers on the GPU against the CPU's product of the same bits.

use dspark::drafter::cuda::cases::LayerCase;
use dspark::drafter::cuda::{CudaError, LayerCheck};

use super::report::{Case, Section, StageReport};
use super::{Context, Stage};

/// What device memory holds before: numbers that are none, so that a value never written shows.
pub(super) const FILL: u8 = 0xFF;

pub(super) fn run(context: &Context) -> StageReport {
    let check = match LayerCheck::new(context.device.ordinal) {
        Ok(check) => check,
        Err(error) => return failed(&error),
    };
    let mut report = StageReport::new(Stage::Kernels);
    let mut section = Section::new("case", &["difference", "limit"]);
    for case in LayerCase::all().iter().filter(|case| context.wants(&case.name())) {
        section.cases.push(if case.large && context.emulated() {
            Case::skipped(case.name(), "of live width, too much for an emulated device")
        } else {
            judge(case, &check)
        });
    }
    report.notes.push(
        "difference: largest distance from the CPU's product, relative to the RMS of its row"
            .into(),
    );
    report.sections.push(section);
    report
}

fn judge(case: &LayerCase, check: &LayerCheck) -> Case {
    let judged = Case::new(case.name()).figure("limit", case.limit());
    match case.run(check, FILL) {
        Err(error) => judged.failed(error.to_string()),
        Ok(found) if found.difference > case.limit() => {
            let why =
                format!("{:.1e} from the CPU, at most {:.1e}", found.difference, case.limit());
            judged.figure("difference", found.difference).failed(why)
        }
        Ok(found) => judged.figure("difference", found.difference),
    }
}

fn failed(error: &CudaError) -> StageReport {
    StageReport::only(Stage::Kernels, Case::new("kernels").failed(error.to_string()))
}
