//! `dspark replay`: recorded rounds against a worker, as rank 0 would send them.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{self, BufWriter, Cursor, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use dspark::checkpoint::Checkpoint;
use dspark::client::{ClientError, ReplayReport, Round, SparkClient};
use dspark::geometry::Geometry;
use dspark::protocol::{AppHeader, EntryStatus, HelloReply, HelloRequest, Op, StepReply};
use dspark::trace::{
    RecordKind, RecordedRound, RoundReader, SynthOptions, TraceHeader, TraceReader, TraceWriter,
    synth, synth_header,
};
use dspark::transport::{CallError, Endpoint, Listener};
use dspark::worker::serve::{Running, ServeOptions};

use crate::args::{self, Backend, ComputeArgs, DRAFTING, Rounding};
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::{Output, count, micros, table};
use crate::trace;
use crate::worker::start_worker;
use zerocopy::IntoBytes;

const EXAMPLES: &str = "\
An endpoint is a drafting listener: the newest connection wins, so a replay displaces a live client.

Examples:
  dspark replay --demo
  dspark replay round.trace --endpoint tcp://127.0.0.1:18620
  zstd -dc round.trace.zst | dspark replay - --pace max --json";

/// Rounds of `--demo` unless `--rounds` says otherwise.
const DEMO_ROUNDS: u64 = 200;

/// Arguments of `dspark replay`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    /// Trace file; '-' reads stdin
    #[arg(required_unless_present = "demo", conflicts_with = "demo")]
    trace: Option<PathBuf>,
    /// Replay a built-in synthetic trace that matches 'dspark serve --demo'; without --endpoint, against a
    /// demo worker started for it
    #[arg(long)]
    demo: bool,
    /// Drafting endpoint (tcp://HOST:PORT?bind=ADDR)
    /// [default: tcp://127.0.0.1:18620]
    #[arg(short, long, value_name = "URL", env = "DSPARK_ENDPOINT", hide_env_values = true)]
    endpoint: Option<Endpoint>,
    /// Send rounds as recorded, as fast as replies come, or at a fixed rate per second
    #[arg(
        long,
        value_name = "recorded|max|RATE",
        default_value = "recorded",
        help_heading = "Load"
    )]
    pace: Pace,
    /// Stop after N rounds
    #[arg(long, value_name = "N", help_heading = "Load")]
    rounds: Option<u64>,
    /// Ask for draft margins (step flag WANT_MARGIN)
    #[arg(long, help_heading = "Load")]
    margins: bool,
    /// Write requests and replies to a new trace
    #[arg(short, long, value_name = "FILE", help_heading = "Load")]
    output: Option<PathBuf>,
    /// Deadline of one round
    #[arg(long, value_name = "TIME", env = "VLLM_DSPARK_REMOTE_TIMEOUT_MS", hide_env_values = true,
        value_parser = args::positive_duration, help_heading = "Rank 0",
        default_value = "50ms", default_value_if("demo", "true", "2s"))]
    timeout: Duration,
    /// Exit with 0 even if rounds failed
    #[arg(long, help_heading = "Rank 0")]
    allow_failures: bool,
}

/// When rounds are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pace {
    Recorded,
    Max,
    PerSecond(f64),
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "recorded" => Ok(Self::Recorded),
            "max" => Ok(Self::Max),
            rate => match rate.parse::<f64>() {
                Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(Self::PerSecond(rate)),
                _ => Err("not 'recorded', 'max' or a rate per second".into()),
            },
        }
    }
}

impl Pace {
    /// When round `index`, recorded `recorded_us` after the first, is due; `None` is at once.
    fn due(self, index: u64, recorded_us: u64) -> Option<Duration> {
        match self {
            Self::Recorded => Some(Duration::from_micros(recorded_us)),
            Self::Max => None,
            Self::PerSecond(rate) => Some(Duration::from_secs_f64(index as f64 / rate)),
        }
    }
}

type Reader = TraceReader<Box<dyn Read>>;

/// Replays.
pub(crate) fn run(args: ReplayArgs, output: &Output) -> Outcome {
    let (reader, worker) = match &args.trace {
        Some(path) => (trace::open(path)?, None),
        None => demo(&args, output)?,
    };
    let endpoint = match (&args.endpoint, &worker) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(worker)) => Endpoint::tcp(worker.drafting[0]),
        (None, None) => DRAFTING.parse().expect("a constant endpoint"),
    };
    endpoint.check_client().or_exit(Code::Usage)?;
    let mut replay = Replay::new(reader, &args, endpoint)?;
    let cut = replay.run(&args);
    let mut report = replay.report;
    print(&mut report, output)?;
    if let Some(worker) = worker {
        worker.stop().or_exit(Code::Failed)?;
    }
    cut?;
    if report.failed > 0 && !args.allow_failures {
        let failed = format!("{} of {} rounds failed", report.failed, report.rounds);
        return Err(Failure::new(Code::CheckFailed, failed));
    }
    Ok(())
}

