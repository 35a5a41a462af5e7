//! What loading found: a row per module when it worked, every problem when it did not.

use std::fmt;

/// Evidence of one module, the first thing to read when drafts disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleRow {
    /// Canonical module or tensor name.
    pub module: String,
    /// File it came from.
    pub file: String,
    /// `exl3`, or the dtype of a plain tensor.
    pub form: String,
    /// Bits a weight of an EXL3 linear, for example `5` or `2.5`.
    pub width: Option<String>,
    /// Codebook of an EXL3 linear.
    pub codebook: Option<String>,
    /// Logical shape; `[out, in]` for a linear.
    pub shape: Vec<usize>,
}

/// A tensor that was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// Name in the file.
    pub tensor: String,
    /// Why it may be.
    pub reason: &'static str,
}

/// Outcome of a load without problems: nothing is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// One row per module, in the order of the forward pass.
    pub modules: Vec<ModuleRow>,
    /// Tensors read.
    pub consumed: usize,
    /// Tensors left alone, with the reason.
    pub ignored: Vec<Ignored>,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consumed/ignored/missing = {}/{}/0", self.consumed, self.ignored.len())
    }
}

/// One thing wrong with a checkpoint's tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A tensor the drafter needs is absent.
    #[error("missing {tensor}")]
    Missing {
        /// Canonical name.
        tensor: String,
    },
    /// A drafter tensor nobody reads: most likely a misspelt one whose absence would go unnoticed.
    #[error("unknown {tensor}")]
    Unknown {
        /// Name in the file.
        tensor: String,
    },
    /// A tensor of another shape.
    #[error("{tensor} has shape {got:?}, expected {expected:?}")]
    Shape {
        /// Canonical name.
        tensor: String,
        /// Its shape.
        got: Vec<usize>,
        /// The config's.
        expected: Vec<usize>,
    },
    /// A tensor of a dtype its kind cannot have.
    #[error("{tensor} has dtype {got}, expected {expected}")]
    Dtype {
        /// Canonical name.
        tensor: String,
        /// Its dtype.
        got: String,
        /// The accepted ones in words.
        expected: &'static str,
    },
    /// A linear stored in a form this build does not compute with.
    #[error("{tensor} is stored as {form}: not supported, only EXL3, BF16, F16 and F32 are")]
    NotSupported {
        /// Canonical name.
        tensor: String,
        /// The dtype found.
        form: String,
    },
    /// An EXL3 linear that contradicts itself.
    #[error("{module}: {reason}")]
    Exl3 {
        /// Canonical module name.
        module: String,
        /// What the EXL3 loader says.
        reason: String,
    },
    /// The config turns the confidence head off, but every draft is answered with a confidence.
    #[error("config.json disables the confidence head, which the worker must answer from")]
    NoConfidenceHead,
}

/// Everything wrong with a checkpoint's tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct WeightsError {
    /// At least one problem.
    pub problems: Vec<Problem>,
}

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.problems.iter().filter(|p| matches!(p, Problem::Missing { .. })).count();
        let all = self.problems.len();
        write!(f, "checkpoint tensors: {all} problem(s), {missing} of them missing tensors")?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}
