//! Sums in a fixed order, and the few scalar functions of the forward pass.
//!
//! A row of a product must not depend on how many rows share it (contract-notes D41), so every sum of
//! the backend goes through [`dot`] or an equally fixed loop.

use half::bf16;

/// Partial sums kept by [`dot`]: enough independent chains for the compiler to use vector registers.
const LANES: usize = 16;

/// f32 dot product of two vectors of one length: lane `i mod 16` sums element `i`, then lanes are added
/// pairwise. The order depends on the length alone.
#[inline]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len(), "dot product of unequal lengths");
    let mut lanes = [0.0; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for (lane, (x, y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane += x * y;
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += x * y;
    }
    fold(&lanes)
}

/// Adds lanes pairwise: first with the one 8 further, then 4, 2, 1. Not inlined, because the compiler then
/// picks an order of lanes that suits the fold and shuffles all of them for every 16 products.
#[inline(never)]
fn fold(lanes: &[f32; LANES]) -> f32 {
    let mut lanes = *lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Rounds every value to bf16, ties to even. NaN stays NaN.
pub(super) fn round_bf16(values: &mut [f32]) {
    for value in values {
        *value = bf16::from_f32(*value).to_f32();
    }
}

/// Little-endian bf16 values as f32; exact.
pub(super) fn widen_bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, &pair) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = bf16::from_le_bytes(pair).to_f32();
    }
}

/// `1 / (1 + e^-x)`, in [0, 1] for every number.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)` without overflow.
pub(super) fn softplus(x: f32) -> f32 {
    // `f32::max` would turn NaN into 0 and hide a broken row.
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_product_covers_every_element() {
        for len in [0, 1, 15, 16, 17, 40] {
            let a: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let exact: f32 = a.iter().map(|x| x * x).sum();
            assert_eq!(dot(&a, &a), exact, "length {len}");
        }
    }

    #[test]
    fn extremes_stay_numbers_and_nan_stays_nan() {
        assert_eq!(sigmoid(-1000.0), 0.0);
        assert_eq!(sigmoid(1000.0), 1.0);
        assert_eq!(softplus(1000.0), 1000.0);
        assert_eq!(softplus(-1000.0), 0.0);
        assert!(softplus(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        let mut values = [1.003_906_3, f32::NAN, f32::INFINITY];
        round_bf16(&mut values);
        assert_eq!(values[0], 1.0);
        assert!(values[1].is_nan() && values[2] == f32::INFINITY);
    }
}
