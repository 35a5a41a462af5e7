//! The EXL3 kernels against the CPU's product: every width and codebook, every number of rows that fills or
//! overflows a group of eight, executed on the emulated device.

#![allow(clippy::unwrap_used, missing_docs)]

mod gpu;

use dspark::buffer::SharedBytes;
use dspark::drafter::cuda::LayerCheck;
use dspark::exl3::{Codebook, Exl3Linear, Exl3Parts, InputRounding, Scales};
use half::{bf16, f16};

/// A repeatable stream of words.
struct Words(u64);

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
fn layer(bits: usize, codebook: Codebook, [inputs, outputs]: [usize; 2]) -> Exl3Linear {
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

fn inputs(n: usize) -> Vec<f32> {
    let mut words = Words(n as u64);
    (0..n).map(|_| bf16::from_f32(3.0 * words.signed()).to_f32()).collect()
}

fn on_cpu(layer: &Exl3Linear, x: &[f32], rows: usize) -> Vec<f32> {
    let mut y = vec![0.0; rows * layer.out_features()];
    layer.forward(x, rows, &mut y, InputRounding::F16, &mut vec![0.0; layer.scratch_len(rows)]);
    y
}

/// Largest distance of any row, relative to the row's RMS.
fn distance(y: &[f32], exact: &[f32], width: usize) -> f64 {
    let rows = y.chunks_exact(width).zip(exact.chunks_exact(width));
    rows.map(|(y, exact)| {
        let rms = exact.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
        let worst = y.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        f64::from(worst) / rms.sqrt()
    })
    .fold(0.0, f64::max)
}

/// Inputs are the same bits on both sides and weights are exact, so only the order of the f32 sums differs.
/// Measured over all cases here: largest difference 3e-6 of a row's RMS.
const LIMIT: f64 = 2e-5;

fn agrees(check: &LayerCheck, layer: &Exl3Linear, rows: usize) -> Vec<f32> {
    let x = inputs(rows * layer.in_features());
    let y = check.forward(layer, &x, rows, 0xFF).unwrap();
    let d = distance(&y, &on_cpu(layer, &x, rows), layer.out_features());
    println!("{} bits {}, {rows} rows: {d:.1e}", layer.width(), layer.codebook());
    assert!(d <= LIMIT, "{} bits {}, {rows} rows: {d:e}", layer.width(), layer.codebook());
    y
}

#[test]
fn every_width_and_codebook_has_the_cpus_product() {
    gpu::load();
    let check = LayerCheck::new(0).unwrap();
    for codebook in [Codebook::Mul1, Codebook::Mcg, Codebook::ThreeInst] {
        for bits in 2..=8 {
            agrees(&check, &layer(bits, codebook, [256, 128]), 3);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    gpu::load();
    let check = LayerCheck::new(0).unwrap();
    let layer = layer(5, Codebook::Mul1, [384, 256]);
    let (features, outputs) = (layer.in_features(), layer.out_features());
    let all = agrees(&check, &layer, 32);
    let x = inputs(32 * features);
    for (first, rows) in [(0, 1), (7, 2), (5, 8), (0, 9), (15, 17), (7, 25)] {
        let part =
            check.forward(&layer, &x[first * features..][..rows * features], rows, 0).unwrap();
        assert_eq!(part, all[first * outputs..][..rows * outputs], "{rows} rows from {first}");
    }
}

#[test]
fn columns_cut_from_a_wider_layer_are_its_columns() {
    gpu::load();
    let check = LayerCheck::new(0).unwrap();
    let whole = layer(4, Codebook::Mul1, [128, 384]);
    let part = whole.output_columns(128..256).unwrap();
    // The part is split as often as the whole, since both have one block of inputs.
    let x = inputs(2 * 128);
    let y = check.forward(&whole, &x, 2, 0).unwrap();
    let y: Vec<f32> = y.chunks(384).flat_map(|row| row[128..256].to_vec()).collect();
    assert_eq!(check.forward(&part, &x, 2, 0).unwrap(), y);
}

#[test]
fn a_width_without_a_kernel_is_named() {
    gpu::load();
    let check = LayerCheck::new(0).unwrap();
    let layer = layer(1, Codebook::Mul1, [128, 128]);
    let refused = check.forward(&layer, &inputs(128), 1, 0).unwrap_err();
    assert!(refused.to_string().contains("EXL3 of 1 bits"), "{refused}");
}
