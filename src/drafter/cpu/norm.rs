//! RMS norm with a plain weight (`deepseek-ai/DeepSeek-V4.1-Flash inference/model.py`, `RMSNorm`).

use super::Precision;
use super::math::dot;

/// `1 / sqrt(mean(x²) + eps)` in f32. The live eps of 1e-20 is a normal f32 and keeps a zero row at zero.
pub(super) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// Norms each row of `x` [rows, len] into `out` of the same shape: `weight · (x · inverse_rms)`, one
/// rounding at the end. `weight` [len] is used as it is, not as an offset from one.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32], precision: Precision) {
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let scale = inverse_rms(x, eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = weight * (x * scale);
        }
    }
    precision.round(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_row_stays_zero_and_a_denormal_one_stays_finite() {
        let mut out = [f32::NAN; 4];
        rms_norm(&[0.0; 4], &[1.0; 4], 1e-20, &mut out, Precision::Bf16);
        assert_eq!(out, [0.0; 4]);
        rms_norm(&[f32::from_bits(1); 4], &[1.0; 4], 1e-20, &mut out, Precision::F32);
        assert!(out.iter().all(|v| v.is_finite()));
    }

    #[test]
    fn the_weight_is_not_an_offset_from_one() {
        let mut out = [0.0; 2];
        rms_norm(&[3.0, -3.0], &[0.5, 2.0], 1e-20, &mut out, Precision::F32);
        assert_eq!(out, [0.5, -2.0]);
    }
}
