//! f32 and f64 arithmetic.

use super::Opcode;
use super::rounding::{Modes, Rounding, fma_f32, two_sum};
use crate::exec::lanes::{LANES, Lane, Row, RowFn, binary, ternary, unary};

pub(crate) fn select(op: &Opcode<'_>) -> Option<RowFn> {
    if op.ty().bits == 64 { select_f64(op) } else { select_f32(op) }
}

fn select_f32(op: &Opcode<'_>) -> Option<RowFn> {
    let modes = op.modes;
    let approximate = op.has("approx") || op.has("full");
    // Unary functions through f64, rounded once.
    let through_f64 = |f: fn(f64) -> f64| {
        Some(unary(move |x: f32| modes.output(f(f64::from(modes.input(x))) as f32)))
    };
    match op.name {
        "add" if modes.is_plain() => Some(binary(|a: f32, b: f32| a + b)),
        "sub" if modes.is_plain() => Some(binary(|a: f32, b: f32| a - b)),
        "mul" if modes.is_plain() => Some(binary(|a: f32, b: f32| a * b)),
        "fma" | "mad" if modes.is_plain() => Some(plain_fma()),
        "add" => Some(binary(move |a: f32, b: f32| sum(a, b, modes))),
        "sub" => Some(binary(move |a: f32, b: f32| sum(a, -b, modes))),
        "mul" => Some(binary(move |a: f32, b: f32| {
            // The product of two f32 is exact in f64.
            let exact = f64::from(modes.input(a)) * f64::from(modes.input(b));
            modes.output(modes.round(exact, 0.0))
        })),
        "fma" | "mad" => Some(ternary(move |a: f32, b: f32, c: f32| {
            modes.output(fma_f32(modes.input(a), modes.input(b), modes.input(c), modes))
        })),
        "div" if approximate || modes.rounding == Rounding::NearestEven => {
            Some(binary(move |a: f32, b: f32| modes.output(modes.input(a) / modes.input(b))))
        }
        "rcp" if approximate || modes.rounding == Rounding::NearestEven => {
            Some(unary(move |a: f32| modes.output(1.0 / modes.input(a))))
        }
        "sqrt" if approximate || modes.rounding == Rounding::NearestEven => {
            Some(unary(move |a: f32| modes.output(modes.input(a).sqrt())))
        }
        "rsqrt" => through_f64(|x| 1.0 / x.sqrt()),
        "sin" => through_f64(f64::sin),
        "cos" => through_f64(f64::cos),
        "ex2" => through_f64(f64::exp2),
        "lg2" => through_f64(f64::log2),
        "tanh" => through_f64(f64::tanh),
        "abs" => Some(unary(move |a: f32| modes.input(a).abs())),
        "neg" => Some(unary(move |a: f32| -modes.input(a))),
        "copysign" => Some(binary(|a: f32, b: f32| b.copysign(a))),
        "min" if op.has("xorsign") => None,
        "max" if op.has("xorsign") => None,
        "min" => {
            let keep_nan = op.has("NaN");
            Some(binary(move |a: f32, b: f32| least(modes.input(a), modes.input(b), keep_nan)))
        }
        "max" => {
            let keep_nan = op.has("NaN");
            Some(binary(move |a: f32, b: f32| -least(-modes.input(a), -modes.input(b), keep_nan)))
        }
        "slct" => Some(ternary(|a: f32, b: f32, c: i32| if c >= 0 { a } else { b })),
        _ => None,
    }
}

fn select_f64(op: &Opcode<'_>) -> Option<RowFn> {
    let nearest = op.modes.rounding == Rounding::NearestEven;
    match op.name {
        "add" if nearest => Some(binary(|a: f64, b: f64| a + b)),
        "sub" if nearest => Some(binary(|a: f64, b: f64| a - b)),
        "mul" if nearest => Some(binary(|a: f64, b: f64| a * b)),
        "fma" | "mad" if nearest => Some(ternary(|a: f64, b: f64, c: f64| a.mul_add(b, c))),
        "div" if nearest => Some(binary(|a: f64, b: f64| a / b)),
        // The approximations keep the upper 32 bits only, as their manual pages say.
        "rcp" if op.has("approx") => Some(unary(|a: f64| upper_word(1.0 / a))),
        "rsqrt" if op.has("approx") => Some(unary(|a: f64| upper_word(1.0 / a.sqrt()))),
        "rcp" if nearest => Some(unary(|a: f64| 1.0 / a)),
        "sqrt" if nearest => Some(unary(f64::sqrt)),
        "abs" => Some(unary(f64::abs)),
        "neg" => Some(unary(|a: f64| -a)),
        "copysign" => Some(binary(|a: f64, b: f64| b.copysign(a))),
        "min" => Some(binary(|a: f64, b: f64| least_f64(a, b))),
        "max" => Some(binary(|a: f64, b: f64| -least_f64(-a, -b))),
        _ => None,
    }
}

/// The smaller value; -0 is below +0, and a NaN loses against a number unless it is kept.
pub(crate) fn least(a: f32, b: f32, keep_nan: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        let both = a.is_nan() && b.is_nan();
        return if keep_nan || both {
            canonical_nan()
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    if a < b || (a == b && a.is_sign_negative()) { a } else { b }
}

fn least_f64(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        return b;
    }
    if b.is_nan() || a < b || (a == b && a.is_sign_negative()) { a } else { b }
}

fn canonical_nan() -> f32 {
    f32::from_bits(0x7FFF_FFFF)
}

fn sum(a: f32, b: f32, modes: Modes) -> f32 {
    let (high, low) = two_sum(f64::from(modes.input(a)), f64::from(modes.input(b)));
    modes.output(modes.round(high, low))
}

fn upper_word(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & 0xFFFF_FFFF_0000_0000)
}

/// The commonest instruction of all: fused multiply-add, in the host's vector unit where it has
/// one and in exact pieces where not. Both round once.
fn plain_fma() -> RowFn {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        return Box::new(|out, a, b, c, _| {
            // SAFETY: both features were detected above.
            unsafe { fma_row(out, a, b, c) }
        });
    }
    let modes = Modes::of(&[]);
    ternary(move |a: f32, b: f32, c: f32| fma_f32(a, b, c, modes))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_row(out: &mut Row, a: &Row, b: &Row, c: &Row) {
    for lane in 0..LANES {
        out[lane] = f32::get(a[lane]).mul_add(f32::get(b[lane]), f32::get(c[lane])).put();
    }
}
