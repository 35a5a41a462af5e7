//! Data races, found by keeping for every 4-byte word who wrote and who read it last.
//!
//! Shared memory: two warps that touch a word between the same two barriers, one of them writing.
//! Global memory: two blocks in the same launch, or two warps of a block between barriers. Atomics
//! are exempt; a block that did an atomic after a fence hands its writes to the blocks that do an
//! atomic on the same address later ("last block done").
//!
//! Records carry the bytes of the word that were touched, so that neighbouring 16-bit values do
//! not count as one. Where different parties touched different bytes of one word, the word is no
//! longer judged.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::zeroed;

/// Who makes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Party {
    /// Low 16 bits of the launch's number; 0 is never used.
    pub(crate) launch: u16,
    /// Linear block index, low 20 bits.
    pub(crate) block: u32,
    pub(crate) warp: u32,
    /// Barriers the block has passed.
    pub(crate) epoch: u16,
}

/// Another party that an access races with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub(crate) with_block: u32,
    pub(crate) with_warp: u32,
    /// The other access was a write.
    pub(crate) wrote: bool,
}

/// A record in 64 bits: byte mask 4, warp 5, epoch 16, block 20, launch 16, flags 3.
#[derive(Clone, Copy)]
struct Record(u64);

const SEVERAL_WARPS: u64 = 1 << 61;
const SEVERAL_BLOCKS: u64 = 1 << 62;
/// Different parties touched different bytes: no judgement.
const MIXED: u64 = 1 << 63;

/// The bits of a record that say launch, block and epoch.
const WHEN: u64 = ((1 << 61) - 1) & !((1 << 9) - 1);

impl Record {
    /// Whether two records are of the same block between the same barriers.
    #[inline(always)]
    fn same_time(self, other: Self) -> bool {
        (self.0 ^ other.0) & WHEN == 0
    }

    #[inline(always)]
    fn new(party: Party, mask: u64) -> Self {
        Self(
            mask | u64::from(party.warp & 31) << 4
                | u64::from(party.epoch) << 9
                | u64::from(party.block & 0xF_FFFF) << 25
                | u64::from(party.launch) << 45,
        )
    }

    fn mask(self) -> u64 {
        self.0 & 0xF
    }
    fn warp(self) -> u32 {
        (self.0 >> 4 & 31) as u32
    }
    fn epoch(self) -> u16 {
        (self.0 >> 9 & 0xFFFF) as u16
    }
    fn block(self) -> u32 {
        (self.0 >> 25 & 0xF_FFFF) as u32
    }
    fn launch(self) -> u16 {
        (self.0 >> 45 & 0xFFFF) as u16
    }
    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// Whether an access of `party` to the bytes `mask` conflicts with this record.
    fn conflicts(self, party: Party, mask: u64, acquired: &Acquired) -> bool {
        if self.launch() != party.launch || self.mask() & mask == 0 || self.has(MIXED) {
            return false;
        }
        if self.has(SEVERAL_BLOCKS) {
            // Which blocks is not recorded; a block that acquired anything may be ordered behind.
            return acquired.0.is_empty();
        }
        if self.block() != party.block & 0xF_FFFF {
            return !acquired.covers(self.block(), self.epoch());
        }
        self.epoch() == party.epoch && (self.has(SEVERAL_WARPS) || self.warp() != party.warp)
    }

    /// This record with an access added to it.
    fn joined(self, party: Party, mask: u64) -> Self {
        let new = Self::new(party, mask);
        if self.launch() != party.launch || self.mask() == 0 {
            return new;
        }
        let same_block = self.block() == new.block();
        let same_epoch = same_block && self.epoch() == party.epoch;
        if same_epoch && self.warp() == new.warp() && !self.has(SEVERAL_WARPS) {
            return Self(self.0 | mask);
        }
        if mask & self.mask() != self.mask() {
            return Self(new.0 | self.0 & (0xF | SEVERAL_BLOCKS) | MIXED);
        }
        if !same_block || self.has(SEVERAL_BLOCKS) {
            return Self(new.0 | SEVERAL_BLOCKS);
        }
        if same_epoch { Self(new.0 | SEVERAL_WARPS) } else { new }
    }
}

/// Records of global memory, two per word.
pub(crate) struct GlobalShadow {
    records: Box<[AtomicU64]>,
}

impl GlobalShadow {
    pub(crate) fn new(len: usize) -> Self {
        Self { records: zeroed(2 * len.div_ceil(4)) }
    }

