//! `cp.async`: the bytes leave global memory when the copy is issued and arrive in shared memory
//! when their group is waited for, as late as hardware may deliver them.

use super::access::{Direction, check_shared};
use super::block::BlockState;
use super::lanes::{LANES, lanes_of};
use super::program::{Action, MemorySpace};
use super::traffic;
use super::warp::Warp;
use crate::fault::Trouble;

/// A copy under way.
pub(crate) struct PendingCopy {
    to: usize,
    lane: usize,
    bytes: usize,
    data: [u8; 16],
}

impl Warp {
    pub(super) fn copy_async(
        &mut self,
        block: &mut BlockState<'_>,
        action: &Action,
        active: u32,
    ) -> Result<(), Trouble> {
        let Action::CopyAsync { to, to_offset, from, from_offset, bytes, source_bytes } = action
        else {
            return Ok(());
        };
        let bytes = *bytes;
        let (targets, _) = self.addresses(*to, *to_offset, MemorySpace::Shared, active)?;
        let (sources, _) = self.addresses(*from, *from_offset, MemorySpace::Global, active)?;
        let source_bytes = source_bytes.map(|row| *self.row(row));
        let read_bytes =
            |lane: usize| source_bytes.map_or(bytes, |row| (row[lane] as u32 as usize).min(bytes));
        // Copies of nothing only write zeros and may have any source address.
        let whole = lanes_of(active).filter(|lane| read_bytes(*lane) == bytes);
        let reading = whole.fold(0, |mask, lane| mask | 1 << lane);
        self.check_global(block, &sources, bytes, reading, Direction::Read, true)?;
        traffic::count_shared(&mut block.counters, &targets, bytes, active);
        for lane in lanes_of(active) {
            let wanted = read_bytes(lane);
            if wanted != 0 && wanted != bytes {
                self.check_partial(block, sources[lane], bytes, wanted, lane)?;
            }
            let mut data = [0; 16];
            if wanted != 0 {
                // SAFETY: check_global found all `wanted` bytes in live memory.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        sources[lane] as *const u8,
                        data.as_mut_ptr(),
                        wanted,
                    );
                }
            }
            let to = check_shared(block, targets[lane], bytes, lane)?;
            self.shared_write(block, to, bytes, lane)?;
            self.open_copies.push(PendingCopy { to, lane, bytes, data });
        }
        Ok(())
    }

    /// The source of a copy that reads fewer bytes than it writes.
    fn check_partial(
        &self,
        block: &mut BlockState<'_>,
        source: u64,
        bytes: usize,
        wanted: usize,
        lane: usize,
    ) -> Result<(), Trouble> {
        if !source.is_multiple_of(bytes as u64) {
            let what = format!("{bytes}-byte cp.async from misaligned address {source:#x}");
            return Err(Trouble::at(lane, what));
        }
        for byte in 0..wanted as u64 {
            self.check_global(block, &[source + byte; LANES], 1, 1 << lane, Direction::Read, true)?;
        }
        Ok(())
    }

    pub(super) fn commit_copies(&mut self, active: u32) -> Result<(), Trouble> {
        self.expect_whole_warp(active, "cp.async.commit_group")?;
        self.copy_groups.push_back(std::mem::take(&mut self.open_copies));
        Ok(())
    }

    /// Delivers groups until at most `pending` are left; everything for `None`.
    pub(super) fn wait_copies(
        &mut self,
        block: &mut BlockState<'_>,
        pending: Option<usize>,
        active: u32,
    ) -> Result<(), Trouble> {
        self.expect_whole_warp(active, "cp.async.wait")?;
        while self.copy_groups.len() > pending.unwrap_or(0) {
            let group = self.copy_groups.pop_front().unwrap_or_default();
            self.deliver(block, group)?;
        }
        if pending.is_none() {
            let open = std::mem::take(&mut self.open_copies);
            self.deliver(block, open)?;
        }
        Ok(())
    }

    fn deliver(&self, block: &mut BlockState<'_>, copies: Vec<PendingCopy>) -> Result<(), Trouble> {
        for copy in copies {
            block.shared[copy.to..copy.to + copy.bytes].copy_from_slice(&copy.data[..copy.bytes]);
            self.shared_write(block, copy.to, copy.bytes, copy.lane)?;
        }
        Ok(())
    }

    /// Groups are counted per warp, which is exact as long as its lanes stay together.
    fn expect_whole_warp(&self, active: u32, what: &str) -> Result<(), Trouble> {
        if active == self.alive {
            return Ok(());
        }
        Err(Trouble::new(format!("{what} by lanes {active:#x} of {:#x} only", self.alive)))
    }
}
