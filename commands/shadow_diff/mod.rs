//! `dspark shadow-diff`: two sets of drafts, block by block.
//!
//! A side is a trace or a live worker. A live side is driven with the rounds of a trace, so that both
//! sides saw the same rows.

mod plot;
mod print;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use dspark::client::breaker::{Backoff, Breaker};
use dspark::client::rank0::{EngineRound, Recovery};
use dspark::client::{ClientOptions, ReplayReport, SparkClient};
use dspark::protocol::{HelloRequest, StepRequest};
use dspark::shadow::{BlockAt, Drafted, ShadowReport};
use dspark::trace::RecordedRound;
use dspark::transport::Endpoint;

use crate::drafts::{Bodies, Rounds, consumed, expected, pair, recorded_drafts, remote_drafts};
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::Output;
use crate::{args, replay, trace};

const EXAMPLES: &str = "\
Positions after the first mismatch of a block continue a different Markov chain: they are printed, but
agreement is counted over comparable positions only. A trace made with 'replay --margins -o FILE' holds
the margins that tell near-ties.

Examples:
  dspark shadow-diff shadow.trace
  dspark shadow-diff cpu.trace cuda.trace --near-tie 0.05
  dspark shadow-diff golden.trace tcp://127.0.0.1:18620 --min-agreement 1.0
  dspark shadow-diff tcp://127.0.0.1:18620 tcp://127.0.0.1:18630 --trace round.trace";

/// Arguments of `dspark shadow-diff`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ShadowDiffArgs {
    /// Reference side: a trace, or an endpoint URL (a drafting listener: its live client is displaced)
    left: String,
    /// Compared side; omit it to compare local with remote drafts inside LEFT
    right: Option<String>,
    /// Rounds that drive live sides, when LEFT is no trace
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Exit with 1 if fewer comparable positions agree
    #[arg(long, value_name = "FRACTION", default_value_t = 1.0, value_parser = args::fraction)]
    min_agreement: f64,
    /// Count a mismatch with a margin up to LOGITS as a near-tie, not as a disagreement
    #[arg(long, value_name = "LOGITS", default_value_t = 0.0)]
    near_tie: f32,
    /// List the first N mismatching blocks, largest margin first
    #[arg(long, value_name = "N", default_value_t = 10)]
    show: usize,
    /// Draw agreement by position and mismatches by margin into an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Deadline of one round on a live side
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = args::positive_duration)]
    timeout: Duration,
}

/// One side of the comparison.
enum Side {
    /// The replies recorded in the trace that drives the comparison.
    Driving,
    /// The local drafts recorded there.
    DrivingLocal,
    /// The replies of another trace.
    Trace(Box<Rounds>),
    /// A worker.
    Live(Box<SparkClient>),
}

/// What was compared and what the recorded engine accepted.
struct Found {
    report: ShadowReport,
    /// Its acceptance counters only.
    accepted: ReplayReport,
    rounds: u64,
}

/// Compares.
pub(crate) fn run(args: ShadowDiffArgs, output: &Output) -> Outcome {
    let left_is_trace = !args.left.contains("://");
    let driving = match (&args.trace, left_is_trace) {
        (Some(path), _) => path.clone(),
        (None, true) => PathBuf::from(&args.left),
        (None, false) => {
            return Err(Failure::new(
                Code::Usage,
                "a live LEFT needs --trace FILE to be driven with",
            ));
        }
    };
    let rounds = Rounds::new(trace::open(&driving)?);
    let hello = rounds.header().hello;
    let mut sides = match &args.right {
        None if left_is_trace => [Side::DrivingLocal, Side::Driving],
        None => return Err(Failure::new(Code::Usage, "a live LEFT needs a RIGHT")),
        Some(right) => {
            [side(&args.left, &driving, &hello, &args)?, side(right, &driving, &hello, &args)?]
        }
    };
    let found = compare(rounds, &mut sides, &hello, args.near_tie)?;
    if let Some(path) = &args.plot {
        plot::draw(&found.report, path)?;
    }
    print::report(&found, &args, output)?;
    let agreement = found.report.agreement();
    match agreement {
        Some(agreement) if agreement >= args.min_agreement => Ok(()),
        None if found.report.near_ties() > 0 => Ok(()),
        Some(agreement) => Err(Failure::new(
            Code::CheckFailed,
            format!("agreement {agreement:.4} is below {}", args.min_agreement),
        )),
        None => Err(Failure::new(Code::CheckFailed, "nothing to compare")
            .hint("the sides share no drafted block of the same engine step")),
    }
}

