//! The product of a few rows with a packed layer on the CPU.
//!
//! Every weight is decoded once for all rows. Sums run over the inputs in ascending order, one multiply
//! and one add a weight, never fused: a row's result depends neither on the other rows, nor on the
//! number of threads, nor on the processor. Rounding points of the input rotation:
//! `turboderp-org/exllamav3` `exllamav3_ext/quant/hadamard_inner.cuh`.

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::Exl3Linear;
use super::hadamard::{BLOCK, rotate};
use super::trellis::{TILE_SIDE, TILE_VALUES, Tile};

/// What is rounded on the way from `x` to the rotated input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRounding {
    /// Nothing: the f32 reference.
    F32,
    /// To fp16: `x`, `x · suh`, and the rotated input; the rotation itself is f32. What the kernels do.
    F16,
}

/// Decoding a weight takes about as long as this many multiplications with a decoded one.
const DECODE_COST: usize = 16;

/// Multiplications from which a product is shared among threads: 0.2 ms at the 0.1 ns that one takes on
/// a 2 GHz core, some ten times what it takes to wake a thread.
const PARALLEL_WORK: usize = 1 << 21;

impl Exl3Linear {
    /// f32s of scratch memory that [`forward`](Self::forward) needs: rotated inputs and, before they are
    /// put in order, outputs.
    pub fn scratch_len(&self, rows: usize) -> usize {
        rows * (self.in_features() + self.out_features())
    }

    /// `y = x · W + bias` with f32 sums. `x`: `[rows, in]`; `y`: `[rows, out]`, overwritten. What
    /// `scratch` holds before has no influence.
    ///
    /// Allocates nothing. Runs on the current rayon pool when the product is big enough to pay for it; a
    /// caller that must not see rayon's queue allocate either calls from inside a pool
    /// (`ThreadPool::install` around all of its work).
    ///
    /// # Panics
    /// If `x` or `y` has another length or `scratch` fewer than [`scratch_len`](Self::scratch_len).
    pub fn forward(
        &self,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
        rounding: InputRounding,
        scratch: &mut [f32],
    ) {
        assert!(scratch.len() >= self.scratch_len(rows), "scratch of {}", scratch.len());
        let (xh, scratch) = scratch.split_at_mut(rows * self.in_features());
        self.rotate_input(x, rows, rounding, xh);
        self.forward_rotated(xh, rows, y, scratch);
    }

    /// The rotated input `xh = (x · suh) · H / sqrt(128)`. `x`, `xh`: `[rows, in]`. With
    /// [`InputRounding::F16`] every value of `xh` is exact in fp16.
    ///
    /// # Panics
    /// If `x` or `xh` has another length.
    pub fn rotate_input(&self, x: &[f32], rows: usize, rounding: InputRounding, xh: &mut [f32]) {
        let features = self.in_features();
        assert_eq!(x.len(), rows * features, "inputs");
        assert_eq!(xh.len(), rows * features, "rotated inputs");
        let rotate_row = |x: &[f32], xh: &mut [f32]| {
            let scales = self.input_scales().as_chunks::<BLOCK>().0;
            let blocks = x.as_chunks::<BLOCK>().0.iter().zip(scales);
            for ((x, scales), xh) in blocks.zip(xh.as_chunks_mut::<BLOCK>().0) {
                rotate_input_block(x, scales, rounding, xh);
            }
        };
        if self.is_parallel(rows) {
            let rows = x.par_chunks_exact(features).zip(xh.par_chunks_exact_mut(features));
            rows.for_each(|(x, xh)| rotate_row(x, xh));
        } else {
            let rows = x.chunks_exact(features).zip(xh.chunks_exact_mut(features));
            rows.for_each(|(x, xh)| rotate_row(x, xh));
        }
    }

