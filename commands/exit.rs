//! Exit codes, and how an error becomes one.

use std::fmt;
use std::io;

/// Exit codes of every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
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
    /// Ended by SIGINT.
    Interrupted = 130,
}

/// The list printed at the end of `dspark --help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0    success
  1    the check failed (digest mismatch, lost ping, disagreement, failed rounds)
  2    wrong usage
  3    the worker could not be reached in time, or the address cannot be used
  4    the worker refused the session (identity, configuration or version)
  5    an input file is missing or malformed
  6    the backend cannot run here (driver, GPU memory, unsupported device)
  70   serve: drafting failed for good; a supervisor should restart it
  130  interrupted

Run 'dspark <COMMAND> --help' for the details of one command.";

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
