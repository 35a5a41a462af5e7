//! Loading: places for all weights first, then one pass over the files that hashes and uploads.
//!
//! A [`Placement`] takes device memory and notes which bytes belong where, without reading those that go as
//! they are stored. [`Placed::upload`] then reads every file once; what of a piece has a place is copied there
//! while the piece is hashed. Bytes in memory, of a checkpoint without files or converted ones, go the same way.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::CudaError;
use super::chunk::Chunk;
use super::device::{Device, DeviceError, DeviceMemory};
use super::linears::Sink;
use super::upload::{ALIGN, Rooms};
use crate::checkpoint::pass::{self, Lane, Source};
use crate::checkpoint::{Checkpoint, Progress, Unverified};

/// Bytes read at once. A reader has two pieces of this size page-locked; those of eight readers take half of
/// what the packaged unit allows (`LimitMEMLOCK`).
pub(super) const CHUNK_BYTES: usize = 2 << 20;
/// Large checkpoints share allocations of this size: the driver rounds each one up to 2 MiB.
const SLAB_BYTES: usize = 256 << 20;
/// Up to this size every tensor has an allocation of its own, so that a checking driver sees its bounds.
const SEPARATE_BYTES_MAX: usize = 64 << 20;

/// Where stored bytes come from, found again by their address in this process.
pub(super) struct Origins<'a> {
    /// Whole files where they are mapped, or else pieces of memory.
    stored: Vec<&'a [u8]>,
    /// Address and index of each that is not empty, in order.
    addresses: Vec<(usize, usize)>,
    files: Option<&'a Unverified>,
}

impl<'a> Origins<'a> {
    /// The files of a checkpoint that are still to be hashed, or else its tensors in memory.
    pub(super) fn of(checkpoint: &'a Checkpoint, files: Option<&'a Unverified>) -> Self {
        match files {
            Some(unverified) => {
                let files = Some(unverified);
                Self { files, ..Self::memory(unverified.mapped()) }
            }
            None => Self::memory(checkpoint.tensors.iter().map(|tensor| &tensor.data[..])),
        }
    }

    /// Pieces of memory.
    pub(super) fn memory(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let stored: Vec<&[u8]> = pieces.into_iter().collect();
        let known = stored.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty());
        let mut addresses: Vec<_> = known.map(|(i, bytes)| (bytes.as_ptr().addr(), i)).collect();
        addresses.sort_unstable();
        Self { stored, addresses, files: None }
    }

    /// Index of the origin that `bytes` are part of, and where in it they start.
    fn find(&self, bytes: &[u8]) -> Option<(usize, usize)> {
        let address = bytes.as_ptr().addr();
        let after = self.addresses.partition_point(|(start, _)| *start <= address);
        let (start, index) = self.addresses[after.checked_sub(1)?];
        let at = address - start;
        (at + bytes.len() <= self.stored[index].len()).then_some((index, at))
    }
}

/// Bytes of an origin that belong on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// Where in the origin.
    bytes: Range<usize>,
    /// Their address on the device.
    at: u64,
}

/// Takes memory for what is put, and notes what goes there.
pub(super) struct Placement<'a> {
    memory: &'a mut DeviceMemory,
    slab: Option<(u64, usize)>,
    separate: bool,
    left: usize,
    origins: &'a Origins<'a>,
    /// Of each origin, what of it has a place.
    stored: Vec<Vec<Part>>,
    known: HashMap<(usize, usize), u64>,
    /// Bytes that are in no origin, and their places.
    converted: Vec<u8>,
    converted_parts: Vec<Part>,
}

impl<'a> Placement<'a> {
    /// A placement of `bytes` bytes in all, as a counter counted them.
    pub(super) fn new(
        memory: &'a mut DeviceMemory,
        bytes: usize,
        origins: &'a Origins<'a>,
    ) -> Self {
        Self {
            memory,
            slab: None,
            separate: bytes <= SEPARATE_BYTES_MAX,
            left: bytes,
            stored: vec![Vec::new(); origins.stored.len()],
            origins,
            known: HashMap::new(),
            converted: Vec::new(),
            converted_parts: Vec::new(),
        }
    }

    /// Everything that was put, to be uploaded. Its memory cannot go before that is over.
    pub(super) fn done(self) -> Placed<'a> {
        let Self { memory, origins, mut stored, converted, converted_parts, .. } = self;
        for parts in &mut stored {
            parts.sort_unstable_by_key(|part| part.bytes.start);
        }
        Placed { memory, origins, stored, converted, converted_parts }
    }
}

