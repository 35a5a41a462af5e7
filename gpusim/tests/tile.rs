//! A compiled tensor-core kernel: right as it is, and every planted bug found.
//!
//! `kernels/tile.ptx` is the compiler's output for `kernels/tile.cu`; bugs are planted in its text.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, missing_docs, unreachable_pub)]

mod common;

use std::sync::Arc;

use common::{Device, device, last_error, report};
use cudarc::driver::{CudaFunction, CudaSlice, DriverError, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use half::f16;

const TILE: &str = include_str!("kernels/tile.ptx");
const ROWS: usize = 16;
const COLUMNS: usize = 128;
const DEPTH: usize = 256;
const SHARED_BYTES: u32 = 2 * (16 + 64) * 72 * 2;

fn values(count: usize, step: usize, scale: f32) -> Vec<u16> {
    (0..count).map(|i| f16::from_f32(((i * step % 101) as f32 - 50.0) * scale).to_bits()).collect()
}

struct Problem {
    a: Vec<u16>,
    w: Vec<u16>,
}

impl Problem {
    fn new() -> Self {
        Self { a: values(ROWS * DEPTH, 37, 0.02), w: values(COLUMNS * DEPTH, 53, 0.01) }
    }

    /// Largest difference to the product in f64.
    fn error(&self, c: &[f32]) -> f64 {
        let at = |values: &[u16], i: usize| f16::from_bits(values[i]).to_f64();
        let mut worst = 0f64;
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                let terms = (0..DEPTH)
                    .map(|k| at(&self.a, row * DEPTH + k) * at(&self.w, column * DEPTH + k));
                let difference = (terms.sum::<f64>() - f64::from(c[row * COLUMNS + column])).abs();
                worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference) };
            }
        }
        worst
    }
}

fn load(device: &Device, text: &str) -> CudaFunction {
    let module = device
        .context
        .load_module(Ptx::from_src(text))
        .unwrap_or_else(|_| panic!("{}", last_error()));
    module.load_function("tile").unwrap()
}

const CONFIG: LaunchConfig = LaunchConfig {
    grid_dim: ((COLUMNS / 64) as u32, 1, 1),
    block_dim: (128, 1, 1),
    shared_mem_bytes: SHARED_BYTES,
};

/// Runs a variant of the kernel and returns its product.
fn run(device: &Device, text: &str) -> Result<Vec<f32>, DriverError> {
    let problem = Problem::new();
    let a = device.stream.clone_htod(&problem.a)?;
    let w = device.stream.clone_htod(&problem.w)?;
    run_on(device, text, &a, &w, ROWS * COLUMNS, COLUMNS)
}

fn run_on(
    device: &Device,
    text: &str,
    a: &CudaSlice<u16>,
    w: &CudaSlice<u16>,
    c_len: usize,
    n: usize,
) -> Result<Vec<f32>, DriverError> {
    let tile = load(device, text);
    let mut c: CudaSlice<f32> = unsafe { device.stream.alloc(c_len)? };
    let mut most: CudaSlice<f32> = unsafe { device.stream.alloc(ROWS * COLUMNS / 64)? };
    let (n, k) = (n as i32, DEPTH as i32);
    unsafe {
        let mut launch = device.stream.launch_builder(&tile);
        launch.arg(a).arg(w).arg(&mut c).arg(&mut most).arg(&n).arg(&k).launch(CONFIG)?;
    }
    device.stream.clone_dtoh(&c)
}

fn fails_with(text: &str, words: &[&str]) {
    let device = device();
    let error = run(&device, text).expect_err("the bug must be found");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let message = last_error();
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
    assert!(message.contains("kernel tile") && message.contains("PTX line"), "{message}");
}

/// The kernel with the `nth` occurrence of `from` replaced.
fn planted(from: &str, nth: usize, to: &str) -> String {
    let (at, _) = TILE.match_indices(from).nth(nth).expect("the text to change is there");
    format!("{}{to}{}", &TILE[..at], &TILE[at + from.len()..])
}

