//! `dspark replay`: recorded engine rounds against a worker, as rank 0 would send them.
//!
//! A trace is turned back into what its engine did, and an emulated rank 0 does it again: with its own
//! session, ring and resyncs, under the faults that were asked for, at the pace that was asked for.

mod engine;
mod local;
mod options;
mod pace;
mod print;
mod rounds_log;
mod source;
mod verify;

use dspark::client::breaker::{Backoff, Breaker};
use dspark::client::faults::FaultSchedule;
use dspark::client::rank0::{HelloError, Rank0, Rank0Config};
use dspark::client::{ClientOptions, ConnectError, SparkClient};
use dspark::protocol::{HelloReply, HelloRequest};
use dspark::transport::{CallError, Endpoint};

use crate::args::DRAFTING;
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::Output;
use engine::Engine;
use local::Local;
pub(crate) use options::ReplayArgs;
use source::Source;
pub(crate) use source::session_id;

/// Replays a trace and judges what came of it.
pub(crate) fn run(args: ReplayArgs, output: &Output) -> Outcome {
    let faults = FaultSchedule::new(args.seed, &args.fault).or_exit(Code::Usage)?;
    let source = Source::open(&args, output)?;
    let hello = source.hello();
    if source.is_synthetic() {
        tracing::debug!("a synthetic trace: its acceptance says nothing about a model");
    }
    let endpoint = match (&args.endpoint, source.worker()) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(worker)) => Endpoint::tcp(worker.drafting[0]),
        (None, None) => DRAFTING.parse().expect("a constant endpoint"),
    };
    let faults = Some(faults).filter(|_| !args.fault.is_empty());
    let mut client = client(&args, endpoint, &hello, faults)?;
    client.connect().map_err(|e| no_session(e, &hello))?;
    let local = Local::open(&args, &hello, output)?;
    let (rounds, worker) = source.into_parts();
    let mut engine = Engine::new(client, local, hello, &args)?;
    let replayed = engine.run(rounds);
    let verified = match &replayed {
        Ok(()) if args.verifies() => Some(verify::final_drafts(&mut engine.client, args.near_tie)),
        _ => None,
    };
    let verdict = verified.transpose().map_err(|e| no_session(e, &hello))?;
    print::report(&engine, verdict.as_ref(), output)?;
    if let Some(worker) = worker {
        worker.stop().or_exit(Code::Failed)?;
    }
    replayed?;
    engine.judge(&args, verdict.as_ref())
}

/// A rank 0 of the trace's geometry and identities, not connected yet.
fn client(
    args: &ReplayArgs,
    endpoint: Endpoint,
    hello: &HelloRequest,
    faults: Option<FaultSchedule>,
) -> Result<SparkClient, Failure> {
    endpoint.check_client().or_exit(Code::Usage)?;
    let options = ClientOptions {
        endpoint,
        timeout: args.timeout,
        breaker: Breaker::new(args.trip, args.cooldown),
        backoff: Backoff::new(args.backoff),
        faults,
        new_session: source::session_id,
    };
    Ok(SparkClient::new(rank0(hello)?, options))
}

/// A rank 0 that asks for the geometry and identities of a recorded HELLO.
pub(crate) fn rank0(hello: &HelloRequest) -> Result<Rank0, Failure> {
    Rank0::new(&Rank0Config {
        geometry: hello.geometry(),
        drafter_identity: hello.drafter_identity,
        markov_identity: hello.markov_identity,
        client_name: "dspark replay".into(),
        session: source::session_id(),
        generation: 0,
    })
    .or_exit(Code::BadInput)
}

/// The failure of a client that gets no session.
pub(crate) fn no_session(error: ConnectError, hello: &HelloRequest) -> Failure {
    match &error {
        ConnectError::Hello(HelloError::Fatal { worker: Some(worker), .. }) => {
            explain(&error, worker, hello)
        }
        ConnectError::Hello(_) => Failure::new(Code::Refused, error),
        ConnectError::Call(CallError::NotBuilt(_)) => Failure::new(Code::Backend, error),
        ConnectError::Call(_) => Failure::new(Code::Unreachable, error).hint(
            "start a worker with 'dspark serve', or name its drafting listener with --endpoint",
        ),
    }
}

/// Both sides' values: a refused session is fatal to a live client, so nothing may be left to guess.
fn explain(error: &ConnectError, worker: &HelloReply, hello: &HelloRequest) -> Failure {
    let mut failure = Failure::new(Code::Refused, error);
    for (name, ours, theirs) in [
        ("drafter", hello.drafter_identity, worker.drafter_identity),
        ("Markov ", hello.markov_identity, worker.markov_identity),
    ] {
        if ours != theirs {
            let (ours, theirs) = (hex::encode(ours), hex::encode(theirs));
            failure = failure.hint(format!("{name}  ours {ours}  worker {theirs}"));
        }
    }
    failure.hint(
        "the worker serves another checkpoint or geometry; compare 'dspark identity' on both hosts",
    )
}
