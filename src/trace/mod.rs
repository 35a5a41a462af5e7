//! A file of timed messages: what `serve --record` writes and `replay`, `shadow-diff` and `trace info`
//! read.
//!
//! Payloads are the wire's own messages (contract §6), so [`protocol`](crate::protocol) stays the only
//! parser; this module frames, dates and protects them. It does not judge them, and it neither opens
//! files nor reads clocks.
//!
//! # Format, version 1
//!
//! All integers are little-endian, all offsets in bytes. A file is one header and then records without
//! padding, up to the end of the file. There is no index and no count: a file can be written to a pipe,
//! read from one, and is readable up to the byte where a writer was stopped.
//!
//! Header:
//!
//! | off | type | field | value |
//! |---|---|---|---|
//! | 0 | `u8[8]` | magic | `DSPTRACE` |
//! | 8 | `u32` | version | 1; a reader refuses any other |
//! | 12 | `u32` | header_len | bytes of the header, checksum included; 228 + note_len ..= 65,536 |
//! | 16 | `u64` | created_us | wall time, µs since 1970-01-01 UTC; 0 for synthetic traces |
//! | 24 | `u32` | note_len | bytes of the note, 0 for none |
//! | 28 | `u32` | reserved | 0, not looked at |
//! | 32 | `u8[192]` | hello | the HELLO request body of the recorded session (contract §6.2) |
//! | 224 | `u8[note_len]` | note | UTF-8 JSON, free for its writer |
//! | 224 + note_len | | | bytes up to header_len − 4 are skipped: room for later fields |
//! | header_len − 4 | `u32` | crc | CRC-32 of the header_len − 4 bytes before |
//!
//! Record:
//!
//! | off | type | field | value |
//! |---|---|---|---|
//! | 0 | `u32` | length | bytes of the payload, at most 16,777,216 |
//! | 4 | `u8` | kind | 1 request, 2 reply, 3 local draft, 4 note; others are checked and skipped |
//! | 5 | `u8[3]` | reserved | 0, not looked at |
//! | 8 | `u64` | time_us | µs since the start of the recording, by a clock that does not go back |
//! | 16 | `u8[length]` | payload | kinds 1 to 3: a whole message, AppHeader and body; 4: UTF-8 JSON |
//! | 16 + length | `u32` | crc | CRC-32 of the 16 + length bytes before |
//!
//! CRC-32 is the reflected polynomial 0xEDB88320 with initial value and final xor 0xFFFFFFFF (IEEE 802.3,
//! zlib). A reply follows the request it answers; a request without one was not answered. A local draft
//! is a STEP reply whose drafts were made on the recording side: it stands next to the reply of the same
//! round and echoes the same `seq` and `step_id`.
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod engine;
pub mod info;
pub mod reader;
pub mod rounds;
mod scenario;
pub mod synth;
mod tally;
pub mod writer;

pub use info::TraceInfo;
pub use reader::TraceReader;
pub use rounds::{RecordedRound, RoundReader};
pub use synth::{Scenario, ScenarioSet, SynthOptions, synth, synth_header};
pub use writer::TraceWriter;

use std::io;
use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::REQUEST_BYTES_MAX;
use crate::protocol::HelloRequest;

/// First bytes of a trace.
pub const MAGIC: [u8; 8] = *b"DSPTRACE";
/// The format version written and read.
pub const VERSION: u32 = 1;
/// Largest header, note included.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
/// Largest payload of a record: the largest message of the wire (contract §5).
pub const PAYLOAD_BYTES_MAX: usize = REQUEST_BYTES_MAX;

/// Bytes of the checksum behind the header and behind each record.
const CRC_BYTES: usize = size_of::<u32>();

/// The header's fields before the note.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FileHead {
    magic: [u8; 8],
    version: U32,
    header_len: U32,
    created_us: U64,
    note_len: U32,
    reserved: U32,
    hello: HelloRequest,
}

/// A record's fields before the payload.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RecordHead {
    length: U32,
    kind: u8,
    reserved: [u8; 3],
    time_us: U64,
}

const _: () = {
    assert!(size_of::<FileHead>() == 224 && offset_of!(FileHead, hello) == 32);
    assert!(offset_of!(FileHead, created_us) == 16 && offset_of!(FileHead, note_len) == 24);
    assert!(size_of::<RecordHead>() == 16 && offset_of!(RecordHead, time_us) == 8);
};

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// A message to the worker.
    Request,
    /// The worker's answer.
    Reply,
    /// A STEP reply drafted on the recording side, for comparison with the worker's.
    LocalDraft,
    /// UTF-8 JSON, free for its writer.
    Note,
}

impl RecordKind {
    /// The kind with this number in a file; `None` for one this version does not know.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Request),
            2 => Some(Self::Reply),
            3 => Some(Self::LocalDraft),
            4 => Some(Self::Note),
            _ => None,
        }
    }

    /// Number in a file.
    pub fn code(self) -> u8 {
        match self {
            Self::Request => 1,
            Self::Reply => 2,
            Self::LocalDraft => 3,
            Self::Note => 4,
        }
    }
}

