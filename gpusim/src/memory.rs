//! Device and pinned memory: allocations with exact bounds, and which of their bytes were written.
//!
//! A device address is a host address inside one large reservation that is handed out once and
//! never again, so that a freed pointer can be told from any later one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::race::GlobalShadow;

/// Address space set aside for the process; untouched pages cost nothing.
const RESERVED_BYTES: usize = 1 << 42;

/// Between allocations, so that a step past the end never lands in a neighbour.
const GUARD_BYTES: usize = 4096;

/// What the card guarantees for `cuMemAlloc`.
const ALIGN_BYTES: usize = 256;

/// What kind of memory an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    Device,
    /// `.global` and `.const` variables of a module.
    Module,
    /// Page-locked host memory.
    Pinned,
    /// Host memory of the program that was page-locked later.
    Registered,
}

/// A live piece of memory.
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) len: usize,
    pub(crate) kind: AllocationKind,
    /// `None` for memory the host writes without the driver seeing it.
    written: Option<ByteSet>,
    shadow: OnceLock<GlobalShadow>,
    sectors_read: OnceLock<SectorSet>,
    sectors_written: OnceLock<SectorSet>,
    /// Whether the content changed after a kernel had read of it, or by a kernel.
    changed: AtomicBool,
}

impl Allocation {
    fn new(base: u64, len: usize, kind: AllocationKind) -> Self {
        let tracked = matches!(kind, AllocationKind::Device);
        Self {
            base,
            len,
            kind,
            written: tracked.then(|| ByteSet::new(len)),
            shadow: OnceLock::new(),
            sectors_read: OnceLock::new(),
            sectors_written: OnceLock::new(),
            changed: AtomicBool::new(false),
        }
    }

    pub(crate) fn contains(&self, address: u64, len: usize) -> bool {
        address >= self.base
            && address - self.base <= self.len as u64
            && len as u64 <= self.len as u64 - (address - self.base)
    }

    /// Offset of the first byte of a range that was never written.
    pub(crate) fn first_unwritten(&self, address: u64, len: usize) -> Option<usize> {
        self.written.as_ref()?.first_missing((address - self.base) as usize, len)
    }

    /// Whether an aligned access of at most 16 bytes reads written bytes only.
    pub(crate) fn is_written(&self, address: u64, len: usize) -> bool {
        self.written.as_ref().is_none_or(|set| set.has((address - self.base) as usize, len))
    }

    /// Notes a store of an aligned access of at most 16 bytes.
    pub(crate) fn mark_written(&self, address: u64, len: usize) {
        if let Some(set) = &self.written {
            set.add((address - self.base) as usize, len);
        }
    }

    /// Notes a copy or fill of any length.
    pub(crate) fn mark_range_written(&self, address: u64, len: usize) {
        if self.sectors_read.get().is_some() {
            self.changed.store(true, Ordering::Relaxed);
        }
        if let Some(set) = &self.written {
            set.add_range((address - self.base) as usize, len);
        }
    }

    /// Notes a copy from another allocation: what was never written there is not written here.
    pub(crate) fn copy_written(&self, to: u64, from: &Self, source: u64, len: usize) {
        if from.first_unwritten(source, len).is_none() {
            self.mark_range_written(to, len);
            return;
        }
        let written = |at: &u64| from.is_written(source + at, 1);
        (0..len as u64).filter(written).for_each(|at| self.mark_written(to + at, 1));
    }

    /// Per-word records of the race check.
    pub(crate) fn shadow(&self) -> &GlobalShadow {
        self.shadow.get_or_init(|| GlobalShadow::new(self.len))
    }

    /// 32-byte sectors that the running launch has read.
    pub(crate) fn sectors_read(&self) -> &SectorSet {
        self.sectors_read.get_or_init(|| SectorSet::new(self.base, self.len))
    }

    /// Whether the content has been the same since a kernel first read of it: weights and tables.
    pub(crate) fn is_constant(&self) -> bool {
        !self.changed.load(Ordering::Relaxed)
    }

