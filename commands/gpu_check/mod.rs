//! `dspark gpu-check`: is this card right, and how fast is it. Stages run one after the other, each in a
//! process of its own with a time limit; everything they need is in this program.

mod child;
mod facts;
mod images;
mod kernels;
mod manifest;
mod print;
mod report;
mod requests;
mod sanitizers;
mod step;
mod timing;

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum};
use dspark::drafter::cuda::{BackendUnavailable, DeviceFacts, probe};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::child::Ended;
use self::report::{Case, StageReport, Tally};
use crate::args;
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Without a GPU every stage is skipped and the exit code is 0. docs/gpu-check.md explains the tables.

Examples:
  dspark gpu-check --out gpu-check
  dspark gpu-check kernels --only exl3_gemm_mul1_k5
  DSPARK_KERNEL_DIR=build dspark gpu-check kernels step
  dspark gpu-check timing --json | jq '.stages[0].sections'";

/// File that `--out` writes.
const DOCUMENT: &str = "gpu-check.json";

/// Arguments of `dspark gpu-check`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GpuCheckArgs {
    /// Stages to run, in this order whatever the order given [default: all]
    #[arg(value_name = "STAGE")]
    stages: Vec<Stage>,
    /// Only cases whose name contains NAME
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Also write the document that --json prints to DIR/gpu-check.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Index of the GPU
    #[arg(
        long,
        value_name = "N",
        env = "DSPARK_DEVICE",
        hide_env_values = true,
        default_value_t = 0
    )]
    device: u32,
    /// End a stage after this long [default: 1 to 15 minutes, by stage]
    #[arg(long, value_name = "TIME", value_parser = args::positive_duration)]
    limit: Option<Duration>,
    /// Run the stages in this process, without limits; print one JSON line each
    #[arg(long, hide = true)]
    in_process: bool,
}

/// A stage.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// Card, driver, image; registers, memory and occupancy of each kernel
    Facts,
    /// Quantised layers, GPU against CPU
    Kernels,
    /// Machine code against what the driver compiles from PTX
    Images,
    /// Whole steps of the demo checkpoint: launches against graphs, GPU against CPU
    Step,
    /// The smallest kernels under NVIDIA's compute-sanitizer
    Sanitizers,
    /// Time and bytes of a round at the live size, 1 to 4 requests
    Timing,
}

impl Stage {
    /// Longest run. The card is the fastest part: kernels may have to be compiled by the driver, and the
    /// checkpoint of the timing stage is 9 GB of random numbers.
    fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Facts => 60,
            Self::Kernels => 180,
            Self::Images => 300,
            Self::Step => 300,
            Self::Sanitizers => 900,
            Self::Timing => 900,
        })
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// What a stage knows.
struct Context {
    device: DeviceFacts,
    only: Option<String>,
}

impl Context {
    /// Whether a case is asked for.
    fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }

    /// Whether kernels run on the CPU, where large cases take too long and times mean nothing.
    fn emulated(&self) -> bool {
        self.device.is_emulated()
    }
}

/// Runs the stages.
pub(crate) fn run(args: &GpuCheckArgs, output: &Output) -> Outcome {
    let stages = stages(args);
    let device = match probe(args.device) {
        Ok(device) => device,
        Err(why) if args.device > 0 && probe(0).is_ok() => {
            return Err(Failure::new(Code::Backend, why.what).hint(why.hint));
        }
        Err(why) => return skip(args, &stages, &why, output),
    };
    let context = Context { device, only: args.only.clone() };
    if args.in_process {
        for stage in stages {
            let report = serde_json::to_value(here(stage, &context)).or_exit(Code::CheckFailed)?;
            output.document(&report, true)?;
        }
        return Ok(());
    }
    child::end_by_signals().or_exit(Code::CheckFailed)?;
    let limit = |stage: Stage| args.limit.unwrap_or(stage.limit());
    let mut reports = Vec::new();
    for stage in stages {
        output.note(format_args!("{stage} ..."));
        let started = Instant::now();
        let mut report = match stage {
            // It touches no device itself.
            Stage::Sanitizers => sanitizers::run(&context, limit(stage)),
            _ => elsewhere(stage, args, limit(stage))?,
        };
        if let Some(signal) = child::interrupted() {
            return Err(Failure::interrupted(signal));
        }
        report.seconds = started.elapsed().as_secs_f64();
        if report.sections.is_empty() {
            // No case of it is asked for.
            continue;
        }
        if !output.json() {
            print::print(&report, output)?;
        }
        reports.push(report);
    }
    if let (Some(only), true) = (&args.only, reports.is_empty()) {
        return Err(Failure::new(Code::Usage, format!("no case of these stages is named {only}"))
            .hint("names are in the first column of each table"));
    }
    finish(args, &context, &reports, output)
}