    /// Notes a read of bytes `offset..offset + len` and tells what it races with.
    pub(crate) fn read(
        &self,
        offset: usize,
        len: usize,
        party: Party,
        acquired: &Acquired,
    ) -> Option<Conflict> {
        for (word, mask) in words(offset, len) {
            let write = Record(self.records[2 * word].load(Ordering::Relaxed));
            if write.launch() == party.launch && write.conflicts(party, mask, acquired) {
                return Some(conflict(write, true));
            }
            let read = Record(self.records[2 * word + 1].load(Ordering::Relaxed));
            let joined = read.joined(party, mask);
            if joined.0 != read.0 {
                self.records[2 * word + 1].store(joined.0, Ordering::Relaxed);
            }
        }
        None
    }

    /// Notes a write and tells what it races with.
    pub(crate) fn write(
        &self,
        offset: usize,
        len: usize,
        party: Party,
        acquired: &Acquired,
    ) -> Option<Conflict> {
        for (word, mask) in words(offset, len) {
            let write = Record(self.records[2 * word].load(Ordering::Relaxed));
            if write.conflicts(party, mask, acquired) {
                return Some(conflict(write, true));
            }
            let read = Record(self.records[2 * word + 1].load(Ordering::Relaxed));
            if read.conflicts(party, mask, acquired) {
                return Some(conflict(read, false));
            }
            let mut joined = write.joined(party, mask);
            // A write that was allowed after another party's takes its place.
            joined.0 &= !(SEVERAL_BLOCKS | SEVERAL_WARPS);
            self.records[2 * word].store(joined.0, Ordering::Relaxed);
        }
        None
    }
}

fn conflict(record: Record, wrote: bool) -> Conflict {
    Conflict { with_block: record.block(), with_warp: record.warp(), wrote }
}

/// The words of a byte range with the bytes touched in each.
#[inline(always)]
fn words(offset: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = offset + len;
    (offset / 4..end.div_ceil(4)).map(move |word| {
        let first = offset.saturating_sub(4 * word);
        let last = (end - 4 * word).min(4);
        (word, ((1 << last) - 1) & !((1 << first) - 1))
    })
}

/// Blocks whose writes this block may read, up to an epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acquired(HashMap<u32, u16>);

impl Acquired {
    fn covers(&self, block: u32, epoch: u16) -> bool {
        self.0.get(&block).is_some_and(|until| epoch <= *until)
    }

    fn add(&mut self, block: u32, epoch: u16) {
        let until = self.0.entry(block).or_default();
        *until = epoch.max(*until);
    }
}

/// What blocks have published through atomics, by address.
#[derive(Default)]
pub(crate) struct Published(Mutex<HashMap<u64, Acquired>>);

impl Published {
    /// An atomic of a block on `address`: it acquires what others published there and, when it
    /// has fenced, publishes its own writes up to the epoch of the fence.
    pub(crate) fn synchronize(
        &self,
        address: u64,
        block: u32,
        fenced: Option<u16>,
        acquired: &mut Acquired,
    ) {
        let mut table = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let here = table.entry(address).or_default();
        for (other, until) in &here.0 {
            acquired.add(*other, *until);
        }
        if let Some(epoch) = fenced {
            here.add(block & 0xF_FFFF, epoch);
            for (other, until) in &acquired.0 {
                here.add(*other, *until);
            }
        }
    }
}

/// In place of a lane: several lanes wrote parts of the word.
const SEVERAL_LANES: u8 = u8::MAX;

/// Records of a block's shared memory. The parties are warps; every block run has its own
/// `launch` number, so that the records need no clearing, and the same `block`. A barrier orders
/// everything before it, so only records of the running epoch count.
pub(crate) struct SharedShadow {
    words: Vec<SharedWord>,
    nothing: Acquired,
}

#[derive(Clone, Copy)]
struct SharedWord {
    write: Record,
    read: Record,
    /// Lane of the last write, and the warp's synchronisations at that time.
    writer: u8,
    syncs: u32,
}

impl SharedShadow {
    pub(crate) fn new(len: usize) -> Self {
        let word = SharedWord { write: Record(0), read: Record(0), writer: 0, syncs: 0 };
        Self { words: vec![word; len.div_ceil(4)], nothing: Acquired::default() }
    }

    /// Notes a read by a lane. `syncs` counts the warp's synchronisations: a value that another
    /// lane of the same warp wrote since the last one is a race, too.
    #[inline]
    pub(crate) fn read(
        &mut self,
        offset: usize,
        len: usize,
        party: Party,
        lane: u8,
        syncs: u32,
    ) -> Option<SharedConflict> {
        let now = Record::new(party, 0);
        for (index, mask) in words(offset, len) {
            let word = &mut self.words[index];
            if word.write.same_time(now) {
                let found = read_conflict(word, party, mask, lane, syncs, &self.nothing);
                if found.is_some() {
                    return found;
                }
            }
            if word.read.0 & !0xF == now.0 {
                word.read.0 |= mask;
            } else if word.read.same_time(now) {
                word.read = word.read.joined(party, mask);
            } else {
                word.read = Record(now.0 | mask);
            }
        }
        None
    }