/// The demo trace, and a worker for it unless an endpoint is given.
fn demo(args: &ReplayArgs, output: &Output) -> Result<(Reader, Option<Running>), Failure> {
    let checkpoint = Checkpoint::demo().or_exit(Code::BadInput)?;
    let geometry = checkpoint.config.geometry(4).or_exit(Code::BadInput)?;
    let ids = [checkpoint.identities.drafter.0, checkpoint.identities.markov.0];
    let trace = demo_trace(&geometry, ids, args.rounds.unwrap_or(DEMO_ROUNDS))?;
    let source: Box<dyn Read> = Box::new(Cursor::new(trace));
    let reader = TraceReader::open(source, "demo").or_exit(Code::BadInput)?;
    if args.endpoint.is_some() {
        return Ok((reader, None));
    }
    let any_port = "127.0.0.1:0".parse().expect("a constant address");
    let options = ServeOptions {
        listeners: vec![Listener::bind(any_port).or_exit(Code::Unreachable)?],
        control: None,
        name: "demo".into(),
        checkpoint: checkpoint.origin.clone(),
        identities: ids,
        recorder: None,
    };
    let compute = ComputeArgs {
        backend: Backend::Auto,
        device: 0,
        precision: Rounding::Bf16,
        logits: Rounding::Bf16,
        max_slots: 4,
    };
    let worker = start_worker(checkpoint, &compute, options)?;
    output.note(format_args!("demo worker on {}", Endpoint::tcp(worker.drafting[0])));
    Ok((reader, Some(worker)))
}

fn demo_trace(geometry: &Geometry, ids: [[u8; 32]; 2], rounds: u64) -> Result<Vec<u8>, Failure> {
    let options = SynthOptions { rounds, ..SynthOptions::default() };
    let header = synth_header(geometry, ids[0], ids[1], &options);
    let mut writer = TraceWriter::create(Vec::new(), &header).or_exit(Code::BadInput)?;
    synth(&header, &options, &mut writer).or_exit(Code::BadInput)?;
    writer.finish().or_exit(Code::BadInput)
}

/// One replay in progress.
struct Replay {
    rounds: RoundReader<Box<dyn Read>>,
    sender: Sender,
    report: ReplayReport,
}

/// Where rounds go, and when.
struct Sender {
    client: SparkClient,
    output: Option<TraceWriter<BufWriter<File>>>,
    started: Instant,
    first_us: Option<u64>,
    reply: Vec<u8>,
}

impl Replay {
    fn new(reader: Reader, args: &ReplayArgs, endpoint: Endpoint) -> Result<Self, Failure> {
        let hello = reader.header().hello;
        let output = args.output.as_ref().map(|path| create_trace(path, hello)).transpose()?;
        let mut client = SparkClient::new(endpoint, hello, session_id(), args.timeout);
        client.connect().map_err(|e| refused(e, &hello))?;
        let started = Instant::now();
        let sender = Sender { client, output, started, first_us: None, reply: Vec::new() };
        Ok(Self { rounds: RoundReader::new(reader), sender, report: ReplayReport::default() })
    }

    /// Sends every STEP of the trace.
    fn run(&mut self, args: &ReplayArgs) -> Outcome {
        while args.rounds.is_none_or(|n| self.report.rounds < n) {
            let Some(round) = self.rounds.next_round().or_exit(Code::BadInput)? else { break };
            self.sender.round(&round, args, &mut self.report)?;
        }
        self.sender.finish()
    }
}

impl Sender {
    fn round(
        &mut self,
        recorded: &RecordedRound<'_>,
        args: &ReplayArgs,
        report: &mut ReplayReport,
    ) -> Outcome {
        self.wait(recorded.time_us, args.pace, report);
        if !self.client.is_connected()
            && let Err(error) = self.client.connect()
        {
            tracing::warn!("reconnect: {error}");
            report.failed(false);
            return Ok(());
        }
        match self.client.step(recorded.body, args.margins, &mut self.reply) {
            Ok(round) => {
                report.answered(&round);
                if let Some(theirs) = recorded.reply.and_then(StepReply::parse) {
                    report.compare(&round, &theirs);
                }
                log_entries(&round);
                self.write(recorded.body)
            }
            Err(ClientError::Layout(error)) => {
                Err(Failure::new(Code::BadInput, error).hint("the recorded STEP is malformed"))
            }
            Err(error) => {
                tracing::warn!(round = report.rounds + 1, "{error}");
                report.failed(matches!(error, ClientError::Refused(_)));
                Ok(())
            }
        }
    }

