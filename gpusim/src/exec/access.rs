//! Loads, stores and atomics of every memory space, with all checks and counts.

use super::block::BlockState;
use super::lanes::{LANES, lanes_of};
use super::launch::position_of;
use super::program::{Access, Atomic, LOCAL_WINDOW, MemorySpace, RowIndex, SHARED_WINDOW};
use super::traffic;
use super::warp::Warp;
use crate::fault::Trouble;
use crate::memory::Allocation;
use crate::race::{Conflict, SharedConflict};

/// Addresses of a warp's request.
pub(super) type Addresses = [u64; LANES];

/// Whether a global access is a load or a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
    /// Both at once, without race check.
    Atomic,
}

/// A generic address as space and address in it.
pub(super) fn space_of_generic(address: u64) -> (MemorySpace, u64) {
    match address >> 56 {
        window if window == SHARED_WINDOW >> 56 => (MemorySpace::Shared, address - SHARED_WINDOW),
        window if window == LOCAL_WINDOW >> 56 => (MemorySpace::Local, address - LOCAL_WINDOW),
        _ => (MemorySpace::Global, address),
    }
}

impl Warp {
    /// Addresses of the lanes and the space they are in.
    pub(super) fn addresses(
        &self,
        row: RowIndex,
        offset: i64,
        space: MemorySpace,
        active: u32,
    ) -> Result<(Addresses, MemorySpace), Trouble> {
        let mut addresses = self.row(row).map(|base| base.wrapping_add_signed(offset));
        if space != MemorySpace::Generic {
            return Ok((addresses, space));
        }
        let mut common = None;
        for lane in lanes_of(active) {
            let (space, address) = space_of_generic(addresses[lane]);
            addresses[lane] = address;
            if *common.get_or_insert(space) != space {
                return Err(Trouble::at(
                    lane,
                    "lanes of one generic access mean different memories",
                ));
            }
        }
        Ok((addresses, common.unwrap_or(MemorySpace::Global)))
    }