impl Rooms for Placement<'_> {
    fn room(&mut self, bytes: usize) -> Result<u64, DeviceError> {
        if self.separate {
            return self.memory.take(bytes, 0);
        }
        let bytes = bytes.next_multiple_of(ALIGN);
        let (at, free) = match self.slab {
            Some((at, free)) if free >= bytes => (at, free),
            _ => {
                let size = SLAB_BYTES.min(self.left).max(bytes);
                (self.memory.take(size, 0)?, size)
            }
        };
        self.left = self.left.saturating_sub(bytes);
        self.slab = Some((at + bytes as u64, free - bytes));
        Ok(at)
    }
}

impl Sink for Placement<'_> {
    type Error = DeviceError;

    fn put(&mut self, bytes: &[u8]) -> Result<u64, DeviceError> {
        let at = self.room(bytes.len())?;
        let start = self.converted.len();
        self.converted.extend_from_slice(bytes);
        self.converted_parts.push(Part { bytes: start..start + bytes.len(), at });
        Ok(at)
    }

    fn put_once(&mut self, bytes: &[u8]) -> Result<u64, DeviceError> {
        let key = (bytes.as_ptr().addr(), bytes.len());
        if let Some(&at) = self.known.get(&key) {
            return Ok(at);
        }
        let at = match self.origins.find(bytes) {
            Some((origin, start)) => {
                let at = self.room(bytes.len())?;
                self.stored[origin].push(Part { bytes: start..start + bytes.len(), at });
                at
            }
            None => self.put(bytes)?,
        };
        self.known.insert(key, at);
        Ok(at)
    }
}

/// Weights with places on the device that they are still to be copied to.
pub(super) struct Placed<'a> {
    memory: &'a DeviceMemory,
    origins: &'a Origins<'a>,
    /// Of each origin, in the order of their first bytes.
    stored: Vec<Vec<Part>>,
    converted: Vec<u8>,
    converted_parts: Vec<Part>,
}

impl Placed<'_> {
    /// Reads every file to its end, and of memory what has a place, at most `chunk` bytes at once for each
    /// reader; uploads on the way. Files are verified then.
    ///
    /// # Errors
    /// When the device fails, or a file is not what the receipt says. No copy is under way then either.
    pub(super) fn upload(&self, device: &Arc<Device>, chunk: usize) -> Result<(), CudaError> {
        let started = Instant::now();
        let files = self.origins.files;
        let mut sources = files.map_or_else(Vec::new, Unverified::sources);
        let read: u64 = sources.iter().map(Source::bytes).sum();
        let mut parts: Vec<&[Part]> = Vec::new();
        for (bytes, stored) in self.origins.stored.iter().zip(&self.stored) {
            if files.is_none() && !stored.is_empty() {
                sources.push(Source::memory(bytes));
            }
            if files.is_some() || !stored.is_empty() {
                parts.push(stored);
            }
        }
        sources.push(Source::memory(&self.converted));
        parts.push(&self.converted_parts);

        // Readers copy on streams of their own: what fills the memory must be over.
        device.synchronize()?;
        let largest = sources.iter().map(Source::bytes).max().unwrap_or(0);
        let chunk = usize::try_from(largest).map_or(chunk, |bytes| bytes.min(chunk)).max(1);
        let uploaded = AtomicU64::new(0);
        let lane = || {
            let chunks = [Chunk::new(device, chunk)?, Chunk::new(device, chunk)?];
            let (parts, uploaded, _memory) = (&*parts, &uploaded, self.memory);
            Ok(Upload { chunks, turn: 0, parts, passed: (usize::MAX, 0), uploaded, _memory })
        };
        let readers = pass::readers(sources.len());
        let progress = files.map_or(&() as &dyn Progress, Unverified::progress);
        let outcomes = pass::run(&sources, readers, progress, &lane)?;
        if let Some(files) = files {
            files.judge(outcomes.into_iter().take(self.origins.stored.len()).collect())?;
        }

        let seconds = started.elapsed().as_secs_f64();
        let [read, uploaded] = [read, uploaded.into_inner()].map(|bytes| bytes as f64 / 1e9);
        if files.is_some() {
            tracing::info!(
                readers,
                "verified {read:.2} GB and uploaded {uploaded:.2} GB in {seconds:.2} s ({:.2} GB/s)",
                read / seconds
            );
        } else {
            tracing::info!(
                readers,
                "uploaded {uploaded:.2} GB in {seconds:.2} s ({:.2} GB/s)",
                uploaded / seconds
            );
        }
        Ok(())
    }
}

