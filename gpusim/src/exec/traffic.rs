//! Counting what a warp's request costs: 32-byte sectors of global memory, passes of the 32
//! shared-memory banks.

use super::access::{Addresses, Direction};
use super::lanes::{LANES, lanes_of};
use super::launch::Launch;
use crate::counters::KernelCounters;

const SECTOR_BYTES: u64 = 32;
const BANKS: usize = 32;

/// Counts a global request; `position` is the allocation of its last lane.
pub(super) fn count_global(
    counters: &mut KernelCounters,
    launch: &Launch<'_>,
    position: usize,
    addresses: &Addresses,
    width: usize,
    active: u32,
    direction: Direction,
) {
    let mut seen = [0u64; LANES];
    let mut count = 0;
    let mut last = u64::MAX;
    for lane in lanes_of(active) {
        let sector = addresses[lane] / SECTOR_BYTES;
        if sector == last || seen[..count].contains(&sector) {
            continue;
        }
        last = sector;
        seen[count] = sector;
        count += 1;
        let mut allocation = &launch.allocations[position];
        if !allocation.contains(addresses[lane], width) {
            let other = super::launch::position_of(&launch.allocations, addresses[lane]);
            let Some(other) = other else { continue };
            allocation = &launch.allocations[other];
        }
        if direction != Direction::Write {
            allocation.sectors_read().add(addresses[lane]);
            counters.constant_sectors += u64::from(allocation.is_constant());
        }
        if direction != Direction::Read {
            allocation.sectors_written().add(addresses[lane]);
        }
    }
    let bytes = u64::from(active.count_ones()) * width as u64;
    let sectors = count as u64;
    counters.global_sectors += sectors;
    counters.global_sectors_ideal += bytes.div_ceil(SECTOR_BYTES).min(sectors);
    if direction != Direction::Write {
        counters.global_read_bytes += bytes;
    }
    if direction != Direction::Read {
        counters.global_written_bytes += bytes;
    }
}

/// Counts a shared request. 8-byte accesses go by half warps, 16-byte ones by quarters.
pub(super) fn count_shared(
    counters: &mut KernelCounters,
    addresses: &Addresses,
    width: usize,
    active: u32,
) {
    let lanes_per_phase = LANES / (width / 4).clamp(1, 4);
    for phase in 0..LANES / lanes_per_phase {
        let lanes = u32::MAX >> (LANES - lanes_per_phase) << (phase * lanes_per_phase);
        if active & lanes == 0 {
            continue;
        }
        let (passes, ideal) = bank_passes(addresses, width, active & lanes);
        counters.shared_wavefronts += passes;
        counters.shared_wavefronts_ideal += ideal;
    }
}

/// Most distinct words that one bank has to deliver, and the fewest passes for that many words.
fn bank_passes(addresses: &Addresses, width: usize, active: u32) -> (u64, u64) {
    // Usually every bank has one word; then remembering that word is enough.
    let mut word_of = [u32::MAX; BANKS];
    let mut distinct = 0u64;
    for lane in lanes_of(active) {
        for part in 0..width.div_ceil(4) {
            let word = (addresses[lane] / 4) as u32 + part as u32;
            let slot = &mut word_of[word as usize % BANKS];
            if *slot == u32::MAX {
                *slot = word;
                distinct += 1;
            } else if *slot != word {
                return conflicting_passes(addresses, width, active);
            }
        }
    }
    (1, distinct.div_ceil(BANKS as u64))
}

/// The same where some bank has several words.
fn conflicting_passes(addresses: &Addresses, width: usize, active: u32) -> (u64, u64) {
    let mut words: Vec<u32> = lanes_of(active)
        .flat_map(|lane| (0..width.div_ceil(4)).map(move |part| (lane, part as u32)))
        .map(|(lane, part)| (addresses[lane] / 4) as u32 + part)
        .collect();
    words.sort_unstable();
    words.dedup();
    let mut used = [0u64; BANKS];
    words.iter().for_each(|word| used[*word as usize % BANKS] += 1);
    let passes = used.iter().copied().max().unwrap_or(1);
    (passes, (words.len() as u64).div_ceil(BANKS as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(stride: u64, width: usize) -> (u64, u64) {
        let mut counters = KernelCounters::default();
        let addresses = std::array::from_fn(|lane| lane as u64 * stride);
        count_shared(&mut counters, &addresses, width, u32::MAX);
        (counters.shared_wavefronts, counters.shared_wavefronts_ideal)
    }

    #[test]
    fn strides_conflict_as_the_banks_do() {
        assert_eq!(passes(4, 4), (1, 1));
        assert_eq!(passes(0, 4), (1, 1), "a broadcast is one pass");
        assert_eq!(passes(8, 4), (2, 1));
        assert_eq!(passes(128, 4), (32, 1));
        assert_eq!(passes(132, 4), (1, 1));
        assert_eq!(passes(16, 16), (4, 4));
        assert_eq!(passes(128, 16), (32, 4));
    }
}
