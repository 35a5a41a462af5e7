//! How fast the emulator executes a tensor-core kernel with every check on.

use std::time::Instant;

use cudarc::driver::{CudaContext, CudaSlice, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

fn main() {
    let program = std::env::current_exe().expect("path of this program");
    let folder = program.parent().and_then(|examples| examples.parent()).expect("target folder");
    // SAFETY: the emulator's initialisers touch nothing of ours.
    let library = unsafe { libloading::Library::new(folder.join("libgpusim.so")) };
    std::mem::forget(library.expect("build the library first: cargo build --release -p gpusim"));

    let (columns, depth) = (4096usize, 1024usize);
    let context = CudaContext::new(0).expect("context");
    let stream = context.default_stream();
    let source = include_str!("../tests/kernels/tile.ptx");
    let module = context.load_module(Ptx::from_src(source)).expect("module");
    let tile = module.load_function("tile").expect("kernel");
    let a = stream.clone_htod(&vec![0x3C00u16; 16 * depth]).expect("a");
    let w = stream.clone_htod(&vec![0x3C00u16; columns * depth]).expect("w");
    let mut c: CudaSlice<f32> = stream.alloc_zeros(16 * columns).expect("c");
    let mut most: CudaSlice<f32> = stream.alloc_zeros(columns / 4).expect("maxima");
    let (n, k) = (columns as i32, depth as i32); // both far below 2^31
    let config = LaunchConfig {
        grid_dim: (columns as u32 / 64, 1, 1),
        block_dim: (128, 1, 1),
        shared_mem_bytes: 2 * (16 + 64) * 72 * 2,
    };
    let rounds = 5;
    let start = Instant::now();
    for _ in 0..rounds {
        let mut launch = stream.launch_builder(&tile);
        launch.arg(&a).arg(&w).arg(&mut c).arg(&mut most).arg(&n).arg(&k);
        // SAFETY: the arguments are those of the kernel, the buffers as large as it says.
        unsafe { launch.launch(config) }.expect("launch");
    }
    stream.synchronize().expect("synchronise");
    let seconds = start.elapsed().as_secs_f64() / f64::from(rounds);
    let products = (16 * columns * depth) as f64;
    println!("{:.3} s a launch, {:.0} M multiply-accumulates/s", seconds, products / seconds / 1e6);
}
