//! Rotary angles of positions, as kernels read them.
//!
//! 32 sines and cosines a row would be most of the host's work in a STEP. The positions a block was drafted
//! for come back as context rows of the next STEPs and as rows of the next block, so the last ones of every
//! slot are kept and a round computes about as many rows as were accepted.

use super::shape::Shape;

/// Positions kept for each slot: more than a STEP of decoding touches, and a power of two.
const KEPT: usize = 256;

/// Angles by slot and position.
pub(super) struct Angles {
    /// Frequencies of the rotary pairs, as the CPU backend computes them.
    inverse: Vec<f32>,
    /// `[slots, KEPT]` position of each entry; none for one that holds nothing.
    positions: Vec<Option<i64>>,
    /// `[slots, KEPT, pairs, 2]` cosine and sine, f32 in the device's byte order.
    bytes: Vec<u8>,
}

impl Angles {
    pub(super) fn new(shape: &Shape) -> Self {
        let pairs = shape.pairs();
        let power = |i: usize| shape.rope_theta.powf(i as f64 / pairs as f64) as f32;
        Self::with(shape.slots, (0..pairs).map(|i| 1.0 / power(i)).collect())
    }

    fn with(slots: usize, inverse: Vec<f32>) -> Self {
        let entries = slots * KEPT;
        let bytes = vec![0; entries * 8 * inverse.len()];
        Self { inverse, positions: vec![None; entries], bytes }
    }

    /// Cosine and sine of every pair at `pos`, `[pairs, 2]` f32, computed unless `slot` has them still.
    pub(super) fn at(&mut self, slot: u8, pos: i64) -> &[u8] {
        let width = 8 * self.inverse.len();
        // The low bits of a position: its place in a ring of KEPT.
        let entry = usize::from(slot) * KEPT + (pos.cast_unsigned() % KEPT as u64) as usize;
        let bytes = &mut self.bytes[entry * width..(entry + 1) * width];
        if self.positions[entry] != Some(pos) {
            self.positions[entry] = Some(pos);
            write(bytes, &self.inverse, pos);
        }
        bytes
    }
}

fn write(bytes: &mut [u8], inverse: &[f32], pos: i64) {
    // Clamped positions are below 2^32; to f32 they round as the public tables do.
    let pos = pos as f32;
    for (out, inverse) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(inverse) {
        let (sin, cos) = f64::from(pos * inverse).sin_cos();
        out[..4].copy_from_slice(&(cos as f32).to_le_bytes());
        out[4..].copy_from_slice(&(sin as f32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_what_would_be_computed() {
        let inverse = vec![1.0, 0.1, 0.003];
        let mut angles = Angles::with(2, inverse.clone());
        let far = 300 * KEPT as i64;
        // Returning positions, others of the same place, and the same one of another slot.
        let asked =
            [(0, 5), (0, 6), (0, 5), (0, 5 + far), (0, 5), (1, 5), (1, far), (0, 0), (1, 0)];
        for (slot, pos) in asked {
            let mut fresh = vec![0; 24];
            write(&mut fresh, &inverse, pos);
            assert_eq!(angles.at(slot, pos), fresh, "slot {slot} position {pos}");
        }
        assert_ne!(angles.at(0, 5).to_vec(), angles.at(0, 5 + far));
    }
}