    /// 32-byte sectors that the running launch has written, about to become one more.
    pub(crate) fn sectors_written(&self) -> &SectorSet {
        self.changed.store(true, Ordering::Relaxed);
        self.sectors_written.get_or_init(|| SectorSet::new(self.base, self.len))
    }

    /// Forgets a launch's sectors and tells how many bytes it read and wrote at least once.
    pub(crate) fn take_footprint(&self) -> (u64, u64) {
        let take = |set: &OnceLock<SectorSet>| set.get().map_or(0, |set| set.take() * 32);
        (take(&self.sectors_read), take(&self.sectors_written))
    }
}

/// One bit per byte.
struct ByteSet {
    len: usize,
    words: Box<[AtomicU64]>,
    /// Set once all bytes are known to be in: then nothing is looked up any more.
    complete: AtomicBool,
}

impl ByteSet {
    fn new(len: usize) -> Self {
        Self { len, words: zeroed(len.div_ceil(64)), complete: AtomicBool::new(false) }
    }

    fn mask(offset: usize, len: usize) -> u64 {
        let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
        ones << (offset % 64)
    }

    fn has(&self, offset: usize, len: usize) -> bool {
        if self.complete.load(Ordering::Relaxed) {
            return true;
        }
        let mask = Self::mask(offset, len);
        self.words[offset / 64].load(Ordering::Relaxed) & mask == mask
    }

    fn add(&self, offset: usize, len: usize) {
        if !self.has(offset, len) {
            self.words[offset / 64].fetch_or(Self::mask(offset, len), Ordering::Relaxed);
        }
    }

    fn add_range(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        self.pieces(offset, len, |set, at, len| {
            set.words[at / 64].fetch_or(Self::mask(at, len), Ordering::Relaxed);
            true
        });
        if offset == 0 && len == self.len {
            self.complete.store(true, Ordering::Relaxed);
        }
    }

    fn first_missing(&self, offset: usize, len: usize) -> Option<usize> {
        if self.complete.load(Ordering::Relaxed) {
            return None;
        }
        let mut missing = None;
        self.pieces(offset, len, |set, at, len| {
            let mask = Self::mask(at, len);
            let absent = mask & !set.words[at / 64].load(Ordering::Relaxed);
            if absent != 0 {
                missing = Some(at / 64 * 64 + absent.trailing_zeros() as usize);
            }
            absent == 0
        });
        missing
    }

    /// Cuts a range at multiples of 64, until `f` says no.
    fn pieces(&self, offset: usize, len: usize, mut f: impl FnMut(&Self, usize, usize) -> bool) {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let piece = (64 - at % 64).min(end - at);
            if !f(self, at, piece) {
                return;
            }
            at += piece;
        }
    }
}

/// One bit per 32-byte sector, for counting what a launch touched at least once.
pub(crate) struct SectorSet {
    first: u64,
    words: Box<[AtomicU64]>,
    touched: AtomicBool,
}

impl SectorSet {
    fn new(base: u64, len: usize) -> Self {
        let sectors = (base % 32) as usize + len;
        Self {
            first: base / 32,
            words: zeroed(sectors.div_ceil(32).div_ceil(64)),
            touched: AtomicBool::new(false),
        }
    }

