//! `DSPARK_*` variables: names nobody reads are warned about, values with invisible ends are refused.
//!
//! A misspelt variable and a file saved with Windows line ends both look set and are not.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::Command;

use crate::exit::{Code, Failure};

/// Read by this program, but by no flag; and what they are for.
pub(crate) const FLAGLESS: [(&str, &str); 5] = [
    ("DSPARK_LOG", "Filters of the log on stderr, such as debug or dspark::worker=trace."),
    ("DSPARK_LOG_FORMAT", "json prints the log as one JSON object a line; text is the default."),
    ("DSPARK_KERNEL_DIR", "A folder of compiled kernels to use instead of the built-in ones."),
    ("DSPARK_KERNEL_IMAGE", "ptx leaves the compilation of the kernels to the driver."),
    ("NO_COLOR", "When it is not empty, nothing is coloured."),
];
/// Read by the test suite, which runs this program.
const TESTS: [&str; 2] = ["DSPARK_SIM_SEED", "DSPARK_UPDATE"];
const PREFIX: &str = "DSPARK_";

/// Checks the variables of this process against the flags of `command`; returns the warnings.
///
/// # Errors
/// A known variable whose value ends in white space or holds a control character.
pub(crate) fn check(
    command: &Command,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>, Failure> {
    let mut known: BTreeSet<String> = FLAGLESS.map(|(name, _)| name.to_owned()).into();
    collect(command, &mut known);
    let mut warnings = Vec::new();
    for (name, value) in variables {
        // A name or value that is not UTF-8 is none of ours, or a path that clap takes as it is.
        let Some(name) = name.to_str() else { continue };
        if known.contains(name) {
            if let Some(problem) = value.to_str().and_then(problem) {
                let message = format!("{name} {problem}: {value:?}");
                return Err(Failure::new(Code::Usage, message)
                    .hint("was the file it is set in saved with Windows line ends?"));
            }
        } else if name.starts_with(PREFIX) && !TESTS.contains(&name) {
            warnings.push(format!("{name} is set, but nothing reads it"));
        }
    }
    warnings.sort();
    Ok(warnings)
}

/// Every variable that a flag of `command` or of one below it reads.
fn collect(command: &Command, known: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(|arg| arg.get_env());
    known.extend(variables.filter_map(|name| name.to_str()).map(str::to_owned));
    command.get_subcommands().for_each(|below| collect(below, known));
}

fn problem(value: &str) -> Option<&'static str> {
    if value.ends_with('\r') {
        Some("ends in a carriage return")
    } else if value.contains(|c: char| c.is_control()) {
        Some("holds a control character")
    } else if value != value.trim() {
        Some("begins or ends with white space")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn checked(variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let slots = Arg::new("slots").long("slots").env("DSPARK_SLOTS");
        let command = Command::new("dspark").subcommand(Command::new("serve").arg(slots));
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        check(&command, variables).map_err(|failure| failure.to_string())
    }

    #[test]
    fn unknown_variables_are_named_and_foreign_ones_left_alone() {
        let warnings = checked(&[("DSPARK_SLOT", "4"), ("DSPARK_SLOTS", "4"), ("HOME", "/\r")]);
        assert_eq!(warnings, Ok(vec!["DSPARK_SLOT is set, but nothing reads it".into()]));
    }

    #[test]
    fn a_trailing_carriage_return_is_refused_with_the_name_of_the_setting() {
        let error = checked(&[("DSPARK_SLOTS", "4\r")]).unwrap_err();
        assert!(error.starts_with("error: DSPARK_SLOTS ends in a carriage return: \"4\\r\""));
        assert!(checked(&[("DSPARK_LOG", "info ")]).is_err());
    }
}
