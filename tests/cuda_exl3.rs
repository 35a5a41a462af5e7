//! The EXL3 kernels against the CPU's product: every width and codebook, every number of rows that fills or
//! overflows a group of eight, executed on the emulated device.

#![allow(clippy::unwrap_used, missing_docs)]

mod gpu;

use dspark::drafter::cuda::LayerCheck;
use dspark::drafter::cuda::cases::LayerCase;
use dspark::exl3::Codebook;

fn check() -> LayerCheck {
    gpu::load();
    LayerCheck::new(0).unwrap()
}

fn agrees(check: &LayerCheck, case: &LayerCase) -> Vec<f32> {
    let found = case.run(check, 0xFF).unwrap();
    println!("{}: {:.1e}", case.name(), found.difference);
    let (name, limit) = (case.name(), case.limit());
    assert!(found.difference <= limit, "{name}: {:e}, at most {limit:e}", found.difference);
    found.y
}

/// `DSPARK_TEST_ALL=1` runs the cases of live width too.
#[test]
fn every_case_has_the_cpus_product() {
    let check = check();
    let all = std::env::var_os("DSPARK_TEST_ALL").is_some();
    for case in LayerCase::all().iter().filter(|case| all || !case.large) {
        agrees(&check, case);
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let check = check();
    let case = LayerCase::new(Codebook::Mul1, 5, [384, 256], 32);
    let [features, outputs] = case.shape;
    let all = agrees(&check, &case);
    let (layer, x) = (case.layer(), case.inputs());
    for (first, rows) in [(0, 1), (7, 2), (5, 8), (0, 9), (15, 17), (7, 25)] {
        let part =
            check.forward(&layer, &x[first * features..][..rows * features], rows, 0).unwrap();
        assert_eq!(part, all[first * outputs..][..rows * outputs], "{rows} rows from {first}");
    }
}

#[test]
fn columns_cut_from_a_wider_layer_are_its_columns() {
    let check = check();
    let case = LayerCase::new(Codebook::Mul1, 4, [128, 384], 2);
    let whole = case.layer();
    let part = whole.output_columns(128..256).unwrap();
    // The part is split as often as the whole, since both have one block of inputs.
    let x = case.inputs();
    let y = check.forward(&whole, &x, 2, 0).unwrap();
    let y: Vec<f32> = y.chunks(384).flat_map(|row| row[128..256].to_vec()).collect();
    assert_eq!(check.forward(&part, &x, 2, 0).unwrap(), y);
}

#[test]
fn a_width_without_a_kernel_is_named() {
    let check = check();
    let case = LayerCase::new(Codebook::Mul1, 1, [128, 128], 1);
    let refused = case.run(&check, 0).unwrap_err();
    assert!(refused.to_string().contains("EXL3 of 1 bits"), "{refused}");
}
