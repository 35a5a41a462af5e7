//! Host memory that the device copies from and to: page-locked where the host allows it, so that copies run
//! beside the host and need no staging.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;
use std::sync::{Arc, Once};

use cudarc::driver::result;

use super::device::{Device, DeviceError, Doing};
use crate::buffer::FrameMemory;

/// Part of a piece of such memory. Parts never overlap, and each keeps the whole alive.
pub(super) struct Pinned {
    memory: Arc<Memory>,
    range: Range<usize>,
}

struct Memory {
    device: Arc<Device>,
    at: *mut u8,
    bytes: usize,
    locked: bool,
}

// SAFETY: plain bytes; parts of them are reached through their one `Pinned` alone.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Alignment of memory that could not be locked, a page like that which could.
const PAGE: usize = 4096;

impl Pinned {
    /// `bytes` zeroed bytes on a page boundary, cached for the CPU. Pages that cannot be locked, for a limit
    /// of the process say, are used unlocked: copies take longer and mean the same.
    pub(super) fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, DeviceError> {
        static SAID: Once = Once::new();
        let bytes = bytes.max(1);
        device.bind()?;
        // SAFETY: freed in `drop`. No flag: write-combined memory would be slow to read.
        let locked = unsafe { result::malloc_host(bytes, 0) }.doing("take page-locked memory");
        let (at, locked) = match locked {
            Ok(at) => (at.cast::<u8>(), true),
            Err(error) => {
                SAID.call_once(|| {
                    tracing::warn!(
                        "{error}; copies to and from the device are slower (raise the limit of locked \
                         memory: ulimit -l, LimitMEMLOCK=)"
                    );
                });
                // SAFETY: `bytes` is not zero; freed in `drop`.
                (unsafe { alloc(layout(bytes)) }, false)
            }
        };
        if at.is_null() {
            let reason = format!("no {bytes} bytes");
            return Err(DeviceError { doing: "take memory for copies", reason });
        }
        // SAFETY: `at` has `bytes` bytes; zeroing makes them initialized.
        unsafe { at.write_bytes(0, bytes) };
        let memory = Arc::new(Memory { device: device.clone(), at, bytes, locked });
        Ok(Self { memory, range: 0..bytes })
    }

    /// The first `at` bytes, and those that follow.
    ///
    /// # Panics
    /// If there are not so many.
    pub(super) fn split(self, at: usize) -> (Self, Self) {
        assert!(at <= self.range.len(), "split outside the memory");
        let Self { memory, range } = self;
        let middle = range.start + at;
        let front = Self { memory: memory.clone(), range: range.start..middle };
        (front, Self { memory, range: middle..range.end })
    }

    /// Whether no other part of the memory is left.
    pub(super) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.memory) == 1
    }

    /// Whether this part begins where `front`, part of the same memory, ends.
    pub(super) fn follows(&self, front: &[u8]) -> bool {
        let start = self.memory.at.addr();
        let front = front.as_ptr_range();
        start <= front.start.addr() && front.end.addr() == start + self.range.start
    }

    /// `front`, which this part follows, and the first `bytes` bytes of this part.
    ///
    /// # Panics
    /// If it does not follow, or has not so many bytes.
    pub(super) fn behind<'a>(&'a self, front: &'a [u8], bytes: usize) -> &'a [u8] {
        assert!(self.follows(front) && bytes <= self.range.len(), "memory of one piece");
        let first = self.range.start - front.len();
        // SAFETY: all of it lies in the memory and is initialized: `front` up to where this part begins. Both
        // are borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts(self.memory.at.add(first), front.len() + bytes) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the part's bytes are initialized, live with `memory`, and are reached through `self` alone.
        unsafe {
            std::slice::from_raw_parts(self.memory.at.add(self.range.start), self.range.len())
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, borrowed mutably with `self`.
        unsafe {
            std::slice::from_raw_parts_mut(self.memory.at.add(self.range.start), self.range.len())
        }
    }
}

impl FrameMemory for Pinned {
    fn bytes(&self) -> &[u8] {
        Pinned::bytes(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        Pinned::bytes_mut(self)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // A copy may still be under way after an error.
        let _ = self.device.synchronize();
        if self.locked {
            // SAFETY: taken in `new`, freed nowhere else.
            let _ = unsafe { result::free_host(self.at.cast()) };
        } else {
            // SAFETY: taken in `new` with this layout, freed nowhere else.
            unsafe { dealloc(self.at, layout(self.bytes)) };
        }
    }
}

/// Layout of memory that could not be locked.
fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, PAGE).expect("less than half of all addresses")
}
