//! `GPUSIM_DEVICES=0`: a driver is installed, but there is no card. Settings are read once per
//! process, so this test has one of its own.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, missing_docs, unreachable_pub)]

mod common;

use cudarc::driver::{CudaContext, sys};

#[test]
fn a_driver_without_a_card_says_so() {
    // SAFETY: the only test of the process; no other thread reads the environment.
    unsafe { std::env::set_var("GPUSIM_DEVICES", "0") };
    common::library();
    assert!(unsafe { sys::is_culib_present() });
    assert_eq!(CudaContext::new(0).unwrap_err().0, sys::CUresult::CUDA_ERROR_NO_DEVICE);
}
