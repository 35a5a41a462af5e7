//! The scalar types of PTX, as far as kernels compiled for compute capability 8.0 use them.

/// What the bits of a value mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pred,
    Bits,
    Unsigned,
    Signed,
    /// IEEE floating point of 16, 32 or 64 bits.
    Float,
    /// Two f16 in 32 bits.
    F16x2,
    /// bfloat16.
    Bf16,
    /// Two bfloat16 in 32 bits.
    Bf16x2,
    /// f32 with a 10-bit mantissa, held in 32 bits.
    Tf32,
}

/// A type: meaning and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    pub(crate) bits: u32,
}

impl Type {
    /// Reads a type as it stands in an opcode, without the dot.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let special = match text {
            "pred" => Some((Kind::Pred, 1)),
            "f16x2" => Some((Kind::F16x2, 32)),
            "bf16" => Some((Kind::Bf16, 16)),
            "bf16x2" => Some((Kind::Bf16x2, 32)),
            "tf32" => Some((Kind::Tf32, 32)),
            _ => None,
        };
        if let Some((kind, bits)) = special {
            return Some(Self { kind, bits });
        }
        let (letter, digits) = text.split_at_checked(1)?;
        let bits = digits.parse().ok()?;
        let kind = match letter {
            "b" if matches!(bits, 8 | 16 | 32 | 64 | 128) => Kind::Bits,
            "u" if matches!(bits, 8 | 16 | 32 | 64) => Kind::Unsigned,
            "s" if matches!(bits, 8 | 16 | 32 | 64) => Kind::Signed,
            "f" if matches!(bits, 16 | 32 | 64) => Kind::Float,
            _ => return None,
        };
        Some(Self { kind, bits })
    }

    /// Bytes in memory; a predicate has none of its own and counts as one.
    pub(crate) fn bytes(self) -> usize {
        (self.bits as usize).div_ceil(8)
    }

    pub(crate) fn is_signed(self) -> bool {
        self.kind == Kind::Signed
    }
}
