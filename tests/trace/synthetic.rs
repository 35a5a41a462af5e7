//! Synthetic traces: a worker's session answers them, and the seed decides every byte.

use std::collections::HashMap;
use std::time::Instant;

use dspark::digest::Sha256Digest;
use dspark::geometry::Geometry;
use dspark::plan::StepPlan;
use dspark::protocol::step::Limits;
use dspark::protocol::{AppHeader, EntryStatus, HelloReply, StepRequest};
use dspark::session::{Admitted, Seat, Session};
use dspark::trace::synth::{SynthError, SynthEvent};
use dspark::trace::{
    RecordKind, Scenario, ScenarioSet, SynthOptions, TraceReader, TraceWriter, synth, synth_header,
};

use super::{DEMO, TINY, info, synthesize};

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
