//! A piece of page-locked memory that bytes are copied to the device from, on a stream of its own.
//!
//! Loading uses a few of them at once: while one is copied from, the next is filled. A chunk gives its bytes
//! out to be changed only when no copy reads them any more, and its memory back the same way.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::device::{Device, DeviceError, Doing};
use super::pinned::Pinned;

/// Host memory and the stream of the copies from it.
pub(super) struct Chunk {
    device: Arc<Device>,
    stream: sys::CUstream,
    memory: Pinned,
}

impl Chunk {
    /// A chunk of `bytes` bytes. The device becomes current on this thread.
    pub(super) fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, DeviceError> {
        let memory = Pinned::new(device, bytes)?;
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = result::stream::create(kind).doing("open a stream")?;
        Ok(Self { device: device.clone(), stream, memory })
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// All bytes, to be filled; waits for the copies from them first.
    pub(super) fn bytes_mut(&mut self) -> Result<&mut [u8], DeviceError> {
        self.wait()?;
        Ok(self.memory.bytes_mut())
    }

    /// Starts a copy of bytes `from` to the device.
    ///
    /// # Safety
    /// `to` has room for them, which nobody else uses and which is not given back before this chunk has been
    /// waited for or dropped.
    pub(super) unsafe fn send(&self, from: Range<usize>, to: u64) -> Result<(), DeviceError> {
        let bytes = &self.bytes()[from];
        // SAFETY: of the destination the caller's promise. The bytes change only in `bytes_mut` and go only in
        // `drop`, both of which wait for the stream.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream) }.doing("copy to the device")
    }

    /// Waits until all copies are done.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives until `drop`.
        unsafe { result::stream::synchronize(self.stream) }.doing("wait for copies to the device")
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // Nobody is left to hear of an error. The memory goes after this, when no copy reads it.
        let _ = self.device.bind();
        let _ = self.wait();
        // SAFETY: created in `new`, destroyed nowhere else.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}
