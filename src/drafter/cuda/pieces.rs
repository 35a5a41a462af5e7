//! Where the pieces of a STEP lie on the host, and their copy to the device together with the tap rows.
//!
//! A frame ends where its memory ends (`buffer.rs`), and room for a piece follows it. On the device tap rows end
//! where the piece begins. So rows and the first pass's piece are one run of bytes on both sides, and one copy.

use std::cell::RefCell;

use super::device::DeviceError;
use super::engine::Engine;
use super::pinned::Pinned;
use crate::buffer::FrameBuffer;
use crate::drafter::DraftError;

/// Pieces of all passes of the largest STEP.
pub(super) struct Pieces {
    /// Bytes of a piece.
    size: usize,
    /// One piece a pass.
    own: Pinned,
    /// Room for a piece behind each frame buffer that was handed out.
    rooms: RefCell<Vec<Pinned>>,
    /// Of these the one behind the rows of the STEP in hand, for the piece of its first pass.
    room: Option<usize>,
}

impl Pieces {
    /// Pieces of `size` bytes for `passes` passes.
    pub(super) fn new(engine: &Engine, size: usize, passes: usize) -> Result<Self, DeviceError> {
        let own = Pinned::new(&engine.device, passes * size)?;
        Ok(Self { size, own, rooms: RefCell::default(), room: None })
    }

    /// A buffer for frames of up to `bytes` bytes, with room for a piece behind it.
    pub(super) fn frame_buffer(
        &self,
        engine: &Engine,
        bytes: usize,
    ) -> Result<FrameBuffer, DraftError> {
        let frame = FrameBuffer::memory_for(bytes);
        let both = Pinned::new(&engine.device, frame + self.size);
        let both = both.map_err(|error| DraftError::Backend(error.to_string()))?;
        let (frame, room) = both.split(frame);
        let mut rooms = self.rooms.borrow_mut();
        // Those whose buffer is gone.
        rooms.retain(|room| !room.is_alone());
        rooms.push(room);
        Ok(FrameBuffer::in_memory(bytes, Box::new(frame))?)
    }

    /// Chooses where the pieces of a STEP go whose tap rows are `taps`, none if it stores none.
    pub(super) fn begin(&mut self, taps: &[u8]) {
        let rooms = self.rooms.get_mut();
        self.room = if taps.is_empty() { None } else { rooms.iter().position(|r| r.follows(taps)) };
    }

    /// The piece of a pass, to be written.
    pub(super) fn piece(&mut self, pass: usize) -> &mut [u8] {
        match self.room {
            Some(room) if pass == 0 => self.rooms.get_mut()[room].bytes_mut(),
            _ => &mut self.own.bytes_mut()[pass * self.size..][..self.size],
        }
    }

    /// Starts the copy of the first `bytes` bytes of a pass's piece, and of the tap rows before it: one copy
    /// where the piece follows them in memory, else two.
    ///
    /// # Safety
    /// The piece's memory on the device has room for `taps` before it, and neither they nor the piece change
    /// before the stream has passed.
    pub(super) unsafe fn upload(
        &mut self,
        engine: &Engine,
        pass: usize,
        taps: &[u8],
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let meta = engine.buffers.meta(&engine.shape);
        let before = meta - taps.len() as u64;
        let rooms = self.rooms.get_mut();
        match self.room {
            Some(room) if pass == 0 => {
                // SAFETY: the caller's promise.
                unsafe { engine.device.upload(before, rooms[room].behind(taps, bytes)) }
            }
            _ => {
                if !taps.is_empty() {
                    // SAFETY: the caller's promise.
                    unsafe { engine.device.upload(before, taps) }?;
                }
                let piece = &self.own.bytes()[pass * self.size..][..bytes];
                // SAFETY: the caller's promise.
                unsafe { engine.device.upload(meta, piece) }
            }
        }
    }
}
