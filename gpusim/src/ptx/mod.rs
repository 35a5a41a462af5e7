//! PTX text to a syntax tree. Nothing here knows what an instruction does.

mod lexer;
mod parser;
pub(crate) mod types;

use types::Type;

pub(crate) use parser::parse;

/// A text that is not PTX as this emulator understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PtxError {
    /// Line from 1.
    pub(crate) line: u32,
    /// What is wrong.
    pub(crate) what: String,
}

impl PtxError {
    pub(crate) fn new(line: u32, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}

impl std::fmt::Display for PtxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.what)
    }
}

/// A translation unit.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Variables outside of functions.
    pub(crate) variables: Vec<Variable>,
    /// Kernels and device functions with a body.
    pub(crate) functions: Vec<Function>,
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// A declared variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) space: Space,
    pub(crate) name: String,
    pub(crate) align: usize,
    /// Bytes; 0 for `extern .shared name[]`, whose size comes with the launch.
    pub(crate) bytes: usize,
    /// Initial bytes, shorter than `bytes` when the rest is zero.
    pub(crate) initial: Vec<u8>,
}

/// A kernel or device function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_entry: bool,
    pub(crate) returns: Vec<Variable>,
    pub(crate) params: Vec<Variable>,
    /// Product of `.maxntid`, where given.
    pub(crate) max_threads: Option<u32>,
    pub(crate) body: Vec<Item>,
}

/// What stands in a body, in order.
#[derive(Debug)]
pub(crate) enum Item {
    /// `{`
    Open,
    /// `}`
    Close,
    Label(String),
    Registers {
        ty: Type,
        names: Vec<RegisterNames>,
    },
    Variable(Variable),
    /// Targets of a `brx.idx`, under the label before it.
    BranchTargets {
        label: String,
        targets: Vec<String>,
    },
    Statement(Statement),
}

/// `name` or `name<count>`.
#[derive(Debug)]
pub(crate) struct RegisterNames {
    pub(crate) name: String,
    pub(crate) count: Option<usize>,
}

/// An instruction.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    /// Predicate name and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    /// The opcode cut at its dots: `["mad", "lo", "s32"]`.
    pub(crate) opcode: Vec<String>,
    pub(crate) operands: Vec<Operand>,
}

/// An operand as written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// Register, special register, label, variable or `_`.
    Name(String),
    /// Integer, two's complement.
    Int(u64),
    /// Bits of an f32 literal.
    F32(u32),
    /// Bits of an f64 literal.
    F64(u64),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `(a, b)`
    List(Vec<Operand>),
    /// `[base + offset]`
    Address { base: Box<Operand>, offset: i64 },
    /// `a|b`
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`
    Not(Box<Operand>),
}