    /// Waits until the round is due; counts it as late when that has passed.
    fn wait(&mut self, time_us: u64, pace: Pace, report: &mut ReplayReport) {
        let first = *self.first_us.get_or_insert(time_us);
        let Some(due) = pace.due(report.rounds, time_us.saturating_sub(first)) else { return };
        match due.checked_sub(self.started.elapsed()) {
            Some(left) => sleep(left),
            None if report.rounds > 0 => report.late += 1,
            None => {}
        }
    }

    /// Records the round just answered, as it was sent.
    fn write(&mut self, body: &[u8]) -> Outcome {
        let Some(output) = &mut self.output else { return Ok(()) };
        let Some((header, _)) = AppHeader::split(&self.reply) else { return Ok(()) };
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let len = u32::try_from(body.len()).expect("the frame was sent");
        let header = AppHeader::request(Op::Step, header.seq.get(), header.session.get(), len);
        let request = [header.as_bytes(), body].concat();
        output.record(RecordKind::Request, now, &request).or_exit(Code::BadInput)?;
        output.record(RecordKind::Reply, now, &self.reply).or_exit(Code::BadInput)
    }

    fn finish(&mut self) -> Outcome {
        match self.output.take() {
            Some(output) => output.finish().map(drop).or_exit(Code::BadInput),
            None => Ok(()),
        }
    }
}

fn create_trace(path: &Path, hello: HelloRequest) -> Result<TraceWriter<BufWriter<File>>, Failure> {
    TraceWriter::create(trace::create(path)?, &TraceHeader::now(hello, "")).or_exit(Code::BadInput)
}

/// A nonzero session id that no earlier run has used, but for chance (contract §7.5).
fn session_id() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 32).expect("32 bits").max(1)
}

/// The failure of a client that gets no session.
fn refused(error: ClientError, hello: &HelloRequest) -> Failure {
    match &error {
        ClientError::Hello { worker: Some(worker), .. } => explain(&error, worker, hello),
        ClientError::Call(CallError::NotBuilt(_)) => Failure::new(Code::Backend, error),
        ClientError::Call(_) => Failure::new(Code::Unreachable, error).hint(
            "start a worker with 'dspark serve', or give its drafting listener with --endpoint",
        ),
        _ => Failure::new(Code::Refused, error),
    }
}

/// Both sides' values: a refused session is fatal to a live client, so nothing may be left to guess.
fn explain(error: &ClientError, worker: &HelloReply, hello: &HelloRequest) -> Failure {
    let mut failure = Failure::new(Code::Refused, error);
    for (name, ours, theirs) in [
        ("drafter", hello.drafter_identity, worker.drafter_identity),
        ("Markov", hello.markov_identity, worker.markov_identity),
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

fn log_entries(round: &Round<'_>) {
    for (index, entry) in round.step.entries.iter().enumerate() {
        let status = round.reply.status(index);
        if status != Some(EntryStatus::Ok) {
            tracing::debug!(
                step = round.step.header.step_id.get(),
                slot = entry.slot,
                status = status.map_or("?", EntryStatus::name),
                window_rows = round.reply.statuses[index].window_rows.get(),
                "entry"
            );
        }
    }
}

fn print(report: &mut ReplayReport, output: &Output) -> io::Result<()> {
    if output.json() {
        return output.document(&report.to_json(), false);
    }
    let accepted = match report.accepted_entries {
        0 => "n/a".into(),
        n => format!("{:.1}", report.accepted as f64 / n as f64),
    };
    output.line(format_args!(
        "{} rounds, {} failed   rows {}   drafts {}   accepted {accepted} per round (recorded)   late {}",
        count(report.rounds),
        count(report.failed),
        count(report.rows),
        count(report.drafts),
        count(report.late),
    ))?;
    let statuses: Vec<_> = EntryStatus::ALL
        .iter()
        .map(|s| format!("{s} {}", count(report.entries[*s as usize])))
        .collect();
    output.line(format_args!("entries  {}", statuses.join("  ")))?;
    if report.blocks[0] > 0 {
        output.line(format_args!(
            "agreement with the recorded drafts  {} of {} blocks  {} of {} positions up to the first \
             difference",
            count(report.blocks[1]),
            count(report.blocks[0]),
            count(report.equal),
            count(report.compared),
        ))?;
    }
    let mut table = table(&["", "p50", "p90", "p99", "max"]);
    for (name, percentiles) in report.latencies() {
        let cells = match percentiles {
            Some(p) => [p.p50, p.p90, p.p99, p.max].map(|us| micros(us as f64)),
            None => ["n/a"; 4].map(Into::into),
        };
        table.add_row(std::iter::once(name.to_owned()).chain(cells));
    }
    output.line(table)
}
