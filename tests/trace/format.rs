//! The file format: what is written is read back, whatever is damaged is found where it is, and memory stays
//! bounded.

use std::io::{self, Read};

use dspark::trace::{
    HeaderProblem, PAYLOAD_BYTES_MAX, RecordKind, RecordProblem, TraceError, TraceInfo,
    TraceReader, TraceWriter,
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::{Owned, header, write};

/// All whole records, and the error behind them.
fn read<R: Read>(source: R) -> (Vec<Owned>, Option<TraceError>) {
    let mut reader = match TraceReader::open(source, "t") {
        Ok(reader) => reader,
        Err(e) => return (Vec::new(), Some(e)),
    };
    let mut records = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(r)) => records.push((r.kind, r.time_us, r.payload.to_vec())),
            Ok(None) => return (records, None),
            Err(e) => {
                assert!(reader.next_record().unwrap().is_none(), "records behind an error");
                return (records, Some(e));
            }
        }
    }
}

fn sample() -> Vec<Owned> {
    vec![
        (RecordKind::Request, 0, (0..40).collect()),
        (RecordKind::Reply, 7, vec![]),
        (RecordKind::LocalDraft, 7, vec![9; 5]),
        (RecordKind::Note, u64::MAX, b"{\"a\":1}".to_vec()),
    ]
}

/// Offsets at which the sample's records begin, and the end of the file.
fn boundaries(head: usize, records: &[Owned]) -> Vec<usize> {
    let mut at = vec![head];
    at.extend(records.iter().scan(head, |end, (_, _, payload)| {
        *end += 20 + payload.len();
        Some(*end)
    }));
    at
}

#[test]
fn what_is_written_is_read_back() {
    let header = header("{\"who\":\"test\"}");
    let bytes = write(&header, &sample());
    let mut reader = TraceReader::open(&bytes[..], "t").unwrap();
    assert_eq!(reader.header(), &header);
    assert_eq!(reader.offset(), 224 + header.note.len() as u64 + 4);
    let starts = boundaries(228 + header.note.len(), &sample());
    for (n, (kind, time_us, payload)) in sample().into_iter().enumerate() {
        let record = reader.next_record().unwrap().unwrap();
        assert_eq!((record.kind, record.time_us), (kind, time_us));
        assert_eq!(record.payload, payload);
        assert_eq!((record.number, record.offset), (n as u64 + 1, starts[n] as u64));
    }
    assert!(reader.next_record().unwrap().is_none());
    assert_eq!(reader.offset(), bytes.len() as u64);
}