    pub(super) fn load(
        &mut self,
        block: &mut BlockState<'_>,
        access: &Access,
        active: u32,
    ) -> Result<(), Trouble> {
        let (addresses, space) =
            self.addresses(access.address, access.offset, access.space, active)?;
        let width = access.width();
        if space == MemorySpace::Global {
            let check_races = !access.is_strong;
            self.check_global(block, &addresses, width, active, Direction::Read, check_races)?;
        } else if space == MemorySpace::Shared {
            traffic::count_shared(&mut block.counters, &addresses, width, active);
        }
        for lane in lanes_of(active) {
            let from = match space {
                MemorySpace::Shared => {
                    let at = check_shared(block, addresses[lane], width, lane)?;
                    if !access.is_strong {
                        self.shared_read(block, at, width, lane)?;
                    }
                    &raw const block.shared[at]
                }
                MemorySpace::Local => {
                    &raw const self.local[self.local_at(addresses[lane], width, lane)?]
                }
                MemorySpace::Param => {
                    let at = addresses[lane] as usize;
                    let bytes = block.launch.params.get(at..at.saturating_add(width));
                    bytes.ok_or_else(|| Trouble::at(lane, "read behind the parameters"))?.as_ptr()
                }
                MemorySpace::Global | MemorySpace::Generic => addresses[lane] as *const u8,
            };
            for (index, row) in access.registers.iter().enumerate() {
                // SAFETY: `width` bytes from `from` were checked to lie in one live piece of memory.
                let value = unsafe { read(from.add(index * access.bytes), access.bytes) };
                self.registers[usize::from(*row)][lane] = extend(value, access);
            }
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        block: &mut BlockState<'_>,
        access: &Access,
        active: u32,
    ) -> Result<(), Trouble> {
        let (addresses, space) =
            self.addresses(access.address, access.offset, access.space, active)?;
        let width = access.width();
        if space == MemorySpace::Global {
            let check_races = !access.is_strong;
            self.check_global(block, &addresses, width, active, Direction::Write, check_races)?;
        } else if space == MemorySpace::Shared {
            traffic::count_shared(&mut block.counters, &addresses, width, active);
        }
        for lane in lanes_of(active) {
            let to = match space {
                MemorySpace::Shared => {
                    let at = check_shared(block, addresses[lane], width, lane)?;
                    if !access.is_strong {
                        self.shared_write(block, at, width, lane)?;
                    }
                    &raw mut block.shared[at]
                }
                MemorySpace::Local => {
                    let at = self.local_at(addresses[lane], width, lane)?;
                    &raw mut self.local[at]
                }
                MemorySpace::Param => return Err(Trouble::at(lane, "store to a kernel parameter")),
                MemorySpace::Global | MemorySpace::Generic => addresses[lane] as *mut u8,
            };
            for (index, row) in access.registers.iter().enumerate() {
                let value = self.registers[usize::from(*row)][lane];
                // SAFETY: `width` bytes from `to` were checked to lie in one live piece of memory.
                unsafe { write(to.add(index * access.bytes), access.bytes, value) };
            }
        }
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        block: &mut BlockState<'_>,
        atomic: &Atomic,
        active: u32,
    ) -> Result<(), Trouble> {
        let (addresses, space) =
            self.addresses(atomic.address, atomic.offset, atomic.space, active)?;
        let width = atomic.ty.bytes();
        block.counters.atomics += u64::from(active.count_ones());
        if space == MemorySpace::Global {
            self.check_global(block, &addresses, width, active, Direction::Atomic, false)?;
            if atomic.releases {
                block.fenced = Some(block.epoch);
            }
        }
        for lane in lanes_of(active) {
            let at = match space {
                MemorySpace::Shared => {
                    let at = check_shared(block, addresses[lane], width, lane)?;
                    &raw mut block.shared[at]
                }
                MemorySpace::Global => addresses[lane] as *mut u8,
                _ => return Err(Trouble::at(lane, "atomic on memory of one thread")),
            };
            let (a, b) = (self.row(atomic.a)[lane], self.row(atomic.b)[lane]);
            // SAFETY: the bytes were checked to lie in one live piece of memory; kernels with
            // global atomics run on one host thread.
            let old = unsafe {
                let old = read(at, width);
                write(at, width, super::atomics::apply(atomic, old, a, b));
                old
            };
            if let Some(row) = atomic.destination {
                self.registers[usize::from(row)][lane] = old;
            }
            if space == MemorySpace::Global {
                let (linear, fenced) = (block.linear, block.fenced);
                let published = &block.launch.published;
                published.synchronize(addresses[lane], linear, fenced, &mut block.acquired);
            }
        }
        Ok(())
    }

    /// Bounds, alignment, written bytes, races and traffic of a global request.
    pub(super) fn check_global(
        &self,
        block: &mut BlockState<'_>,
        addresses: &Addresses,
        width: usize,
        active: u32,
        direction: Direction,
        check_races: bool,
    ) -> Result<(), Trouble> {
        let launch = block.launch;
        for lane in lanes_of(active) {
            let address = addresses[lane];
            let allocation = find(block, address, width, lane)?;
            if direction != Direction::Write && !allocation.is_written(address, width) {
                let at = address - allocation.base;
                let what = format!(
                    "read of {width} bytes at offset {at} of {}, never written",
                    describe(allocation)
                );
                return Err(Trouble::at(lane, what));
            }
            if direction != Direction::Read {
                allocation.mark_written(address, width);
                if !launch.race_checked[block.last_allocation] {
                    launch.surprised.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            }
            if check_races && launch.race_checked[block.last_allocation] {
                let offset = (address - allocation.base) as usize;
                let party = block.party(self.index);
                let conflict = match direction {
                    Direction::Read => {
                        allocation.shadow().read(offset, width, party, &block.acquired)
                    }
                    _ => allocation.shadow().write(offset, width, party, &block.acquired),
                };
                if let Some(conflict) = conflict {
                    return Err(Trouble::at(
                        lane,
                        race(allocation, offset, conflict, block.linear),
                    ));
                }
            }
        }
        let position = block.last_allocation;
        traffic::count_global(
            &mut block.counters,
            launch,
            position,
            addresses,
            width,
            active,
            direction,
        );
        Ok(())
    }

    #[inline]
    pub(super) fn shared_read(
        &self,
        block: &mut BlockState<'_>,
        at: usize,
        width: usize,
        lane: usize,
    ) -> Result<(), Trouble> {
        let party = block.shared_party(self.index);
        let conflict = block.shared_shadow.read(at, width, party, lane as u8, self.syncs);
        conflict
            .map_or(Ok(()), |conflict| Err(Trouble::at(lane, shared_race("read", at, conflict))))
    }

    #[inline]
    pub(super) fn shared_write(
        &self,
        block: &mut BlockState<'_>,
        at: usize,
        width: usize,
        lane: usize,
    ) -> Result<(), Trouble> {
        let party = block.shared_party(self.index);
        let conflict = block.shared_shadow.write(at, width, party, lane as u8, self.syncs);
        conflict
            .map_or(Ok(()), |conflict| Err(Trouble::at(lane, shared_race("write", at, conflict))))
    }

    fn local_at(&self, address: u64, width: usize, lane: usize) -> Result<usize, Trouble> {
        let in_bounds =
            address.checked_add(width as u64).is_some_and(|end| end <= self.local_bytes as u64);
        if !in_bounds || !address.is_multiple_of(width as u64) {
            let what =
                format!("local access of {width} bytes at {address}, of {}", self.local_bytes);
            return Err(Trouble::at(lane, what));
        }
        Ok(lane * self.local_bytes + address as usize)
    }
}

/// The allocation that holds an access; remembers it for the next one.
fn find<'b>(
    block: &mut BlockState<'b>,
    address: u64,
    width: usize,
    lane: usize,
) -> Result<&'b Allocation, Trouble> {
    let launch = block.launch;
    if !address.is_multiple_of(width as u64) {
        return Err(Trouble::at(
            lane,
            format!("{width}-byte access to misaligned address {address:#x}"),
        ));
    }
    if let Some(last) = launch.allocations.get(block.last_allocation)
        && last.contains(address, width)
    {
        return Ok(last);
    }
    match position_of(&launch.allocations, address) {
        Some(position) if launch.allocations[position].contains(address, width) => {
            block.last_allocation = position;
            Ok(&launch.allocations[position])
        }
        _ => Err(Trouble::at(lane, out_of_bounds(block, address, width))),
    }
}