/// Stages asked for, each once.
fn stages(args: &GpuCheckArgs) -> Vec<Stage> {
    let mut stages = args.stages.clone();
    if stages.is_empty() {
        stages = Stage::value_variants().to_vec();
    }
    stages.sort_unstable();
    stages.dedup();
    stages
}

/// Runs a stage in this process.
fn here(stage: Stage, context: &Context) -> StageReport {
    let mut report = match stage {
        Stage::Facts => facts::run(context),
        Stage::Kernels => kernels::run(context),
        Stage::Images => images::run(context),
        Stage::Step => step::run(context),
        Stage::Sanitizers => sanitizers::run(context, stage.limit()),
        Stage::Timing => timing::run(context),
    };
    if let Some(only) = &context.only {
        report.keep(only);
    }
    report
}

/// Runs a stage in another process.
fn elsewhere(stage: Stage, args: &GpuCheckArgs, limit: Duration) -> Result<StageReport, Failure> {
    let program = std::env::current_exe().or_exit(Code::CheckFailed)?;
    let mut command = Command::new(program);
    command.args(["gpu-check", "--in-process", "--device"]).arg(args.device.to_string());
    if let Some(only) = &args.only {
        command.arg("--only").arg(only);
    }
    command.arg(stage.to_string());
    let failed = |why: String| StageReport::only(stage, Case::new(stage.to_string()).failed(why));
    Ok(match child::run(&mut command, limit).or_exit(Code::CheckFailed)? {
        Ended::Killed => failed(format!(
            "not done in {} s; --limit gives it more time",
            limit.as_secs_f64().round()
        )),
        Ended::Exited(status, text) => serde_json::from_str(&text)
            .unwrap_or_else(|_| failed(format!("it ended without a result: {status}"))),
    })
}

/// Without a GPU: every stage is skipped.
fn skip(
    args: &GpuCheckArgs,
    stages: &[Stage],
    why: &BackendUnavailable,
    output: &Output,
) -> Outcome {
    let tally = Tally { skipped: stages.len(), ..Tally::default() };
    let doc = json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "date": date(),
        "skipped_because": why.what,
        "passed": 0, "failed": 0, "skipped": tally.skipped,
        "stages": [],
    });
    write(args, &doc)?;
    if output.json() {
        output.document(&doc, false)?;
    } else {
        output.line(format_args!("no GPU to check: {}", why.what))?;
        output.line(tally)?;
    }
    Ok(())
}

fn finish(
    args: &GpuCheckArgs,
    context: &Context,
    reports: &[StageReport],
    output: &Output,
) -> Outcome {
    let tally: Tally = reports.iter().map(StageReport::tally).sum();
    let doc = json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "date": date(),
        "device": {
            "name": context.device.name,
            "capability": [context.device.capability.0, context.device.capability.1],
            "cuda": context.device.driver,
            "driver": facts::module_version(),
            "emulated": context.emulated(),
        },
        "passed": tally.passed, "failed": tally.failed, "skipped": tally.skipped,
        "stages": reports.iter().map(StageReport::json).collect::<Vec<_>>(),
    });
    write(args, &doc)?;
    if output.json() {
        output.document(&doc, false)?;
        output.note(tally);
    } else {
        output.line(tally)?;
    }
    match tally.failed {
        0 => Ok(()),
        n => {
            let checks = if n == 1 { "check" } else { "checks" };
            Err(Failure::new(Code::CheckFailed, format!("{n} {checks} failed"))
                .hint("the tables say which; --out DIR keeps all figures"))
        }
    }
}

/// `--out`.
fn write(args: &GpuCheckArgs, doc: &Value) -> Result<(), Failure> {
    let Some(dir) = &args.out else { return Ok(()) };
    let path = dir.join(DOCUMENT);
    let written = fs::create_dir_all(dir).and_then(|()| fs::write(&path, format!("{doc:#}\n")));
    written.map_err(|error| {
        let message = format!("{}: cannot be written: {error}", path.display());
        Failure::new(Code::BadInput, message)
    })
}

/// Now, as RFC 3339 in UTC.
fn date() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