/// One reader's way to the device.
struct Upload<'a> {
    chunks: [Chunk; 2],
    /// Which chunk is filled, or was filled last.
    turn: usize,
    /// Of each source, what of it has a place.
    parts: &'a [&'a [Part]],
    /// The source that is read, and how many of its parts end before what comes next.
    passed: (usize, usize),
    uploaded: &'a AtomicU64,
    /// Owns every place of the parts, and stays until this is gone.
    _memory: &'a DeviceMemory,
}

impl Lane for Upload<'_> {
    type Error = DeviceError;

    fn room(&mut self) -> Result<&mut [u8], DeviceError> {
        self.turn = 1 - self.turn;
        self.chunks[self.turn].bytes_mut()
    }

    fn hand_on(&mut self, source: usize, at: u64, len: usize) -> Result<&[u8], DeviceError> {
        let parts = self.parts[source];
        let at = usize::try_from(at).expect("files are mapped, so an offset is an address");
        if self.passed.0 != source {
            self.passed = (source, 0);
        }
        let over = parts[self.passed.1..].iter().take_while(|part| part.bytes.end <= at).count();
        self.passed.1 += over;
        let chunk = &self.chunks[self.turn];
        for (from, to) in pieces(&parts[self.passed.1..], at..at + len) {
            self.uploaded.fetch_add(from.len() as u64, Ordering::Relaxed);
            // SAFETY: a part's place was taken for its bytes alone when it was put; the memory it was taken of
            // is borrowed for as long as this is there, and with this the chunk goes, which waits.
            unsafe { chunk.send(from, to) }?;
        }
        Ok(&chunk.bytes()[..len])
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.chunks.iter().try_for_each(Chunk::wait)
    }
}

/// What of bytes `piece` of an origin belongs where: ranges counted from the start of the piece. `parts` are in
/// the order of their first bytes.
fn pieces(parts: &[Part], piece: Range<usize>) -> impl Iterator<Item = (Range<usize>, u64)> {
    let begun = parts.iter().take_while(move |part| part.bytes.start < piece.end);
    begun.filter_map(move |part| {
        let start = part.bytes.start.max(piece.start);
        let end = part.bytes.end.min(piece.end);
        let to = part.at + (start - part.bytes.start) as u64;
        (start < end).then(|| (start - piece.start..end - piece.start, to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_found_by_any_part_of_it_and_by_nothing_else() {
        let all: Vec<u8> = (0..100).collect();
        let (a, b, other) = (&all[..40], &all[60..], [1u8; 8]);
        let origins = Origins::memory([a, &[], b]);
        assert_eq!(origins.find(a), Some((0, 0)));
        assert_eq!(origins.find(&a[39..]), Some((0, 39)));
        assert_eq!(origins.find(&b[3..9]), Some((2, 3)));
        assert_eq!(origins.find(&all[30..50]), None, "reaches out of it");
        assert_eq!(origins.find(&all[45..50]), None, "between them");
        assert_eq!(origins.find(&other), None);
        assert_eq!(Origins::memory([]).find(a), None);
    }

    /// Whatever the size of a piece, every byte of every part comes to its place, parts that share bytes too.
    #[test]
    fn parts_are_copied_whole_across_the_borders_of_pieces() {
        let origin: Vec<u8> = (0..200).map(|i| (i * 7) as u8).collect();
        let parts = [(3..50, 0), (20..30, 100), (50..51, 200), (60..60, 300), (70..200, 400)];
        let parts = parts.map(|(bytes, at)| Part { bytes, at });
        for chunk in [1, 2, 9, 50, 64, 199, 200, 4096] {
            let mut device = vec![0xEE; 600];
            let mut copied = 0;
            let mut at = 0;
            while at < origin.len() {
                let end = origin.len().min(at + chunk);
                let room = &origin[at..end];
                for (from, to) in pieces(&parts, at..end) {
                    copied += from.len();
                    let to = usize::try_from(to).unwrap();
                    device[to..to + from.len()].copy_from_slice(&room[from]);
                }
                at = end;
            }
            let mut expected = vec![0xEE; 600];
            for part in &parts {
                let to = usize::try_from(part.at).unwrap();
                expected[to..to + part.bytes.len()].copy_from_slice(&origin[part.bytes.clone()]);
            }
            assert_eq!(device, expected, "pieces of {chunk}");
            assert_eq!(copied, 47 + 10 + 1 + 130, "nothing twice");
        }
    }
}