fn out_of_bounds(block: &BlockState<'_>, address: u64, width: usize) -> String {
    let launch = block.launch;
    if launch.memory.was_freed(address) {
        return format!("{width}-byte access at {address:#x} to freed memory");
    }
    let after = launch.allocations.partition_point(|allocation| allocation.base <= address);
    let before = after.checked_sub(1).map(|position| &launch.allocations[position]);
    match before {
        Some(allocation) if address - allocation.base < (1 << 32) => format!(
            "{width}-byte access out of bounds: offset {} of {}",
            address - allocation.base,
            describe(allocation)
        ),
        _ => format!("{width}-byte access to {address:#x}, which is no device memory"),
    }
}

fn describe(allocation: &Allocation) -> String {
    format!(
        "the {}-byte {:?} allocation at {:#x}",
        allocation.len, allocation.kind, allocation.base
    )
}

fn race(allocation: &Allocation, offset: usize, conflict: Conflict, block: u32) -> String {
    let other = if conflict.wrote { "written" } else { "read" };
    let who = if conflict.with_block == block & 0xF_FFFF {
        format!("by warp {} of the same block since the last barrier", conflict.with_warp)
    } else {
        format!("by block {} in the same launch", conflict.with_block)
    };
    format!("race: offset {offset} of {} was {other} {who}", describe(allocation))
}

fn shared_race(verb: &str, at: usize, conflict: SharedConflict) -> String {
    match conflict {
        SharedConflict::Warps(conflict) => {
            let other = if conflict.wrote { "written" } else { "read" };
            format!(
                "race: {verb} of shared byte {at}, {other} by warp {} since the last barrier",
                conflict.with_warp
            )
        }
        SharedConflict::Lanes { writer } => format!(
            "race: {verb} of shared byte {at}, written by lane {writer} of the same warp without a warp barrier"
        ),
    }
}

/// Bounds and alignment in shared memory.
#[inline]
pub(super) fn check_shared(
    block: &BlockState<'_>,
    address: u64,
    width: usize,
    lane: usize,
) -> Result<usize, Trouble> {
    let len = block.shared.len() as u64;
    if !address.is_multiple_of(width as u64) {
        return Err(Trouble::at(
            lane,
            format!("{width}-byte access to misaligned shared byte {address}"),
        ));
    }
    if address.checked_add(width as u64).is_none_or(|end| end > len) {
        let what = format!("{width}-byte access out of bounds: shared byte {address} of {len}");
        return Err(Trouble::at(lane, what));
    }
    Ok(address as usize)
}

fn extend(value: u64, access: &Access) -> u64 {
    let Some(bits) = access.extend_to else { return value };
    let unused = 64 - 8 * access.bytes as u32;
    let signed = ((value << unused).cast_signed() >> unused).cast_unsigned();
    if bits >= 64 { signed } else { signed & ((1 << bits) - 1) }
}

/// Reads an element of 1, 2, 4 or 8 bytes.
///
/// # Safety
/// `bytes` bytes from `from` must be readable.
unsafe fn read(from: *const u8, bytes: usize) -> u64 {
    // SAFETY: as the caller promises.
    unsafe {
        match bytes {
            1 => u64::from(from.read()),
            2 => u64::from(from.cast::<u16>().read_unaligned()),
            4 => u64::from(from.cast::<u32>().read_unaligned()),
            _ => from.cast::<u64>().read_unaligned(),
        }
    }
}

/// Writes an element of 1, 2, 4 or 8 bytes: the low part of a register.
///
/// # Safety
/// `bytes` bytes from `to` must be writable.
unsafe fn write(to: *mut u8, bytes: usize, value: u64) {
    // SAFETY: as the caller promises.
    unsafe {
        match bytes {
            1 => to.write(value as u8),
            2 => to.cast::<u16>().write_unaligned(value as u16),
            4 => to.cast::<u32>().write_unaligned(value as u32),
            _ => to.cast::<u64>().write_unaligned(value),
        }
    }
}
