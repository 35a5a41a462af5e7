//! `dspark trace`: what is in a trace file, parts of it, several joined, and synthetic ones.

mod cut;
mod merge;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use dspark::trace::{
    Scenario, ScenarioSet, SynthOptions, TraceInfo, TraceReader, TraceWriter, synth, synth_header,
};

use serde_json::json;

use crate::args::ModelArgs;
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::{Output, count};
use crate::worker::outline;

/// Subcommands of `dspark trace`.
#[derive(Subcommand, Debug)]
pub(crate) enum TraceCommand {
    /// Count what a trace holds and name its anomalies
    Info(InfoArgs),
    /// Keep a range of rounds, made self-contained by a leading resync
    Cut(cut::CutArgs),
    /// Join traces of one checkpoint, one after another
    Merge(merge::MergeArgs),
    /// Write a synthetic trace for a checkpoint's geometry
    Synth(SynthArgs),
}

const INFO_EXAMPLES: &str = "\
Examples:
  dspark trace info round.trace
  zstd -dc round.trace.zst | dspark trace info - --json";

/// Arguments of `dspark trace info`.
#[derive(Args, Debug)]
#[command(after_help = INFO_EXAMPLES)]
pub(crate) struct InfoArgs {
    /// Trace file; '-' reads stdin
    trace: PathBuf,
}

const SYNTH_EXAMPLES: &str = "\
Examples:
  dspark trace synth --demo --rounds 500 --seed 7 --output load.trace
  dspark trace synth --checkpoint /data/dspark/pack --requests 1 --scenario rollback -o r.trace";

/// Arguments of `dspark trace synth`.
#[derive(Args, Debug)]
#[command(after_help = SYNTH_EXAMPLES)]
pub(crate) struct SynthArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// STEPs to write
    #[arg(long, value_name = "N", default_value_t = 200)]
    rounds: u64,
    /// The same seed gives the same bytes
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Requests decoding at once, at most
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4))]
    requests: u32,
    /// What may happen, comma-separated [default: all but near-max-len]
    #[arg(long, value_name = "SCENARIO", value_delimiter = ',')]
    scenario: Vec<Scenario>,
    /// Trace file to write; it must not exist
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Runs a subcommand.
pub(crate) fn run(command: TraceCommand, output: &Output) -> Outcome {
    match command {
        TraceCommand::Info(args) => info(&args, output),
        TraceCommand::Cut(args) => cut::run(&args, output),
        TraceCommand::Merge(args) => merge::run(&args, output),
        TraceCommand::Synth(args) => write_synthetic(&args, output),
    }
}

/// Opens a trace file, or stdin for `-`.
pub(crate) fn open(path: &Path) -> Result<TraceReader<Box<dyn Read>>, Failure> {
    let source: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(path).map_err(|e| unusable(path, &e))?;
        Box::new(BufReader::with_capacity(1 << 20, file))
    };
    TraceReader::open(source, path.display().to_string()).or_exit(Code::BadInput)
}

/// Creates a trace file that does not exist yet.
pub(crate) fn create(path: &Path) -> Result<BufWriter<File>, Failure> {
    let file = File::options().write(true).create_new(true).open(path);
    Ok(BufWriter::with_capacity(1 << 20, file.map_err(|e| unusable(path, &e))?))
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Code::BadInput, format!("{}: {error}", path.display()))
}

fn info(args: &InfoArgs, output: &Output) -> Outcome {
    let mut reader = open(&args.trace)?;
    let info = TraceInfo::collect(&mut reader).or_exit(Code::BadInput)?;
    if output.json() {
        let doc = serde_json::to_value(&info).or_exit(Code::BadInput)?;
        output.document(&doc, false)?;
    } else {
        output.line(text(&info))?;
    }
    match &info.cut {
        None => Ok(()),
        Some(cut) => Err(Failure::new(
            Code::BadInput,
            format!("{}: cut at byte {}: {}", info.name, count(cut.offset), cut.reason),
        )
        .hint(format!("the {} records before it are whole", count(cut.record.saturating_sub(1))))),
    }
}

