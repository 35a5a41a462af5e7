//! Checks that need no tensor core: races, shuffles, atomics, unknown instructions, driver rules.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, missing_docs, unreachable_pub)]

mod common;

use common::{ONE_WARP, Shape, device, last_error, report};
use cudarc::driver::{CudaSlice, DevicePtr, sys};
use cudarc::nvrtc::Ptx;

const TWO_BLOCKS: Shape = Shape { blocks: 2, threads: 32, shared_bytes: 0 };

#[test]
fn two_blocks_that_write_one_word_race() {
    let device = device();
    let message =
        device.fail("	mov.u32 %r1, %ctaid.x;\n	st.global.u32 [%out], %r1;", &[0], 1, TWO_BLOCKS);
    assert!(
        message.contains("race: offset 0") && message.contains("in the same launch"),
        "{message}"
    );
}

#[test]
fn a_block_that_reads_what_another_writes_races_in_either_order() {
    // Block 0 reads word 1 and writes word 0, block 1 the other way round.
    let body = "	mov.u32 %r1, %ctaid.x;
	xor.b32 %r2, %r1, 1;
	mul.wide.u32 %rd1, %r1, 4;
	mul.wide.u32 %rd2, %r2, 4;
	add.s64 %rd1, %out, %rd1;
	add.s64 %rd2, %out, %rd2;
	ld.global.u32 %r3, [%rd2];
	st.global.u32 [%rd1], %r3;";
    let message = device().fail(body, &[0], 2, TWO_BLOCKS);
    assert!(message.contains("race"), "{message}");
}

#[test]
fn blocks_ordered_by_fence_and_atomic_do_not_race() {
    // Every block writes its word; the last one to count adds them up.
    let body = "	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %tid.x;
	setp.ne.u32 %p1, %r2, 0;
	@%p1 bra $END;
	mul.wide.u32 %rd1, %r1, 4;
	add.s64 %rd1, %out, %rd1;
	st.global.u32 [%rd1], 5;
	membar.gl;
	atom.global.add.u32 %r3, [%out+32], 1;
	setp.ne.u32 %p2, %r3, 1;
	@%p2 bra $END;
	ld.global.u32 %r4, [%out];
	ld.global.u32 %r5, [%out+4];
	add.u32 %r6, %r4, %r5;
	st.global.u32 [%out+64], %r6;
$END:";
    let device = device();
    assert_eq!(device.run(body, &[0], 32, TWO_BLOCKS).unwrap()[16], 10);
    let message = device.fail(&body.replace("membar.gl;", ""), &[0], 32, TWO_BLOCKS);
    assert!(message.contains("race"), "{message}");
}

#[test]
fn a_value_passed_between_lanes_needs_a_warp_barrier() {
    let body = "	mov.u32 %r1, %tid.x;
	shl.b32 %r2, %r1, 2;
	mov.u32 %r3, dynamic;
	add.u32 %r4, %r3, %r2;
	st.shared.u32 [%r4], %r1;
	bar.warp.sync -1;
	xor.b32 %r5, %r2, 4;
	add.u32 %r6, %r3, %r5;
	ld.shared.u32 %r7, [%r6];";
    let device = device();
    let shape = Shape { shared_bytes: 128, ..ONE_WARP };
    device.run(body, &[0], 1, shape).unwrap();
    let message = device.fail(&body.replace("bar.warp.sync -1;", ""), &[0], 1, shape);
    assert!(message.contains("lane") && message.contains("without a warp barrier"), "{message}");
}

#[test]
fn a_shuffle_that_not_all_named_lanes_reach_is_refused() {
    let body = "	mov.u32 %r1, %tid.x;
	setp.lt.u32 %p1, %r1, 16;
	@%p1 shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;";
    let message = device().fail(body, &[0], 1, ONE_WARP);
    assert!(message.contains("names lanes 0xffffffff, but lanes 0x0000ffff"), "{message}");
}

#[test]
fn a_barrier_that_not_all_threads_reach_is_named() {
    let body = "	mov.u32 %r1, %tid.x;
	setp.lt.u32 %p1, %r1, 100;
	@%p1 bar.sync 0;";
    let message = device().fail(body, &[0], 1, Shape { threads: 128, ..ONE_WARP });
    assert!(message.contains("barrier 0 is not reached by all threads: 100 of 128"), "{message}");
}

#[test]
fn an_unknown_instruction_stops_with_its_text() {
    let message = device().fail("	fancy.new.b32 %r1, %r2;", &[0], 1, ONE_WARP);
    assert!(message.contains("does not know") && message.contains("fancy.new.b32"), "{message}");
}

#[test]
fn a_trap_and_an_endless_loop_stop() {
    let message = device().fail("	trap;", &[0], 1, ONE_WARP);
    assert!(message.contains("trap"), "{message}");
}

#[test]
fn shared_memory_has_exact_bounds() {
    let body = "	mov.u32 %r1, 0;\n	st.shared.u32 [dynamic+128], %r1;";
    let message = device().fail(body, &[0], 1, Shape { shared_bytes: 128, ..ONE_WARP });
    assert!(message.contains("shared byte 128 of 128"), "{message}");
}