    /// Notes a write by a lane.
    #[inline]
    pub(crate) fn write(
        &mut self,
        offset: usize,
        len: usize,
        party: Party,
        lane: u8,
        syncs: u32,
    ) -> Option<SharedConflict> {
        let now = Record::new(party, 0);
        for (index, mask) in words(offset, len) {
            let word = &mut self.words[index];
            if word.read.same_time(now) && word.read.conflicts(party, mask, &self.nothing) {
                return Some(SharedConflict::Warps(conflict(word.read, false)));
            }
            if !word.write.same_time(now) {
                *word = SharedWord { write: Record(now.0 | mask), writer: lane, syncs, ..*word };
                continue;
            }
            if word.write.conflicts(party, mask, &self.nothing) {
                return Some(SharedConflict::Warps(conflict(word.write, true)));
            }
            let keeps_others = word.write.mask() & !mask != 0;
            if keeps_others && (word.writer, word.syncs) != (lane, syncs) {
                word.writer = SEVERAL_LANES;
            } else {
                word.writer = lane;
            }
            word.syncs = syncs;
            word.write = word.write.joined(party, mask);
        }
        None
    }
}

/// A read of a word that was written since the last barrier.
fn read_conflict(
    word: &SharedWord,
    party: Party,
    mask: u64,
    lane: u8,
    syncs: u32,
    nothing: &Acquired,
) -> Option<SharedConflict> {
    if word.write.conflicts(party, mask, nothing) {
        return Some(SharedConflict::Warps(conflict(word.write, true)));
    }
    let own = word.write.warp() == party.warp && !word.write.has(MIXED);
    let by_another = word.writer != lane && word.writer != SEVERAL_LANES && word.syncs == syncs;
    (own && by_another && word.write.mask() & mask != 0)
        .then_some(SharedConflict::Lanes { writer: word.writer })
}

/// What a shared-memory access races with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SharedConflict {
    /// Another warp since the last barrier.
    Warps(Conflict),
    /// Another lane of the same warp since the last warp-level synchronisation.
    Lanes { writer: u8 },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(block: u32, warp: u32, epoch: u16) -> Party {
        Party { launch: 1, block, warp, epoch }
    }

    #[test]
    fn warps_race_within_an_epoch_only() {
        let mut shadow = SharedShadow::new(64);
        assert!(shadow.write(8, 4, party(0, 0, 0), 0, 0).is_none());
        assert!(shadow.read(8, 4, party(0, 1, 0), 0, 0).is_some());
        assert!(shadow.read(8, 4, party(0, 1, 1), 0, 0).is_none());
        assert!(shadow.write(8, 4, party(0, 0, 1), 0, 0).is_some(), "write after read");
        assert!(shadow.write(8, 4, party(0, 0, 2), 0, 0).is_none());
    }

    #[test]
    fn halves_of_a_word_do_not_race() {
        let mut shadow = SharedShadow::new(64);
        assert!(shadow.write(8, 2, party(0, 0, 0), 0, 0).is_none());
        assert!(shadow.write(10, 2, party(0, 1, 0), 0, 0).is_none());
        assert!(shadow.read(8, 4, party(0, 0, 1), 3, 0).is_none());
    }

    #[test]
    fn lanes_race_until_the_warp_synchronises() {
        let mut shadow = SharedShadow::new(64);
        assert!(shadow.write(0, 4, party(0, 0, 0), 3, 7).is_none());
        assert!(shadow.read(0, 4, party(0, 0, 0), 3, 7).is_none());
        assert!(shadow.read(0, 4, party(0, 0, 0), 4, 7).is_some());
        assert!(shadow.read(0, 4, party(0, 0, 0), 4, 8).is_none());
    }

    #[test]
    fn blocks_race_unless_an_atomic_orders_them() {
        let shadow = GlobalShadow::new(64);
        let published = Published::default();
        let (mut first, mut last) = (Acquired::default(), Acquired::default());
        assert!(shadow.write(0, 4, party(0, 0, 0), &first).is_none());
        assert!(shadow.read(0, 4, party(1, 0, 0), &last).is_some());
        published.synchronize(0x100, 0, Some(0), &mut first);
        published.synchronize(0x100, 1, Some(0), &mut last);
        assert!(shadow.read(0, 4, party(1, 0, 0), &last).is_none());
        assert!(shadow.write(4, 4, party(0, 0, 1), &first).is_none());
        assert!(shadow.read(4, 4, party(1, 0, 0), &last).is_some(), "written after publishing");
    }

    #[test]
    fn a_new_launch_starts_afresh() {
        let shadow = GlobalShadow::new(64);
        let nothing = Acquired::default();
        assert!(shadow.write(0, 16, party(0, 0, 0), &nothing).is_none());
        let later = Party { launch: 2, ..party(1, 0, 0) };
        assert!(shadow.read(0, 16, later, &nothing).is_none());
    }
}
