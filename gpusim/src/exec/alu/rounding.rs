//! Rounding modes, flushing and saturation: what an opcode's suffixes ask of its arithmetic.
//!
//! Round-to-nearest is the host's own. Directed rounding starts from an exact value given as the
//! unevaluated sum of two f64 and corrects the nearest f32 by one step.

use half::{bf16, f16};

/// Direction of rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    NearestEven,
    TowardZero,
    Down,
    Up,
    /// Nearest, ties away from zero (`rna`, conversions only).
    NearestAway,
}

/// The modifiers of a floating-point opcode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    pub(crate) rounding: Rounding,
    /// Subnormal f32 inputs and results become zero.
    pub(crate) flush: bool,
    /// Results are clamped to [0, 1], NaN becomes 0.
    pub(crate) saturate: bool,
    /// Negative results become 0 (`.relu`).
    pub(crate) relu: bool,
}

impl Modes {
    /// Reads the suffixes of an opcode.
    pub(crate) fn of(opcode: &[String]) -> Self {
        let has = |name: &str| opcode.iter().any(|part| part == name);
        let rounding = if has("rz") || has("rzi") {
            Rounding::TowardZero
        } else if has("rm") || has("rmi") {
            Rounding::Down
        } else if has("rp") || has("rpi") {
            Rounding::Up
        } else if has("rna") {
            Rounding::NearestAway
        } else {
            Rounding::NearestEven
        };
        Self { rounding, flush: has("ftz"), saturate: has("sat"), relu: has("relu") }
    }

    /// Nearest rounding and nothing else.
    pub(crate) fn is_plain(self) -> bool {
        self.rounding == Rounding::NearestEven && !self.flush && !self.saturate && !self.relu
    }

    /// An f32 source as the operation sees it.
    pub(crate) fn input(self, x: f32) -> f32 {
        if self.flush && x.is_subnormal() { 0f32.copysign(x) } else { x }
    }

    /// An f32 result after flushing and clamping.
    pub(crate) fn output(self, x: f32) -> f32 {
        let x = self.input(x);
        if self.saturate {
            return saturate(x);
        }
        if self.relu && x < 0.0 { 0.0 } else { x }
    }

    /// Rounds the exact value `high + low` (|low| at most half a step of `high`) to f32.
    pub(crate) fn round(self, high: f64, low: f64) -> f32 {
        round_sum(high, low, self.rounding)
    }
}

/// Clamps to [0, 1]; NaN and -0 become 0.
pub(crate) fn saturate(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) + 0.0 }
}

/// `a + b` as an unevaluated sum of two f64: the rounded sum and its exact error.
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    if !sum.is_finite() {
        return (sum, 0.0);
    }
    let b_part = sum - a;
    let a_part = sum - b_part;
    (sum, (a - a_part) + (b - b_part))
}

fn round_sum(high: f64, low: f64, rounding: Rounding) -> f32 {
    let nearest = high as f32;
    if !high.is_finite() {
        return nearest;
    }
    // Sign of exact - nearest. The difference of high and its nearest f32 is exact in f64.
    let difference = if nearest.is_finite() { (high - f64::from(nearest)) + low } else { -high };
    match rounding {
        Rounding::Down if difference < 0.0 => nearest.next_down(),
        Rounding::Up if difference > 0.0 => nearest.next_up(),
        Rounding::TowardZero if nearest > 0.0 && difference < 0.0 => nearest.next_down(),
        Rounding::TowardZero if nearest < 0.0 && difference > 0.0 => nearest.next_up(),
        Rounding::NearestEven | Rounding::NearestAway if low != 0.0 => odd_sum(high, low) as f32,
        _ => nearest,
    }
}

/// One f64 that rounds to a narrower format as the exact `high + low` does: odd when inexact.
pub(crate) fn odd_sum(high: f64, low: f64) -> f64 {
    let bits = high.to_bits();
    if low == 0.0 || !high.is_finite() || bits & 1 == 1 {
        return high;
    }
    let away = (low > 0.0) == (high > 0.0);
    f64::from_bits(if away { bits + 1 } else { bits - 1 })
}

