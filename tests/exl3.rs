//! EXL3 decoding and products against `fixtures/exl3`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};

use dspark::buffer::SharedBytes;
use dspark::digest::Sha256Digest;
use dspark::exl3::trellis::{TILE_SIDE, TILE_VALUES, position};
use dspark::exl3::{
    Codebook, Exl3Error, Exl3Linear, Exl3Parts, InputRounding, MCG_MARKER, MUL1_MARKER, Scales,
    Side, Width,
};
use half::f16;
use rayon::ThreadPoolBuilder;
use safetensors::SafeTensors;

/// Rows of the inputs in the files.
const ROWS: usize = 3;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/exl3")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

/// Names of the files that hold one layer under `lin`.
fn layer_files() -> Vec<String> {
    let names = std::fs::read_dir(folder()).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !["probes", "codebooks", "grouped"].iter().any(|s| name.contains(s)));
    names.sort();
    assert_eq!(names.len(), 29);
    names
}

/// Calls `check` with the name, the tensors and the layer of every file with one layer.
fn for_each_layer(check: impl Fn(&str, &SafeTensors<'_>, Exl3Linear)) {
    for name in layer_files() {
        let bytes = read(&name);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let layer = Exl3Linear::new(parts(&file, "lin")).unwrap();
        check(&name, &file, layer);
    }
}

fn shared(file: &SafeTensors<'_>, name: &str) -> Option<SharedBytes> {
    file.tensor(name).ok().map(|tensor| SharedBytes::new(tensor.data().to_vec()))
}

fn parts(file: &SafeTensors<'_>, prefix: &str) -> Exl3Parts {
    let get = |part: &str| shared(file, &format!("{prefix}.{part}"));
    let marker = |part: &str| get(part).map(|b| i32::from_le_bytes(b[..].try_into().unwrap()));
    let scales = |f16s: &str, signs: &str| match (get(f16s), get(signs)) {
        (Some(bytes), None) => Scales::F16(bytes),
        (None, Some(bytes)) => Scales::Signs(bytes),
        _ => panic!("{prefix}: one of {f16s} and {signs}"),
    };
    Exl3Parts {
        trellis: get("trellis").unwrap(),
        trellis_shape: shape(file, &format!("{prefix}.trellis")).try_into().unwrap(),
        input: scales("suh", "su"),
        output: scales("svh", "sv"),
        bias: get("bias").map(|bytes| f16s(&bytes).iter().map(|b| b.to_f32()).collect()),
        codebook: Codebook::from_markers(marker("mul1"), marker("mcg")).unwrap(),
    }
}

fn shape(file: &SafeTensors<'_>, name: &str) -> Vec<usize> {
    file.tensor(name).unwrap().shape().to_vec()
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

fn f16s(bytes: &[u8]) -> Vec<f16> {
    words(bytes).map(f16::from_le_bytes).collect()
}

fn f16_tensor(file: &SafeTensors<'_>, name: &str) -> Vec<f16> {
    f16s(file.tensor(name).unwrap().data())
}

fn f32_tensor(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    words(file.tensor(name).unwrap().data()).map(f32::from_le_bytes).collect()
}

fn i32_tensor(file: &SafeTensors<'_>, name: &str) -> Vec<i32> {
    words(file.tensor(name).unwrap().data()).map(i32::from_le_bytes).collect()
}

fn widen(values: &[f16]) -> Vec<f32> {
    values.iter().map(|v| v.to_f32()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// States in the order of the stream, as the files list them.
fn in_stream_order(states: &[u16; TILE_VALUES]) -> Vec<i32> {
    let state = |p| {
        let (row, column) = position(p);
        i32::from(states[TILE_SIDE * row + column])
    };
    (0..TILE_VALUES).map(state).collect()
}

fn forward(layer: &Exl3Linear, x: &[f32], rounding: InputRounding) -> Vec<f32> {
    let rows = x.len() / layer.in_features();
    let mut y = vec![f32::NAN; rows * layer.out_features()];
    let mut scratch = vec![f32::NAN; layer.scratch_len(rows)];
    layer.forward(x, rows, &mut y, rounding, &mut scratch);
    y
}

fn rotated(layer: &Exl3Linear, x: &[f32], rounding: InputRounding) -> Vec<f32> {
    let mut xh = vec![f32::NAN; x.len()];
    layer.rotate_input(x, x.len() / layer.in_features(), rounding, &mut xh);
    xh
}

/// Every row's error, relative to the RMS of the row expected, is within `rms` and `max`.
fn assert_close(what: &str, found: &[f32], expected: &[f32], rows: usize, rms: f64, max: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let features = found.len() / rows;
    for (row, (f, e)) in found.chunks(features).zip(expected.chunks(features)).enumerate() {
        let mean = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64;
        let scale = mean(&e.iter().map(|&e| f64::from(e)).collect::<Vec<_>>()).sqrt();
        let errors: Vec<f64> =
            f.iter().zip(e).map(|(&f, &e)| (f64::from(f) - f64::from(e)) / scale).collect();
        let found_rms = mean(&errors).sqrt();
        let found_max = errors.iter().fold(0.0f64, |m, e| m.max(e.abs()));
        assert!(
            found_rms <= rms && found_max <= max,
            "{what} row {row}: {found_rms:e} {found_max:e}"
        );
    }
}

/// A layer of pseudo-random words, big enough to be multiplied in parallel.
fn random_parts(in_features: usize, out_features: usize, half_bits: usize) -> Exl3Parts {
    let mut state = 7u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let trellis_shape = [in_features / 16, out_features / 16, 8 * half_bits];
    let trellis: Vec<u8> =
        (0..2 * trellis_shape.iter().product::<usize>()).map(|_| byte()).collect();
    let mut scales = |n: usize| -> Vec<u8> {
        (0..n).flat_map(|_| f16::from_f32(f32::from(byte()) / 256.0 - 0.7).to_le_bytes()).collect()
    };
    Exl3Parts {
        trellis: SharedBytes::new(trellis),
        trellis_shape,
        input: Scales::F16(SharedBytes::new(scales(in_features))),
        output: Scales::F16(SharedBytes::new(scales(out_features))),
        bias: Some((0..out_features).map(|i| (i % 7) as f32 - 3.0).collect()),
        codebook: Codebook::Mul1,
    }
}

fn inputs(rows: usize, features: usize) -> Vec<f32> {
    (0..rows * features).map(|i| ((i * i) % 1009) as f32 / 500.0 - 1.0).collect()
}

#[test]
fn one_set_bit_shows_up_in_the_states_of_its_windows_alone() {
    let bytes = read("exl3_bit_probes.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for k in ["1", "1p5", "2", "2p5", "3", "3p5", "4", "5", "6", "7", "8"] {
        let expected = i32_tensor(&file, &format!("k{k}.states"));
        let trellis = file.tensor(&format!("k{k}.trellis")).unwrap();
        let width = Width::from_tile_words(trellis.shape()[1]).unwrap();
        assert_eq!(width.to_string(), k.replace('p', "."));
        let tiles = trellis.data().chunks(width.tile_bytes());
        for (probe, (tile, expected)) in tiles.zip(expected.chunks(TILE_VALUES)).enumerate() {
            let mut states = [0; TILE_VALUES];
            width.states(tile, &mut states);
            assert_eq!(in_stream_order(&states), expected, "width {k} probe {probe}");
        }
    }
}

#[test]
fn values_lie_where_the_format_puts_them() {
    let bytes = read("exl3_bit_probes.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let rows = i32_tensor(&file, "tile.row_of_value");
    let columns = i32_tensor(&file, "tile.col_of_value");
    for p in 0..TILE_VALUES {
        let (row, column) = position(p);
        assert_eq!((row, column), (rows[p] as usize, columns[p] as usize), "value {p}");
    }
}

#[test]
fn codebooks_equal_the_published_tables() {
    let bytes = read("exl3_codebooks.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tables = [
        (Codebook::ThreeInst, "ad88de2dcff5bb05fff2faec37cceceb43aa1c2e8203f9d81a6fbd6dd3393eea"),
        (Codebook::Mcg, "95383563929baa9d1ae5de0be22490284382673620bdd85929feea7bdbef04a9"),
        (Codebook::Mul1, "bc48d02cb1c14939dc47b90f870dd689d63e3b1ab69a157e65538db68677a6c8"),
    ];
    for (codebook, digest) in tables {
        let mut table = Vec::new();
        for first in (0..=u16::MAX).step_by(TILE_VALUES) {
            let states = std::array::from_fn(|i| first + u16::try_from(i).unwrap());
            let mut values = [f32::NAN; TILE_VALUES];
            codebook.decode(&states, &mut values);
            for value in values {
                assert_eq!(f16::from_f32(value).to_f32().to_bits(), value.to_bits(), "{codebook}");
                table.extend(f16::from_f32(value).to_le_bytes());
            }
        }
        let stored = file.tensor(&format!("codebook.{codebook}")).unwrap();
        assert!(table == stored.data(), "{codebook} table");
        assert_eq!(Sha256Digest::of(&table).to_string(), digest, "{codebook}");
    }
}

#[test]
fn states_and_decoded_matrices_are_bit_equal() {
    for_each_layer(|name, file, layer| {
        let states = in_stream_order(&layer.tile_states(0, 0));
        assert_eq!(states, i32_tensor(file, "ref.states_tile0"), "{name}");
        assert!(layer.inner() == f16_tensor(file, "ref.inner"), "{name} inner");
        assert_eq!(shape(file, "ref.inner"), [layer.in_features(), layer.out_features()], "{name}");
    });
}

#[test]
fn rotated_inputs_round_where_the_kernels_round() {
    for_each_layer(|name, file, layer| {
        let x = f32_tensor(file, "ref.x");
        let xh = rotated(&layer, &x, InputRounding::F16);
        assert_eq!(bits(&xh), bits(&widen(&f16_tensor(file, "ref.xh_f16"))), "{name}");
        // Measured: RMS 8.9e-8, max 5.7e-7.
        let xh = rotated(&layer, &x, InputRounding::F32);
        assert_close(name, &xh, &f32_tensor(file, "ref.xh"), ROWS, 1e-5, 5e-5);
    });
}

#[test]
fn plain_weights_are_within_one_unit_in_the_last_place() {
    for_each_layer(|name, file, layer| {
        if file.tensor("ref.weight").is_err() {
            return;
        }
        let expected = f32_tensor(file, "ref.weight");
        for (i, (w, e)) in layer.weight().iter().zip(&expected).enumerate() {
            // Of one sign: neighbouring numbers have neighbouring bits.
            let apart = w.to_bits().abs_diff(e.to_bits());
            assert!(apart <= 1, "{name} element {i}: {w} expected {e}");
        }
    });
}

#[test]
fn products_are_within_the_floor_of_f32_sums() {
    for_each_layer(|name, file, layer| {
        let x = f32_tensor(file, "ref.x");
        let y = forward(&layer, &x, InputRounding::F32);
        // Measured: RMS 4.0e-7, max 1.5e-6.
        assert_close(name, &y, &f32_tensor(file, "ref.y"), ROWS, 1e-5, 5e-5);

        let xh = widen(&f16_tensor(file, "ref.xh_f16"));
        let mut y = vec![f32::NAN; ROWS * layer.out_features()];
        let mut scratch = vec![f32::NAN; y.len()];
        layer.forward_rotated(&xh, ROWS, &mut y, &mut scratch);
        // Measured: RMS 4.4e-7, max 1.5e-6.
        assert_close(name, &y, &f32_tensor(file, "ref.y_xh_f16"), ROWS, 2e-6, 2e-5);

        let whole = forward(&layer, &x, InputRounding::F16);
        assert_eq!(bits(&whole), bits(&y), "{name}: the same from x and from its rotation");
    });
}

#[test]
fn slices_of_a_block_diagonal_layer_are_layers_of_their_own() {
    let bytes = read("exl3_grouped_mul1_k5.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let x = f32_tensor(&file, "ref.x");
    let y = f32_tensor(&file, "ref.y");
    for group in 0..2 {
        let slice = parts(&file, &format!("attn.wo_a.slice.{group}"));
        let layer = Exl3Linear::new(slice).unwrap();
        let of_group = |v: &[f32]| -> Vec<f32> {
            v.chunks(2 * 128).flat_map(|row| row[128 * group..][..128].to_vec()).collect()
        };
        let found = forward(&layer, &of_group(&x), InputRounding::F32);
        // Measured: RMS 2.6e-7, max 7.9e-7.
        assert_close(&format!("slice {group}"), &found, &of_group(&y), ROWS, 1e-5, 5e-5);
    }
}

#[test]
fn packed_signs_are_minus_one_where_the_bit_is_set() {
    let bytes = read("exl3_signs_mcg_k3.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let layer = Exl3Linear::new(parts(&file, "lin")).unwrap();
    for (name, scales) in [("lin.su", layer.input_scales()), ("lin.sv", layer.output_scales())] {
        let words: Vec<u16> =
            words(file.tensor(name).unwrap().data()).map(u16::from_le_bytes).collect();
        assert_eq!(scales.len(), 16 * words.len());
        for (i, &scale) in scales.iter().enumerate() {
            let expected = if words[i / 16] & (1 << (i % 16)) == 0 { 1.0 } else { -1.0 };
            assert_eq!(scale, expected, "{name} {i}");
        }
    }
    assert_eq!(layer.packed_bytes(), 128 * 256 * 3 / 8 + 128 / 8 + 256 / 8);
}

#[test]
fn a_row_alone_equals_the_row_in_any_batch() {
    let layer = Exl3Linear::new(random_parts(512, 256, 10)).unwrap();
    let x = inputs(20, 512);
    for rounding in [InputRounding::F32, InputRounding::F16] {
        let alone: Vec<u32> =
            x.chunks(512).flat_map(|row| bits(&forward(&layer, row, rounding))).collect();
        for rows in 1..=20 {
            let batch = forward(&layer, &x[..rows * 512], rounding);
            assert_eq!(bits(&batch), alone[..rows * 256], "{rows} rows {rounding:?}");
        }
    }
    assert!(forward(&layer, &[], InputRounding::F32).is_empty());
}

#[test]
fn results_do_not_depend_on_threads_or_kept_weights() {
    let mut layer = Exl3Linear::new(random_parts(512, 768, 5)).unwrap();
    let x = inputs(6, 512);
    let expected = bits(&forward(&layer, &x, InputRounding::F16));
    for keep in [false, true] {
        if keep {
            layer.keep_decoded();
        }
        for threads in [1, 2] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let y = pool.install(|| forward(&layer, &x, InputRounding::F16));
            assert_eq!(bits(&y), expected, "{threads} threads, kept {keep}");
        }
    }
}

#[test]
fn cut_columns_equal_those_of_the_whole() {
    let mut layer = Exl3Linear::new(random_parts(256, 512, 8)).unwrap();
    let x = inputs(2, 256);
    let whole = forward(&layer, &x, InputRounding::F32);
    for keep in [false, true] {
        if keep {
            layer.keep_decoded();
        }
        for (start, end) in [(0, 128), (128, 384), (384, 512), (0, 512)] {
            // A cut of a cut counts from the first cut's start.
            let cut = layer.output_columns(start..512).unwrap().output_columns(0..end - start);
            let cut = cut.unwrap();
            let expected: Vec<f32> =
                whole.chunks(512).flat_map(|row| row[start..end].to_vec()).collect();
            let found = forward(&cut, &x, InputRounding::F32);
            assert_eq!(bits(&found), bits(&expected), "{start}..{end} kept {keep}");
            assert_eq!(cut.packed_bytes(), 256 * (end - start) / 2 + 2 * (256 + end - start));
        }
    }
    for columns in [0..0, 64..128, 0..200, 384..640, 512..640] {
        let (start, end) = (columns.start, columns.end);
        let error = layer.output_columns(columns).unwrap_err();
        assert_eq!(error, Exl3Error::Columns { start, end, out_features: 512 });
    }
}

#[test]
fn markers_choose_the_codebook_and_foreign_ones_are_refused() {
    let of = Codebook::from_markers;
    assert_eq!(of(None, None), Ok(Codebook::ThreeInst));
    assert_eq!(of(None, Some(MCG_MARKER)), Ok(Codebook::Mcg));
    assert_eq!(of(Some(MUL1_MARKER), None), Ok(Codebook::Mul1));
    assert_eq!(of(Some(MUL1_MARKER), Some(MCG_MARKER)), Err(Exl3Error::BothMarkers));
    assert_eq!(
        of(Some(1), None).unwrap_err().to_string(),
        "marker mul1 is 1 (0x00000001), expected -2082680531 (0x83dcd12d)"
    );
    assert_eq!(
        of(None, Some(MUL1_MARKER)).unwrap_err(),
        Exl3Error::MarkerValue { marker: "mcg", expected: MCG_MARKER, found: MUL1_MARKER }
    );
}

/// The error of a good layer after `change`.
fn refusal(change: impl FnOnce(&mut Exl3Parts)) -> Exl3Error {
    let mut parts = random_parts(256, 128, 10);
    change(&mut parts);
    Exl3Linear::new(parts).unwrap_err()
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    for words in [0, 8, 72, 81, 144, 1 << 40] {
        let error = refusal(|p| p.trellis_shape[2] = words);
        assert_eq!(error, Exl3Error::UnknownWidth { words });
    }
    let error = refusal(|p| (p.trellis_shape[2], p.codebook) = (40, Codebook::Mcg));
    let width = Width::from_tile_words(40).unwrap();
    assert_eq!(error, Exl3Error::HalfWidth { width, codebook: Codebook::Mcg });
    for tiles in [0, 1, 12] {
        let error = refusal(|p| p.trellis_shape[0] = tiles);
        assert_eq!(error, Exl3Error::Features { side: Side::Input, tiles });
        let error = refusal(|p| p.trellis_shape[1] = tiles);
        assert_eq!(error, Exl3Error::Features { side: Side::Output, tiles });
    }
    for shape in [[16, 16, 80], [8, 8, 80], [16, 8, 96], [1 << 62, 1 << 62, 80]] {
        let error = refusal(|p| p.trellis_shape = shape);
        assert_eq!(error, Exl3Error::TrellisBytes { shape, found: 16 * 8 * 160 });
    }
}

#[test]
fn scales_and_bias_that_do_not_fit_are_refused() {
    let zeros = |n: usize| SharedBytes::new(vec![0u8; n]);
    let error = refusal(|p| p.input = Scales::F16(zeros(256)));
    let side = Side::Input;
    assert_eq!(error, Exl3Error::ScaleBytes { side, features: 256, expected: 512, found: 256 });
    let error = refusal(|p| p.output = Scales::Signs(zeros(32)));
    let side = Side::Output;
    assert_eq!(error, Exl3Error::ScaleBytes { side, features: 128, expected: 16, found: 32 });
    let error = refusal(|p| p.bias = Some(vec![0.0; 127]));
    assert_eq!(error, Exl3Error::BiasLength { expected: 128, found: 127 });
}

#[test]
fn scales_and_bias_that_are_no_numbers_are_refused() {
    for (bad, shown) in [(f16::NAN, "NaN"), (f16::INFINITY, "inf"), (f16::NEG_INFINITY, "-inf")] {
        let with_bad = |features: usize, index: usize| {
            let mut bytes = vec![0u8; 2 * features];
            bytes[2 * index..2 * index + 2].copy_from_slice(&bad.to_le_bytes());
            Scales::F16(SharedBytes::new(bytes))
        };
        let error = refusal(|p| p.input = with_bad(256, 200));
        assert_eq!(error.to_string(), format!("input scale 200 is {shown}"));
        let error = refusal(|p| p.output = with_bad(128, 0));
        assert_eq!(error.to_string(), format!("output scale 0 is {shown}"));
        let error = refusal(|p| p.bias.as_mut().unwrap()[5] = bad.to_f32());
        assert_eq!(error.to_string(), format!("bias 5 is {shown}"));
    }
}