    /// Adds the sector of an address.
    pub(crate) fn add(&self, address: u64) {
        let index = (address / 32 - self.first) as usize;
        let (word, bit) = (&self.words[index / 64], 1u64 << (index % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self) -> u64 {
        if !self.touched.swap(false, Ordering::Relaxed) {
            return 0;
        }
        self.words.iter().map(|word| u64::from(word.swap(0, Ordering::Relaxed).count_ones())).sum()
    }
}

/// A zeroed slice whose untouched pages cost nothing.
pub(crate) fn zeroed(count: usize) -> Box<[AtomicU64]> {
    let words = vec![0u64; count].into_boxed_slice();
    let raw = Box::into_raw(words) as *mut [AtomicU64];
    // SAFETY: AtomicU64 has the size, alignment and valid bits of u64, and ownership moves over.
    unsafe { Box::from_raw(raw) }
}

/// The allocations in address order, as a launch sees them.
pub(crate) type Snapshot = Arc<Vec<Arc<Allocation>>>;

/// All memory of the emulated device.
pub(crate) struct Memory {
    reservation: Option<(u64, usize)>,
    next: usize,
    allocations: BTreeMap<u64, Arc<Allocation>>,
    freed: BTreeMap<u64, usize>,
    snapshot: Option<Snapshot>,
    device_bytes: usize,
    limit_bytes: usize,
    fill: Option<u8>,
}

impl Memory {
    /// Memory of `limit_bytes`, whose new allocations hold `fill` (else zeros, but unset).
    pub(crate) fn new(limit_bytes: usize, fill: Option<u8>) -> Self {
        Self {
            reservation: None,
            next: 0,
            allocations: BTreeMap::new(),
            freed: BTreeMap::new(),
            snapshot: None,
            device_bytes: 0,
            limit_bytes,
            fill,
        }
    }

    /// Free and total bytes.
    pub(crate) fn info(&self) -> (usize, usize) {
        (self.limit_bytes.saturating_sub(self.device_bytes), self.limit_bytes)
    }

    /// Allocates; `None` when the device (or the host) has not that much.
    pub(crate) fn allocate(&mut self, len: usize, kind: AllocationKind) -> Option<Arc<Allocation>> {
        let on_device = matches!(kind, AllocationKind::Device | AllocationKind::Module);
        if on_device && len > self.limit_bytes.saturating_sub(self.device_bytes) {
            return None;
        }
        let (base, reserved) = self.reserve()?;
        let at = self.next.next_multiple_of(GUARD_BYTES.max(ALIGN_BYTES));
        if at.checked_add(len)?.checked_add(GUARD_BYTES)? > reserved {
            return None;
        }
        let address = base + at as u64;
        open_pages(address, len, true)?;
        self.next = at + len + GUARD_BYTES;
        if let Some(fill) = self.fill.filter(|fill| *fill != 0 && kind == AllocationKind::Device) {
            // SAFETY: the pages were opened just now and belong to nobody else.
            unsafe { std::ptr::write_bytes(address as *mut u8, fill, len) };
        }
        if on_device {
            self.device_bytes += len;
        }
        Some(self.insert(Allocation::new(address, len, kind)))
    }

    /// Makes host memory of the program known.
    pub(crate) fn register(&mut self, address: u64, len: usize) -> bool {
        let overlaps = self
            .allocations
            .range(..address + len as u64)
            .next_back()
            .is_some_and(|(base, other)| base + other.len as u64 > address);
        if !overlaps {
            self.insert(Allocation::new(address, len, AllocationKind::Registered));
        }
        !overlaps
    }

    /// Frees the allocation that begins at `address`, if it is of one of `kinds`.
    pub(crate) fn free(&mut self, address: u64, kinds: &[AllocationKind]) -> bool {
        let Some(allocation) = self.allocations.get(&address) else { return false };
        if !kinds.contains(&allocation.kind) {
            return false;
        }
        let (len, kind) = (allocation.len, allocation.kind);
        self.allocations.remove(&address);
        self.snapshot = None;
        if kind != AllocationKind::Registered {
            // Contents are dropped: a later read through the host would fault, not go unseen.
            open_pages(address, len, false);
            self.freed.insert(address, len);
        }
        if matches!(kind, AllocationKind::Device | AllocationKind::Module) {
            self.device_bytes -= len;
        }
        true
    }

    /// Frees everything and tells what device memory was still there.
    pub(crate) fn free_all(&mut self) -> (usize, usize) {
        let mut leaked = (0, 0);
        let all: Vec<(u64, usize, AllocationKind)> =
            self.allocations.values().map(|a| (a.base, a.len, a.kind)).collect();
        for (address, len, kind) in all {
            if kind == AllocationKind::Device {
                leaked = (leaked.0 + 1, leaked.1 + len);
            }
            if matches!(kind, AllocationKind::Device | AllocationKind::Module) {
                self.free(address, &[kind]);
            }
        }
        leaked
    }

    /// The allocation that holds the whole range.
    pub(crate) fn find(&self, address: u64, len: usize) -> Option<&Arc<Allocation>> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        allocation.contains(address, len).then_some(allocation)
    }

    /// The allocation that begins at `address`.
    pub(crate) fn starting_at(&self, address: u64) -> Option<&Arc<Allocation>> {
        self.allocations.get(&address)
    }

    /// Whether an address was freed.
    pub(crate) fn was_freed(&self, address: u64) -> bool {
        let before = self.freed.range(..=address).next_back();
        before.is_some_and(|(base, len)| address < base + (*len).max(1) as u64)
    }

    /// The allocations in address order.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let allocations = &self.allocations;
        let build = || Arc::new(allocations.values().cloned().collect());
        Arc::clone(self.snapshot.get_or_insert_with(build))
    }

