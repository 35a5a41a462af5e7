//! Exit codes, and how an error becomes one.

use std::fmt;
use std::io;

/// Exit codes of every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Nothing is wrong.
    Success = 0,
    /// A check failed: digest mismatch, lost ping, disagreement, failed rounds.
    CheckFailed = 1,
    /// Wrong usage.
    Usage = 2,
    /// The worker could not be reached in time, or the address cannot be used.
    Unreachable = 3,
    /// The worker refused the session.
    Refused = 4,
    /// An input file is missing or malformed.
    BadInput = 5,
    /// The backend cannot run here.
    Backend = 6,
    /// `serve`: drafting failed for good.
    Failed = 70,
    /// Ended by a signal.
    Interrupted = 130,
}

/// Every code with its meaning, for help and manual pages.
pub(crate) const CODES: [(Code, &str); 9] = [
    (Code::Success, "success"),
    (
        Code::CheckFailed,
        "the check failed (digest mismatch, lost ping, disagreement, failed rounds)",
    ),
    (Code::Usage, "wrong usage"),
    (Code::Unreachable, "the worker could not be reached in time, or the address cannot be used"),
    (Code::Refused, "the worker refused the session (identity, configuration or version)"),
    (Code::BadInput, "an input file is missing or malformed"),
    (Code::Backend, "the backend cannot run here (driver, GPU memory, unsupported device)"),
    (Code::Failed, "serve: drafting failed for good; a supervisor should restart it"),
    (Code::Interrupted, "interrupted"),
];

/// Stands at the end of `dspark --help`.
pub(crate) fn help() -> String {
    let mut text = "\
Examples:
  dspark replay --demo
  dspark serve --demo
  dspark serve --checkpoint /data/dspark/pack --listen tcp://10.202.28.1:18620
  dspark stats --watch 1s

Exit codes:"
        .to_owned();
    for (code, meaning) in CODES {
        text += &format!("\n  {:<4} {meaning}", code as u8);
    }
    text + "\n\nRun 'dspark <COMMAND> --help' for the details of one command."
}

/// An error with its exit code and, line by line, what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    error: anyhow::Error,
    hints: Vec<String>,
}

/// What a command returns.
pub(crate) type Outcome = Result<(), Failure>;

impl Failure {
    /// A failure of this program's own wording.
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self { code, error: anyhow::anyhow!("{message}"), hints: Vec::new() }
    }

    /// What a program that a signal ends fails with.
    pub(crate) fn interrupted(signal: &str) -> Self {
        Self::new(Code::Interrupted, format!("ended by {signal}"))
    }

    /// Adds a line that says what to do.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Whether the reader of stdout has gone: no error, the command just ends.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some errors quote their cause, others leave it to the chain; either way it is said once.
        let mut text = self.error.to_string();
        for cause in self.error.chain().skip(1).map(ToString::to_string) {
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        write!(f, "error: {text}")?;
        for hint in &self.hints {
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

/// Only writing to stdout fails with a bare I/O error: everything else is given its code where it happens.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let error = anyhow::Error::new(error).context("write the result");
        Self { code: Code::CheckFailed, error, hints: Vec::new() }
    }
}

/// Gives an error its exit code.
pub(crate) trait OrExit<T> {
    /// The value, or a failure with this code.
    fn or_exit(self, code: Code) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, code: Code) -> Result<T, Failure> {
        self.map_err(|error| Failure { code, error: error.into(), hints: Vec::new() })
    }
}
