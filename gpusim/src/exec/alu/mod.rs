//! Arithmetic: opcode and types to a function of registers.
//!
//! Every entry follows the sentence of the PTX manual for its opcode. Functions named `.approx`
//! are modelled as the correctly rounded f32 of the f64 function, so they agree with hardware
//! only within the manual's error bound.

mod bits;
mod compare;
mod convert;
mod float;
mod halves;
mod integer;
pub(crate) mod rounding;

use super::lanes::{MaskFn, RowFn};
use crate::ptx::types::{Kind, Type};
use rounding::Modes;

/// An opcode with what selects its function.
pub(crate) struct Opcode<'a> {
    /// First part: `mad` of `mad.lo.s32`.
    pub(crate) name: &'a str,
    /// Parts after the name.
    pub(crate) suffixes: &'a [String],
    /// The types among the suffixes, in order.
    pub(crate) types: Vec<Type>,
    /// Rounding, flushing, saturation.
    pub(crate) modes: Modes,
}

impl<'a> Opcode<'a> {
    /// Looks at an opcode cut at its dots.
    pub(crate) fn new(parts: &'a [String]) -> Self {
        let (name, suffixes) = parts.split_first().map_or(("", parts), |(name, rest)| (name, rest));
        let types = suffixes.iter().filter_map(|part| Type::parse(part)).collect();
        Self { name, suffixes, types, modes: Modes::of(suffixes) }
    }

    /// Whether a suffix is present.
    pub(crate) fn has(&self, suffix: &str) -> bool {
        self.suffixes.iter().any(|part| part == suffix)
    }

    /// The first type, or 32 untyped bits.
    pub(crate) fn ty(&self) -> Type {
        self.types.first().copied().unwrap_or(Type { kind: Kind::Bits, bits: 32 })
    }
}

/// The function of an opcode, `None` when the emulator does not have it.
pub(crate) fn select(op: &Opcode<'_>) -> Option<RowFn> {
    match op.name {
        "cvt" => return convert::select(op),
        "set" => return compare::select_set(op),
        _ => {}
    }
    let by_type = match op.ty().kind {
        Kind::Unsigned | Kind::Signed => integer::select(op),
        Kind::Float if op.ty().bits > 16 => float::select(op),
        Kind::Float | Kind::F16x2 | Kind::Bf16 | Kind::Bf16x2 => halves::select(op),
        Kind::Bits | Kind::Pred | Kind::Tf32 => None,
    };
    by_type.or_else(|| bits::select(op))
}

/// The relation of a `setp`, and for packed halves that of the high ones.
pub(crate) fn select_setp(op: &Opcode<'_>) -> Option<(MaskFn, Option<MaskFn>)> {
    compare::select_setp(op)
}
