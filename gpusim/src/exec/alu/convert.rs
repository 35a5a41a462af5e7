//! `cvt`: between integers and floating-point formats, with every rounding direction.

use half::{bf16, f16};

use super::Opcode;
use super::rounding::{Modes, Rounding, odd_sum, to_bf16, to_f16};
use crate::exec::lanes::{RowFn, Two, binary, unary};
use crate::ptx::types::{Kind, Type};

pub(crate) fn select(op: &Opcode<'_>) -> Option<RowFn> {
    let &[to, from] = op.types.as_slice() else { return None };
    let modes = op.modes;
    match (to.kind, from.kind) {
        // The first source becomes the high half.
        (Kind::F16x2, Kind::Float) => {
            Some(binary(move |a: f32, b: f32| Two(half_of(b, modes), half_of(a, modes))))
        }
        (Kind::Bf16x2, Kind::Float) => {
            Some(binary(move |a: f32, b: f32| Two(bhalf_of(b, modes), bhalf_of(a, modes))))
        }
        (Kind::Tf32, Kind::Float) => Some(unary(|a: f32| tf32_of(a))),
        (_, Kind::Float | Kind::Bf16) if is_integer(to) => float_to_integer(to, from, modes),
        (_, Kind::Float | Kind::Bf16) => float_to_float(op, to, from),
        (Kind::Float | Kind::Bf16, _) if is_integer(from) => integer_to_float(to, from, modes),
        _ if is_integer(to) && is_integer(from) => Some(integer_to_integer(to, from, modes)),
        _ => None,
    }
}

fn is_integer(ty: Type) -> bool {
    matches!(ty.kind, Kind::Unsigned | Kind::Signed | Kind::Bits)
}

/// The value of the low bits of a register as an integer of `ty`.
fn integer_value(bits: u64, ty: Type) -> i128 {
    let unused = 64 - ty.bits;
    if ty.is_signed() {
        i128::from((bits << unused).cast_signed() >> unused)
    } else {
        i128::from((bits << unused) >> unused)
    }
}

/// Bits of an integer of `ty`, wrapped to its width.
fn integer_bits(value: i128, ty: Type) -> u64 {
    let wrapped = value as u64; // the low 64 bits, cut below
    if ty.bits == 64 { wrapped } else { wrapped & ((1 << ty.bits) - 1) }
}

fn range(ty: Type) -> (i128, i128) {
    if ty.is_signed() {
        (-(1 << (ty.bits - 1)), (1 << (ty.bits - 1)) - 1)
    } else {
        (0, (1 << ty.bits) - 1)
    }
}

fn integer_to_integer(to: Type, from: Type, modes: Modes) -> RowFn {
    let (low, high) = range(to);
    unary(move |a: u64| {
        let value = integer_value(a, from);
        let value = if modes.saturate { value.clamp(low, high) } else { value };
        // A narrow signed value in a wider register is sign-extended to the type only.
        integer_bits(value, to)
    })
}

fn float_to_integer(to: Type, from: Type, modes: Modes) -> Option<RowFn> {
    let (low, high) = range(to);
    let read = reader(from)?;
    let flush = modes.flush && from.bits == 32;
    Some(unary(move |a: u64| {
        let mut x = read(a);
        if flush && (x as f32).is_subnormal() {
            x = 0.0;
        }
        // `as` turns NaN into 0 and saturates, as the conversion does.
        integer_bits((round_to_integer(x, modes.rounding) as i128).clamp(low, high), to)
    }))
}

fn integer_to_float(to: Type, from: Type, modes: Modes) -> Option<RowFn> {
    let write = writer(to, modes)?;
    Some(unary(move |a: u64| {
        let value = integer_value(a, from);
        // A 64-bit integer is the exact sum of two f64.
        let high = value as f64;
        let low = (value - high as i128) as f64;
        write(high, low)
    }))
}

fn float_to_float(op: &Opcode<'_>, to: Type, from: Type) -> Option<RowFn> {
    let read = reader(from)?;
    let mut modes = op.modes;
    let integral = ["rni", "rzi", "rmi", "rpi"].iter().any(|mode| op.has(mode));
    let direction = modes.rounding;
    if integral {
        // The suffix rounds to an integer; the result is then representable.
        modes.rounding = Rounding::NearestEven;
    }
    let write = writer(to, modes)?;
    let flush = modes.flush && from.bits == 32;
    Some(unary(move |a: u64| {
        let mut x = read(a);
        if flush && (x as f32).is_subnormal() {
            x = 0f64.copysign(x);
        }
        write(if integral { round_to_integer(x, direction) } else { x }, 0.0)
    }))
}

fn round_to_integer(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::NearestEven => x.round_ties_even(),
        Rounding::NearestAway => x.round(),
        Rounding::TowardZero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

/// Reads a floating-point register as f64, which holds every value of the formats.
fn reader(from: Type) -> Option<fn(u64) -> f64> {
    Some(match (from.kind, from.bits) {
        // Registers are zero-extended: the casts below keep all bits of the format.
        (Kind::Bf16, _) => |bits| bf16::from_bits(bits as u16).to_f64(),
        (Kind::Float, 16) => |bits| f16::from_bits(bits as u16).to_f64(),
        (Kind::Float, 32) => |bits| f64::from(f32::from_bits(bits as u32)),
        (Kind::Float, 64) => f64::from_bits,
        _ => return None,
    })
}

type Writer = Box<dyn Fn(f64, f64) -> u64 + Send + Sync>;

/// Rounds an exact sum of two f64 into a format.
fn writer(to: Type, modes: Modes) -> Option<Writer> {
    let clamp = move |x: f64| {
        if modes.saturate {
            if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }
        } else if modes.relu && x < 0.0 {
            0.0
        } else {
            x
        }
    };
    Some(match (to.kind, to.bits) {
        (Kind::Bf16, _) => Box::new(move |high, low| {
            u64::from(to_bf16(clamp(odd_sum(high, low)), modes.rounding).to_bits())
        }),
        (Kind::Float, 16) => Box::new(move |high, low| {
            u64::from(to_f16(clamp(odd_sum(high, low)), modes.rounding).to_bits())
        }),
        (Kind::Float, 32) => {
            Box::new(move |high, low| u64::from(modes.output(modes.round(high, low)).to_bits()))
        }
        (Kind::Float, 64) => Box::new(move |high, low| {
            let step = match modes.rounding {
                Rounding::Down | Rounding::TowardZero if low < 0.0 && high > 0.0 => {
                    high.next_down()
                }
                Rounding::Down if low < 0.0 => high.next_down(),
                Rounding::Up if low > 0.0 => high.next_up(),
                Rounding::TowardZero if low > 0.0 && high < 0.0 => high.next_up(),
                _ => high,
            };
            clamp(step).to_bits()
        }),
        _ => return None,
    })
}

fn half_of(x: f32, modes: Modes) -> f16 {
    let x = if modes.relu && x < 0.0 { 0.0 } else { x };
    to_f16(f64::from(x), modes.rounding)
}

fn bhalf_of(x: f32, modes: Modes) -> bf16 {
    let x = if modes.relu && x < 0.0 { 0.0 } else { x };
    to_bf16(f64::from(x), modes.rounding)
}

/// Nearest value with 10 mantissa bits, ties away from zero.
fn tf32_of(x: f32) -> u32 {
    if x.is_nan() {
        return 0x7FFF_FFFF;
    }
    if x.is_infinite() { x.to_bits() } else { (x.to_bits() + 0x1000) & !0x1FFF }
}
