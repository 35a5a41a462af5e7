//! The trace format: what is written is read back, whatever is damaged is found where it is, memory stays
//! bounded, and synthetic traces obey the contract's rules.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::time::Instant;

use dspark::digest::Sha256Digest;
use dspark::geometry::{Geometry, LIVE};
use dspark::plan::StepPlan;
use dspark::protocol::step::Limits;
use dspark::protocol::{
    AppHeader, EntryStatus, FrameStatus, HelloReply, HelloRequest, StepReplyWriter, StepRequest,
};
use dspark::session::{Admitted, Seat, Session};
use dspark::trace::synth::{SynthError, SynthEvent};
use dspark::trace::{
    HeaderProblem, PAYLOAD_BYTES_MAX, RecordKind, RecordProblem, Scenario, ScenarioSet,
    SynthOptions, TraceError, TraceHeader, TraceInfo, TraceReader, TraceWriter, synth,
    synth_header,
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// A drafter of the demo's size.
const DEMO: Geometry = Geometry { hidden: 256, vocab_size: 512, noise_token_id: 499, ..LIVE };
/// Rows of 12 bytes, so that many traces are cheap.
const TINY: Geometry = Geometry { hidden: 2, vocab_size: 512, noise_token_id: 499, ..LIVE };

type Owned = (RecordKind, u64, Vec<u8>);

fn header(note: &str) -> TraceHeader {
    let hello = HelloRequest::new(&TINY, [1; 32], [2; 32], "spark-a");
    TraceHeader { hello, created_us: 1_764_500_000_000_000, note: note.to_owned() }
}

fn write(header: &TraceHeader, records: &[Owned]) -> Vec<u8> {
    let mut writer = TraceWriter::create(Vec::new(), header).unwrap();
    for (kind, time_us, payload) in records {
        writer.record(*kind, *time_us, payload).unwrap();
    }
    let bytes = writer.bytes();
    let out = writer.finish().unwrap();
    assert_eq!(out.len() as u64, bytes);
    out
}

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

// ---------------------------------------------------------------------------- synthetic traces

fn synthesize(geometry: &Geometry, options: &SynthOptions) -> (Vec<u8>, Vec<SynthEvent>) {
    let header = synth_header(geometry, [1; 32], [2; 32], options);
    let mut writer = TraceWriter::create(Vec::new(), &header).unwrap();
    let events = synth(&header, options, &mut writer).unwrap();
    (writer.finish().unwrap(), events)
}

fn info(bytes: &[u8]) -> TraceInfo {
    TraceInfo::collect(&mut TraceReader::open(bytes, "t").unwrap()).unwrap()
}

/// Runs a trace through a worker's session: every entry OK but the announced ones, every position of a
/// request always with the same row, every rule of rank 0's side kept. Returns the rounds.
fn check_against_session(geometry: &Geometry, bytes: &[u8], events: &[SynthEvent]) -> u64 {
    let mut partial: Vec<_> = events
        .iter()
        .filter(|e| e.scenario == Scenario::Partial)
        .map(|e| (e.step_id, e.slot))
        .collect();
    let mut reader = TraceReader::open(bytes, "t").unwrap();
    let reply = HelloReply::new(geometry, [1; 32], [2; 32], "w");
    let (mut session, mut seat) = (Session::new(*geometry, reply), Seat::default());
    let (mut plan, mut outcomes) = (StepPlan::default(), Vec::new());
    let mut rows_of: HashMap<(u8, u32, i64), Vec<u8>> = HashMap::new();
    let (mut rounds, mut last_step, mut time) = (0, 0, 0);
    while let Some(record) = reader.next_record().unwrap() {
        assert_eq!(record.kind, RecordKind::Request);
        assert!(record.time_us >= time);
        time = record.time_us;
        let (header, body) = AppHeader::split(record.payload).unwrap();
        let step = match session.admit(seat, &header, body).unwrap() {
            Admitted::Hello(hello) => {
                assert!(session.hello(&mut seat, &header, hello).unwrap());
                continue;
            }
            Admitted::Step(step) => step,
            other => panic!("{other:?}"),
        };
        rounds += 1;
        let step_id = step.header.step_id.get();
        assert!(step_id > last_step);
        last_step = step_id;
        session.plan_step(&step, &mut plan, &mut outcomes);
        for ((entry, rows), outcome) in step.entry_rows().zip(&outcomes) {
            let expected = match partial.iter().position(|p| *p == (step_id, entry.slot)) {
                Some(at) => {
                    partial.remove(at);
                    EntryStatus::PartialWindow
                }
                None => EntryStatus::Ok,
            };
            assert_eq!(outcome.status, expected, "step {step_id}: {entry:?}");
            assert!(entry.anchor_pos.get() < i64::from(geometry.max_model_len));
            if entry.k_window > 0 && !entry.resync() {
                assert!((1..=u32::from(entry.k_window) + 1).contains(&entry.n_rows.get()));
            }
            let cap = u8::try_from(geometry.num_spec.min(4)).unwrap();
            match (entry.need_draft(), step.entries.len()) {
                (false, _) => assert_eq!(entry.n_out, 0),
                (true, 3..) => assert_eq!(entry.n_out, cap),
                // A third request of the batch may have lost its rows.
                (true, _) => assert!(entry.n_out == 0 || entry.n_out == cap),
            }
            let width = geometry.row_bytes();
            for (pos, row) in (entry.first_pos.get()..).zip(rows.unwrap()) {
                let row = &step.rows[row * width..(row + 1) * width];
                let key = (entry.slot, entry.generation.get(), pos);
                let known = rows_of.entry(key).or_insert_with(|| row.to_vec());
                assert_eq!(known, row, "step {step_id}: row {pos} changed");
            }
        }
        session.commit(&header);
    }
    assert!(partial.is_empty(), "announced and not seen: {partial:?}");
    rounds
}

#[test]
fn a_synthetic_trace_is_answered_ok_but_where_a_gap_is_announced() {
    for requests in 1..=4 {
        for seed in 0..6 {
            let options = SynthOptions {
                requests,
                seed,
                scenarios: ScenarioSet::ALL,
                rounds: 400,
                ..SynthOptions::default()
            };
            let (bytes, events) = synthesize(&TINY, &options);
            assert_eq!(check_against_session(&TINY, &bytes, &events), 400, "seed {seed}");
        }
    }
}

#[test]
fn every_set_of_scenarios_gives_a_valid_trace_of_those_scenarios_only() {
    for bits in 0..256u32 {
        let set: ScenarioSet =
            (0..8).filter(|i| bits >> i & 1 == 1).map(|i| Scenario::ALL[i]).collect();
        let options = SynthOptions {
            scenarios: set,
            rounds: 90,
            seed: u64::from(bits),
            requests: 1 + bits % 4,
            ..SynthOptions::default()
        };
        let (bytes, events) = synthesize(&TINY, &options);
        assert_eq!(check_against_session(&TINY, &bytes, &events), 90);
        for event in events {
            // A lost round is healed by a re-send, and a request that reaches the end gives its slot away.
            let implied = match event.scenario {
                Scenario::Resync => set.contains(Scenario::Partial),
                Scenario::Reuse => set.contains(Scenario::NearMaxLen),
                _ => false,
            };
            assert!(implied || set.contains(event.scenario), "{:?} in {set:?}", event.scenario);
        }
    }
}

#[test]
fn every_scenario_appears_within_the_promised_rounds() {
    for (requests, rounds) in [(1, 250), (2, 200), (3, 120), (4, 120)] {
        for seed in 0..10 {
            let options = SynthOptions {
                requests,
                rounds,
                seed,
                scenarios: ScenarioSet::ALL,
                ..SynthOptions::default()
            };
            let (_, events) = synthesize(&TINY, &options);
            for scenario in Scenario::ALL {
                let seen = events.iter().any(|e| e.scenario == scenario);
                assert!(seen, "{scenario} missing with {requests} requests, seed {seed}");
            }
        }
    }
}

#[test]
fn the_seed_decides_every_byte() {
    let options = SynthOptions { rounds: 60, ..SynthOptions::default() };
    let (one, _) = synthesize(&TINY, &options);
    let (again, _) = synthesize(&TINY, &options);
    let (other, _) = synthesize(&TINY, &SynthOptions { seed: 1, ..options });
    assert!(one == again && one != other);
    // Changes with the generated bytes, on purpose only. Not a CRC-32: that of records which end in their
    // own CRC-32 does not depend on what they hold.
    assert_eq!(
        Sha256Digest::of(&one).to_string(),
        "dfdf81f9ee9dad31ed852b0b9443545d7675324fa8ad5f87f19fabfea6701866"
    );
}

#[test]
fn the_demo_trace_is_small_and_its_rows_are_varied() {
    let options = SynthOptions::default();
    let start = Instant::now();
    let (bytes, events) = synthesize(&DEMO, &options);
    println!("{} bytes in {:?}, {} events", bytes.len(), start.elapsed(), events.len());
    assert!(bytes.len() < 12_000_000, "{} bytes", bytes.len());
    assert_eq!(check_against_session(&DEMO, &bytes, &events), 200);
    let info = info(&bytes);
    println!("{}", serde_json::to_string_pretty(&info).unwrap());
    assert_eq!((info.rounds, info.records.requests, info.records.replies), (200, 201, 0));
    assert_eq!(info.slots.len(), 4);
    assert!(info.slots.iter().any(|s| s.generations > 1));

    let (mut low, mut high, mut rows) = (f64::MAX, 0f64, 0);
    let mut reader = TraceReader::open(&bytes[..], "t").unwrap();
    let limits = Limits { max_slots: 4, max_rows_per_step: 512, row_bytes: 1536 };
    reader.next_record().unwrap(); // HELLO
    while let Some(record) = reader.next_record().unwrap() {
        let step = StepRequest::parse(&record.payload[32..], &limits).unwrap();
        for row in step.rows.chunks_exact(1536) {
            let values =
                row.chunks_exact(2).map(|v| half::bf16::from_le_bytes([v[0], v[1]]).to_f64());
            let (sum, squares) = values.fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
            let deviation = (squares / 768.0f64).sqrt();
            // 5 standard errors of the mean of 768 values.
            assert!((sum / 768.0f64).abs() < 0.19 * deviation, "mean {}", sum / 768.0);
            (low, high) = (low.min(deviation), high.max(deviation));
            rows += 1;
        }
    }
    assert_eq!(rows, info.rows);
    assert!((0.4..0.6).contains(&low) && (1.9..2.2).contains(&high), "deviations {low} to {high}");
}

#[test]
fn options_without_room_are_refused() {
    let options = SynthOptions::default();
    let refused = |geometry: Geometry, options: SynthOptions| {
        let header = synth_header(&geometry, [0; 32], [0; 32], &options);
        let mut writer = TraceWriter::create(Vec::new(), &header).unwrap();
        synth(&header, &options, &mut writer).unwrap_err().to_string()
    };
    assert!(refused(TINY, SynthOptions { requests: 5, ..options }).contains("requests is 5"));
    assert!(refused(TINY, SynthOptions { requests: 0, ..options }).contains("requests is 0"));
    assert!(refused(TINY.with_slots(2), options).contains("at most 2"));
    assert!(refused(Geometry { max_model_len: 2047, ..TINY }, options).contains("at least 2048"));
    assert!(
        refused(Geometry { window: 7, max_rows_per_step: 28, ..TINY }, options)
            .contains("window is 7")
    );
    assert!(refused(Geometry { vocab_size: 0, ..TINY }, options).contains("vocab_size"));
    let few = Geometry { max_rows_per_step: 100, ..TINY };
    assert!(refused(few, options).contains("max_rows_per_step is 100"));
}

#[test]
fn small_geometries_are_served_within_their_row_limit() {
    let geometry =
        Geometry { window: 8, num_spec: 3, max_model_len: 128, max_rows_per_step: 20, ..TINY };
    for seed in 0..20 {
        let options = SynthOptions {
            seed,
            scenarios: ScenarioSet::ALL,
            rounds: 300,
            ..SynthOptions::default()
        };
        let (bytes, events) = synthesize(&geometry, &options);
        assert_eq!(check_against_session(&geometry, &bytes, &events), 300);
    }
}

#[test]
fn writing_errors_of_the_sink_are_passed_on() {
    let options = SynthOptions::default();
    let header = synth_header(&TINY, [0; 32], [0; 32], &options);
    let mut room = [0u8; 5000];
    let mut writer = TraceWriter::create(&mut room[..], &header).unwrap();
    assert!(matches!(synth(&header, &options, &mut writer), Err(SynthError::Io(_))));
}

// ---------------------------------------------------------------------------- trace info

#[test]
fn info_finds_what_the_synthesizer_announced() {
    let options = SynthOptions { rounds: 300, seed: 3, ..SynthOptions::default() };
    let (bytes, events) = synthesize(&TINY, &options);
    let info = info(&bytes);
    let count = |s| events.iter().filter(|e| e.scenario == s).count() as u64;
    assert!(count(Scenario::Partial) > 0);
    assert_eq!(info.anomalies.partial.count, count(Scenario::Partial));
    assert_eq!(info.anomalies.gaps, info.anomalies.partial);
    assert_eq!(info.entries.resync, count(Scenario::Resync));
    let owners: u64 = info.slots.iter().map(|s| s.generations).sum();
    assert_eq!(owners, info.slots.len() as u64 + count(Scenario::Reuse));
    assert!(info.anomalies.roll_backs.count >= count(Scenario::Preemption));
    assert_eq!((info.anomalies.stale.count, info.anomalies.bad.count), (0, 0));
    assert_eq!((info.anomalies.malformed.count, info.anomalies.clock_back.count), (0, 0));
    assert_eq!(info.acceptance.histogram.values().sum::<u64>(), info.acceptance.entries);
    assert!(info.acceptance.accepted <= info.acceptance.verified);
    assert_eq!((info.bytes, &info.cut), (bytes.len() as u64, &None));
    let rate = info.rounds_per_s.unwrap();
    assert!((20.0..30.0).contains(&rate), "{rate} rounds/s");
    assert_eq!(info.header.note.unwrap()["synthetic"], true);
    assert!(TraceReader::open(&bytes[..], "t").unwrap().header().is_synthetic());
    assert!(
        !["", "{}", "x", "[1]", "{\"synthetic\":1}"].map(header).iter().any(|h| h.is_synthetic())
    );
}

#[test]
fn info_of_a_cut_trace_counts_what_is_whole_and_says_where_it_ends() {
    let options = SynthOptions { rounds: 20, ..SynthOptions::default() };
    let (bytes, _) = synthesize(&TINY, &options);
    let info = info(&bytes[..bytes.len() - 1]);
    let cut = info.cut.unwrap();
    assert_eq!((info.rounds, cut.record, cut.offset), (19, 21, info.bytes));
    assert!(cut.reason.starts_with("the file ends after"), "{}", cut.reason);
}

#[test]
fn info_of_an_empty_trace_divides_by_nothing() {
    let info = info(&write(&header(""), &[]));
    assert_eq!((info.rounds, info.rounds_per_s, info.duration_us), (0, None, 0));
    let json = serde_json::to_value(&info).unwrap();
    assert_eq!((&json["schema"], &json["rounds_per_s"]), (&1.into(), &serde_json::Value::Null));
    assert_eq!(json["header"]["note"], serde_json::Value::Null);
}

/// The synthetic trace with replies of a worker's session, which fails on round `fails` as a frame.
fn with_replies(bytes: &[u8], fails: u64) -> Vec<u8> {
    let mut reader = TraceReader::open(bytes, "t").unwrap();
    let mut writer = TraceWriter::create(Vec::new(), reader.header()).unwrap();
    let reply = HelloReply::new(&TINY, [1; 32], [2; 32], "w");
    let (mut session, mut seat) = (Session::new(TINY, reply), Seat::default());
    let (mut plan, mut outcomes, mut message) = (StepPlan::default(), Vec::new(), Vec::new());
    let mut round = 0;
    while let Some(r) = reader.next_record().unwrap() {
        writer.record(r.kind, r.time_us, r.payload).unwrap();
        let (header, body) = AppHeader::split(r.payload).unwrap();
        match session.admit(seat, &header, body).unwrap() {
            Admitted::Hello(hello) => {
                session.hello(&mut seat, &header, hello).unwrap();
                message = header.reply(FrameStatus::Ok, 128).as_bytes().to_vec();
                message.extend_from_slice(session.hello_reply().as_bytes());
            }
            Admitted::Step(step) => {
                round += 1;
                if round == fails {
                    message = header.reply(FrameStatus::Internal, 0).as_bytes().to_vec();
                } else {
                    session.plan_step(&step, &mut plan, &mut outcomes);
                    let step_id = step.header.step_id.get();
                    let n_req = step.header.n_req.get();
                    let mut w =
                        StepReplyWriter::begin(&mut message, &header, step_id, n_req, 5, false);
                    for (i, o) in outcomes.iter().enumerate() {
                        w.status(i, o.status, o.window_rows, o.generation);
                    }
                    session.commit(&header);
                }
            }
            other => panic!("{other:?}"),
        }
        writer.record(RecordKind::Reply, r.time_us + 2000, &message).unwrap();
    }
    writer.record(RecordKind::Reply, u64::MAX, b"short").unwrap();
    writer.record(RecordKind::Note, 0, b"{}").unwrap();
    writer.finish().unwrap()
}

#[test]
fn info_of_replies_agrees_with_the_windows_also_after_a_refused_round() {
    let options = SynthOptions { rounds: 200, ..SynthOptions::default() };
    let (bytes, _) = synthesize(&TINY, &options);
    let info = info(&with_replies(&bytes, 77));
    let count = |map: &BTreeMap<String, u64>, key: &str| map.get(key).copied().unwrap_or(0);
    assert_eq!(count(&info.replies.frames, "OK"), 200);
    assert_eq!(count(&info.replies.frames, "INTERNAL"), 1);
    assert_eq!(info.replies.malformed, 1);
    assert_eq!(count(&info.replies.entries, "PARTIAL_WINDOW"), info.anomalies.partial.count);
    assert_eq!(count(&info.replies.entries, "BAD_ENTRY"), info.anomalies.bad.count);
    let entries: u64 = info.replies.entries.values().sum();
    assert_eq!(info.replies.window_rows.values().sum::<u64>(), entries);
    // The worker did not see the rows of round 77, so the next round of a slot leaves a gap.
    assert!(info.anomalies.partial.rounds.contains(&78), "{:?}", info.anomalies.partial);
    assert_eq!((info.records.notes, info.anomalies.clock_back.count), (1, 1));
}
