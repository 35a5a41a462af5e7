//! Where rounds come from: a trace file, stdin, or the demo with a worker of its own.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{Cursor, Read};
use std::num::NonZeroU32;

use dspark::checkpoint::Checkpoint;
use dspark::protocol::HelloRequest;
use dspark::trace::{RoundReader, SynthOptions, TraceReader, TraceWriter, synth, synth_header};
use dspark::transport::{Endpoint, Listener, Peers};
use dspark::worker::serve::{Running, ServeOptions};

use super::options::ReplayArgs;
use crate::args::{Backend, ComputeArgs, Rounding};
use crate::drafts::Rounds;
use crate::exit::{Code, Failure, OrExit};
use crate::output::Output;
use crate::trace;
use crate::worker::{BackendChoice, start_worker};

/// Rounds of the demo unless `--rounds` says otherwise.
const DEMO_ROUNDS: u64 = 200;

/// A trace, and the demo worker if one was started for it.
pub(crate) struct Source {
    rounds: Rounds,
    worker: Option<Running>,
}

impl Source {
    pub(crate) fn open(args: &ReplayArgs, output: &Output) -> Result<Self, Failure> {
        match &args.trace {
            Some(path) => Ok(Self { rounds: RoundReader::new(trace::open(path)?), worker: None }),
            None => demo(args, output),
        }
    }

    /// HELLO of the recorded session.
    pub(crate) fn hello(&self) -> HelloRequest {
        self.rounds.header().hello
    }

    pub(crate) fn is_synthetic(&self) -> bool {
        self.rounds.header().is_synthetic()
    }

    pub(crate) fn worker(&self) -> Option<&Running> {
        self.worker.as_ref()
    }

    pub(crate) fn into_parts(self) -> (Rounds, Option<Running>) {
        (self.rounds, self.worker)
    }
}

/// A session id that no earlier run has used, but for chance (contract §7.5).
pub(crate) fn session_id() -> NonZeroU32 {
    let random = RandomState::new().hash_one(std::process::id());
    let id = u32::try_from(random >> 32).expect("32 bits");
    NonZeroU32::new(id).unwrap_or(NonZeroU32::MIN)
}

/// The demo trace, and a worker for it unless an endpoint is given.
fn demo(args: &ReplayArgs, output: &Output) -> Result<Source, Failure> {
    let checkpoint = Checkpoint::demo().or_exit(Code::BadInput)?;
    let geometry = checkpoint.config.geometry(4).or_exit(Code::BadInput)?;
    let ids = [checkpoint.identities.drafter.0, checkpoint.identities.markov.0];
    let options =
        SynthOptions { rounds: args.rounds.unwrap_or(DEMO_ROUNDS), ..SynthOptions::default() };
    let header = synth_header(&geometry, ids[0], ids[1], &options);
    let mut writer = TraceWriter::create(Vec::new(), &header).or_exit(Code::BadInput)?;
    synth(&header, &options, &mut writer).or_exit(Code::BadInput)?;
    let trace: Box<dyn Read> = Box::new(Cursor::new(writer.finish().or_exit(Code::BadInput)?));
    let rounds = RoundReader::new(TraceReader::open(trace, "demo").or_exit(Code::BadInput)?);
    if args.endpoint.is_some() {
        return Ok(Source { rounds, worker: None });
    }
    let any_port = "127.0.0.1:0".parse().expect("a constant address");
    let options = ServeOptions {
        listeners: vec![Listener::bind(any_port).or_exit(Code::Unreachable)?],
        control: None,
        metrics: None,
        peers: Peers::default(),
        name: "demo".into(),
        checkpoint: checkpoint.origin.clone(),
        identities: ids,
        recorder: None,
        keep_warm: None,
    };
    let compute = ComputeArgs {
        backend: Backend::Auto,
        device: 0,
        precision: Rounding::Bf16,
        logits: Rounding::Bf16,
        max_slots: 4,
    };
    let worker = start_worker(checkpoint.into(), BackendChoice::of(&compute)?, options)?;
    output.note(format_args!("demo worker on {}", Endpoint::tcp(worker.drafting[0])));
    Ok(Source { rounds, worker: Some(worker) })
}
