//! Reads a trace record by record from any stream, in one reused buffer.
//!
//! A length in the file is compared with its bound before memory is taken, and memory grows only as bytes
//! arrive, so a lying length costs nothing. The format is described in [`trace`](super).
#![forbid(unsafe_code)]

use std::io::{self, BufReader, Read};
use std::mem::size_of;

use zerocopy::FromBytes;

use super::{
    CRC_BYTES, FileHead, HEADER_BYTES_MAX, HeaderProblem, MAGIC, PAYLOAD_BYTES_MAX, Record,
    RecordHead, RecordKind, RecordProblem, TraceError, TraceHeader, VERSION,
};

const FILE_HEAD: usize = size_of::<FileHead>();
const RECORD_HEAD: usize = size_of::<RecordHead>();
/// First size of the record buffer; doubled while bytes arrive.
const BUFFER_BYTES_MIN: usize = 64 << 10;

/// Delivers the records of a trace in file order.
///
/// A record that is cut off or damaged ends the trace with an error, after which there are no more
/// records: nothing behind a wrong length can be trusted.
pub struct TraceReader<R> {
    source: BufReader<R>,
    name: String,
    header: TraceHeader,
    buffer: Vec<u8>,
    offset: u64,
    records: u64,
    unknown: u64,
    ended: bool,
}

/// The fields of a record whose checksum holds; its payload is at the start of the buffer.
struct Head {
    kind: Option<RecordKind>,
    time_us: u64,
    length: usize,
    offset: u64,
}

impl<R: Read> TraceReader<R> {
    /// Reads the header. `name` is what errors call the stream: a path, or `stdin`.
    ///
    /// # Errors
    /// Every [`TraceError`] but [`TraceError::Record`].
    pub fn open(source: R, name: impl Into<String>) -> Result<Self, TraceError> {
        let mut source = BufReader::with_capacity(BUFFER_BYTES_MIN, source);
        let name = name.into();
        let (header, bytes) = read_header(&mut source, &name)?;
        Ok(Self {
            source,
            name,
            header,
            buffer: Vec::new(),
            offset: bytes,
            records: 0,
            unknown: 0,
            ended: false,
        })
    }

    /// The header.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// What errors call the stream.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the header and of all whole records so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Records of unknown kind skipped so far.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Bytes of the record buffer: 64 KiB, or at most twice the largest record so far, and never more than
    /// the largest possible one.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next record of a known kind, or `None` at the end of the trace or after an error.
    ///
    /// # Errors
    /// [`TraceError::Record`] for a record that is cut off or damaged, [`TraceError::Io`].
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, TraceError> {
        loop {
            let head = match self.advance() {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(None),
                Err(e) => {
                    self.ended = true;
                    return Err(e);
                }
            };
            let Some(kind) = head.kind else {
                self.unknown += 1;
                continue;
            };
            return Ok(Some(Record {
                kind,
                time_us: head.time_us,
                payload: &self.buffer[RECORD_HEAD..RECORD_HEAD + head.length],
                number: self.records,
                offset: head.offset,
            }));
        }
    }

    /// Reads one whole record into the buffer and checks it.
    fn advance(&mut self) -> Result<Option<Head>, TraceError> {
        if self.ended {
            return Ok(None);
        }
        let have = self.fill(0, RECORD_HEAD)?;
        if have == 0 {
            self.ended = true;
            return Ok(None);
        }
        let head = RecordHead::read_from_prefix(&self.buffer[..have]);
        let Ok((head, _)) = head else {
            return Err(self.broken(RecordProblem::Cut { have, need: RECORD_HEAD + CRC_BYTES }));
        };
        let length = head.length.get();
        let Some(payload) = usize::try_from(length).ok().filter(|n| *n <= PAYLOAD_BYTES_MAX) else {
            return Err(self.broken(RecordProblem::Length { length }));
        };
        let need = RECORD_HEAD + payload + CRC_BYTES;
        let have = self.fill(RECORD_HEAD, need)?;
        if have < need {
            return Err(self.broken(RecordProblem::Cut { have, need }));
        }
        if let Some((said, found)) = crc_mismatch(&self.buffer[..need]) {
            return Err(self.broken(RecordProblem::Crc { said, found }));
        }
        let offset = self.offset;
        self.offset += need as u64;
        self.records += 1;
        Ok(Some(Head {
            kind: RecordKind::from_code(head.kind),
            time_us: head.time_us.get(),
            length: payload,
            offset,
        }))
    }

