//! What a trace contains: `dspark trace info`.
//!
//! The requests are run through the same [`Window`](crate::window::Window) rule as at both ends of the
//! wire, so that gaps, stale generations and partial windows show without a worker. A trace of any length
//! is summed up in fixed memory: at most [`ROUNDS_LISTED`] rounds of a kind are named.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Read;

use serde::Serialize;

use super::reader::TraceReader;
use super::tally::Tally;
use super::{TraceError, TraceHeader};

/// Rounds named per kind of anomaly; the rest is counted.
pub const ROUNDS_LISTED: usize = 32;

/// Contents of a trace. Serialized, durations are µs and sizes bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceInfo {
    /// Version of this structure: 1.
    pub schema: u32,
    /// Name of the stream.
    pub name: String,
    /// The recorded session.
    pub header: HeaderInfo,
    /// Bytes of the header and all whole records.
    pub bytes: u64,
    /// Time of the last record, µs since the start.
    pub duration_us: u64,
    /// Records by kind.
    pub records: RecordCounts,
    /// STEP requests.
    pub rounds: u64,
    /// Rounds per second between the first and the last; `None` below two rounds or without time.
    pub rounds_per_s: Option<f64>,
    /// Rows sent.
    pub rows: u64,
    /// Entries of all STEPs.
    pub entries: EntryCounts,
    /// Draft positions verified and accepted.
    pub acceptance: Acceptance,
    /// The slots that were used.
    pub slots: Vec<SlotInfo>,
    /// What the recorded replies say.
    pub replies: ReplyInfo,
    /// What is out of the ordinary, and in which rounds.
    pub anomalies: Anomalies,
    /// Why the trace ends before its end, if it does.
    pub cut: Option<CutInfo>,
}

/// The header in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the fields of HELLO, contract §6.2
pub struct HeaderInfo {
    pub created_us: u64,
    pub client_name: String,
    pub num_spec: u32,
    pub window: u32,
    pub hidden: u32,
    pub tap_layer_ids: Vec<u32>,
    pub row_bytes: u32,
    pub noise_token_id: u32,
    pub vocab_size: u32,
    pub max_model_len: u32,
    pub max_slots: u32,
    pub max_rows_per_step: u32,
    pub drafter_identity: String,
    pub markov_identity: String,
    /// The note, as text if it is not JSON; `None` without one.
    pub note: Option<serde_json::Value>,
}

/// Records by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordCounts {
    /// Messages to the worker.
    pub requests: u64,
    /// The worker's answers.
    pub replies: u64,
    /// Blocks drafted on the recording side.
    pub local_drafts: u64,
    /// Notes.
    pub notes: u64,
    /// Records of a kind this version does not know.
    pub unknown: u64,
}

/// Entries of all STEPs, by what they ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EntryCounts {
    /// All.
    pub total: u64,
    /// With NEED_DRAFT.
    pub need_draft: u64,
    /// With rows that no verified draft produced: `k_window` 0 and not RESYNC.
    pub prefill: u64,
    /// With RESYNC.
    pub resync: u64,
    /// With NEW_GEN.
    pub new_gen: u64,
}

/// Acceptance over decode entries: those with a `k_window` that are neither RESYNC nor partial.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Acceptance {
    /// Entries counted; the histogram sums to it.
    pub entries: u64,
    /// Drafts the target verified: the sum of `k_window`.
    pub verified: u64,
    /// Drafts it accepted: the sum of `n_rows − 1`, at most `k_window` each.
    pub accepted: u64,
    /// Entries by number of accepted drafts.
    pub histogram: BTreeMap<u32, u64>,
}

/// One slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SlotInfo {
    /// The slot.
    pub slot: u8,
    /// Entries that name it.
    pub entries: u64,
    /// Generations adopted, that is owners.
    pub generations: u64,
    /// The last one.
    pub generation: u32,
    /// Largest anchor position.
    pub anchor_max: i64,
}

