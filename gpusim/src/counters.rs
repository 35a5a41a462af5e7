//! What kernels did: instructions, bytes, sectors, shared-memory wavefronts; and what the program
//! asked of the driver.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// Counts of one kernel over all its launches, or of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelCounters {
    pub(crate) launches: u64,
    pub(crate) blocks: u64,
    pub(crate) warp_instructions: u64,
    pub(crate) mma: u64,
    /// Bytes that lanes asked for.
    pub(crate) global_read_bytes: u64,
    pub(crate) global_written_bytes: u64,
    /// 32-byte sectors moved by warp requests, and the fewest that could hold the bytes.
    pub(crate) global_sectors: u64,
    pub(crate) global_sectors_ideal: u64,
    /// Sectors read of memory that has not changed since a kernel first read of it: weights and tables.
    pub(crate) constant_sectors: u64,
    /// Bytes (in sectors) that a launch touched at least once: traffic behind a perfect cache.
    pub(crate) footprint_read_bytes: u64,
    pub(crate) footprint_written_bytes: u64,
    /// Of the bytes read, those of memory that has not changed since a kernel first read of it.
    pub(crate) footprint_constant_bytes: u64,
    /// Passes of the shared-memory banks, and the fewest possible.
    pub(crate) shared_wavefronts: u64,
    pub(crate) shared_wavefronts_ideal: u64,
    pub(crate) atomics: u64,
    pub(crate) barriers: u64,
}

impl KernelCounters {
    pub(crate) fn add(&mut self, other: &Self) {
        self.launches += other.launches;
        self.blocks += other.blocks;
        self.warp_instructions += other.warp_instructions;
        self.mma += other.mma;
        self.global_read_bytes += other.global_read_bytes;
        self.global_written_bytes += other.global_written_bytes;
        self.global_sectors += other.global_sectors;
        self.global_sectors_ideal += other.global_sectors_ideal;
        self.footprint_read_bytes += other.footprint_read_bytes;
        self.footprint_written_bytes += other.footprint_written_bytes;
        self.constant_sectors += other.constant_sectors;
        self.footprint_constant_bytes += other.footprint_constant_bytes;
        self.shared_wavefronts += other.shared_wavefronts;
        self.shared_wavefronts_ideal += other.shared_wavefronts_ideal;
        self.atomics += other.atomics;
        self.barriers += other.barriers;
    }

    fn to_json(&self) -> Value {
        json!({
            "launches": self.launches,
            "blocks": self.blocks,
            "warp_instructions": self.warp_instructions,
            "mma": self.mma,
            "global_read_bytes": self.global_read_bytes,
            "global_written_bytes": self.global_written_bytes,
            "global_sectors": self.global_sectors,
            "global_sectors_ideal": self.global_sectors_ideal,
            "footprint_read_bytes": self.footprint_read_bytes,
            "footprint_written_bytes": self.footprint_written_bytes,
            "constant_sectors": self.constant_sectors,
            "footprint_constant_bytes": self.footprint_constant_bytes,
            "shared_wavefronts": self.shared_wavefronts,
            "shared_wavefronts_ideal": self.shared_wavefronts_ideal,
            "atomics": self.atomics,
            "barriers": self.barriers,
        })
    }
}

/// Bytes and calls of one direction of copying.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyCounters {
    pub(crate) copies: u64,
    pub(crate) bytes: u64,
    /// Copies from or to host memory that is not page-locked.
    pub(crate) pageable_copies: u64,
    pub(crate) pageable_bytes: u64,
}

impl CopyCounters {
    pub(crate) fn add(&mut self, bytes: usize, pageable: bool) {
        self.copies += 1;
        self.bytes += bytes as u64;
        if pageable {
            self.pageable_copies += 1;
            self.pageable_bytes += bytes as u64;
        }
    }

    fn to_json(self) -> Value {
        json!({
            "copies": self.copies,
            "bytes": self.bytes,
            "pageable_copies": self.pageable_copies,
            "pageable_bytes": self.pageable_bytes,
        })
    }
}

/// Everything counted since the process began.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) kernels: BTreeMap<String, KernelCounters>,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) host_to_device: CopyCounters,
    pub(crate) device_to_host: CopyCounters,
    pub(crate) device_to_device: CopyCounters,
    pub(crate) graph_launches: u64,
    pub(crate) leaked_allocations: u64,
    pub(crate) leaked_bytes: u64,
    /// Kernels that stored to memory the analysis of their code had not expected.
    pub(crate) surprises: BTreeSet<String>,
    /// Bytes, from the first one never written on, that were copied to the host.
    pub(crate) unwritten_bytes_copied: u64,
}

impl Counters {
    /// The report that `GPUSIM_REPORT` asks for.
    pub(crate) fn to_json(&self, last_error: &str) -> Value {
        let kernels: serde_json::Map<String, Value> = self
            .kernels
            .iter()
            .map(|(name, counters)| (name.clone(), counters.to_json()))
            .collect();
        json!({
            "kernels": kernels,
            "calls": self.calls,
            "host_to_device": self.host_to_device.to_json(),
            "device_to_host": self.device_to_host.to_json(),
            "device_to_device": self.device_to_device.to_json(),
            "graph_launches": self.graph_launches,
            "leaked_allocations": self.leaked_allocations,
            "leaked_bytes": self.leaked_bytes,
            "unwritten_bytes_copied": self.unwritten_bytes_copied,
            "last_error": last_error,
        })
    }
}
