//! `dspark`: parse, set up logging, run one command, turn its error into an exit code.

mod acceptance;
mod args;
mod check;
mod doctor;
mod drafts;
mod environment;
mod exit;
mod generate;
mod gpu_check;
mod guard;
mod identity;
mod link;
mod ping;
mod query;
mod rates;
mod replay;
mod rtt;
mod serve;
mod service;
mod shadow_diff;
mod signals;
mod sockets;
mod stats;
mod top;
mod trace;
mod worker;

mod output;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use args::OutputArgs;
use dspark::drafter::cuda::pack;
use output::{BesideBars, Output};

/// Remote DSpark drafter: worker, Spark-client emulator and operator tools
#[derive(Parser, Debug)]
#[command(name = "dspark", version, long_version = version(), after_help = exit::help(), max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the drafter worker until SIGINT or SIGTERM
    Serve(serve::ServeArgs),
    /// Print the drafter and Markov identities that HELLO exchanges
    Identity(identity::IdentityArgs),
    /// Measure the round trip to a worker, or wait until it is ready
    Ping(ping::PingArgs),
    /// Show the worker's counters and latency percentiles
    Stats(stats::StatsArgs),
    /// Drive a worker with recorded taps, as Spark rank 0 would
    Replay(replay::ReplayArgs),
    /// Compare two sets of drafts round by round
    ShadowDiff(shadow_diff::ShadowDiffArgs),
    /// Check a GPU and measure drafting on it
    GpuCheck(gpu_check::GpuCheckArgs),
    /// Watch workers live in the terminal
    Top(top::TopArgs),
    /// Check what this machine can run and say how to fix what is missing
    Doctor(doctor::DoctorArgs),
    /// Inspect and make trace files
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    /// Print a shell completion script
    Completions(generate::CompletionsArgs),
    /// Write the manual pages, one per command
    Man(generate::ManArgs),
}

/// What `--version` says behind the name; `-V` stops after the first line.
fn version() -> String {
    let kernels = pack::architectures().unwrap_or_default().join(", ");
    format!(
        "{}\ncontract  {}\nwire      {}\nbackends  cpu, cuda\nkernels   {kernels}",
        env!("CARGO_PKG_VERSION"),
        dspark::CONTRACT_VERSION,
        dspark::protocol::VERSION,
    )
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // Nothing can be said without stderr; the exit code still tells.
            let _ = writeln!(std::io::stderr(), "{failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

fn run() -> exit::Outcome {
    let mut command = Cli::command();
    // Before the values are parsed: their own errors cannot show what is invisible. One command reports it.
    let environment = environment::check(&command, std::env::vars_os());
    let warnings = if std::env::args_os().skip(1).any(|argument| argument == doctor::NAME) {
        Vec::new()
    } else {
        environment?
    };
    let matches = command.get_matches_mut();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let output = Output::new(&cli.output);
    let mut problem = init_logging(&cli, &output).err();
    // One command reports it instead.
    if !matches!(cli.command, Command::Doctor(_))
        && let Some(failure) = problem.take()
    {
        return Err(failure);
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match cli.command {
        Command::Serve(args) => {
            let below = command.find_subcommand("serve").zip(matches.subcommand_matches("serve"));
            let settings = below.map(|(command, matches)| check::settings(command, matches));
            serve::run(args, &settings.unwrap_or_default(), &output)
        }
        Command::Identity(args) => identity::run(args, &output),
        Command::Ping(args) => ping::run(args, &output),
        Command::Stats(args) => stats::run(args, &output),
        Command::Replay(args) => replay::run(args, &output),
        Command::ShadowDiff(args) => shadow_diff::run(args, &output),
        Command::GpuCheck(args) => gpu_check::run(&args, &output),
        Command::Top(args) => top::run(&args, &output),
        Command::Doctor(args) => doctor::run(&args, &Cli::command(), problem, &output),
        Command::Trace(args) => trace::run(args, &output),
        Command::Completions(args) => generate::completions(&args, Cli::command(), &output),
        Command::Man(args) => generate::man(&args, Cli::command(), &output),
    }
}

/// Logs go to stderr: warnings and worse, `serve` also its state changes.
///
/// # Errors
/// `DSPARK_LOG` or `DSPARK_LOG_FORMAT` that mean nothing: a log that is silently another one is missed when
/// it is needed.
fn init_logging(cli: &Cli, output: &Output) -> exit::Outcome {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let usage = |message: String| exit::Failure::new(exit::Code::Usage, message);
    let level = match (cli.output.quiet, cli.output.verbose, &cli.command) {
        (true, ..) => "error",
        (_, 0, Command::Serve(_)) => "info",
        (_, 0, _) => "warn",
        (_, 1, _) => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(level.parse().expect("a level name"))
        .parse(variable("DSPARK_LOG").unwrap_or_default())
        .map_err(|error| usage(format!("DSPARK_LOG: {error}")).hint("as in DSPARK_LOG=debug"))?;
    let builder = tracing_subscriber::fmt()
        .with_writer(|| BesideBars)
        .with_env_filter(filter)
        .with_target(false)
        // It would report a broken stderr on stderr, and panic in the thread that logs.
        .log_internal_errors(false)
        .with_ansi(output.colored_logs());
    match variable("DSPARK_LOG_FORMAT").as_deref() {
        None | Some("text") => builder.init(),
        Some("json") => builder.json().init(),
        Some(other) => {
            return Err(usage(format!("DSPARK_LOG_FORMAT is '{other}', expected json or text")));
        }
    }
    Ok(())
}
