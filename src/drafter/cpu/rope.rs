//! Rotary positions on the last dims of a head, adjacent pairs, plain base: no YaRN, no amplitude
//! (`deepseek-ai/DeepSeek-V4.1-Flash inference/model.py`, `precompute_freqs_cis`, `apply_rotary_emb`).
//!
//! The angle is one f32 product, as both public implementations build f32 tables: near the largest
//! position that differs from the exact product by up to 0.008 rad, and the difference is part of the
//! definition.

use super::Precision;

/// The inverse frequencies of one rotary width.
pub(super) struct Rope {
    inverse: Vec<f32>,
}

/// Cosines and sines of some rows, `[rows, rotary / 2]` each, computed once and used by every layer.
pub(super) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairs: usize,
}

/// Forward turns a vector to its position; inverse turns an attention output back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Forward,
    Inverse,
}

impl Rope {
    /// Frequencies `theta^(-2i/rotary)` of the pairs i, each rounded to f32 before and after the
    /// reciprocal.
    pub(super) fn new(theta: f64, rotary: usize) -> Self {
        let pairs = rotary / 2;
        let power = |i: usize| theta.powf(i as f64 / pairs as f64) as f32;
        Self { inverse: (0..pairs).map(|i| 1.0 / power(i)).collect() }
    }

    /// Memory for the angles of up to `rows` rows.
    pub(super) fn angles(&self, rows: usize) -> Angles {
        let pairs = self.inverse.len();
        Angles { cos: vec![0.0; rows * pairs], sin: vec![0.0; rows * pairs], pairs }
    }

    /// Fills row `row` with the angles of `pos`.
    pub(super) fn set(&self, angles: &mut Angles, row: usize, pos: i64) {
        let at = row * angles.pairs..(row + 1) * angles.pairs;
        // Clamped positions are below 2^32; to f32 they round as the public tables do.
        let pos = pos as f32;
        let cos_sin = angles.cos[at.clone()].iter_mut().zip(&mut angles.sin[at]);
        for ((cos, sin), inverse) in cos_sin.zip(&self.inverse) {
            let (s, c) = f64::from(pos * inverse).sin_cos();
            (*cos, *sin) = (c as f32, s as f32);
        }
    }
}

impl Angles {
    /// Rotates the last `2 · pairs` of every `head_dim` values of `x`; each angle row serves `heads`
    /// consecutive heads. The rotated values are rounded.
    pub(super) fn rotate(
        &self,
        x: &mut [f32],
        head_dim: usize,
        heads: usize,
        turn: Turn,
        precision: Precision,
    ) {
        let sign = if turn == Turn::Forward { 1.0 } else { -1.0 };
        for (row, x) in x.chunks_exact_mut(heads * head_dim).enumerate() {
            let cos = &self.cos[row * self.pairs..][..self.pairs];
            let sin = &self.sin[row * self.pairs..][..self.pairs];
            for head in x.chunks_exact_mut(head_dim) {
                let tail = &mut head[head_dim - 2 * self.pairs..];
                let (pairs, _) = tail.as_chunks_mut::<2>();
                for (pair, (&cos, &sin)) in pairs.iter_mut().zip(cos.iter().zip(sin)) {
                    let ([even, odd], sin) = (*pair, sign * sin);
                    *pair = [even * cos - odd * sin, even * sin + odd * cos];
                }
                precision.round(tail);
            }
        }
    }
}

/// Row of the rotary table for `pos`: positions from `max_model_len` on share the last one
/// (contract §7.2 step 5, contract-notes D36).
pub(super) fn table_row(pos: i64, max_model_len: i64) -> i64 {
    pos.min(max_model_len - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The live table: base 10000, 64 rotary dims.
    const INVERSE_BITS: [u32; 32] = [
        0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887,
        0x3e088d77, 0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f,
        0x3c91ad39, 0x3c5a7bf2, 0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38,
        0x3b1b690d, 0x3ae91528, 0x3aaec98e, 0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725,
        0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472,
    ];

    #[test]
    fn the_live_frequencies_are_exact_to_the_bit() {
        let rope = Rope::new(10_000.0, 64);
        let bits: Vec<u32> = rope.inverse.iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, INVERSE_BITS);
    }

    #[test]
    fn adjacent_pairs_of_the_tail_turn_and_turn_back() {
        let rope = Rope::new(10_000.0, 64);
        let mut angles = rope.angles(1);
        rope.set(&mut angles, 0, 5);
        let mut x = vec![0.0; 70];
        (x[0], x[6 + 2], x[6 + 3]) = (7.0, 1.0, 2.0);
        angles.rotate(&mut x, 70, 1, Turn::Forward, Precision::F32);
        assert_eq!(x[0], 7.0, "dims before the tail must not turn");
        assert!((x[8] - 0.321_392_8).abs() < 1e-6 && (x[9] + 2.212_850_3).abs() < 1e-6);
        angles.rotate(&mut x, 70, 1, Turn::Inverse, Precision::F32);
        assert!((x[8] - 1.0).abs() < 1e-6 && (x[9] - 2.0).abs() < 1e-6);
    }

    #[test]
    fn positions_beyond_the_table_use_its_last_row() {
        assert_eq!(table_row(i64::MAX, 327_680), 327_679);
        assert_eq!(table_row(327_679, 327_680), 327_679);
        assert_eq!(table_row(5, 327_680), 5);
    }
}