fn side(
    text: &str,
    driving: &Path,
    hello: &HelloRequest,
    args: &ShadowDiffArgs,
) -> Result<Side, Failure> {
    if !text.contains("://") {
        let path = Path::new(text);
        return Ok(if path == driving {
            Side::Driving
        } else {
            Side::Trace(Box::new(Rounds::new(trace::open(path)?)))
        });
    }
    let endpoint: Endpoint = text.parse().or_exit(Code::Usage)?;
    endpoint.check_client().or_exit(Code::Usage)?;
    let options = ClientOptions {
        endpoint,
        timeout: args.timeout,
        breaker: Breaker::new(0, 0),
        backoff: Backoff::new(Duration::ZERO),
        faults: None,
        new_session: replay::session_id,
    };
    let mut client = SparkClient::new(replay::rank0(hello)?, options);
    client.connect().map_err(|e| replay::no_session(e, hello))?;
    Ok(Side::Live(Box::new(client)))
}

fn compare(
    mut rounds: Rounds,
    sides: &mut [Side; 2],
    hello: &HelloRequest,
    near_tie: f32,
) -> Result<Found, Failure> {
    let geometry = hello.geometry();
    let limits = hello.limits();
    let mut recovery = Recovery::new(geometry);
    let mut found = Found {
        report: ShadowReport::new(geometry.num_spec as usize, near_tie),
        accepted: ReplayReport::default(),
        rounds: 0,
    };
    while let Some(recorded) = rounds.next_round().or_exit(Code::BadInput)? {
        let step = StepRequest::parse(recorded.body, &limits).or_exit(Code::BadInput)?;
        let Some(round) = recovery.step(&recorded.header, &step) else { continue };
        found.rounds += 1;
        let [left, right] = sides;
        let number = found.rounds;
        let answers =
            [answer(left, &recorded, &round, number)?, answer(right, &recorded, &round, number)?];
        for (index, request) in round.requests.iter().enumerate() {
            found.accepted.acceptance(request.rows.len() as u64, request.k_window);
            if !request.need_draft {
                continue;
            }
            let n = consumed(request.n_out, geometry.num_spec);
            let resync = step.entries.iter().any(|e| e.slot == request.slot && e.resync());
            let at = BlockAt { step_id: round.step_id, slot: request.slot, resync };
            let drafts = |side: &Side, bodies: &Option<Bodies>| -> Option<Drafted> {
                match (side, bodies) {
                    (Side::Live(client), _) => remote_drafts(client, index, n),
                    (_, Some((s, r))) => recorded_drafts(s, r, &limits, request.slot, n),
                    (_, None) => None,
                }
            };
            let (l, r) = (drafts(left, &answers[0]), drafts(right, &answers[1]));
            pair(&mut found.report, at, l.as_ref(), r.as_ref());
        }
    }
    Ok(found)
}

/// What a side says to a round: a live one plays it, the others look it up.
fn answer(
    side: &mut Side,
    recorded: &RecordedRound<'_>,
    round: &EngineRound<'_>,
    number: u64,
) -> Result<Option<Bodies>, Failure> {
    let bodies = |reply: Option<&[u8]>| reply.map(|r| (recorded.body.to_vec(), r.to_vec()));
    match side {
        Side::Driving => Ok(bodies(recorded.reply)),
        Side::DrivingLocal => Ok(bodies(recorded.local)),
        Side::Trace(rounds) => expected(rounds, round.step_id),
        Side::Live(client) => {
            let round = EngineRound { want_margin: true, ..*round };
            let now = Duration::from_micros(recorded.time_us);
            client.round(&round, number, now).or_exit(Code::BadInput)?;
            Ok(None)
        }
    }
}
