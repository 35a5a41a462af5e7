//! With `GPUSIM_LAZY=1` nothing runs before a call that waits for it. The switch is read once per
//! process, so these tests have one of their own.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, missing_docs, unreachable_pub)]

mod common;

use common::{Device, device};
use cudarc::driver::CudaSlice;

fn lazy() -> Device {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: all tests of this process set the same value before the library is first called.
    ONCE.call_once(|| unsafe { std::env::set_var("GPUSIM_LAZY", "1") });
    device()
}

#[test]
fn a_staging_buffer_reused_too_early_shows() {
    let device = lazy();
    let stream = &device.stream;
    let mut staging = unsafe { device.context.alloc_pinned_with_flags::<u32>(16, 0).unwrap() };
    let mut slice: CudaSlice<u32> = stream.alloc_zeros(16).unwrap();
    staging.as_mut_slice().unwrap().fill(1);
    let raw = staging.as_mut_ptr().unwrap();
    stream.memcpy_htod(&staging, &mut slice).unwrap();
    // SAFETY: the buffer is alive; writing it before the copy is done is the planted bug.
    unsafe { raw.write(2) };
    let out = stream.clone_dtoh(&slice).unwrap();
    assert_eq!(out[..2], [2, 1]);
}

#[test]
fn pageable_memory_is_staged_when_the_copy_is_submitted() {
    let device = lazy();
    let mut own = vec![1u32; 16];
    let mut slice: CudaSlice<u32> = device.stream.alloc_zeros(16).unwrap();
    device.stream.memcpy_htod(&own, &mut slice).unwrap();
    own.fill(2);
    assert_eq!(device.stream.clone_dtoh(&slice).unwrap(), vec![1; 16]);
}

#[test]
fn streams_run_independently_unless_an_event_orders_them() {
    let device = lazy();
    let other = device.context.new_stream().unwrap();
    let mut slice: CudaSlice<u32> = device.stream.alloc_zeros(16).unwrap();
    device.stream.synchronize().unwrap();
    let mut staging = unsafe { device.context.alloc_pinned_with_flags::<u32>(16, 0).unwrap() };
    staging.as_mut_slice().unwrap().fill(5);
    device.stream.memcpy_htod(&staging, &mut slice).unwrap();
    assert_eq!(other.clone_dtoh(&slice).unwrap(), vec![0; 16], "no order, no data");
    let event = device.stream.record_event(None).unwrap();
    other.wait(&event).unwrap();
    assert_eq!(other.clone_dtoh(&slice).unwrap(), vec![5; 16]);
}
