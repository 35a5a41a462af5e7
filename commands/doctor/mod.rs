//! `dspark doctor`: what this machine can run, and what to do about what is missing.
//!
//! It looks and changes nothing: a port is bound for a moment, a context is opened on each card. A check
//! that fails never keeps the next one from being made.

mod files;
mod gpu;
mod host;
mod ports;
mod settings;

use std::path::PathBuf;

use clap::{Args, Command};
use serde_json::{Value, json};

use crate::exit::{Code, Failure, Outcome};
use crate::output::Output;

/// Name of the command.
pub(crate) const NAME: &str = "doctor";

const EXAMPLES: &str = "\
Results are ok, warn (works, but look at it), missing (not there), failed (there, but unusable) and
- (not checked). Exits with 6 when nothing can run, else with 0.

Examples:
  dspark doctor
  dspark doctor --checkpoint /data/dspark/pack --verify
  dspark doctor --json | jq -r .can_run[]";

/// Arguments of `dspark doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Also look at the files of a checkpoint
    #[arg(long, value_name = "DIR", env = "DSPARK_CHECKPOINT", hide_env_values = true)]
    checkpoint: Option<PathBuf>,
    /// Its copy receipt [default: DIR/DSPARK_COPY_DONE]
    #[arg(long, value_name = "FILE", env = "DSPARK_RECEIPT", hide_env_values = true)]
    receipt: Option<PathBuf>,
    /// Its Markov cache [default: DIR/markov_top_tokens.json where there is one]
    #[arg(long, value_name = "FILE", env = "DSPARK_MARKOV", hide_env_values = true)]
    markov: Option<PathBuf>,
    /// Hash its files, as 'serve' does at its start
    #[arg(long)]
    verify: bool,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    Warn,
    Missing,
    Failed,
    Skipped,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
            Self::Failed => "failed",
            Self::Skipped => "-",
        }
    }

    /// Whether what was checked can be used.
    fn usable(self) -> bool {
        matches!(self, Self::Ok | Self::Warn)
    }
}

/// One line of the report.
#[derive(Clone, Debug)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    detail: String,
    hint: Option<String>,
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { name, verdict, detail: detail.into(), hint: None }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    fn json(&self) -> Value {
        json!({ "check": self.name, "result": self.verdict.name(), "detail": self.detail,
            "hint": self.hint })
    }
}

/// Makes every check and says what can run. `program` is the whole command line, `logging` what is wrong
/// with the settings of the log.
pub(crate) fn run(
    args: &DoctorArgs,
    program: &Command,
    logging: Option<Failure>,
    output: &Output,
) -> Outcome {
    let (checkpoint, need) = files::check(args, output);
    let (mut checks, cuda) = gpu::check(&need);
    checks.push(host::cpu());
    checks.push(host::memory(&need));
    checks.push(checkpoint.clone());
    let settings = settings::check(program, logging);
    checks.extend(ports::check(&settings.listeners));
    checks.extend(host::limits());
    checks.push(host::clock());
    checks.extend(settings.checks);
    let can_run = can_run(settings.valid, checkpoint.verdict, cuda);
    if output.json() {
        let checks: Vec<_> = checks.iter().map(Check::json).collect();
        let doc = json!({ "schema": 1, "checks": checks, "can_run": can_run });
        output.document(&doc, false)?;
    } else {
        output.line(text(&checks))?;
    }
    if can_run.is_empty() {
        return Err(Failure::new(Code::Backend, "nothing can run on this machine as it is set up")
            .hint("mend what the report calls failed"));
    }
    if !output.json() {
        output.line(format_args!("This machine can run: {}.", can_run.join(", ")))?;
    }
    Ok(())
}

/// What `serve` would start. Its settings bind every way; a checkpoint that is unusable leaves the demo,
/// which needs no file.
fn can_run(settings: bool, checkpoint: Verdict, cuda: bool) -> Vec<&'static str> {
    if !settings {
        return Vec::new();
    }
    let mut can_run = vec!["demo"];
    if checkpoint.usable() || checkpoint == Verdict::Skipped {
        can_run.push("cpu");
        if cuda {
            can_run.push("cuda");
        }
    }
    can_run
}

fn text(checks: &[Check]) -> String {
    let name = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut lines = vec![format!("{:<name$}  {:<7}  detail", "check", "result")];
    for check in checks {
        lines.push(format!("{:<name$}  {:<7}  {}", check.name, check.verdict.name(), check.detail));
        if let Some(hint) = &check.hint {
            lines.push(format!("{:name$}  {:7}    {hint}", "", ""));
        }
    }
    lines.join("\n")
}

/// Bytes for people.
fn gb(bytes: u64) -> String {
    match bytes as f64 {
        small if small < 1e8 => format!("{:.1} MB", small / 1e6),
        large => format!("{:.1} GB", large / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_run_follows_from_settings_files_and_cards() {
        use Verdict::{Failed, Missing, Ok, Skipped, Warn};
        assert_eq!(can_run(true, Skipped, false), ["demo", "cpu"]);
        assert_eq!(can_run(true, Ok, true), ["demo", "cpu", "cuda"]);
        assert_eq!(can_run(true, Warn, true), ["demo", "cpu", "cuda"]);
        assert_eq!(can_run(true, Failed, true), ["demo"]);
        assert_eq!(can_run(true, Missing, true), ["demo"]);
        assert_eq!(can_run(false, Ok, true), [""; 0]);
    }
}
