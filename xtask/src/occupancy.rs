//! Blocks per multiprocessor from registers, threads and shared memory.
//!
//! The arithmetic and the limits are those of NVIDIA's `cuda_occupancy.h`: 65,536 registers in
//! four banks, a warp takes registers in units of 256 of one bank, shared memory goes in units of
//! 128 bytes plus 1 KiB per block.

/// Limits of one multiprocessor.
#[derive(Clone, Copy)]
struct Limits {
    threads: u32,
    blocks: u32,
    shared_bytes: u32,
}

/// Blocks of `threads` threads with `registers` each and `shared_bytes` (static and dynamic)
/// that fit on one multiprocessor of `arch`; `None` for an architecture not in the table.
pub(crate) fn blocks_per_sm(
    arch: &str,
    registers: u32,
    threads: u32,
    shared_bytes: u32,
) -> Option<u32> {
    let limits = limits(arch)?;
    let warps = threads.div_ceil(32).max(1);
    let by_threads = (limits.threads / 32) / warps;
    let per_warp = (registers.max(1) * 32).next_multiple_of(256);
    let by_registers = (65_536 / 4 / per_warp) * 4 / warps;
    let by_shared = limits.shared_bytes / (shared_bytes.next_multiple_of(128) + 1024);
    Some(limits.blocks.min(by_threads).min(by_registers).min(by_shared))
}

fn limits(arch: &str) -> Option<Limits> {
    let (threads, blocks, kib) = match arch {
        "sm_80" => (2048, 32, 164),
        "sm_86" => (1536, 16, 100),
        "sm_89" => (1536, 24, 100),
        "sm_90" | "sm_90a" => (2048, 32, 228),
        "sm_120" => (1536, 24, 100),
        _ => return None,
    };
    Some(Limits { threads, blocks, shared_bytes: kib * 1024 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_bounds_the_gemm_tile() {
        // 54 registers, 128 threads, 23,040 bytes: registers alone would allow 9 blocks.
        assert_eq!(blocks_per_sm("sm_86", 54, 128, 23_040), Some(4));
        assert_eq!(blocks_per_sm("sm_90a", 54, 128, 23_040), Some(9));
        assert_eq!(blocks_per_sm("sm_86", 54, 128, 0), Some(9));
    }
}
