//! The environment: variables that nobody reads, and values that nobody can use.

use clap::Command;

use super::ports::Wanted;
use super::{Check, Verdict};
use crate::environment;
use crate::exit::Failure;

/// Commands that long-running services start, with what they need beside the environment.
const SERVICES: [&[&str]; 2] = [&["dspark", "serve"], &["dspark", "replay", "--demo"]];

/// What the environment says.
pub(super) struct Settings {
    /// Whether `serve` would accept it.
    pub(super) valid: bool,
    /// The listeners it names, or the defaults; none where it is not valid.
    pub(super) listeners: Vec<Wanted>,
    pub(super) checks: Vec<Check>,
}

/// Parses the environment as the commands would that read it; `logging` is what they say of the log's.
pub(super) fn check(program: &Command, logging: Option<Failure>) -> Settings {
    const NAME: &str = "environment";
    let mut checks = Vec::new();
    match environment::check(program, std::env::vars_os()) {
        Ok(unread) => checks.extend(unread.into_iter().map(|warning| {
            Check::new(NAME, Verdict::Warn, warning)
                .hint("misspelt? 'dspark serve --check' lists the variables that are read")
        })),
        Err(failure) => checks.push(failed(NAME, &failure.to_string())),
    }
    if let Some(failure) = logging.filter(|_| checks.iter().all(|check| check.verdict.usable())) {
        checks.push(failed(NAME, &failure.to_string()));
    }
    let mut valid = checks.iter().all(|check| check.verdict.usable());
    let mut listeners = Vec::new();
    for (index, arguments) in SERVICES.into_iter().enumerate() {
        match program.clone().try_get_matches_from(arguments) {
            Ok(matches) if index == 0 => {
                let raw = |id: &str| {
                    let serve = matches.subcommand_matches(arguments[1]);
                    let values = serve.and_then(|serve| serve.get_raw(id)).into_iter().flatten();
                    values.map(|url| url.to_string_lossy().into_owned()).collect::<Vec<_>>()
                };
                let wanted = |control| move |url| Wanted { url, control };
                listeners.extend(raw("listen").into_iter().map(wanted(false)));
                let control = raw("control").into_iter().filter(|url| url != "off");
                listeners.extend(control.map(wanted(true)));
            }
            Ok(_) => {}
            // What was said above already is not said again.
            Err(_) if !valid => {}
            Err(error) => {
                valid &= index != 0;
                checks.push(failed(NAME, &error.to_string()));
            }
        }
    }
    if checks.is_empty() {
        let detail = "every DSPARK_ variable that is set is read and valid";
        checks.push(Check::new(NAME, Verdict::Ok, detail));
    }
    Settings { valid, listeners, checks }
}

/// A message with its own advice, or the command line's, whose advice is to ask for help.
fn failed(name: &'static str, message: &str) -> Check {
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let check = Check::new(name, Verdict::Failed, first.strip_prefix("error: ").unwrap_or(first));
    let advice = lines.find(|line| !line.starts_with("For more information"));
    check.hint(advice.unwrap_or("a variable sets it: env | grep -E '^(DSPARK|VLLM_DSPARK)_'"))
}
