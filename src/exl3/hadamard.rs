//! The Hadamard rotation over runs of 128 features.
//!
//! `H[i][j] = (-1)^popcount(i & j)`, symmetric, its own inverse after division by 128. No permutation
//! before or after the butterflies. Order of the operations as in `turboderp-org/exllamav3`
//! `exllamav3_ext/quant/hadamard_inner.cuh`, so that f32 results equal its results bit for bit.

use std::ops::{Add, Sub};

/// Features of a block.
pub const BLOCK: usize = 128;

/// 1/sqrt(128) in f32, the factor of one rotation.
pub const SCALE: f32 = f32::from_bits(0x3DB5_04F3);

/// Multiplies a block by `H / sqrt(128)`.
pub fn rotate(block: &mut [f32; BLOCK]) {
    transform(block);
    for v in block {
        *v *= SCALE;
    }
}

/// Multiplies a block by `H`, unscaled.
pub fn transform<T: Copy + Add<Output = T> + Sub<Output = T>>(block: &mut [T; BLOCK]) {
    butterflies::<T, 1>(block);
    butterflies::<T, 2>(block);
    butterflies::<T, 4>(block);
    butterflies::<T, 8>(block);
    butterflies::<T, 16>(block);
    butterflies::<T, 32>(block);
    butterflies::<T, 64>(block);
}

/// The stride is a constant so that each pass becomes vector code.
#[inline(always)]
fn butterflies<T: Copy + Add<Output = T> + Sub<Output = T>, const STRIDE: usize>(
    block: &mut [T; BLOCK],
) {
    for pair in block.chunks_exact_mut(2 * STRIDE) {
        let (left, right) = pair.split_at_mut(STRIDE);
        for (a, b) in left.iter_mut().zip(right) {
            (*a, *b) = (*a + *b, *a - *b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_vector_becomes_the_signs_of_its_row() {
        for i in 0..BLOCK {
            let mut v = [0.0; BLOCK];
            v[i] = 1.0;
            rotate(&mut v);
            for (j, found) in v.into_iter().enumerate() {
                let sign = if (i & j).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
                assert_eq!(found, sign * SCALE, "row {i} column {j}");
            }
        }
    }

    #[test]
    fn twice_the_transform_is_128_times_the_block() {
        let original: [f64; BLOCK] = std::array::from_fn(|i| (i * i % 37) as f64 - 11.0);
        let mut v = original;
        transform(&mut v);
        transform(&mut v);
        assert_eq!(v, original.map(|x| 128.0 * x));
    }
}
