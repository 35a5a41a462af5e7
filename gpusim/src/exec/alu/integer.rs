//! Integer arithmetic of 16, 32 and 64 bits. Everything wraps unless `.sat` is asked for.

use super::Opcode;
use crate::exec::lanes::{RowFn, binary, ternary, unary};

/// Runs `$body` with `$t` bound to the Rust integer of a PTX type and `$wide` to one of twice
/// the width.
macro_rules! with_integer {
    ($ty:expr, $t:ident, $wide:ident => $body:expr) => {
        match ($ty.is_signed(), $ty.bits) {
            (false, 16) => with_integer!(@ u16, u32, $t, $wide, $body),
            (true, 16) => with_integer!(@ i16, i32, $t, $wide, $body),
            (false, 32) => with_integer!(@ u32, u64, $t, $wide, $body),
            (true, 32) => with_integer!(@ i32, i64, $t, $wide, $body),
            (false, 64) => with_integer!(@ u64, u128, $t, $wide, $body),
            (true, 64) => with_integer!(@ i64, i128, $t, $wide, $body),
            _ => None,
        }
    };
    (@ $narrow:ty, $double:ty, $t:ident, $wide:ident, $body:expr) => {{
        #[allow(dead_code)]
        type $t = $narrow;
        #[allow(dead_code)]
        type $wide = $double;
        $body
    }};
}

pub(crate) fn select(op: &Opcode<'_>) -> Option<RowFn> {
    let ty = op.ty();
    match op.name {
        "add" if op.has("sat") => Some(binary(|a: i32, b: i32| a.saturating_add(b))),
        "sub" if op.has("sat") => Some(binary(|a: i32, b: i32| a.saturating_sub(b))),
        "add" => with_integer!(ty, T, W => Some(binary(|a: T, b: T| a.wrapping_add(b)))),
        "sub" => with_integer!(ty, T, W => Some(binary(|a: T, b: T| a.wrapping_sub(b)))),
        "mul" | "mad" if op.has("wide") => wide(op),
        "mul" if op.has("hi") => {
            with_integer!(ty, T, W => Some(binary(|a: T, b: T| high(a as W * b as W, T::BITS) as T)))
        }
        "mul" => with_integer!(ty, T, W => Some(binary(|a: T, b: T| a.wrapping_mul(b)))),
        "mad" if op.has("sat") => None,
        "mad" if op.has("hi") => with_integer!(ty, T, W => {
            Some(ternary(|a: T, b: T, c: T| (high(a as W * b as W, T::BITS) as T).wrapping_add(c)))
        }),
        "mad" => with_integer!(ty, T, W => {
            Some(ternary(|a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c)))
        }),
        "mul24" if op.has("lo") => Some(binary(|a: u32, b: u32| low24(a).wrapping_mul(low24(b)))),
        // Division by zero is unspecified in PTX; all ones is what cards give.
        "div" => with_integer!(ty, T, W => {
            Some(binary(|a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) }))
        }),
        "rem" => with_integer!(ty, T, W => {
            Some(binary(|a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) }))
        }),
        "min" => with_integer!(ty, T, W => Some(binary(|a: T, b: T| a.min(b)))),
        "max" => with_integer!(ty, T, W => Some(binary(|a: T, b: T| a.max(b)))),
        "sad" => with_integer!(ty, T, W => {
            Some(ternary(|a: T, b: T, c: T| (a.max(b).wrapping_sub(a.min(b))).wrapping_add(c)))
        }),
        "abs" => match ty.bits {
            16 => Some(unary(|a: i16| a.wrapping_abs())),
            32 => Some(unary(|a: i32| a.wrapping_abs())),
            _ => Some(unary(|a: i64| a.wrapping_abs())),
        },
        "neg" => with_integer!(ty, T, W => Some(unary(|a: T| (0 as T).wrapping_sub(a)))),
        "dp4a" => dot_product(op),
        "vabsdiff4" if op.has("add") && !op.has("sat") => Some(ternary(absolute_differences)),
        _ => None,
    }
}

/// `mul.wide` and `mad.wide`: the whole product of 16- or 32-bit factors.
fn wide(op: &Opcode<'_>) -> Option<RowFn> {
    let adds = op.name == "mad";
    macro_rules! product {
        ($narrow:ty, $wide:ty) => {
            if adds {
                ternary(|a: $narrow, b: $narrow, c: $wide| {
                    (<$wide>::from(a) * <$wide>::from(b)).wrapping_add(c)
                })
            } else {
                binary(|a: $narrow, b: $narrow| <$wide>::from(a) * <$wide>::from(b))
            }
        };
    }
    Some(match (op.ty().is_signed(), op.ty().bits) {
        (false, 16) => product!(u16, u32),
        (true, 16) => product!(i16, i32),
        (false, 32) => product!(u32, u64),
        (true, 32) => product!(i32, i64),
        _ => return None,
    })
}

fn high<W: std::ops::Shr<u32, Output = W>>(product: W, bits: u32) -> W {
    product >> bits
}

fn low24(x: u32) -> u32 {
    x & 0x00FF_FFFF
}

/// `dp4a.atype.btype d, a, b, c`: four byte products added to `c`.
fn dot_product(op: &Opcode<'_>) -> Option<RowFn> {
    let &[a_type, b_type] = op.types.as_slice() else { return None };
    let (a_signed, b_signed) = (a_type.is_signed(), b_type.is_signed());
    let byte = |word: u32, index: u32, signed: bool| {
        let byte = (word >> (8 * index)) as u8; // the byte at `index`
        if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
    };
    Some(ternary(move |a: u32, b: u32, c: i32| {
        (0..4).fold(c, |sum: i32, index| {
            sum.wrapping_add(byte(a, index, a_signed) * byte(b, index, b_signed))
        })
    }))
}

/// `vabsdiff4.u32.u32.u32.add`: the sum of the bytes' absolute differences, added to `c`.
fn absolute_differences(a: u32, b: u32, c: u32) -> u32 {
    let differences = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    differences.fold(c, |sum, (a, b)| sum.wrapping_add(u32::from(a.abs_diff(b))))
}