#[test]
fn the_kernel_multiplies_and_its_work_is_counted() {
    let device = device();
    let before = report()["kernels"]["tile"].clone();
    let c = run(&device, TILE).unwrap_or_else(|_| panic!("{}", last_error()));
    // Sums of 256 products below 1: f32 rounding of 16 partial sums.
    let error = Problem::new().error(&c);
    assert!(error < 2e-5, "{error}");
    let after = report()["kernels"]["tile"].clone();
    let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap_or(0);
    assert_eq!(grown("launches"), 1);
    // Two blocks of four warps, 16 steps along the depth, two products each.
    assert_eq!(grown("mma"), 2 * 4 * 16 * 2);
    let weights = (2 * COLUMNS * DEPTH) as u64;
    let inputs = (2 * ROWS * DEPTH) as u64;
    assert_eq!(grown("footprint_read_bytes"), weights + inputs);
    assert_eq!(grown("global_read_bytes"), weights + 2 * inputs);
    assert_eq!(grown("footprint_written_bytes"), (4 * (ROWS * COLUMNS + 2 * ROWS)) as u64);
    // The padding does its work: nothing but the final maxima conflicts.
    assert!(grown("shared_wavefronts") * 100 < grown("shared_wavefronts_ideal") * 105);
}

#[test]
fn a_missing_wait_leaves_the_tile_empty() {
    let device = device();
    let c = run(&device, &planted("cp.async.wait_group 1;", 0, "")).unwrap();
    assert!(Problem::new().error(&c) > 1.0);
}

#[test]
fn a_missing_barrier_before_the_tile_is_read_is_a_race() {
    fails_with(&planted("bar.sync \t0;", 0, ""), &["race: read of shared byte"]);
}

#[test]
fn a_missing_barrier_after_the_tile_is_read_is_a_race() {
    fails_with(&planted("bar.sync \t0;", 1, ""), &["race:", "shared byte", "by warp"]);
}

#[test]
fn a_store_one_beyond_the_end_is_out_of_bounds() {
    // The block maxima, one further on.
    let last = TILE.rfind("st.global.f32").unwrap();
    let text = format!("{}{}", &TILE[..last], TILE[last..].replacen("]", "+4]", 1));
    fails_with(&text, &["out of bounds: offset 128 of the 128-byte", "st.global.f32"]);
}

#[test]
fn a_copy_from_an_odd_row_is_misaligned() {
    fails_with(&planted("], 16;", 0, "+8], 16;"), &["16-byte access to misaligned address"]);
}

#[test]
fn swapped_factors_give_a_wrong_product() {
    let device = device();
    let mut lines: Vec<String> = TILE.lines().map(str::to_string).collect();
    for line in lines.iter_mut().filter(|line| line.contains("mma.sync")) {
        let open = line.match_indices('{').nth(1).unwrap().0 + 1;
        let close = line[open..].find('}').unwrap() + open;
        let mut registers: Vec<&str> = line[open..close].split(", ").collect();
        registers.swap(1, 2);
        *line = format!("{}{}{}", &line[..open], registers.join(", "), &line[close..]);
    }
    let c = run(&device, &lines.join("\n")).unwrap();
    assert!(Problem::new().error(&c) > 1e-2);
}

#[test]
fn a_weight_that_was_never_written_is_named() {
    let device = device();
    let problem = Problem::new();
    let a = device.stream.clone_htod(&problem.a).unwrap();
    let mut w: CudaSlice<u16> = unsafe { device.stream.alloc(COLUMNS * DEPTH).unwrap() };
    let most = COLUMNS * DEPTH - 8;
    device.stream.memcpy_htod(&problem.w[..most], &mut w.slice_mut(..most)).unwrap();
    let error = run_on(&device, TILE, &a, &w, ROWS * COLUMNS, COLUMNS).err().unwrap();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let message = last_error();
    let offset = format!("offset {} of the {}-byte", 2 * most, 2 * COLUMNS * DEPTH);
    assert!(message.contains("never written") && message.contains(&offset), "{message}");
}

#[test]
fn a_buffer_smaller_than_the_arguments_say_is_out_of_bounds() {
    let device = device();
    let problem = Problem::new();
    let a = device.stream.clone_htod(&problem.a).unwrap();
    let w = device.stream.clone_htod(&problem.w).unwrap();
    let n = 2 * COLUMNS;
    assert!(run_on(&device, TILE, &a, &w, ROWS * COLUMNS, n).is_err());
    assert!(last_error().contains("out of bounds"), "{}", last_error());
}