/// Fused multiply-add of f32 with one rounding.
pub(crate) fn fma_f32(a: f32, b: f32, c: f32, modes: Modes) -> f32 {
    let product = f64::from(a) * f64::from(b); // exact: 48 bits
    let (high, low) = two_sum(product, f64::from(c));
    modes.round(high, low)
}

/// Rounds an f64 to f16 once. NaN becomes the card's 0x7FFF.
pub(crate) fn to_f16(x: f64, rounding: Rounding) -> f16 {
    if x.is_nan() {
        return f16::from_bits(0x7FFF);
    }
    let nearest = f16::from_f32(odd_f32(x));
    step_half(x, nearest.to_f64(), rounding)
        .map_or(nearest, |up| f16::from_bits(next_half(nearest.to_bits(), up)))
}

/// Rounds an f64 to bfloat16 once. NaN becomes the card's 0x7FFF.
pub(crate) fn to_bf16(x: f64, rounding: Rounding) -> bf16 {
    if x.is_nan() {
        return bf16::from_bits(0x7FFF);
    }
    let nearest = bf16::from_f32(odd_f32(x));
    step_half(x, nearest.to_f64(), rounding)
        .map_or(nearest, |up| bf16::from_bits(next_half(nearest.to_bits(), up)))
}

/// The f32 of a value that an inexact conversion leaves odd: rounding it again to 16 bits gives
/// what rounding the value once gives.
fn odd_f32(x: f64) -> f32 {
    let toward_zero = round_sum(x, 0.0, Rounding::TowardZero);
    if x.is_finite() && f64::from(toward_zero) != x {
        f32::from_bits(toward_zero.to_bits() | 1)
    } else {
        toward_zero
    }
}

/// Whether the nearest value must move up or down to honour a direction.
fn step_half(exact: f64, nearest: f64, rounding: Rounding) -> Option<bool> {
    if !exact.is_finite() || nearest == exact {
        return None;
    }
    let below = nearest < exact;
    match rounding {
        Rounding::NearestEven | Rounding::NearestAway => None,
        Rounding::Down => (!below).then_some(false),
        Rounding::Up => below.then_some(true),
        Rounding::TowardZero if exact > 0.0 => (!below).then_some(false),
        Rounding::TowardZero => below.then_some(true),
    }
}

/// The neighbour of a 16-bit float in sign-magnitude order.
fn next_half(bits: u16, up: bool) -> u16 {
    let negative = bits & 0x8000 != 0;
    if bits & 0x7FFF == 0 {
        return if up { 1 } else { 0x8001 };
    }
    if negative == up { bits - 1 } else { bits + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(rounding: Rounding) -> Modes {
        Modes { rounding, flush: false, saturate: false, relu: false }
    }

    #[test]
    fn fma_in_f64_pieces_equals_the_fused_one() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            f32::from_bits((state >> 32) as u32)
        };
        for _ in 0..200_000 {
            let (a, b, c) = (next(), next(), next());
            let (ours, theirs) = (fma_f32(a, b, c, modes(Rounding::NearestEven)), a.mul_add(b, c));
            let same = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
            assert!(same, "{a:e} * {b:e} + {c:e}: {ours:e}, {theirs:e}");
        }
    }

    #[test]
    fn directed_results_bracket_the_exact_one() {
        let (a, b, c) = (1.000_000_1f32, 3.000_000_2f32, 1e-9f32);
        let down = fma_f32(a, b, c, modes(Rounding::Down));
        let up = fma_f32(a, b, c, modes(Rounding::Up));
        assert_eq!(down.next_up(), up);
        assert_eq!(fma_f32(a, b, c, modes(Rounding::TowardZero)), down);
        assert_eq!(fma_f32(-a, b, -c, modes(Rounding::TowardZero)), -down);
    }

    #[test]
    fn bf16_of_f64_is_rounded_once() {
        // Just above the middle between two bf16 values, by less than an f32 step.
        let x = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(to_bf16(x, Rounding::NearestEven).to_f64(), 1.0 + 2f64.powi(-7));
        assert_eq!(to_bf16(x, Rounding::TowardZero).to_f64(), 1.0);
        assert_eq!(to_f16(-x, Rounding::Up).to_f64(), -1.0 - 2f64.powi(-8));
    }
}
