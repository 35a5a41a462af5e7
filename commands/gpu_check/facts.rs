//! Stage 1: what the card is, and whether the driver sees the kernels as the compiler left them.

use std::fs;

use dspark::drafter::cuda::measure::{DeviceDetails, Inspection, KernelFacts};

use super::manifest::{Gates, Manifest};
use super::report::{Case, Section, StageReport};
use super::{Context, Stage};

/// Shared memory that the driver keeps for itself in each block from capability 9 on, and may count.
const RESERVED_SHARED_BYTES: u32 = 1024;

pub(super) fn run(context: &Context) -> StageReport {
    let inspected = Inspection::new(context.device.ordinal)
        .map_err(|error| error.to_string())
        .and_then(|inspection| inspect(context, &inspection).map_err(|error| error.to_string()));
    inspected.unwrap_or_else(|error| {
        let case = Case::new("kernels").failed(error);
        StageReport::only(Stage::Facts, case)
    })
}

fn inspect(
    context: &Context,
    inspection: &Inspection,
) -> Result<StageReport, dspark::drafter::cuda::DeviceError> {
    let (manifest, gates) = (Manifest::embedded(), Gates::embedded());
    let mut report = StageReport::new(Stage::Facts);
    report.sections.push(device(context, inspection.arch(), &inspection.details()?, &manifest));
    let dynamic = |kernel: &str| gates.of(kernel).dynamic_shared_bytes.unwrap_or(0) as usize;
    let mut section =
        Section::new("kernel", &["registers", "local_bytes", "shared_bytes", "blocks_per_sm"]);
    let folder = std::env::var_os("DSPARK_KERNEL_DIR").is_some();
    if folder || manifest.entry("norm", inspection.arch(), "norm_rotate").is_none() {
        report.notes.push(
            "registers, shared memory and occupancy are only compared for the built-in machine code"
                .into(),
        );
    }
    for facts in inspection.kernels(dynamic)? {
        let entry = manifest.entry(facts.source, inspection.arch(), &facts.name);
        let entry = entry.filter(|_| !folder);
        let case = Case::new(&facts.name)
            .figure("registers", facts.registers)
            .figure("local_bytes", facts.local_bytes)
            .figure("shared_bytes", facts.shared_bytes)
            .figure("blocks_per_sm", facts.blocks);
        let floor = entry.and(gates.of(&facts.name).blocks_per_sm);
        section.cases.push(judge(case, &facts, entry, floor));
    }
    report.sections.push(section);
    Ok(report)
}

fn judge(
    mut case: Case,
    facts: &KernelFacts,
    entry: Option<super::manifest::Entry>,
    floor: Option<u32>,
) -> Case {
    let stack = entry.map_or(0, |entry| entry.stack_bytes);
    if facts.local_bytes > stack {
        case.fail(format!("{} bytes of local memory: it spills registers", facts.local_bytes));
    }
    let Some(entry) = entry else { return case };
    if facts.registers != entry.registers {
        case.fail(format!("{} registers, built with {}", facts.registers, entry.registers));
    }
    let counted = [entry.shared_bytes, entry.shared_bytes + RESERVED_SHARED_BYTES];
    if !counted.contains(&facts.shared_bytes) {
        let (is, built) = (facts.shared_bytes, entry.shared_bytes);
        case.fail(format!("{is} bytes of static shared memory, built with {built}"));
    }
    if let Some(floor) = floor.filter(|&floor| facts.blocks < floor) {
        case.fail(format!("{} blocks a multiprocessor, at least {floor} wanted", facts.blocks));
    }
    case
}

fn device(context: &Context, arch: &str, details: &DeviceDetails, manifest: &Manifest) -> Section {
    let facts = &context.device;
    let mut section = Section::new("device", &["value"]);
    let driver = format!("CUDA {}.{}", facts.driver / 1000, facts.driver % 1000 / 10);
    let capability = format!("{}.{}", facts.capability.0, facts.capability.1);
    let images = std::env::var("DSPARK_KERNEL_DIR").unwrap_or_else(|_| "built in".into());
    let mb = |bytes: u64| format!("{} MB", bytes / 1_000_000);
    let mhz = |khz: u32| match khz {
        0 => "the driver does not say".to_owned(),
        khz => format!("{} MHz", khz / 1000),
    };
    section.cases = vec![
        Case::fact("card", facts.name.clone()),
        Case::fact("capability", capability),
        Case::fact("driver", driver),
        Case::fact("driver module", module_version().unwrap_or_else(|| "n/a".into())),
        Case::fact("image", arch),
        Case::fact("images", images),
        Case::fact("compiler", manifest.compiler.clone()),
        Case::fact("built-in pack", manifest.pack.sha256[..16].to_owned()),
        Case::fact("multiprocessors", details.multiprocessors),
        Case::fact("L2 cache", mb(details.l2_bytes.into())),
        Case::fact("memory", mb(details.total)),
        Case::fact("memory free", mb(details.free)),
        Case::fact("memory bus", format!("{} bits", details.bus_bits)),
        Case::fact("highest clock", mhz(details.clock_khz)),
        Case::fact("highest memory clock", mhz(details.memory_clock_khz)),
        Case::fact("emulated", context.emulated()),
    ];
    section
}

/// Version of the driver's kernel module, such as 580.65.06, where Linux tells.
pub(super) fn module_version() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    version_in(&text)
}

/// The first word of dotted digits.
fn version_in(text: &str) -> Option<String> {
    let dotted =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.split_whitespace().find(dotted).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::manifest::Entry;
    use super::super::report::Outcome;
    use super::*;

    fn judged(registers: u32, local_bytes: u32, shared_bytes: u32, blocks: u32) -> Outcome {
        let facts = KernelFacts {
            source: "norm",
            name: "norm_rotate".into(),
            registers,
            local_bytes,
            shared_bytes,
            threads: 256,
            blocks,
        };
        let entry = Entry { registers: 40, stack_bytes: 0, shared_bytes: 32 };
        judge(Case::new("norm_rotate"), &facts, Some(entry), Some(4)).outcome
    }

    #[test]
    fn a_kernel_that_is_not_as_built_fails() {
        assert_eq!(judged(40, 0, 32, 4), Outcome::Passed);
        assert_eq!(judged(40, 0, 32 + 1024, 6), Outcome::Passed);
        assert_eq!(judged(41, 0, 32, 4), Outcome::Failed);
        assert_eq!(judged(40, 8, 32, 4), Outcome::Failed);
        assert_eq!(judged(40, 0, 64, 4), Outcome::Failed);
        assert_eq!(judged(40, 0, 32, 3), Outcome::Failed);
    }

    #[test]
    fn the_drivers_version_is_found_in_its_line() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n";
        assert_eq!(version_in(text), Some("580.65.06".into()));
        assert_eq!(version_in("none"), None);
    }
}
