//! Flags of `dspark replay`. The `VLLM_DSPARK_REMOTE_*` variables are the engine's own, so that one
//! environment file drives both.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dspark::client::breaker::{COOLDOWN, TRIP};
use dspark::client::faults::FaultSpec;
use dspark::transport::Endpoint;

use super::pace::Pace;
use crate::args;

const EXAMPLES: &str = "\
An endpoint is a drafting listener: the newest connection wins, so a replay displaces a live client.
A failed round that an injected fault explains is no failure of the replay; any other one is.

Examples:
  dspark replay --demo
  dspark replay round.trace --endpoint tcp://127.0.0.1:18620
  zstd -dc round.trace.zst | dspark replay - --pace max --json
  dspark replay round.trace --fault close=0.01 --fault delay=60ms@0.05 --seed 7";

/// Arguments of `dspark replay`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    /// Trace file; '-' reads stdin
    #[arg(required_unless_present = "demo", conflicts_with = "demo")]
    pub(crate) trace: Option<PathBuf>,
    /// Replay a built-in synthetic trace that matches 'dspark serve --demo'; without --endpoint, against a
    /// demo worker started for it
    #[arg(long)]
    pub(crate) demo: bool,
    /// Drafting endpoint (tcp://HOST:PORT?bind=ADDR) [default: tcp://127.0.0.1:18620]
    #[arg(short, long, value_name = "URL", env = "DSPARK_ENDPOINT", hide_env_values = true)]
    pub(crate) endpoint: Option<Endpoint>,

    /// Send rounds as recorded, as fast as replies come, or at a fixed rate per second
    #[arg(
        long,
        value_name = "recorded|max|RATE",
        default_value = "recorded",
        help_heading = "Load"
    )]
    pub(crate) pace: Pace,
    /// Go on while a request is in flight, as the engine's asynchronous proxy does: a late reply makes the
    /// next round late instead of moving the schedule
    #[arg(long = "async", env = "VLLM_DSPARK_REMOTE_ASYNC", hide_env_values = true,
        value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue,
        help_heading = "Load")]
    pub(crate) asynchronous: bool,
    /// Stop after N rounds
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub(crate) rounds: Option<u64>,
    /// Leave the first N rounds out of the latencies
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Load")]
    pub(crate) warmup: u64,
    /// Ask for draft margins (step flag WANT_MARGIN)
    #[arg(long, help_heading = "Load")]
    pub(crate) margins: bool,
    /// Write requests, replies and local drafts to a new trace
    #[arg(short, long, value_name = "FILE", help_heading = "Load")]
    pub(crate) output: Option<PathBuf>,
    /// Write one line per round to FILE, which ends in .csv or .jsonl
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    pub(crate) round_log: Option<PathBuf>,

    /// What a failed round does
    #[arg(
        long,
        env = "VLLM_DSPARK_REMOTE_POLICY",
        hide_env_values = true,
        default_value = "capacity",
        help_heading = "Rank 0"
    )]
    pub(crate) policy: Policy,
    /// Policy capacity: go on with zero drafts, or end the replay
    #[arg(
        long,
        env = "VLLM_DSPARK_REMOTE_ON_FAIL",
        hide_env_values = true,
        default_value = "zero",
        help_heading = "Rank 0"
    )]
    pub(crate) on_fail: OnFail,
    /// Policy shadow: whose drafts the engine uses
    #[arg(
        long,
        env = "VLLM_DSPARK_REMOTE_SHADOW_USE",
        hide_env_values = true,
        default_value = "local",
        help_heading = "Rank 0"
    )]
    pub(crate) shadow_use: Side,
    /// Local drafter of policies resilience and shadow: a checkpoint directory, or the drafting endpoint of
    /// a second worker [default: the demo's checkpoint]
    #[arg(long, value_name = "DIR|URL", help_heading = "Rank 0")]
    pub(crate) local: Option<String>,
    /// Deadline of one round
    #[arg(long, value_name = "TIME", env = "VLLM_DSPARK_REMOTE_TIMEOUT_MS", hide_env_values = true,
        value_parser = args::positive_duration, help_heading = "Rank 0",
        default_value = "50ms", default_value_if("demo", "true", "2s"))]
    pub(crate) timeout: Duration,
    /// Failed attempts in a row that open the circuit breaker; 0 turns it off
    #[arg(long, value_name = "N", env = "VLLM_DSPARK_REMOTE_TRIP", hide_env_values = true,
        default_value_t = TRIP, help_heading = "Rank 0")]
    pub(crate) trip: u32,
    /// Rounds the breaker stays open
    #[arg(long, value_name = "N", env = "VLLM_DSPARK_REMOTE_COOLDOWN", hide_env_values = true,
        default_value_t = COOLDOWN, help_heading = "Rank 0")]
    pub(crate) cooldown: u64,
    /// First pause before a reconnect, in engine time; it doubles up to 30 s. 0 reconnects at once
    #[arg(long, value_name = "TIME", value_parser = args::duration, default_value = "1s",
        help_heading = "Rank 0")]
    pub(crate) backoff: Duration,

    /// Inject a fault with a probability per round: close=P, drop=P, delay=TIME@P, garbage=P, truncate=P,
    /// stale=P, duplicate=P, half-close=P
    #[arg(long, value_name = "FAULT", help_heading = "Faults")]
    pub(crate) fault: Vec<FaultSpec>,
    /// Seed of the fault schedule; the same seed repeats the same faults
    #[arg(long, default_value_t = 0, help_heading = "Faults")]
    pub(crate) seed: u64,
    /// Send every window again at these rounds (1 is the first)
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = "Faults")]
    pub(crate) resync_at: Vec<u64>,
    /// Drop the connection before these rounds
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = "Faults")]
    pub(crate) reconnect_at: Vec<u64>,
    /// Shell command that restarts the worker, run before the rounds of --restart-at
    #[arg(long, value_name = "CMD", requires = "restart_at", help_heading = "Faults")]
    pub(crate) worker_restart: Option<String>,
    /// Rounds before which --worker-restart is run
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        requires = "worker_restart",
        help_heading = "Faults"
    )]
    pub(crate) restart_at: Vec<u64>,
    /// Exit with 0 even if rounds failed
    #[arg(long, help_heading = "Faults")]
    pub(crate) allow_failures: bool,

    /// Compare the drafts with the replies in this trace instead of those in TRACE
    #[arg(long, value_name = "FILE", help_heading = "Checks")]
    pub(crate) expect: Option<PathBuf>,
    /// Exit with 1 if a smaller share of comparable positions agrees
    #[arg(long, value_name = "FRACTION", value_parser = args::fraction, help_heading = "Checks")]
    pub(crate) min_agreement: Option<f64>,
    /// Count a mismatch with a margin up to LOGITS as a near-tie, not as a disagreement
    #[arg(long, value_name = "LOGITS", default_value_t = 0.0, help_heading = "Checks")]
    pub(crate) near_tie: f32,
    /// At the end draft every live slot twice, over the worker's own windows and over windows sent anew, and
    /// compare: on by itself when faults are injected
    #[arg(long, help_heading = "Checks")]
    pub(crate) verify: bool,
}

impl ReplayArgs {
    /// Whether the final drafts are verified.
    pub(crate) fn verifies(&self) -> bool {
        self.verify
            || !(self.fault.is_empty()
                && self.resync_at.is_empty()
                && self.reconnect_at.is_empty()
                && self.restart_at.is_empty())
    }
}

/// What a failed round does (contract §10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Zero drafts
    Capacity,
    /// A local drafter takes the round
    Resilience,
    /// Both draft every round and are compared
    Shadow,
}

/// Policy capacity on a failed round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFail {
    /// Zero drafts
    Zero,
    /// The replay ends
    Raise,
}

/// Whose drafts are used under policy shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// The local drafter's
    Local,
    /// The worker's
    Remote,
}
