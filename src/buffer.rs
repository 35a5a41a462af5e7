//! Memory: one frame with its body on a 64-byte boundary, and bytes shared with a file mapping.
//!
//! A message is a 32-byte header and a body (contract §6.1). The body of a STEP ends with its row block (§6.3):
//! placing the end of a frame at the end of its memory, on a 64-byte boundary, aligns the rows, and lets who
//! copies them to a device put what shall go along right behind them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const LINE: usize = 64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Memory that a frame can be received into besides the heap, for example memory a device reads.
pub trait FrameMemory: Send {
    /// All bytes.
    fn bytes(&self) -> &[u8];

    /// All bytes, to be filled.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl FrameMemory for Vec<Line> {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_bytes()
    }
}

/// A fixed piece of memory for one frame. Never grows: a length is compared with
/// [`capacity`](Self::capacity) before a byte is read.
pub struct FrameBuffer {
    memory: Box<dyn FrameMemory>,
    capacity: usize,
}

impl FrameBuffer {
    /// Zeroed memory for frames of up to `capacity` bytes, header included. The pages are touched only
    /// when a frame fills them.
    ///
    /// # Errors
    /// [`BufferError`] when the memory cannot be had.
    pub fn new(capacity: usize) -> Result<Self, BufferError> {
        let lines = Self::memory_for(capacity) / LINE;
        let lines = Line::new_vec_zeroed(lines).map_err(|_| BufferError { bytes: capacity })?;
        Ok(Self { memory: Box::new(lines), capacity })
    }

    /// Bytes of memory that frames of up to `capacity` bytes take.
    pub fn memory_for(capacity: usize) -> usize {
        capacity.next_multiple_of(LINE)
    }

    /// Frames of up to `capacity` bytes in `memory`.
    ///
    /// # Errors
    /// [`BufferError`] when the memory is smaller than [`memory_for`](Self::memory_for) says or does not
    /// end on a 64-byte boundary.
    pub fn in_memory(capacity: usize, memory: Box<dyn FrameMemory>) -> Result<Self, BufferError> {
        let bytes = memory.bytes();
        let fits = bytes.len() >= Self::memory_for(capacity);
        if fits && bytes.as_ptr_range().end.addr().is_multiple_of(LINE) {
            Ok(Self { memory, capacity })
        } else {
            Err(BufferError { bytes: capacity })
        }
    }

    /// Bytes of the largest frame this buffer holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The frame of `len` bytes.
    ///
    /// # Panics
    /// If `len` exceeds the capacity: the transport checks lengths first.
    pub fn frame(&self, len: usize) -> &[u8] {
        assert!(len <= self.capacity, "frame of {len} bytes in a buffer of {}", self.capacity);
        let bytes = self.memory.bytes();
        &bytes[bytes.len() - len..]
    }

    /// The frame of `len` bytes, to be filled.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn frame_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.capacity, "frame of {len} bytes in a buffer of {}", self.capacity);
        let bytes = self.memory.bytes_mut();
        let start = bytes.len() - len;
        &mut bytes[start..]
    }
}

/// The operating system refused the memory for a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for a frame buffer of {bytes} bytes")]
pub struct BufferError {
    /// Bytes asked for.
    pub bytes: usize,
}

/// A range of bytes that stays valid as long as somebody holds it: part of a mapped file, of an embedded
/// one, or of plain memory. Cloning copies no bytes.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// All bytes of `owner`.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { owner: Arc::new(owner), range }
    }

    /// A part of these bytes.
    ///
    /// # Panics
    /// If `range` does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "slice outside shared bytes");
        let start = self.range.start + range.start;
        Self { owner: self.owner.clone(), range: start..start + range.len() }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_slice_is_counted_from_its_own_start() {
        let all = SharedBytes::new((0..100u8).collect::<Vec<_>>());
        let part = all.slice(10..50).slice(5..8);
        assert_eq!(&part[..], [15, 16, 17]);
    }

    #[test]
    fn a_frame_ends_where_its_memory_ends() {
        let mut buffer = FrameBuffer::new(1000).unwrap();
        for len in [32, 500, 1000] {
            buffer.frame_mut(len)[len - 1] = 9;
            assert_eq!(buffer.frame(len)[len - 1], 9);
            assert_eq!(buffer.frame(len).len(), len);
            assert_eq!(buffer.frame(len).as_ptr_range().end.addr() % LINE, 0);
        }
    }
}
