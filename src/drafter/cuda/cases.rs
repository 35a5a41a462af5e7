//! Cases of the product kernels: layers of random tiles and the CPU's product of them. One list for the tests
//! on an emulated device and for a card.

use half::{bf16, f16};

use super::linears::Kind;
use super::products::Product;
use super::{CudaError, LayerCheck};
use crate::buffer::SharedBytes;
use crate::exl3::{Codebook, Exl3Linear, Exl3Parts, InputRounding, Scales};
use crate::random::SplitMix64;

/// A random layer and a number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCase {
    /// Codebook of the layer.
    pub codebook: Codebook,
    /// Bits a weight, 2 ..= 8.
    pub bits: usize,
    /// Inputs and outputs, multiples of 128.
    pub shape: [usize; 2],
    /// Rows, at most 512.
    pub rows: usize,
    /// Seed of the weights.
    pub seed: u64,
    /// Whether it has the width of a live layer: much work for an emulated device.
    pub large: bool,
}

/// What a device made of a case.
#[derive(Clone, Debug)]
pub struct Agreement {
    /// `[rows, out]` f32.
    pub y: Vec<f32>,
    /// Largest distance of a value from the CPU's, relative to the RMS of its row.
    pub difference: f64,
}

impl LayerCase {
    /// A small case.
    pub const fn new(codebook: Codebook, bits: usize, shape: [usize; 2], rows: usize) -> Self {
        let seed = (bits * 1000 + shape[0] + shape[1]) as u64;
        Self { codebook, bits, shape, rows, seed, large: false }
    }

    /// Every width and codebook in both versions of the product; every way to fill or overflow a group of
    /// eight rows; live widths.
    pub fn all() -> Vec<Self> {
        let codebooks = [Codebook::Mul1, Codebook::Mcg, Codebook::ThreeInst];
        let widths = codebooks.into_iter().flat_map(|codebook| {
            let rows = move |bits| [3, 40].map(|rows| Self::new(codebook, bits, [256, 128], rows));
            (2..=8).flat_map(rows)
        });
        let rows = [1, 7, 8, 9, 16, 17, 25, 32, 33, 121, 128, 129, 391];
        let rows = rows.map(|rows| Self::new(Codebook::Mul1, 5, [384, 256], rows));
        let live = [
            (5, [15_360, 5120], 6),
            (5, [15_360, 5120], 128),
            (5, [5120, 1280], 5),
            (4, [5120, 2304], 5),
            (4, [2304, 5120], 20),
            (6, [5120, 8192], 16),
        ];
        let live = live.map(|(bits, shape, rows)| Self {
            large: true,
            ..Self::new(Codebook::Mul1, bits, shape, rows)
        });
        widths.chain(rows).chain(live).collect()
    }

    /// `exl3_gemm_mul1_k5/384x256/9`: kernel, inputs by outputs, rows.
    pub fn name(&self) -> String {
        let kernel = Product::of(self.rows).kernel(Kind::new(self.codebook, self.bits));
        let [inputs, outputs] = self.shape;
        format!("{kernel}/{inputs}x{outputs}/{}", self.rows)
    }

    /// Largest [`Agreement::difference`] that is taken for a rounding.
    ///
    /// Inputs are the same bits on both sides and weights are exact, so only the f32 sums differ: in their
    /// order (at most 3e-6 in the small cases on an emulated device), and on a card in that tensor cores cut
    /// what they add to a sum of sixteen products instead of rounding it.
    pub fn limit(&self) -> f64 {
        2e-5 + f64::from(f32::EPSILON) * (self.shape[0] / 16) as f64
    }

    /// The layer: every bit pattern of a tile is a valid one. Layers of three bits have a bias.
    pub fn layer(&self) -> Exl3Linear {
        let [inputs, outputs] = self.shape;
        let mut noise = SplitMix64::new(self.seed);
        let shape = [inputs / 16, outputs / 16, 16 * self.bits];
        let mut trellis = vec![0; 2 * shape.iter().product::<usize>()];
        trellis.chunks_mut(8).for_each(|chunk| {
            chunk.copy_from_slice(&noise.next().to_le_bytes()[..chunk.len()]);
        });
        let mut scales = |n: usize, size: f32| {
            let half = |v: f32| f16::from_f32(v.signum() * (0.5 + v.abs()) * size).to_le_bytes();
            let bytes: Vec<u8> = (0..n).flat_map(|_| half(signed(&mut noise))).collect();
            Scales::F16(SharedBytes::new(bytes))
        };
        let (input, output) = (scales(inputs, 0.05), scales(outputs, 1.0));
        let bias = || (0..outputs).map(|i| i as f32 / 64.0 - 1.0).collect();
        Exl3Linear::new(Exl3Parts {
            trellis: SharedBytes::new(trellis),
            trellis_shape: shape,
            input,
            output,
            bias: (self.bits == 3).then(bias),
            codebook: self.codebook,
        })
        .expect("a layer of consistent sizes")
    }

    /// `[rows, in]` bf16 numbers.
    pub fn inputs(&self) -> Vec<f32> {
        let n = self.rows * self.shape[0];
        let mut noise = SplitMix64::new(n as u64);
        (0..n).map(|_| bf16::from_f32(3.0 * signed(&mut noise)).to_f32()).collect()
    }

    /// Runs the case on a device whose memory holds `fill`, and on the CPU.
    ///
    /// # Errors
    /// [`CudaError`] for a layer of a width without a kernel, and when the device fails.
    pub fn run(&self, check: &LayerCheck, fill: u8) -> Result<Agreement, CudaError> {
        let (layer, x) = (self.layer(), self.inputs());
        let y = check.forward(&layer, &x, self.rows, fill)?;
        let mut exact = vec![0.0; self.rows * layer.out_features()];
        let mut scratch = vec![0.0; layer.scratch_len(self.rows)];
        layer.forward(&x, self.rows, &mut exact, InputRounding::F16, &mut scratch);
        let difference = distance(&y, &exact, layer.out_features());
        Ok(Agreement { y, difference })
    }
}

/// Uniform in [-1, 1).
fn signed(noise: &mut SplitMix64) -> f32 {
    (2.0 * noise.unit() - 1.0) as f32
}

/// Largest distance of any value, relative to the RMS of its row; infinite where one is no number.
pub fn distance(y: &[f32], exact: &[f32], width: usize) -> f64 {
    let rows = y.chunks_exact(width).zip(exact.chunks_exact(width));
    rows.map(|(y, exact)| {
        let rms = exact.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
        let apart = y.iter().zip(exact).map(|(a, b)| f64::from((a - b).abs()));
        let worst =
            apart.fold(0.0, |worst: f64, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) });
        worst / rms.sqrt()
    })
    .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let all = LayerCase::all();
        let names: BTreeSet<String> = all.iter().map(LayerCase::name).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.contains("exl3_gemm_3inst_k2/256x128/3"));
        assert!(names.contains("exl3_wide_3inst_k2/256x128/40"));
    }

    #[test]
    fn no_number_is_far_from_every_number() {
        assert_eq!(distance(&[f32::NAN, 1.0], &[1.0, 1.0], 2), f64::INFINITY);
        assert_eq!(distance(&[1.0, 3.0], &[1.0, 1.0], 2), 2.0);
    }
}
