//! The worked cases of `fixtures/cases` as wire entries and rows.

use std::time::{Duration, Instant};

use dspark::geometry::Geometry;
use dspark::protocol::refusal::{CheckedReply, check_frame, sent_header};
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC, StepMeta};
use dspark::protocol::{
    AppHeader, FrameStatus, HelloRequest, Limits, Op, ReqEntry, StepReply, StepRequest, StepWriter,
    check_reply,
};
use dspark::transport::Caller;
use serde_json::Value;
use zerocopy::IntoBytes;

use super::{digest_field, fixture};

// Tests that also read the cases as plans have it there.
#[allow(clippy::duplicate_mod)]
#[path = "../cases/pool.rs"]
mod pool;

pub(crate) use pool::Pool;

/// Geometry of `fixtures/tiny`.
pub(crate) const TINY: Geometry = Geometry {
    num_spec: 5,
    window: 128,
    hidden: 256,
    n_taps: 3,
    tap_layer_ids: [37, 38, 39, 0],
    noise_token_id: 499,
    vocab_size: 512,
    max_model_len: 327_680,
    max_slots: 4,
    max_rows_per_step: 512,
};

/// A deadline for a worker in a hurry of its own: emulated devices are slow.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Opens a session of the small checkpoint.
pub(crate) fn hello(caller: &mut Caller, session: u32) {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(fixture("tiny/hello.json")).unwrap()).unwrap();
    let drafter = digest_field(&golden, "drafter_identity");
    let markov = digest_field(&golden, "markov_identity");
    let hello = HelloRequest::new(&TINY, drafter, markov, "golden");
    let header = AppHeader::request(Op::Hello, 1, session, 192);
    let reply = caller.call(&[header.as_bytes(), hello.as_bytes()], soon()).unwrap();
    let (status, _) = check_frame(&header, reply).unwrap();
    assert_eq!(status, FrameStatus::Ok);
}

/// The STEP message of a worked example's step.
pub(crate) fn message(
    step: &Value,
    entries: &[ReqEntry],
    (seq, session): (u64, u32),
    pool: &Pool,
) -> Vec<u8> {
    let step_id = step["step_id"].as_u64().unwrap();
    let meta = StepMeta { seq, session, step_id, want_margin: true, row_bytes: TINY.row_bytes() };
    let mut message = Vec::new();
    let mut writer = StepWriter::begin(&mut message, meta, entries);
    for (e, json) in entries.iter().zip(step["entries"].as_array().unwrap()) {
        let start = json["pool_start"].as_u64().unwrap_or(0) as usize;
        for r in 0..e.n_rows.get() as usize {
            writer.rows(pool.row(start + r));
        }
    }
    writer.finish();
    message
}

/// Sends every STEP of a case in a session of its own and shows each answer beside its step and entries.
pub(crate) fn play(
    caller: &mut Caller,
    session: u32,
    case: &Value,
    pool: &Pool,
    mut answered: impl FnMut(&Value, &[ReqEntry], &StepReply<'_>),
) {
    let limits = Limits { max_slots: 4, max_rows_per_step: 512, row_bytes: 1536 };
    hello(caller, session);
    for (step, seq) in case["steps"].as_array().unwrap().iter().zip(2u64..) {
        let entries: Vec<ReqEntry> =
            step["entries"].as_array().unwrap().iter().map(entry).collect();
        let message = message(step, &entries, (seq, session), pool);
        let sent = sent_header(&message);
        let reply = caller.call(&[&message], soon()).unwrap();
        let parsed = StepRequest::parse(&message[32..], &limits).unwrap();
        let CheckedReply::Step(reply) = check_reply(&sent, &parsed, &TINY, reply).unwrap() else {
            panic!("{} step {}: frame refused", case["name"], step["step_id"]);
        };
        answered(step, &entries, &reply);
    }
}

/// A worked example's entry as it goes over the wire.
pub(crate) fn entry(json: &Value) -> ReqEntry {
    let flag = |name: &str, bit: u8| if json[name].as_bool().unwrap() { bit } else { 0 };
    let int = |name: &str| json[name].as_i64().unwrap();
    ReqEntry {
        slot: int("slot") as u8,
        req_flags: flag("new_gen", NEW_GEN)
            | flag("need_draft", NEED_DRAFT)
            | flag("resync", RESYNC),
        k_window: int("k_window") as u8,
        n_out: int("n_out") as u8,
        generation: (json["generation"].as_u64().unwrap() as u32).into(),
        first_pos: int("first_pos").into(),
        n_rows: (int("n_rows") as u32).into(),
        anchor_token: (int("anchor_token") as i32).into(),
        anchor_pos: int("anchor_pos").into(),
    }
}