fn text(info: &TraceInfo) -> String {
    let h = &info.header;
    let e = &info.entries;
    let rate = info.rounds_per_s.map_or("n/a".to_owned(), |r| format!("{r:.1}"));
    let mut lines = vec![
        format!(
            "{}: {} bytes, {} rounds in {:.1} s ({rate} per second), {} rows",
            info.name,
            count(info.bytes),
            count(info.rounds),
            info.duration_us as f64 / 1e6,
            count(info.rows),
        ),
        format!(
            "geometry  N {}  W {}  hidden {}  taps {:?}  row {} bytes  vocabulary {}  slots {}",
            h.num_spec, h.window, h.hidden, h.tap_layer_ids, h.row_bytes, h.vocab_size, h.max_slots
        ),
        format!("drafter identity {}", h.drafter_identity),
        format!("Markov identity  {}", h.markov_identity),
        format!(
            "records  requests {}  replies {}  local drafts {}  notes {}  unknown {}",
            count(info.records.requests),
            count(info.records.replies),
            count(info.records.local_drafts),
            count(info.records.notes),
            count(info.records.unknown),
        ),
        format!(
            "entries  {}  drafting {}  prefill {}  resync {}  new generation {}",
            count(e.total),
            count(e.need_draft),
            count(e.prefill),
            count(e.resync),
            count(e.new_gen),
        ),
    ];
    for (status, n) in &info.replies.entries {
        lines.push(format!("answered {status}  {}", count(*n)));
    }
    for slot in &info.slots {
        lines.push(format!(
            "slot {}  entries {}  generations {}  anchor up to {}",
            slot.slot,
            count(slot.entries),
            slot.generations,
            slot.anchor_max
        ));
    }
    let a = &info.anomalies;
    for (name, rounds) in [
        ("gaps", &a.gaps),
        ("roll-backs", &a.roll_backs),
        ("stale generations", &a.stale),
        ("bad entries", &a.bad),
        ("partial windows", &a.partial),
        ("malformed", &a.malformed),
        ("clock back", &a.clock_back),
    ] {
        if rounds.count > 0 {
            let listed: Vec<_> = rounds.rounds.iter().map(u64::to_string).collect();
            let more = if rounds.count > rounds.rounds.len() as u64 { " ..." } else { "" };
            lines.push(format!("{name}  {} in rounds {}{more}", rounds.count, listed.join(" ")));
        }
    }
    lines.join("\n")
}

fn write_synthetic(args: &SynthArgs, output: &Output) -> Outcome {
    let mut model = args.model.clone();
    model.demo |= model.checkpoint.is_none() && model.synthetic.is_none();
    let (config, ids) = outline(&model, output)?;
    let geometry = config.geometry(4).or_exit(Code::BadInput)?;
    let options = SynthOptions {
        rounds: args.rounds,
        seed: args.seed,
        requests: args.requests,
        scenarios: match args.scenario.is_empty() {
            true => ScenarioSet::default(),
            false => args.scenario.iter().copied().collect(),
        },
        ..SynthOptions::default()
    };
    let header = synth_header(&geometry, ids.drafter.0, ids.markov.0, &options);
    let mut writer = TraceWriter::create(create(&args.output)?, &header).or_exit(Code::BadInput)?;
    synth(&header, &options, &mut writer).or_exit(Code::BadInput)?;
    let bytes = writer.bytes();
    writer.finish().or_exit(Code::BadInput)?;
    written(&args.output, ("rounds", args.rounds), bytes, output)
}

/// Says what was written: the path, how many rounds or records, and the bytes.
fn written(path: &Path, (what, n): (&str, u64), bytes: u64, output: &Output) -> Outcome {
    let path = path.display().to_string();
    if output.json() {
        let doc = json!({ "schema": 1, "trace": path, what: n, "bytes": bytes });
        return Ok(output.document(&doc, false)?);
    }
    output.note(format_args!("{path}: {} {what}, {} bytes", count(n), count(bytes)));
    Ok(())
}
