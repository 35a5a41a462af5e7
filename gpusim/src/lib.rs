//! An emulated CUDA driver: `libcuda.so.1` for machines without a GPU.
//!
//! The shared library built from this crate parses the PTX that a program hands to the driver and
//! executes it on the CPU, warp by warp, with checks no hardware makes. Programs are not changed:
//! they find the library through `LD_LIBRARY_PATH`, or a test loads it by path first. For tests
//! only; nothing here is meant to be fast or to hide a fault.
//!
//! | module | what it is |
//! |---|---|
//! | `ptx` | text to syntax tree |
//! | `exec` | syntax tree to program; warps, memory accesses, tensor cores |
//! | `memory` | allocations, their exact bounds and which of their bytes were written |
//! | `race` | who wrote and read each word last |
//! | `counters` | what kernels did and what the program asked of the driver |
//! | `fault` | the message of a failed check |
//! | `driver` | the `extern "C"` functions |
//!
//! Environment: `GPUSIM_LAZY=1` (nothing runs before a call that waits), `GPUSIM_MEM_MB`,
//! `GPUSIM_CC` (8.0), `GPUSIM_DEVICES=0` (no device), `GPUSIM_DRIVER_VERSION` (12090),
//! `GPUSIM_UNIFIED=1` (the management library has no memory figure), `GPUSIM_REPORT=FILE` (counters
//! as JSON), `GPUSIM_FILL` (byte that new allocations hold), `GPUSIM_ORDER=reverse` (blocks and warps
//! run last first), `GPUSIM_STEPS` (instructions after which a warp counts as hanging),
//! `GPUSIM_IDLE=1` (kernels do nothing), `GPUSIM_FAULT=N` (the N-th graph launch fails as a kernel with
//! a bad access does), `GPUSIM_REFUSE=FUNCTION:N` (its N-th call answers that memory ran out).
//!
//! What it cannot find: anything below PTX (scheduling, real occupancy, caches, clocks), the inner
//! rounding of tensor cores and of `.approx` functions, and weak ordering between blocks.

mod counters;
mod driver;
mod exec;
mod fault;
mod memory;
mod ptx;
mod race;

/// Lines of a PTX text whose instruction the emulator does not know, with their text.
///
/// A kernel with such a line loads, and stops when it reaches it; a test can ask beforehand.
///
/// # Errors
/// When the text is not PTX; the message names the line.
pub fn unknown_instructions(source: &str) -> Result<Vec<(u32, String)>, String> {
    let module = ptx::parse(source).map_err(|error| error.to_string())?;
    let globals = module.variables.iter().map(|variable| (variable.name.clone(), 0)).collect();
    let kernels = exec::decode(&std::sync::Arc::from(source), &module, &globals)
        .map_err(|error| error.to_string())?;
    let mut lines: Vec<u32> = kernels.values().flat_map(|kernel| kernel.unknown_lines()).collect();
    lines.sort_unstable();
    let text = |line: u32| source.lines().nth(line as usize - 1).unwrap_or("").trim().to_string();
    Ok(lines.into_iter().map(|line| (line, text(line))).collect())
}
