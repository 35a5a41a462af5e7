//! What a STEP of the CUDA backend takes of the host: `cargo bench --bench host_time`.
//!
//! Plan to numbers, copies and launch issued, results read; not the copies and kernels themselves, which the emulated
//! driver puts off (`GPUSIM_LAZY=1`) and leaves out (`GPUSIM_IDLE=1`). Its own bookkeeping of four calls a STEP is in
//! the times, a real driver's work is not: `gpu-check timing` reports `host_us` on a card.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/cases/mod.rs"]
mod cases;
#[path = "../tests/gpu/mod.rs"]
mod gpu;
#[path = "../tests/requests/mod.rs"]
mod requests;

use std::process::{Command, exit};
use std::time::Duration;

use dspark::drafter::Drafter;
use dspark::drafter::cuda::CudaOptions;
use requests::{Request, step_in};

/// STEPs of each kind, and rows of a request.
const STEPS: usize = 4000;
const ROWS: usize = 6;
const SWITCHES: [(&str, &str); 2] = [("GPUSIM_LAZY", "1"), ("GPUSIM_IDLE", "1")];

fn main() {
    // The driver reads its switches from the environment of the process.
    if SWITCHES.iter().any(|(name, _)| std::env::var_os(name).is_none()) {
        let program = std::env::current_exe().unwrap();
        let status = Command::new(program).envs(SWITCHES).status().unwrap();
        exit(status.code().unwrap_or(1));
    }
    let mut drafter = gpu::drafter(&cases::checkpoint(), CudaOptions::default());
    let mut frame = drafter.frame_buffer(64 * cases::ROW_BYTES).unwrap();
    println!("host time of a STEP with {ROWS} rows a request, {STEPS} STEPs");
    for requests in 1..=4 {
        let mut times: Vec<Duration> = (0..STEPS)
            .map(|at| {
                let request = |slot: u8| {
                    let first = (at * ROWS) as i64;
                    Request::new(slot, first, ROWS, 40 * usize::from(slot), 0)
                };
                let batch: Vec<Request> = (0..requests).map(request).collect();
                step_in(&mut *drafter, &mut frame, &batch, 0);
                drafter.host_time()
            })
            .collect();
        times.sort_unstable();
        let at = |share: usize| times[STEPS * share / 100].as_secs_f64() * 1e6;
        println!("{requests} requests: p50 {:.1} us, p99 {:.1} us", at(50), at(99));
    }
}