#[test]
fn freed_memory_is_told_from_memory_that_never_was() {
    let device = device();
    let tile = load(&device, TILE);
    let problem = Problem::new();
    let a = device.stream.clone_htod(&problem.a).unwrap();
    let mut c: CudaSlice<f32> = device.stream.alloc_zeros(ROWS * COLUMNS).unwrap();
    let mut most: CudaSlice<f32> = device.stream.alloc_zeros(64).unwrap();
    let gone = {
        let w = device.stream.clone_htod(&problem.w).unwrap();
        use cudarc::driver::DevicePtr;
        let (address, _guard) = w.device_ptr(&device.stream);
        address
    };
    let (n, k) = (COLUMNS as i32, DEPTH as i32);
    let mut launch = device.stream.launch_builder(&tile);
    launch.arg(&a).arg(&gone).arg(&mut c).arg(&mut most).arg(&n).arg(&k);
    assert!(unsafe { launch.launch(CONFIG) }.is_err());
    assert!(last_error().contains("freed memory"), "{}", last_error());
}

#[test]
fn too_much_dynamic_shared_memory_is_refused_at_the_launch() {
    let device = device();
    let tile = load(&device, TILE);
    let limit = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let mut c: CudaSlice<f32> = device.stream.alloc_zeros(8).unwrap();
    let one = 1i32;
    let mut launch = || {
        let mut builder = device.stream.launch_builder(&tile);
        builder.arg(&mut c).arg(&one).arg(&one).arg(&one).arg(&one).arg(&one);
        unsafe { builder.launch(LaunchConfig { shared_mem_bytes: 60_000, ..CONFIG }) }
    };
    assert_eq!(launch().unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(last_error().contains("60000 bytes of dynamic shared memory"), "{}", last_error());
    tile.set_attribute(limit, 60_000).unwrap();
    assert_eq!(
        launch().unwrap_err().0,
        sys::CUresult::CUDA_ERROR_LAUNCH_FAILED,
        "launched, then failed"
    );
}

#[test]
fn a_failed_kernel_spoils_the_context_until_it_is_released() {
    let device = device();
    let text = planted("bar.sync \t0;", 0, "");
    assert!(run(&device, &text).is_err());
    let failed = sys::CUresult::CUDA_ERROR_LAUNCH_FAILED;
    assert_eq!(device.stream.alloc_zeros::<u8>(16).unwrap_err().0, failed);
    assert_eq!(device.stream.synchronize().unwrap_err().0, failed);
    drop(device);
    let device = common::device();
    assert!(run(&device, TILE).is_ok(), "{}", last_error());
}

#[test]
fn a_graph_gives_the_bytes_of_the_eager_launch() {
    let device = device();
    let problem = Problem::new();
    let tile = load(&device, TILE);
    let eager = run(&device, TILE).unwrap();
    let stream = &device.stream;
    let mut staging =
        unsafe { device.context.alloc_pinned_with_flags::<u16>(ROWS * DEPTH, 0).unwrap() };
    staging.as_mut_slice().unwrap().copy_from_slice(&problem.a);
    let mut a: CudaSlice<u16> = unsafe { stream.alloc(ROWS * DEPTH).unwrap() };
    let w = stream.clone_htod(&problem.w).unwrap();
    let mut c: CudaSlice<f32> = stream.alloc_zeros(ROWS * COLUMNS).unwrap();
    let mut most: CudaSlice<f32> = stream.alloc_zeros(64).unwrap();
    let (n, mut k) = (COLUMNS as i32, DEPTH as i32);
    stream
        .begin_capture(sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    stream.memcpy_htod(&staging, &mut a).unwrap();
    unsafe {
        let mut launch = stream.launch_builder(&tile);
        launch.arg(&a).arg(&w).arg(&mut c).arg(&mut most).arg(&n).arg(&k).launch(CONFIG).unwrap();
    }
    k += 1; // arguments are copied when they are captured
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).unwrap().unwrap();
    assert_eq!(k as usize, DEPTH + 1);
    assert!(
        stream.clone_dtoh(&c).unwrap().iter().all(|x| *x == 0.0),
        "nothing ran while capturing"
    );
    graph.upload().unwrap();
    for _ in 0..2 {
        graph.launch().unwrap();
    }
    assert_eq!(stream.clone_dtoh(&c).unwrap(), eager);
    // The copy node reads the staging buffer at every launch.
    staging.as_mut_slice().unwrap().fill(0);
    graph.launch().unwrap();
    assert!(stream.clone_dtoh(&c).unwrap().iter().all(|x| *x == 0.0));
}

#[test]
fn the_same_bytes_come_out_whatever_thread_runs_a_block() {
    let device = device();
    let first = run(&device, TILE).unwrap();
    for _ in 0..5 {
        assert_eq!(run(&device, TILE).unwrap(), first);
    }
    let _: &Arc<_> = &device.stream;
}
