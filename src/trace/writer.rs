//! Writes a trace to any stream. The format is described in [`trace`](super).
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::mem::size_of;

use zerocopy::IntoBytes;

use super::{
    CRC_BYTES, FileHead, HEADER_BYTES_MAX, MAGIC, PAYLOAD_BYTES_MAX, RecordHead, RecordKind,
    TraceHeader, VERSION,
};

/// Appends records to a stream.
///
/// A record is three writes (head, payload, checksum) and is not copied: give a file a
/// [`BufWriter`](io::BufWriter). After a failed write the writer refuses further records, because nothing
/// behind a cut record could be read.
pub struct TraceWriter<W> {
    sink: W,
    bytes: u64,
    broken: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// `InvalidInput` if the note makes the header larger than [`HEADER_BYTES_MAX`]; any error of the
    /// stream.
    pub fn create(mut sink: W, header: &TraceHeader) -> io::Result<Self> {
        let note = header.note.as_bytes();
        let len = size_of::<FileHead>() + note.len() + CRC_BYTES;
        if len > HEADER_BYTES_MAX {
            let why = format!("a trace header of {len} bytes, at most {HEADER_BYTES_MAX} fit");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let len32 = |n: usize| u32::try_from(n).expect("bounded by HEADER_BYTES_MAX");
        let head = FileHead {
            magic: MAGIC,
            version: VERSION.into(),
            header_len: len32(len).into(),
            created_us: header.created_us.into(),
            note_len: len32(note.len()).into(),
            reserved: 0.into(),
            hello: header.hello,
        };
        write_checked(&mut sink, head.as_bytes(), note)?;
        Ok(Self { sink, bytes: len as u64, broken: false })
    }

    /// Appends a record. `time_us` counts from the start of the recording and should not decrease;
    /// `payload` is a whole message, or UTF-8 JSON for a note.
    ///
    /// # Errors
    /// `InvalidInput` for a payload above [`PAYLOAD_BYTES_MAX`], which writes nothing; any error of the
    /// stream, after which every call fails.
    pub fn record(&mut self, kind: RecordKind, time_us: u64, payload: &[u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an earlier record could not be written"));
        }
        let length = u32::try_from(payload.len()).ok();
        let Some(length) = length.filter(|_| payload.len() <= PAYLOAD_BYTES_MAX) else {
            let why = format!("a payload of {} bytes, at most {PAYLOAD_BYTES_MAX}", payload.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let head = RecordHead {
            length: length.into(),
            kind: kind.code(),
            reserved: [0; 3],
            time_us: time_us.into(),
        };
        self.broken = true;
        write_checked(&mut self.sink, head.as_bytes(), payload)?;
        self.broken = false;
        self.bytes += record_bytes(payload.len());
        Ok(())
    }

    /// Bytes of the header and all records written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Flushes the stream, so that everything recorded can be read by others.
    ///
    /// # Errors
    /// Any error of the stream.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// Flushes and returns the stream.
    ///
    /// # Errors
    /// Any error of flushing.
    pub fn finish(mut self) -> io::Result<W> {
        self.sink.flush()?;
        Ok(self.sink)
    }
}

/// Bytes a record with a payload of `payload` bytes takes in a file, to keep to a size limit.
pub const fn record_bytes(payload: usize) -> u64 {
    (size_of::<RecordHead>() + payload + CRC_BYTES) as u64
}

fn write_checked(sink: &mut impl Write, head: &[u8], rest: &[u8]) -> io::Result<()> {
    let mut crc = crc32fast::Hasher::new();
    crc.update(head);
    crc.update(rest);
    sink.write_all(head)?;
    sink.write_all(rest)?;
    sink.write_all(&crc.finalize().to_le_bytes())
}
