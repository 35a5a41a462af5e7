//! Occupancy queries, from the kernel's estimated registers and its shared memory.

use std::ffi::{c_int, c_uint};

use super::codes::Code;
use super::device::{MULTIPROCESSORS, SHARED_OPT_IN_BYTES};
use super::state::{Handle, Needs, State, give};

/// Threads a multiprocessor holds.
const THREADS: u32 = 2048;
const BLOCKS: u32 = 32;
const REGISTERS: u32 = 65_536;

impl State {
    fn blocks_per_multiprocessor(
        &self,
        function: Handle,
        threads: c_int,
        dynamic: usize,
    ) -> Result<u32, Code> {
        let kernel = &self.functions.get(&function).ok_or(Code::INVALID_HANDLE)?.kernel;
        let warps = u32::try_from(threads).map_err(|_| Code::INVALID_VALUE)?.div_ceil(32);
        if warps == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let by_threads = THREADS / 32 / warps;
        let by_registers = REGISTERS / (kernel.registers * 32).next_multiple_of(256) / warps;
        let shared = (kernel.static_shared + dynamic).next_multiple_of(128) + 1024;
        let by_shared = u32::try_from((SHARED_OPT_IN_BYTES + 1024) / shared).unwrap_or(BLOCKS);
        Ok(BLOCKS.min(by_threads).min(by_registers).min(by_shared))
    }
}

/// Dynamic shared memory as a function of the block size.
type SharedOfBlock = Option<unsafe extern "C" fn(c_int) -> usize>;

driver_functions! {
    Needs::Context, |state|
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: Handle,
        threads: c_int,
        dynamic: usize,
    ) {
        give(blocks, state.blocks_per_multiprocessor(function, threads, dynamic)?.cast_signed())
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int,
        function: Handle,
        threads: c_int,
        dynamic: usize,
        _flags: c_uint,
    ) {
        give(blocks, state.blocks_per_multiprocessor(function, threads, dynamic)?.cast_signed())
    }
    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int,
        threads: *mut c_int,
        function: Handle,
        shared_of_block: SharedOfBlock,
        dynamic: usize,
        limit: c_int,
    ) {
        best_block(state, grid, threads, function, shared_of_block, dynamic, limit)
    }
    #[allow(clippy::too_many_arguments)]
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: *mut c_int,
        threads: *mut c_int,
        function: Handle,
        shared_of_block: SharedOfBlock,
        dynamic: usize,
        limit: c_int,
        _flags: c_uint,
    ) {
        best_block(state, grid, threads, function, shared_of_block, dynamic, limit)
    }
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: *mut usize,
        function: Handle,
        blocks: c_int,
        _threads: c_int,
    ) {
        let kernel = &state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?.kernel;
        let blocks = usize::try_from(blocks).ok().filter(|blocks| *blocks > 0);
        let each = (SHARED_OPT_IN_BYTES + 1024) / blocks.ok_or(Code::INVALID_VALUE)?;
        give(bytes, each.saturating_sub(1024 + kernel.static_shared) / 128 * 128)
    }
}

/// The block size with the most resident threads.
///
/// # Safety
/// Pointers must be valid as the API demands.
unsafe fn best_block(
    state: &State,
    grid: *mut c_int,
    threads: *mut c_int,
    function: Handle,
    shared_of_block: SharedOfBlock,
    dynamic: usize,
    limit: c_int,
) -> Result<(), Code> {
    let kernel = &state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?.kernel;
    let limit = if limit > 0 { limit.cast_unsigned() } else { 1024 }.min(kernel.max_threads);
    let mut best = (0, 32, 0);
    for size in (32..=limit).step_by(32) {
        // SAFETY: the program handed over the function for these calls.
        let dynamic = shared_of_block.map_or(dynamic, |f| unsafe { f(size.cast_signed()) });
        let blocks = state.blocks_per_multiprocessor(function, size.cast_signed(), dynamic)?;
        best = best.max((blocks * size, size, blocks));
    }
    // SAFETY: as the caller promises.
    unsafe {
        give(grid, (best.2 * MULTIPROCESSORS).cast_signed())?;
        give(threads, best.1.cast_signed())
    }
}
