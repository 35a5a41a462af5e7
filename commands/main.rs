//! `dspark`: parse, set up logging, run one command, turn its error into an exit code.

mod args;
mod check;
mod drafts;
mod environment;
mod exit;
mod identity;
mod ping;
mod query;
mod rates;
mod replay;
mod rtt;
mod serve;
mod service;
mod shadow_diff;
mod sockets;
mod stats;
mod trace;
mod worker;

mod output;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use args::OutputArgs;
use output::{BesideBars, Output};

/// Remote DSpark drafter: worker, Spark-client emulator and operator tools
#[derive(Parser, Debug)]
#[command(name = "dspark", version, after_help = exit::HELP, max_term_width = 100)]
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
    /// Inspect and make trace files
    #[command(subcommand)]
    Trace(trace::TraceCommand),
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
    // Before the values are parsed: their own errors cannot show what is invisible.
    let warnings = environment::check(&command, std::env::vars_os())?;
    let matches = command.get_matches_mut();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let output = Output::new(&cli.output);
    init_logging(&cli, &output);
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
        Command::Trace(args) => trace::run(args, &output),
    }
}

/// Logs go to stderr: warnings and worse, `serve` also its state changes.
fn init_logging(cli: &Cli, output: &Output) {
    let level = match (cli.output.quiet, cli.output.verbose, &cli.command) {
        (true, ..) => "error",
        (_, 0, Command::Serve(_)) => "info",
        (_, 0, _) => "warn",
        (_, 1, _) => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_env_var("DSPARK_LOG")
        .with_default_directive(level.parse().expect("a level name"))
        .from_env_lossy();
    let builder = tracing_subscriber::fmt()
        .with_writer(|| BesideBars)
        .with_env_filter(filter)
        .with_target(false)
        // It would report a broken stderr on stderr, and panic in the thread that logs.
        .log_internal_errors(false)
        .with_ansi(output.colored_logs());
    if std::env::var("DSPARK_LOG_FORMAT").is_ok_and(|f| f == "json") {
        builder.json().init();
    } else {
        builder.init();
    }
}
