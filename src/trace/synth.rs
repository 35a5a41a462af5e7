//! A synthetic trace: the STEPs a plausible engine would send, valid by construction, from a seed.
//!
//! Which rows and anchors are sent when is decided in `trace/engine.rs`; this file turns its decisions
//! into messages. Rows are noise, equal wherever the same position of a request is sent again,
//! with a different magnitude each, so that many experts run. Acceptance in such a trace says nothing
//! about a drafter: the header's note says that it is synthetic. Only requests are written.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use serde_json::json;
use zerocopy::IntoBytes;

pub use super::scenario::{Scenario, ScenarioSet, UnknownScenario};

use super::engine::{Engine, Planned};
use super::{RecordKind, SYNTHETIC, TraceHeader, TraceWriter};
use crate::geometry::{Geometry, GeometryError};
use crate::protocol::hello::HELLO_BYTES;
use crate::protocol::step::StepMeta;
use crate::protocol::{AppHeader, HelloRequest, Op, ReqEntry, StepWriter};
use crate::random::SplitMix64;

/// What to synthesize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthOptions {
    /// STEPs to write.
    pub rounds: u64,
    /// The same seed gives the same bytes, on every platform.
    pub seed: u64,
    /// Largest number of requests decoding at once, 1 ..= 4 and at most `max_slots`.
    pub requests: u32,
    /// What may happen.
    pub scenarios: ScenarioSet,
    /// Mean time between rounds, µs; the live target verifies in 33 to 48 ms (contract §10).
    pub round_us: u64,
}

impl Default for SynthOptions {
    fn default() -> Self {
        let scenarios = ScenarioSet::default();
        Self { rounds: 200, seed: 0, requests: 4, scenarios, round_us: 35_000 }
    }
}

/// Something that happened, for those who check a worker's answers against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthEvent {
    /// `step_id` of the STEP.
    pub step_id: u64,
    /// Slot it happened to.
    pub slot: u8,
    /// What. [`Scenario::Partial`] marks the entry that must be answered PARTIAL_WINDOW; every other entry
    /// of the trace must be answered OK.
    pub scenario: Scenario,
}

/// Why nothing can be synthesized.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The geometry is none.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The geometry or the options leave no room for the scenarios.
    #[error("synth: {field} is {value}, at least {min} and at most {max} is possible")]
    Range {
        /// Name of the value.
        field: &'static str,
        /// The value.
        value: u32,
        /// Smallest possible.
        min: u32,
        /// Largest possible.
        max: u32,
    },
    /// The trace could not be written.
    #[error("cannot write the trace")]
    Io(#[from] io::Error),
}

/// Header of a synthetic trace: created at 0, and a note that says how it was made.
pub fn synth_header(
    geometry: &Geometry,
    drafter: [u8; 32],
    markov: [u8; 32],
    options: &SynthOptions,
) -> TraceHeader {
    let scenarios: Vec<_> = options.scenarios.iter().map(Scenario::name).collect();
    // Keys in order, so that the bytes do not depend on how a JSON object keeps them.
    let note = json!({
        "requests": options.requests, "rounds": options.rounds, "scenarios": scenarios,
        "seed": options.seed, SYNTHETIC: true,
    });
    TraceHeader {
        hello: HelloRequest::new(geometry, drafter, markov, "synthetic"),
        created_us: 0,
        note: note.to_string(),
    }
}

/// Writes a HELLO with the hello of `header` and then `options.rounds` STEPs for its geometry; returns what
/// happened in them.
///
/// Which scenarios appear depends on the number of rounds: with one request all do within 250 rounds, with
/// four within 120. Without [`Scenario::Reuse`] a request ends only at `max_model_len`.
///
/// # Errors
/// [`SynthError`]; a geometry must have a window of at least 8, `max_rows_per_step` of at least a window,
/// and `max_model_len` of at least 16 windows.
pub fn synth<W: Write>(
    header: &TraceHeader,
    options: &SynthOptions,
    sink: &mut TraceWriter<W>,
) -> Result<Vec<SynthEvent>, SynthError> {
    let geometry = header.hello.geometry();
    check(&geometry, options)?;
    let mut rng = SplitMix64::at(options.seed, SESSION, 0);
    let session = u32::try_from(1 + rng.below(i64::from(u32::MAX))).expect("1 ..= 2^32 − 1");
    let mut message = Vec::new();
    let hello_len = u32::try_from(HELLO_BYTES).expect("192");
    message.extend_from_slice(AppHeader::request(Op::Hello, 1, session, hello_len).as_bytes());
    message.extend_from_slice(header.hello.as_bytes());
    sink.record(RecordKind::Request, 0, &message)?;

    let mut engine = Engine::new(geometry, *options, SplitMix64::at(options.seed, ENGINE, 0));
    let mut rows = Rows::new(&geometry, options.seed);
    let mut written = 0;
    while written < options.rounds {
        let entries = engine.round();
        if entries.is_empty() {
            continue; // every request is away or its rows were lost; neither lasts
        }
        written += 1;
        let meta = StepMeta {
            seq: written + 1,
            session,
            step_id: engine.step_id(),
            want_margin: false,
            row_bytes: geometry.row_bytes(),
        };
        rows.step(meta, &entries, &mut message);
        sink.record(RecordKind::Request, engine.time_us(), &message)?;
    }
    Ok(engine.into_events())
}