    /// [`forward`](Self::forward) from a rotated input, for layers that share `x` and `suh`. `scratch`:
    /// `rows · out` f32s or more.
    ///
    /// # Panics
    /// If `xh` or `y` has another length or `scratch` is too short.
    pub fn forward_rotated(&self, xh: &[f32], rows: usize, y: &mut [f32], scratch: &mut [f32]) {
        let out = self.out_features();
        assert_eq!(xh.len(), rows * self.in_features(), "rotated inputs");
        assert_eq!(y.len(), rows * out, "outputs");
        assert!(scratch.len() >= rows * out, "scratch of {}", scratch.len());
        if rows == 0 {
            return;
        }
        // Blocks of columns, each with all its rows, so that tasks write to separate memory.
        let z = &mut scratch[..rows * out];
        if self.is_parallel(rows) {
            let blocks = z.par_chunks_exact_mut(rows * BLOCK).enumerate();
            blocks.for_each(|(block, z)| self.multiply_block(xh, block, z));
        } else {
            let blocks = z.chunks_exact_mut(rows * BLOCK).enumerate();
            blocks.for_each(|(block, z)| self.multiply_block(xh, block, z));
        }
        for (block, z) in z.chunks_exact(rows * BLOCK).enumerate() {
            for (y, z) in y.chunks_exact_mut(out).zip(z.chunks_exact(BLOCK)) {
                y[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(z);
            }
        }
    }

    fn is_parallel(&self, rows: usize) -> bool {
        let decode = if self.is_decoded() { 0 } else { DECODE_COST };
        self.in_features() * self.out_features() * (rows + decode) >= PARALLEL_WORK
    }

    /// Columns `128 · block ..` of the result for all rows. `z`: `[rows, 128]`.
    fn multiply_block(&self, xh: &[f32], block: usize, z: &mut [f32]) {
        z.fill(0.0);
        match self.decoded_block(block) {
            Some(tiles) => {
                for (i, tile) in tiles.iter().enumerate() {
                    accumulate(tile, xh, self.in_features(), i, z);
                }
            }
            None => self.decode_and_accumulate(xh, block, z),
        }
        let columns = block * BLOCK..(block + 1) * BLOCK;
        let scales = &self.output_scales()[columns.clone()];
        let bias = self.bias().map(|bias| &bias[columns]);
        for z in z.as_chunks_mut::<BLOCK>().0 {
            rotate(z);
            z.iter_mut().zip(scales).for_each(|(z, scale)| *z *= scale);
            if let Some(bias) = bias {
                z.iter_mut().zip(bias).for_each(|(z, bias)| *z += bias);
            }
        }
    }

    fn decode_and_accumulate(&self, xh: &[f32], block: usize, z: &mut [f32]) {
        let (trellis, width, codebook) = (self.trellis(), self.width(), self.codebook());
        let mut states = [0; TILE_VALUES];
        let mut tile = [0.0; TILE_VALUES];
        for i in 0..self.block_tiles() {
            width.states(self.packed_tile(trellis, i / 8, 8 * block + i % 8), &mut states);
            codebook.decode(&states, &mut tile);
            accumulate(&tile, xh, self.in_features(), i, z);
        }
    }
}

/// Adds the product with the `i`-th tile of a block to every row. `xh`: `[rows, features]`; `z`:
/// `[rows, 128]`.
#[inline]
fn accumulate(tile: &Tile, xh: &[f32], features: usize, i: usize, z: &mut [f32]) {
    let (first_input, first_column) = (i / 8 * TILE_SIDE, i % 8 * TILE_SIDE);
    let weights = tile.as_chunks::<TILE_SIDE>().0;
    for (xh, z) in xh.chunks_exact(features).zip(z.chunks_exact_mut(BLOCK)) {
        let inputs = &xh[first_input..first_input + TILE_SIDE];
        let sums = &mut z[first_column..first_column + TILE_SIDE];
        let mut acc: [f32; TILE_SIDE] = std::array::from_fn(|c| sums[c]);
        for (x, weights) in inputs.iter().zip(weights) {
            for c in 0..TILE_SIDE {
                acc[c] += x * weights[c];
            }
        }
        sums.copy_from_slice(&acc);
    }
}

fn rotate_input_block(
    x: &[f32; BLOCK],
    scales: &[f32; BLOCK],
    rounding: InputRounding,
    xh: &mut [f32; BLOCK],
) {
    *xh = *x;
    if rounding == InputRounding::F16 {
        round_to_f16(xh);
    }
    xh.iter_mut().zip(scales).for_each(|(x, scale)| *x *= scale);
    if rounding == InputRounding::F16 {
        round_to_f16(xh);
    }
    rotate(xh);
    if rounding == InputRounding::F16 {
        round_to_f16(xh);
    }
}

fn round_to_f16(values: &mut [f32; BLOCK]) {
    let mut rounded = [f16::ZERO; BLOCK];
    rounded.convert_from_f32_slice(values);
    rounded.convert_to_f32_slice(values);
}
