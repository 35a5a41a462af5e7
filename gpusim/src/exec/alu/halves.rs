//! f16 and bfloat16 arithmetic, single and packed.
//!
//! Sum, difference and product go through f32: with 24 bits it holds twice the precision of either
//! format plus two, so that rounding twice gives the same as rounding once. A fused multiply-add
//! does not fit and is rounded from an exact sum.

use half::{bf16, f16};

use super::Opcode;
use super::float::least;
use super::rounding::{Modes, Rounding, odd_sum, saturate, to_bf16, to_f16, two_sum};
use crate::exec::lanes::{Lane, RowFn, Two, binary, ternary, unary};
use crate::ptx::types::Kind;

/// A 16-bit floating-point format.
pub(crate) trait Half: Lane + Send + Sync {
    fn wide(self) -> f32;
    fn nearest(x: f64) -> Self;
}

impl Half for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn nearest(x: f64) -> Self {
        to_f16(x, Rounding::NearestEven)
    }
}

impl Half for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn nearest(x: f64) -> Self {
        to_bf16(x, Rounding::NearestEven)
    }
}

pub(crate) fn select(op: &Opcode<'_>) -> Option<RowFn> {
    let approximate = matches!(op.name, "ex2" | "tanh");
    if op.modes.rounding != Rounding::NearestEven || (op.modes.flush && !approximate) {
        return None;
    }
    match op.ty().kind {
        Kind::Float => select_single::<f16>(op),
        Kind::Bf16 => select_single::<bf16>(op),
        Kind::F16x2 => select_packed::<f16>(op),
        Kind::Bf16x2 => select_packed::<bf16>(op),
        _ => None,
    }
}

type Function2 = fn(f32, f32) -> f32;
type Function1 = fn(f32) -> f32;

fn select_single<T: Half>(op: &Opcode<'_>) -> Option<RowFn> {
    let modes = op.modes;
    if let Some(f) = function1(op) {
        return Some(unary(move |a: T| apply1(a, f)));
    }
    if let Some(f) = function2(op) {
        return Some(binary(move |a: T, b: T| apply2(a, b, f, modes)));
    }
    (op.name == "fma").then(|| ternary(move |a: T, b: T, c: T| fma(a, b, c, modes)))
}

fn select_packed<T: Half>(op: &Opcode<'_>) -> Option<RowFn> {
    let modes = op.modes;
    if let Some(f) = function1(op) {
        return Some(unary(move |a: Two<T>| a.map(|a| apply1(a, f))));
    }
    if let Some(f) = function2(op) {
        return Some(binary(move |a: Two<T>, b: Two<T>| a.zip(b, |a, b| apply2(a, b, f, modes))));
    }
    (op.name == "fma").then(|| {
        ternary(move |a: Two<T>, b: Two<T>, c: Two<T>| {
            Two(fma(a.0, b.0, c.0, modes), fma(a.1, b.1, c.1, modes))
        })
    })
}

fn function1(op: &Opcode<'_>) -> Option<Function1> {
    Some(match op.name {
        "neg" => |x| -x,
        "abs" => f32::abs,
        "ex2" => |x| f64::from(x).exp2() as f32,
        "tanh" => |x| f64::from(x).tanh() as f32,
        _ => return None,
    })
}

fn function2(op: &Opcode<'_>) -> Option<Function2> {
    let keep_nan = op.has("NaN");
    Some(match op.name {
        "add" => |a, b| a + b,
        "sub" => |a, b| a - b,
        "mul" => |a, b| a * b,
        "min" if keep_nan => |a, b| least(a, b, true),
        "max" if keep_nan => |a, b| -least(-a, -b, true),
        "min" => |a, b| least(a, b, false),
        "max" => |a, b| -least(-a, -b, false),
        _ => return None,
    })
}

fn apply1<T: Half>(a: T, f: Function1) -> T {
    T::nearest(f64::from(f(a.wide())))
}

fn apply2<T: Half>(a: T, b: T, f: Function2, modes: Modes) -> T {
    T::nearest(f64::from(clamp(f(a.wide(), b.wide()), modes)))
}

fn fma<T: Half>(a: T, b: T, c: T, modes: Modes) -> T {
    // The product of two 16-bit floats is exact in f64; the sum keeps its error and becomes odd,
    // so that the one rounding below sees on which side of a tie it lies.
    let (high, low) = two_sum(f64::from(a.wide()) * f64::from(b.wide()), f64::from(c.wide()));
    let exact = odd_sum(high, low);
    if modes.saturate || modes.relu {
        // Clamping commutes with rounding: 0 and 1 are representable.
        let exact = if exact.is_nan() && modes.saturate { 0.0 } else { exact };
        let exact = if exact < 0.0 { 0.0 } else { exact };
        return T::nearest(if modes.saturate { exact.min(1.0) } else { exact });
    }
    T::nearest(exact)
}

fn clamp(x: f32, modes: Modes) -> f32 {
    if modes.saturate {
        saturate(x)
    } else if modes.relu && x < 0.0 {
        0.0
    } else {
        x
    }
}