#[test]
fn machine_code_is_refused_and_bad_text_named_by_line() {
    let device = device();
    let elf = device.context.load_module(Ptx::from_binary(b"\x7fELF\x02\x01\x01\0\0\0".to_vec()));
    assert_eq!(elf.unwrap_err().0, sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let text = common::snippet("	add.s32 %r1, %r2, %unknown;");
    let bad = device.context.load_module(Ptx::from_src(text));
    assert_eq!(bad.unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(
        last_error().contains("PTX line") && last_error().contains("%unknown"),
        "{}",
        last_error()
    );
    let newer = common::snippet("").replace(".version 7.0", ".version 9.0");
    let newer = device.context.load_module(Ptx::from_src(newer));
    assert_eq!(newer.unwrap_err().0, sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    let module = device.context.load_module(Ptx::from_src(common::snippet(""))).unwrap();
    assert_eq!(module.load_function("other").unwrap_err().0, sys::CUresult::CUDA_ERROR_NOT_FOUND);
}

#[test]
fn capturing_forbids_allocating_and_waiting() {
    let device = device();
    let stream = &device.stream;
    let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let unsupported = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for spoil in [0, 1] {
        stream.begin_capture(mode).unwrap();
        let error = match spoil {
            0 => stream.alloc_zeros::<u8>(16).err().unwrap(),
            _ => stream.synchronize().unwrap_err(),
        };
        assert_eq!(error.0, unsupported);
        let ended = stream.end_capture(flags).err().unwrap();
        assert_eq!(ended.0, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    stream.synchronize().unwrap();
}

#[test]
fn pageable_copies_are_counted_and_pinned_ones_are_not() {
    let device = device();
    let count = || {
        let report = report();
        let of = |direction: &str, what: &str| report[direction][what].as_u64().unwrap();
        (
            of("host_to_device", "copies"),
            of("host_to_device", "pageable_copies"),
            of("device_to_host", "pageable_copies"),
        )
    };
    let before = count();
    let mut pinned = unsafe { device.context.alloc_pinned_with_flags::<u32>(64, 0).unwrap() };
    pinned.as_mut_slice().unwrap().fill(7);
    let mut slice: CudaSlice<u32> = device.stream.alloc_zeros(64).unwrap();
    device.stream.memcpy_htod(&pinned, &mut slice).unwrap();
    device.stream.memcpy_dtoh(&slice, &mut pinned).unwrap();
    assert_eq!(count(), (before.0 + 1, before.1, before.2));
    let back = device.stream.clone_dtoh(&slice).unwrap();
    assert_eq!(back, vec![7; 64]);
    device.stream.memcpy_htod(&back, &mut slice).unwrap();
    assert_eq!(count(), (before.0 + 2, before.1 + 1, before.2 + 1));
}

#[test]
fn registered_memory_counts_as_pinned_and_has_a_device_address() {
    let device = device();
    let mut own = vec![3u32; 1024];
    let pointer = own.as_mut_ptr().cast();
    unsafe {
        assert_eq!(sys::cuMemHostRegister_v2(pointer, 4096, 0), sys::CUresult::CUDA_SUCCESS);
        let mut address = 0;
        let status = sys::cuMemHostGetDevicePointer_v2(&mut address, pointer, 0);
        assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
        let before = report()["host_to_device"]["pageable_copies"].clone();
        let slice = device.stream.clone_htod(&own).unwrap();
        assert_eq!(device.stream.clone_dtoh(&slice).unwrap(), own);
        assert_eq!(report()["host_to_device"]["pageable_copies"], before);
        assert_eq!(sys::cuMemHostUnregister(pointer), sys::CUresult::CUDA_SUCCESS);
        assert_ne!(sys::cuMemHostUnregister(pointer), sys::CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn copies_and_frees_outside_of_memory_are_refused() {
    let device = device();
    let slice: CudaSlice<u32> = device.stream.alloc_zeros(16).unwrap();
    let (address, _guard) = slice.device_ptr(&device.stream);
    let word = [0u32; 17];
    let invalid = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
    unsafe {
        assert_eq!(sys::cuMemcpyHtoD_v2(address, word.as_ptr().cast(), 68), invalid);
        assert_eq!(sys::cuMemFree_v2(address + 4), invalid);
    }
    assert!(device.stream.synchronize().is_ok(), "a refused call spoils nothing");
}

#[test]
fn events_measure_time_only_where_it_is_enabled() {
    let device = device();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let start = device.stream.record_event(timed).unwrap();
    let end = device.stream.record_event(timed).unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
    let untimed = device.stream.record_event(None).unwrap();
    assert_eq!(start.elapsed_ms(&untimed).unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn functions_answer_for_their_resources() {
    let device = device();
    let module = device.context.load_module(Ptx::from_src(common::snippet(""))).unwrap();
    let function = module.load_function("k").unwrap();
    assert_eq!(function.local_size_bytes().unwrap(), 0);
    assert!(function.num_regs().unwrap() > 0);
    assert_eq!(function.max_threads_per_block().unwrap(), 1024);
    assert!(function.occupancy_max_active_blocks_per_multiprocessor(128, 0, None).unwrap() > 0);
    assert_eq!(device.context.compute_capability().unwrap(), (8, 0));
    let (free, total) = device.context.mem_get_info().unwrap();
    assert!(free <= total && total == 24 << 30);
}