/// What the recorded replies say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplyInfo {
    /// Replies by frame status.
    pub frames: BTreeMap<String, u64>,
    /// Entries of STEP replies by status.
    pub entries: BTreeMap<String, u64>,
    /// Entries of STEP replies by `window_rows`.
    pub window_rows: BTreeMap<u16, u64>,
    /// Replies whose bytes do not hold.
    pub malformed: u64,
}

/// What is out of the ordinary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Anomalies {
    /// Rows that leave a gap and make the window short. A gap before W rows is how prefill works and is
    /// not counted.
    pub gaps: Rounds,
    /// Rows or anchors at positions the slot already holds.
    pub roll_backs: Rounds,
    /// Generations older than the slot's.
    pub stale: Rounds,
    /// Entries the rule rejects.
    pub bad: Rounds,
    /// NEED_DRAFT entries on a short window: PARTIAL_WINDOW.
    pub partial: Rounds,
    /// Requests whose bytes do not hold.
    pub malformed: Rounds,
    /// Records dated before the one in front of them.
    pub clock_back: Rounds,
}

/// How often something happened, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rounds {
    /// How often.
    pub count: u64,
    /// The first [`ROUNDS_LISTED`] rounds it happened in, each once; rounds are STEPs counted from 1, and
    /// 0 is before the first.
    pub rounds: Vec<u64>,
}

/// Where and why a trace ends early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CutInfo {
    /// Number of the record that does not hold, from 1.
    pub record: u64,
    /// Its offset, bytes: the trace is whole up to here.
    pub offset: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl TraceInfo {
    /// Reads the rest of a trace and sums it up. A record that is cut off or damaged ends the count and
    /// is told in [`cut`](Self::cut).
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn collect<R: Read>(reader: &mut TraceReader<R>) -> Result<Self, TraceError> {
        let mut tally = Tally::new(Self::of_header(reader.name(), reader.header()));
        let cut = loop {
            match reader.next_record() {
                Ok(Some(record)) => tally.record(&record),
                Ok(None) => break None,
                Err(TraceError::Record { number, offset, problem, .. }) => {
                    break Some(CutInfo { record: number, offset, reason: problem.to_string() });
                }
                Err(e) => return Err(e),
            }
        };
        let mut info = tally.finish();
        info.bytes = reader.offset();
        info.records.unknown = reader.unknown();
        info.cut = cut;
        Ok(info)
    }

    /// The info of a trace without records.
    fn of_header(name: &str, header: &TraceHeader) -> Self {
        Self {
            schema: 1,
            name: name.to_owned(),
            header: HeaderInfo::new(header),
            bytes: 0,
            duration_us: 0,
            records: RecordCounts::default(),
            rounds: 0,
            rounds_per_s: None,
            rows: 0,
            entries: EntryCounts::default(),
            acceptance: Acceptance::default(),
            slots: Vec::new(),
            replies: ReplyInfo::default(),
            anomalies: Anomalies::default(),
            cut: None,
        }
    }
}

impl HeaderInfo {
    fn new(header: &TraceHeader) -> Self {
        let hello = &header.hello;
        let taps = hello.geometry().tap_layer_ids.into_iter().take(hello.n_taps.get() as usize);
        let note = serde_json::from_str(&header.note);
        Self {
            created_us: header.created_us,
            client_name: hello.client_name(),
            num_spec: hello.num_spec.get(),
            window: hello.window.get(),
            hidden: hello.hidden.get(),
            tap_layer_ids: taps.collect(),
            row_bytes: hello.row_bytes.get(),
            noise_token_id: hello.noise_token_id.get(),
            vocab_size: hello.vocab_size.get(),
            max_model_len: hello.max_model_len.get(),
            max_slots: hello.max_slots.get(),
            max_rows_per_step: hello.max_rows_per_step.get(),
            drafter_identity: hex::encode(hello.drafter_identity),
            markov_identity: hex::encode(hello.markov_identity),
            note: (!header.note.is_empty())
                .then(|| note.unwrap_or_else(|_| header.note.clone().into())),
        }
    }
}
