//! `setp` and `set`: relations of integers and floating-point values.

use half::{bf16, f16};

use super::Opcode;
use crate::exec::lanes::{Lane, MaskFn, RowFn, Two, binary, relation};
use crate::ptx::types::{Kind, Type};

/// A relation by its name; `None` for a name PTX does not have for the kind of type.
pub(crate) fn relation_of(name: &str, ty: Type) -> Option<MaskFn> {
    let is_float = matches!(ty.kind, Kind::Float | Kind::Bf16);
    if is_float {
        let f = float_relation(name)?;
        return Some(match (ty.kind, ty.bits) {
            (Kind::Bf16, _) => relation(move |a: bf16, b: bf16| f(a.to_f64(), b.to_f64())),
            (_, 16) => relation(move |a: f16, b: f16| f(a.to_f64(), b.to_f64())),
            (_, 32) => relation(move |a: f32, b: f32| f(f64::from(a), f64::from(b))),
            _ => relation(f),
        });
    }
    match (ty.is_signed(), ty.bits) {
        (true, 16) => integer_relation::<i16>(name),
        (true, 32) => integer_relation::<i32>(name),
        (true, 64) => integer_relation::<i64>(name),
        (false, 16) => integer_relation::<u16>(name),
        (false, 32) => integer_relation::<u32>(name),
        (false, 64) => integer_relation::<u64>(name),
        _ => None,
    }
}

/// The relation of a `setp`; packed halves have one per half.
pub(crate) fn select_setp(op: &Opcode<'_>) -> Option<(MaskFn, Option<MaskFn>)> {
    let name = relation_name(op)?;
    let ty = op.ty();
    match ty.kind {
        Kind::F16x2 => {
            let f = float_relation(name)?;
            let low = relation(move |a: Two<f16>, b: Two<f16>| f(a.0.to_f64(), b.0.to_f64()));
            let high = relation(move |a: Two<f16>, b: Two<f16>| f(a.1.to_f64(), b.1.to_f64()));
            Some((low, Some(high)))
        }
        Kind::Bf16x2 => {
            let f = float_relation(name)?;
            let low = relation(move |a: Two<bf16>, b: Two<bf16>| f(a.0.to_f64(), b.0.to_f64()));
            let high = relation(move |a: Two<bf16>, b: Two<bf16>| f(a.1.to_f64(), b.1.to_f64()));
            Some((low, Some(high)))
        }
        _ => Some((relation_of(name, ty)?, None)),
    }
}

/// `set.cmp.dtype.stype`: all ones or 1.0 where the relation holds, else 0.
pub(crate) fn select_set(op: &Opcode<'_>) -> Option<RowFn> {
    let name = relation_name(op)?;
    let &[to, from] = op.types.as_slice() else { return None };
    let (one, one_high) = match to.kind {
        Kind::Float if to.bits == 32 => (u64::from(1f32.to_bits()), 0),
        Kind::Float => (u64::from(f16::ONE.to_bits()), 0),
        Kind::Bf16 => (u64::from(bf16::ONE.to_bits()), 0),
        Kind::F16x2 => (u64::from(f16::ONE.to_bits()), u64::from(f16::ONE.to_bits()) << 16),
        Kind::Bf16x2 => (u64::from(bf16::ONE.to_bits()), u64::from(bf16::ONE.to_bits()) << 16),
        _ if matches!(from.kind, Kind::F16x2 | Kind::Bf16x2) => (0xFFFF, 0xFFFF_0000),
        _ => (u64::from(u32::MAX), 0),
    };
    match from.kind {
        Kind::F16x2 => {
            let f = float_relation(name)?;
            Some(binary(move |a: Two<f16>, b: Two<f16>| {
                let low = if f(a.0.to_f64(), b.0.to_f64()) { one } else { 0 };
                low | if f(a.1.to_f64(), b.1.to_f64()) { one_high } else { 0 }
            }))
        }
        Kind::Bf16x2 => {
            let f = float_relation(name)?;
            Some(binary(move |a: Two<bf16>, b: Two<bf16>| {
                let low = if f(a.0.to_f64(), b.0.to_f64()) { one } else { 0 };
                low | if f(a.1.to_f64(), b.1.to_f64()) { one_high } else { 0 }
            }))
        }
        _ => {
            let holds = relation_of(name, from)?;
            Some(Box::new(move |out, a, b, _, _| {
                let mask = holds(a, b);
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = if mask >> lane & 1 == 1 { one } else { 0 };
                }
            }))
        }
    }
}

fn relation_name<'a>(op: &Opcode<'a>) -> Option<&'a str> {
    let names = [
        "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu",
        "gtu", "geu", "num", "nan",
    ];
    op.suffixes.iter().map(String::as_str).find(|part| names.contains(part))
}

fn integer_relation<T: Lane + Ord>(name: &str) -> Option<MaskFn> {
    Some(match name {
        "eq" => relation(|a: T, b: T| a == b),
        "ne" => relation(|a: T, b: T| a != b),
        "lt" | "lo" => relation(|a: T, b: T| a < b),
        "le" | "ls" => relation(|a: T, b: T| a <= b),
        "gt" | "hi" => relation(|a: T, b: T| a > b),
        "ge" | "hs" => relation(|a: T, b: T| a >= b),
        _ => return None,
    })
}

/// Ordered relations are false for NaN, unordered ones (`…u`) true.
fn float_relation(name: &str) -> Option<fn(f64, f64) -> bool> {
    fn unordered(a: f64, b: f64) -> bool {
        a.is_nan() || b.is_nan()
    }
    Some(match name {
        "eq" => |a, b| a == b,
        "ne" => |a, b| !unordered(a, b) && a != b,
        "lt" => |a, b| a < b,
        "le" => |a, b| a <= b,
        "gt" => |a, b| a > b,
        "ge" => |a, b| a >= b,
        "equ" => |a, b| unordered(a, b) || a == b,
        "neu" => |a, b| a != b,
        "ltu" => |a, b| unordered(a, b) || a < b,
        "leu" => |a, b| unordered(a, b) || a <= b,
        "gtu" => |a, b| unordered(a, b) || a > b,
        "geu" => |a, b| unordered(a, b) || a >= b,
        "num" => |a, b| !unordered(a, b),
        "nan" => unordered,
        _ => return None,
    })
}
