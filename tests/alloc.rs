//! A STEP allocates nothing once a backend is warm: all memory is taken before the worker says "ready".
//!
//! The steps run on a thread of the pool, as a drafting thread should: handing work to a pool from outside
//! makes the pool's queue allocate now and then.

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod gpu;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use dspark::drafter::cpu::{Logits, Precision};
use dspark::drafter::cuda::CudaOptions;
use dspark::drafter::{DraftBlocks, Drafter};
use dspark::plan::RowBlock;

/// Counts allocations of every thread.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system allocator, which keeps the trait's promises; the
// counter touches no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of this method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of this method.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of this method.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of the STEPs of some cases, after the same as a warm round.
fn allocations(drafter: &mut dyn Drafter, cases: &[&str]) -> usize {
    let pool = cases::pool();
    let steps = cases.iter().flat_map(|name| cases::case(name).steps);
    let planned: Vec<cases::Planned> = steps.map(|step| cases::plan(&step, &pool)).collect();
    let mut out = DraftBlocks::new(drafter.geometry());
    let mut round = || {
        for planned in &planned {
            let rows = RowBlock::new(&planned.rows, cases::ROW_BYTES);
            drafter.step(&planned.plan, rows, &mut out).unwrap();
        }
    };
    round();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    round();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// One test for all backends: others at the same time would be counted too.
#[test]
fn a_warm_step_allocates_nothing() {
    let names = ["06_decode_30_rounds", "13_four_requests", "14_n_out"];
    for (threads, precision) in [(1, Precision::Bf16), (2, Precision::F32)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut drafter = cases::drafter(precision, Logits::Bf16);
        let count = pool.install(|| allocations(&mut drafter, &names));
        assert_eq!(count, 0, "{precision:?} on {threads} threads");
    }
    // The emulated driver has an allocator of its own, as a real one has: only this program is counted.
    let mut drafter = gpu::drafter(&cases::checkpoint(), CudaOptions::default());
    assert_eq!(allocations(&mut *drafter, &["13_four_requests"]), 0, "CUDA");
}
