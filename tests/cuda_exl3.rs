//! The EXL3 kernels against the CPU's product: every width and codebook, every number of rows that fills or
//! overflows a group of eight, executed on the emulated device.

#![allow(clippy::unwrap_used, missing_docs)]

mod gpu;
mod layers;

use dspark::drafter::cuda::LayerCheck;
use dspark::exl3::{Codebook, Exl3Linear};
use layers::{distance, inputs, layer, on_cpu};

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
