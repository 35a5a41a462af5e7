//! Stage 5: the smallest product kernel under NVIDIA's compute-sanitizer, where it is installed.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::child::{self, Ended};
use super::report::{Case, Section, StageReport};
use super::{Context, Stage};

const PROGRAM: &str = "compute-sanitizer";
const TOOLS: [&str; 4] = ["memcheck", "racecheck", "initcheck", "synccheck"];
/// Exit code by which the program says that it found something.
const FOUND: i32 = 99;
/// The smallest case.
const CASE: &str = "exl3_gemm_mul1_k2/256x128/3";
/// Lines of a tool's report that are quoted.
const LINES: usize = 3;

/// Runs every tool, all of them in at most `limit`.
pub(super) fn run(context: &Context, limit: Duration) -> StageReport {
    let Some(program) = find() else {
        let why = format!("{PROGRAM} is not on PATH; it comes with the CUDA toolkit");
        let mut report = StageReport::only(Stage::Sanitizers, Case::skipped(PROGRAM, why));
        if let Some(only) = &context.only {
            report.keep(only);
        }
        return report;
    };
    let deadline = Instant::now() + limit;
    let mut report = StageReport::new(Stage::Sanitizers);
    let mut section = Section::new("tool", &[]);
    for tool in TOOLS.into_iter().filter(|tool| context.wants(tool)) {
        let left = deadline.saturating_duration_since(Instant::now());
        section.cases.push(judge(tool, sanitize(&program, tool, context, left)));
    }
    report.notes.push(format!("{} on the case {CASE}", program.display()));
    if !section.cases.is_empty() {
        report.sections.push(section);
    }
    report
}

/// The program, where a shell would find it.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    candidates.into_iter().find(|candidate| candidate.is_file())
}

fn sanitize(
    program: &PathBuf,
    tool: &str,
    context: &Context,
    limit: Duration,
) -> std::io::Result<Ended> {
    let mut command = Command::new(program);
    command.args(["--tool", tool, "--error-exitcode", &FOUND.to_string()]);
    command.arg(std::env::current_exe()?);
    command.args(["gpu-check", "kernels", "--only", CASE, "--in-process", "--device"]);
    child::run(command.arg(context.device.ordinal.to_string()), limit)
}

/// What the case itself said among the tool's lines.
fn reported(text: &str) -> Option<StageReport> {
    text.lines().find_map(|line| serde_json::from_str(line).ok())
}

fn judge(tool: &str, ended: std::io::Result<Ended>) -> Case {
    let case = Case::new(tool);
    match ended {
        Ok(Ended::Exited(status, text)) if status.success() => match reported(&text) {
            Some(report) if report.tally().passed == 1 => case,
            Some(_) => case.failed("nothing was found, but the case failed"),
            None => case.failed("nothing was found, but the case did not run"),
        },
        Ok(Ended::Exited(status, text)) => {
            // Its own lines begin like this; the rest is the case's.
            let said: Vec<&str> =
                text.lines().filter(|line| line.starts_with("=====")).take(LINES).collect();
            case.failed(format!("{status}; {}", said.join(" / ")))
        }
        Ok(Ended::Killed) => case.failed("not done in time; --limit gives it more"),
        Err(error) => case.failed(format!("cannot be started: {error}")),
    }
}