/// One record, viewed in the reader's buffer until the next is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it holds.
    pub kind: RecordKind,
    /// µs since the start of the recording.
    pub time_us: u64,
    /// A whole message, or JSON for [`RecordKind::Note`]. Not judged.
    pub payload: &'a [u8],
    /// Number of the record in the file, from 1, skipped ones included.
    pub number: u64,
    /// Offset of the record in the file, bytes.
    pub offset: u64,
}

/// What a trace says about the session it recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// HELLO of the session: geometry and identities.
    pub hello: HelloRequest,
    /// Wall time of the start, µs since 1970-01-01 UTC; 0 when synthetic.
    pub created_us: u64,
    /// JSON, free for its writer; empty for none.
    pub note: String,
}

/// Key of the note that is true in synthetic traces.
const SYNTHETIC: &str = "synthetic";

impl TraceHeader {
    /// Whether the note says that the trace is synthetic: acceptance in it says nothing about a drafter.
    pub fn is_synthetic(&self) -> bool {
        let note = serde_json::from_str::<serde_json::Value>(&self.note);
        note.is_ok_and(|note| note[SYNTHETIC] == true)
    }
}

impl TraceHeader {
    /// The header of a recording that starts now.
    pub fn now(hello: HelloRequest, note: impl Into<String>) -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let created_us = since.map_or(0, |t| u64::try_from(t.as_micros()).unwrap_or(u64::MAX));
        Self { hello, created_us, note: note.into() }
    }
}

/// Why a trace cannot be read, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The first bytes are not [`MAGIC`].
    #[error("{name}: not a trace: it does not begin with DSPTRACE")]
    NotATrace {
        /// Name of the stream.
        name: String,
    },
    /// Another format version.
    #[error("{name}: trace version {version}, this build reads version {VERSION}")]
    Version {
        /// Name of the stream.
        name: String,
        /// Version of the file.
        version: u32,
    },
    /// The header does not hold.
    #[error("{name}: header: {problem}")]
    Header {
        /// Name of the stream.
        name: String,
        /// What is wrong.
        problem: HeaderProblem,
    },
    /// A record does not hold. Every record before it was delivered.
    #[error("{name}: record {number} at byte {}: {problem}", grouped(*offset))]
    Record {
        /// Name of the stream.
        name: String,
        /// Number of the record, from 1.
        number: u64,
        /// Offset of the record, bytes; the file is whole up to here.
        offset: u64,
        /// What is wrong.
        problem: RecordProblem,
    },
    /// The stream could not be read.
    #[error("{name}: cannot read at byte {}", grouped(*offset))]
    Io {
        /// Name of the stream.
        name: String,
        /// Offset of the header or record that was being read.
        offset: u64,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// What is wrong with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// The stream ends inside it.
    #[error("the file ends after {have} of {need} bytes")]
    Cut {
        /// Bytes present.
        have: usize,
        /// Bytes the header has, at least.
        need: usize,
    },
    /// Its length is impossible.
    #[error("header_len is {header_len} with a note of {note_len} bytes")]
    Length {
        /// Length it claims.
        header_len: u32,
        /// Length of the note it claims.
        note_len: u32,
    },
    /// Its checksum is another.
    #[error("checksum is {said:08x}, the bytes give {found:08x}")]
    Crc {
        /// Value in the file.
        said: u32,
        /// Value of the bytes.
        found: u32,
    },
    /// The note is not UTF-8.
    #[error("the note is not UTF-8")]
    Note,
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordProblem {
    /// The stream ends inside it.
    #[error("the file ends after {have} of {need} bytes")]
    Cut {
        /// Bytes present.
        have: usize,
        /// Bytes the record has, at least.
        need: usize,
    },
    /// Its payload is longer than any message.
    #[error("length is {length}, at most {PAYLOAD_BYTES_MAX} is possible")]
    Length {
        /// Length it claims.
        length: u32,
    },
    /// Its checksum is another.
    #[error("checksum is {said:08x}, the bytes give {found:08x}")]
    Crc {
        /// Value in the file.
        said: u32,
        /// Value of the bytes.
        found: u32,
    },
}

/// Decimal digits in groups of three, as people are shown counts and offsets: `4,021,760`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_and_others_are_unknown() {
        for code in 0..=u8::MAX {
            let kind = RecordKind::from_code(code);
            assert_eq!(kind.map(RecordKind::code), (1..=4).contains(&code).then_some(code));
        }
    }

    #[test]
    fn offsets_are_printed_in_groups_of_three() {
        assert_eq!([0, 999, 1000, 4_021_760].map(grouped), ["0", "999", "1,000", "4,021,760"]);
    }
}
