//! A launch: its shape and arguments, and the distribution of its blocks over host threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::block::Block;
use super::program::{Kernel, Writes};
use crate::counters::KernelCounters;
use crate::fault::Fault;
use crate::memory::{Memory, Snapshot};
use crate::race::Published;

/// Everything the blocks of a launch have in common.
pub(crate) struct Launch<'a> {
    pub(crate) kernel: &'a Kernel,
    /// Number of this launch, never 0.
    pub(crate) id: u16,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: usize,
    pub(crate) params: &'a [u8],
    pub(crate) memory: &'a Memory,
    pub(crate) allocations: Snapshot,
    /// Per allocation, whether races in it are looked for.
    pub(crate) race_checked: Vec<bool>,
    /// A store went to memory the analysis had not expected.
    pub(crate) surprised: AtomicBool,
    pub(crate) published: Published,
    /// Blocks and warps run last first.
    pub(crate) reversed: bool,
    /// Instructions after which a warp counts as hanging.
    pub(crate) steps_max: u64,
}

impl<'a> Launch<'a> {
    /// Threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Bytes of shared memory of a block.
    pub(crate) fn shared_bytes(&self) -> usize {
        if self.dynamic_shared == 0 {
            self.kernel.static_shared
        } else {
            self.kernel.dynamic_shared_at + self.dynamic_shared
        }
    }

    /// Position in the order of execution.
    pub(crate) fn order(&self, position: usize, count: usize) -> usize {
        if self.reversed { count - 1 - position } else { position }
    }

    /// Which allocations need the race check: those the kernel may write to.
    pub(crate) fn race_checked(
        kernel: &Kernel,
        params: &[u8],
        allocations: &Snapshot,
    ) -> Vec<bool> {
        let Writes::Params(indices) = &kernel.writes else { return vec![true; allocations.len()] };
        let mut checked = vec![false; allocations.len()];
        for index in indices {
            let param = kernel.params[*index];
            let bytes = &params[param.offset..param.offset + param.bytes];
            for word in bytes.chunks_exact(8) {
                let mut value = [0; 8];
                value.copy_from_slice(word);
                if let Some(position) = position_of(allocations, u64::from_le_bytes(value)) {
                    checked[position] = true;
                }
            }
        }
        checked
    }

    /// Runs all blocks.
    ///
    /// # Errors
    /// The fault of the lowest block that failed, whatever the number of host threads.
    pub(crate) fn run(&'a self) -> Result<KernelCounters, Fault> {
        let blocks: u32 = self.grid.iter().product();
        // Blocks that meet in atomics run in order, so that results do not depend on timing.
        let workers = if self.kernel.has_global_atomics { 1 } else { host_threads().min(blocks) };
        let next = AtomicU32::new(0);
        let first_failed = AtomicU32::new(u32::MAX);
        let outcome: Mutex<(KernelCounters, Option<(u32, Fault)>)> = Mutex::default();
        let work = || {
            let mut block = Block::new(self);
            loop {
                let position = next.fetch_add(1, Ordering::Relaxed);
                if position >= blocks {
                    break;
                }
                let linear = self.order(position as usize, blocks as usize) as u32;
                if position > first_failed.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(fault) = block.run(linear) {
                    first_failed.fetch_min(position, Ordering::Relaxed);
                    let mut outcome = lock(&outcome);
                    if outcome.1.as_ref().is_none_or(|(other, _)| position < *other) {
                        outcome.1 = Some((position, fault));
                    }
                    break;
                }
            }
            lock(&outcome).0.add(&block.state.counters);
        };
        if workers <= 1 {
            work();
        } else {
            std::thread::scope(|scope| {
                for _ in 1..workers {
                    scope.spawn(work);
                }
                work();
            });
        }
        let (mut counters, failed) = {
            let mut outcome = lock(&outcome);
            std::mem::take(&mut *outcome)
        };
        counters.launches = 1;
        for allocation in self.allocations.iter() {
            let (read, written) = allocation.take_footprint();
            counters.footprint_constant_bytes += if allocation.is_constant() { read } else { 0 };
            counters.footprint_read_bytes += read;
            counters.footprint_written_bytes += written;
        }
        match failed {
            Some((_, fault)) => Err(fault),
            None => Ok(counters),
        }
    }
}

/// Position of the allocation that holds an address.
pub(crate) fn position_of(allocations: &Snapshot, address: u64) -> Option<usize> {
    let after = allocations.partition_point(|allocation| allocation.base <= address);
    let position = after.checked_sub(1)?;
    allocations[position].contains(address, 1).then_some(position)
}

fn host_threads() -> u32 {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(threads).unwrap_or(1).min(8)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
