//! Layers of random EXL3 tiles, and the CPU's product with them.

#![allow(dead_code)]

use dspark::buffer::SharedBytes;
use dspark::exl3::{Codebook, Exl3Linear, Exl3Parts, InputRounding, Scales};
use half::{bf16, f16};

/// A repeatable stream of words.
pub(crate) struct Words(u64);

impl Words {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// Uniform in [-1, 1).
    fn signed(&mut self) -> f32 {
        (self.next() >> 7) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A layer of random tiles: every bit pattern is a valid one.
pub(crate) fn layer(bits: usize, codebook: Codebook, [inputs, outputs]: [usize; 2]) -> Exl3Linear {
    let mut words = Words((bits * 1000 + inputs + outputs) as u64);
    let shape = [inputs / 16, outputs / 16, 16 * bits];
    let trellis: Vec<u8> = (0..shape.iter().product::<usize>())
        .flat_map(|_| words.next().to_le_bytes()[..2].to_vec())
        .collect();
    let mut scales = |n: usize, size: f32| {
        let half = |v: f32| f16::from_f32(v.signum() * (0.5 + v.abs()) * size).to_le_bytes();
        let bytes: Vec<u8> = (0..n).flat_map(|_| half(words.signed())).collect();
        Scales::F16(SharedBytes::new(bytes))
    };
    let (input, output) = (scales(inputs, 0.05), scales(outputs, 1.0));
    Exl3Linear::new(Exl3Parts {
        trellis: SharedBytes::new(trellis),
        trellis_shape: shape,
        input,
        output,
        bias: (bits == 3).then(|| (0..outputs).map(|i| i as f32 / 64.0 - 1.0).collect()),
        codebook,
    })
    .unwrap()
}

pub(crate) fn inputs(n: usize) -> Vec<f32> {
    let mut words = Words(n as u64);
    (0..n).map(|_| bf16::from_f32(3.0 * words.signed()).to_f32()).collect()
}

pub(crate) fn on_cpu(layer: &Exl3Linear, x: &[f32], rows: usize) -> Vec<f32> {
    let mut y = vec![0.0; rows * layer.out_features()];
    layer.forward(x, rows, &mut y, InputRounding::F16, &mut vec![0.0; layer.scratch_len(rows)]);
    y
}

/// Largest distance of any row, relative to the row's RMS.
pub(crate) fn distance(y: &[f32], exact: &[f32], width: usize) -> f64 {
    let rows = y.chunks_exact(width).zip(exact.chunks_exact(width));
    rows.map(|(y, exact)| {
        let rms = exact.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
        // `max` would pass over what is no number.
        let off = |(a, b): (&f32, &f32)| if a.is_nan() { f32::INFINITY } else { (a - b).abs() };
        let worst = y.iter().zip(exact).map(off).fold(0.0, f32::max);
        f64::from(worst) / rms.sqrt()
    })
    .fold(0.0, f64::max)
}