    fn insert(&mut self, allocation: Allocation) -> Arc<Allocation> {
        let allocation = Arc::new(allocation);
        self.allocations.insert(allocation.base, Arc::clone(&allocation));
        self.snapshot = None;
        allocation
    }

    fn reserve(&mut self) -> Option<(u64, usize)> {
        let mut bytes = RESERVED_BYTES;
        while self.reservation.is_none() && bytes >= self.limit_bytes.min(1 << 30) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a fresh anonymous mapping without access affects nothing that exists.
            let base =
                unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
            if base != libc::MAP_FAILED {
                self.reservation = Some((base as u64, bytes));
            }
            // A process with a bounded address space gets what there is.
            bytes /= 2;
        }
        self.reservation
    }
}

/// Makes pages of the reservation usable, or drops them and takes them out of use.
fn open_pages(address: u64, len: usize, open: bool) -> Option<()> {
    let len = len.next_multiple_of(GUARD_BYTES);
    let protection = if open { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: callers pass page-aligned ranges of the reservation that no reference points into.
    unsafe {
        if !open {
            libc::madvise(address as *mut libc::c_void, len, libc::MADV_DONTNEED);
        }
        (libc::mprotect(address as *mut libc::c_void, len, protection) == 0).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_exact_and_addresses_are_never_reused() {
        let mut memory = Memory::new(1 << 20, Some(0xFF));
        let first = memory.allocate(100, AllocationKind::Device).unwrap();
        assert!(memory.find(first.base, 100).is_some());
        assert!(memory.find(first.base + 1, 100).is_none());
        let base = first.base;
        assert!(memory.free(base, &[AllocationKind::Device]));
        assert!(!memory.free(base, &[AllocationKind::Device]));
        assert!(memory.was_freed(base + 99));
        let second = memory.allocate(100, AllocationKind::Device).unwrap();
        assert_ne!(second.base, base);
        assert_eq!(memory.info().0, (1 << 20) - 100);
        assert!(memory.allocate(1 << 20, AllocationKind::Device).is_none());
    }

    #[test]
    fn unwritten_bytes_are_found_at_their_offset() {
        let mut memory = Memory::new(1 << 20, None);
        let a = memory.allocate(1000, AllocationKind::Device).unwrap();
        a.mark_range_written(a.base, 130);
        a.mark_written(a.base + 132, 4);
        assert_eq!(a.first_unwritten(a.base, 1000), Some(130));
        assert!(a.is_written(a.base + 132, 4) && !a.is_written(a.base + 136, 4));
        a.mark_range_written(a.base, 999);
        assert_eq!(a.first_unwritten(a.base, 1000), Some(999));
        a.mark_range_written(a.base, 1000);
        assert_eq!(a.first_unwritten(a.base, 1000), None);
    }
}