    /// Reads until the record's first `to` bytes are in the buffer, `from` of which are; returns how many
    /// there are, fewer only at the end of the stream.
    fn fill(&mut self, from: usize, to: usize) -> Result<usize, TraceError> {
        let mut have = from;
        while have < to {
            if self.buffer.len() < to && self.buffer.len() == have {
                let grown = (2 * have).clamp(BUFFER_BYTES_MIN, RECORD_BYTES_MAX);
                self.buffer.reserve_exact(grown - have);
                self.buffer.resize(grown, 0);
            }
            let end = to.min(self.buffer.len());
            let got = read_full(&mut self.source, &mut self.buffer[have..end]);
            let got = got.map_err(|source| TraceError::Io {
                name: self.name.clone(),
                offset: self.offset,
                source,
            })?;
            have += got;
            if have < end {
                break;
            }
        }
        Ok(have)
    }

    fn broken(&self, problem: RecordProblem) -> TraceError {
        let number = self.records + 1;
        TraceError::Record { name: self.name.clone(), number, offset: self.offset, problem }
    }
}

/// Bytes of the largest possible record.
const RECORD_BYTES_MAX: usize = RECORD_HEAD + PAYLOAD_BYTES_MAX + CRC_BYTES;

/// The header and its length in bytes.
fn read_header(source: &mut impl Read, name: &str) -> Result<(TraceHeader, u64), TraceError> {
    let name = || name.to_owned();
    let io = |source| TraceError::Io { name: name(), offset: 0, source };
    let broken = |problem| TraceError::Header { name: name(), problem };

    let mut bytes = vec![0; FILE_HEAD];
    let have = read_full(source, &mut bytes).map_err(io)?;
    if have < MAGIC.len() || bytes[..MAGIC.len()] != MAGIC {
        return Err(TraceError::NotATrace { name: name() });
    }
    let cut = |have, need| broken(HeaderProblem::Cut { have, need });
    if have < FILE_HEAD {
        return Err(cut(have, FILE_HEAD + CRC_BYTES));
    }
    let head = FileHead::read_from_bytes(&bytes).map_err(|_| cut(have, FILE_HEAD))?;
    if head.version.get() != VERSION {
        return Err(TraceError::Version { name: name(), version: head.version.get() });
    }
    let (header_len, note_len) = (head.header_len.get(), head.note_len.get());
    let lengths = usize::try_from(header_len).ok().zip(usize::try_from(note_len).ok());
    let (need, note) = lengths
        .filter(|(n, note)| *n <= HEADER_BYTES_MAX && *note <= HEADER_BYTES_MAX)
        .filter(|(n, note)| *n >= FILE_HEAD + note + CRC_BYTES)
        .ok_or_else(|| broken(HeaderProblem::Length { header_len, note_len }))?;
    bytes.resize(need, 0);
    let have = FILE_HEAD + read_full(source, &mut bytes[FILE_HEAD..]).map_err(io)?;
    if have < need {
        return Err(cut(have, need));
    }
    if let Some((said, found)) = crc_mismatch(&bytes) {
        return Err(broken(HeaderProblem::Crc { said, found }));
    }
    let note = std::str::from_utf8(&bytes[FILE_HEAD..FILE_HEAD + note])
        .map_err(|_| broken(HeaderProblem::Note))?
        .to_owned();
    let header = TraceHeader { hello: head.hello, created_us: head.created_us.get(), note };
    Ok((header, need as u64))
}

/// Compares the checksum in the last four bytes with that of the bytes before: `None` when equal.
fn crc_mismatch(bytes: &[u8]) -> Option<(u32, u32)> {
    let (covered, said) = bytes.split_last_chunk().expect("every length counts its checksum");
    let (said, found) = (u32::from_le_bytes(*said), crc32fast::hash(covered));
    (said != found).then_some((said, found))
}

/// Fills `buffer` as far as the stream goes; returns the bytes read.
fn read_full(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match source.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}