#[test]
fn the_bytes_are_those_of_the_format_table() {
    let bytes = write(&header("{}"), &[(RecordKind::Note, 0x0102_0304, b"hi".to_vec())]);
    assert_eq!(&bytes[..8], b"DSPTRACE");
    assert_eq!(bytes[8..16], [1, 0, 0, 0, 230, 0, 0, 0]);
    assert_eq!(bytes[16..24], 1_764_500_000_000_000u64.to_le_bytes());
    assert_eq!(bytes[24..32], [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[32..224], header("").hello.as_bytes());
    assert_eq!(&bytes[224..226], b"{}");
    assert_eq!(bytes[226..230], crc32fast::hash(&bytes[..226]).to_le_bytes());
    let record = &bytes[230..];
    assert_eq!(record[..16], [2, 0, 0, 0, 4, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
    assert_eq!(&record[16..18], b"hi");
    assert_eq!(record[18..], crc32fast::hash(&record[..18]).to_le_bytes());
}

#[test]
fn a_trace_cut_anywhere_gives_every_whole_record_and_then_says_where() {
    let bytes = write(&header("{}"), &sample());
    let starts = boundaries(230, &sample());
    for cut in 0..bytes.len() {
        let (records, error) = read(&bytes[..cut]);
        let whole = starts.iter().filter(|at| **at <= cut).count().saturating_sub(1);
        assert_eq!(records, sample()[..whole], "cut at {cut}");
        match error {
            None => assert!(starts.contains(&cut), "cut at {cut} not noticed"),
            Some(TraceError::NotATrace { .. }) => assert!(cut < 8),
            Some(TraceError::Header { problem: HeaderProblem::Cut { have, .. }, .. }) => {
                assert!(cut < 230 && have == cut);
            }
            Some(TraceError::Record { number, offset, problem, .. }) => {
                assert_eq!((number, offset), (whole as u64 + 1, starts[whole] as u64));
                let RecordProblem::Cut { have, need } = problem else { panic!("{problem}") };
                assert!(have == cut - starts[whole] && need > have, "cut at {cut}: {problem}");
            }
            Some(e) => panic!("cut at {cut}: {e}"),
        }
    }
}

#[test]
fn every_flipped_bit_ends_the_trace_at_its_record() {
    let bytes = write(&header("{}"), &sample());
    let starts = boundaries(230, &sample());
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let (records, error) = read(&bad[..]);
        let hit = starts.iter().rposition(|at| *at <= bit / 8);
        assert_eq!(records, sample()[..hit.unwrap_or(0)], "bit {bit}");
        match (error, hit) {
            (Some(TraceError::Record { offset, .. }), Some(hit)) => {
                assert_eq!(offset, starts[hit] as u64, "bit {bit}");
            }
            (Some(TraceError::Record { .. }) | None, _) => panic!("bit {bit} not noticed"),
            (Some(_), hit) => assert_eq!(hit, None, "bit {bit}"),
        }
    }
}

#[test]
fn a_lying_length_costs_no_memory() {
    let good = write(&header(""), &[]);
    for length in [0u32, 1, 1 << 20, PAYLOAD_BYTES_MAX as u32, 1 << 25, u32::MAX] {
        let mut bytes = good.clone();
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&[1; 40]);
        let mut reader = TraceReader::open(&bytes[..], "t").unwrap();
        let error = reader.next_record().unwrap_err();
        let TraceError::Record { number: 1, offset: 228, problem, .. } = error else {
            panic!("{error}")
        };
        let too_long = length as usize > PAYLOAD_BYTES_MAX;
        assert_eq!(problem == RecordProblem::Length { length }, too_long, "{problem}");
        assert!(reader.buffer_bytes() <= 64 << 10, "length {length}");
    }
}

#[test]
fn a_header_that_lies_about_its_lengths_is_refused() {
    let good = write(&header("{}"), &[]);
    for (header_len, note_len) in
        [(0, 0), (227, 0), (229, 2), (230, 3), (65_537, 2), (u32::MAX, u32::MAX)]
    {
        let mut bytes = good.clone();
        bytes[12..16].copy_from_slice(&u32::to_le_bytes(header_len));
        bytes[24..28].copy_from_slice(&u32::to_le_bytes(note_len));
        let (_, error) = read(&bytes[..]);
        let Some(TraceError::Header { problem, .. }) = error else { panic!("{header_len}") };
        assert_eq!(problem, HeaderProblem::Length { header_len, note_len });
    }
    let mut newer = good;
    newer[8] = 2;
    let (_, error) = read(&newer[..]);
    assert!(matches!(error, Some(TraceError::Version { version: 2, .. })));
}

#[test]
fn header_fields_of_later_versions_are_skipped() {
    let mut bytes = write(&header("{}"), &[]);
    bytes.truncate(226);
    bytes[12..16].copy_from_slice(&240u32.to_le_bytes());
    bytes.extend_from_slice(&[7; 10]);
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes.extend_from_slice(&write(&header(""), &sample())[228..]);
    let (records, error) = read(&bytes[..]);
    assert!(error.is_none());
    assert_eq!(records, sample());
}

#[test]
fn records_of_unknown_kind_are_counted_and_skipped() {
    let mut bytes = write(&header(""), &[]);
    for kind in [9u8, 1, 0] {
        let mut record = vec![3, 0, 0, 0, kind, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c'];
        record.extend_from_slice(&crc32fast::hash(&record).to_le_bytes());
        bytes.extend_from_slice(&record);
    }
    let mut reader = TraceReader::open(&bytes[..], "t").unwrap();
    let record = reader.next_record().unwrap().unwrap();
    assert_eq!((record.kind, record.number, record.payload), (RecordKind::Request, 2, &b"abc"[..]));
    assert!(reader.next_record().unwrap().is_none());
    assert_eq!(reader.unknown(), 2);
    assert_eq!(
        TraceInfo::collect(&mut TraceReader::open(&bytes[..], "t").unwrap())
            .unwrap()
            .records
            .unknown,
        2
    );
}

#[test]
fn errors_name_the_stream_the_record_and_its_byte() {
    let bytes = write(
        &header(""),
        &[(RecordKind::Request, 0, vec![0; 4_000_000]), (RecordKind::Reply, 1, vec![0; 60])],
    );
    let mut reader = TraceReader::open(&bytes[..bytes.len() - 12], "trace.bin").unwrap();
    reader.next_record().unwrap().unwrap();
    let message = reader.next_record().unwrap_err().to_string();
    assert_eq!(
        message,
        "trace.bin: record 2 at byte 4,000,248: the file ends after 68 of 80 bytes"
    );
}

#[test]
fn a_writer_that_failed_writes_nothing_behind_the_cut_record() {
    struct Full(Vec<u8>, usize);
    impl io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.1 - self.0.len());
            self.0.extend_from_slice(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut writer = TraceWriter::create(Full(Vec::new(), 300), &header("")).unwrap();
    writer.record(RecordKind::Reply, 1, &[0; 20]).unwrap();
    let too_big = writer.record(RecordKind::Reply, 2, &vec![0; PAYLOAD_BYTES_MAX + 1]);
    assert_eq!(too_big.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert!(writer.record(RecordKind::Reply, 3, &[0; 20]).is_err());
    assert!(writer.record(RecordKind::Reply, 4, &[]).is_err());
    assert_eq!(writer.bytes(), 268);
    let (records, error) = read(&writer.finish().unwrap().0[..]);
    assert_eq!(records, [(RecordKind::Reply, 1, vec![0; 20])]);
    assert!(matches!(error, Some(TraceError::Record { number: 2, offset: 268, .. })));
}

/// A stream that repeats `piece` until `left` bytes have been given, a few at a time.
struct Endless<'a> {
    head: &'a [u8],
    piece: &'a [u8],
    at: usize,
    left: usize,
}

impl Read for Endless<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if !self.head.is_empty() {
            return self.head.read(out);
        }
        let n = out.len().min(self.piece.len() - self.at).min(self.left).min(50_000);
        out[..n].copy_from_slice(&self.piece[self.at..self.at + n]);
        self.at = (self.at + n) % self.piece.len();
        self.left -= n;
        Ok(n)
    }
}

#[test]
fn a_long_trace_is_read_in_one_buffer() {
    let whole = write(
        &header(""),
        &[(RecordKind::Request, 0, vec![5; 200_000]), (RecordKind::Reply, 1, vec![6; 80])],
    );
    let (head, piece) = whole.split_at(228);
    let repeats = (64 << 20) / piece.len();
    let stream = Endless { head, piece, at: 0, left: repeats * piece.len() };
    let mut reader = TraceReader::open(stream, "t").unwrap();
    let mut records = 0;
    while reader.next_record().unwrap().is_some() {
        records += 1;
        assert!(reader.buffer_bytes() <= 400_040, "{} bytes", reader.buffer_bytes());
    }
    assert_eq!(records, 2 * repeats);
    assert_eq!(reader.offset(), 228 + (repeats * piece.len()) as u64);
}

proptest! {
    #[test]
    fn any_bytes_behind_a_header_are_read_without_a_panic(garbage in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = write(&header(""), &[]);
        bytes.extend_from_slice(&garbage);
        read(&bytes[..]);
        read(&garbage[..]);
    }
}