fn check(geometry: &Geometry, options: &SynthOptions) -> Result<(), SynthError> {
    geometry.validate()?;
    let range = |field, value: u32, min, max| match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(SynthError::Range { field, value, min, max }),
    };
    range("requests", options.requests, 1, geometry.max_slots.min(4))?;
    range("window", geometry.window, 8, u32::MAX)?;
    range("max_rows_per_step", geometry.max_rows_per_step, geometry.window, u32::MAX)?;
    range("max_model_len", geometry.max_model_len, 16 * geometry.window, u32::MAX)
}

/// First coordinate of the seeded streams that belong to no request; a request has 2 id and 2 id + 1.
const SESSION: u64 = u64::MAX;
const ENGINE: u64 = u64::MAX - 1;

/// Makes the content of STEPs: anchor tokens and tap rows.
struct Rows {
    seed: u64,
    vocab_size: i64,
    wire: Vec<ReqEntry>,
    row: Vec<u8>,
}

impl Rows {
    fn new(geometry: &Geometry, seed: u64) -> Self {
        let vocab_size = i64::from(geometry.vocab_size);
        Self { seed, vocab_size, wire: Vec::new(), row: vec![0; geometry.row_bytes()] }
    }

    /// Writes the STEP of `entries` into `message`.
    fn step(&mut self, meta: StepMeta, entries: &[Planned], message: &mut Vec<u8>) {
        self.wire.clear();
        for planned in entries {
            let token = self.rng(2 * planned.request + 1, planned.rows.end).below(self.vocab_size);
            let token = i32::try_from(token).expect("a vocabulary has at most 2^24 tokens");
            self.wire.push(ReqEntry { anchor_token: token.into(), ..planned.wire });
        }
        let mut step = StepWriter::begin(message, meta, &self.wire);
        for planned in entries {
            for pos in planned.rows.clone() {
                let rng = self.rng(2 * planned.request, pos);
                fill_row(rng, &mut self.row);
                step.rows(&self.row);
            }
        }
        step.finish();
    }

    fn rng(&self, stream: u64, pos: i64) -> SplitMix64 {
        SplitMix64::at(self.seed, stream, u64::try_from(pos).expect("positions are not negative"))
    }
}

/// Fills a row with bf16 values of mean 0 and a standard deviation that is uniform in [0.5, 2) and the
/// same within the row.
///
/// A value is the sum of four random bytes, which is close to normal and finer than bf16. Its mean is
/// 510, its variance 4 × (256² − 1) / 12 = 147.8². It is cut to bf16, the upper half of an f32, which is
/// as good as rounding for noise and has no branch to mispredict. Exact integers and one product are the
/// same everywhere, and so are the bytes.
fn fill_row(mut rng: SplitMix64, row: &mut [u8]) {
    let [a, b, ..] = rng.next().to_le_bytes();
    let scale = (0.5 + 1.5 * f32::from(u16::from_le_bytes([a, b])) / 65_536.0) / 147.8;
    let mut pair = || {
        let [a, b, c, d, e, f, g, h] = rng.next().to_le_bytes();
        let [[_, _, v0, v1], [_, _, w0, w1]] = [[a, b, c, d], [e, f, g, h]].map(|bytes| {
            let sum: i16 = bytes.map(i16::from).iter().sum();
            (f32::from(sum - 510) * scale).to_le_bytes()
        });
        [v0, v1, w0, w1]
    };
    let (pairs, last) = row.as_chunks_mut::<4>();
    for values in pairs {
        *values = pair();
    }
    last.copy_from_slice(&pair()[..last.len()]);
}
