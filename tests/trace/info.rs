//! What `trace info` counts, and which anomalies it names.

use std::collections::BTreeMap;

use dspark::plan::StepPlan;
use dspark::protocol::{AppHeader, FrameStatus, HelloReply, StepReplyWriter};
use dspark::session::{Admitted, Seat, Session};
use dspark::trace::{RecordKind, Scenario, SynthOptions, TraceReader, TraceWriter};
use zerocopy::IntoBytes;

use super::{TINY, header, info, synthesize, write};

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
