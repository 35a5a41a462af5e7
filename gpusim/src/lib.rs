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
//! `GPUSIM_REPORT=FILE` (counters as JSON), `GPUSIM_FILL` (byte that new allocations hold),
//! `GPUSIM_ORDER=reverse` (blocks and warps run last first), `GPUSIM_STEPS` (instructions after
//! which a warp counts as hanging).
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
