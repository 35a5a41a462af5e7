//! `dspark serve`: the worker, until SIGINT or SIGTERM.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use dspark::checkpoint::Checkpoint;
use dspark::protocol::HelloRequest;
use dspark::trace::TraceHeader;
use dspark::transport::{Endpoint, ListenError, Listener, PeerRule, Peers, Scheme};
use dspark::worker::recorder::Recorder;
use dspark::worker::serve::{Running, ServeError, ServeOptions};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{self, CONTROL, ComputeArgs, DRAFTING, ModelArgs};
use crate::check::{self, Setting};
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::Output;
use crate::service::{self, Ended};
use crate::sockets::Passed;
use crate::worker::{BackendChoice, open_source, start_worker};

const EXAMPLES: &str = "\
A drafting listener serves one client, and the newest connection wins: point tools at the control
listener, never at the drafting port of a live engine.

Examples:
  dspark serve --demo
  dspark serve --checkpoint /data/dspark/pack --listen tcp://10.202.28.1:18620
  dspark serve --checkpoint /data/dspark/pack --check
  DSPARK_CHECKPOINT=/data/dspark/pack dspark serve --record round.trace";

/// Between two attempts of `--bind-wait`.
const BIND_RETRY: Duration = Duration::from_millis(250);

/// Arguments of `dspark serve`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Drafting listener; repeat for more. One client each, the newest connection wins
    #[arg(long, value_name = "URL", env = "DSPARK_LISTEN", hide_env_values = true,
        default_value = DRAFTING, value_delimiter = ',', help_heading = "Listeners")]
    listen: Vec<Endpoint>,
    /// Listener for PING and STATS that never disturbs the drafting session; 'off' disables it
    #[arg(long, value_name = "URL", env = "DSPARK_CONTROL", hide_env_values = true,
        default_value = CONTROL, help_heading = "Listeners", value_parser = control_url)]
    control: ControlListen,
    /// Serve /metrics, /healthz and /readyz over HTTP on this address; 'off' does not
    #[arg(long, value_name = "ADDR:PORT", env = "DSPARK_METRICS", hide_env_values = true,
        default_value = "off", help_heading = "Listeners", value_parser = metrics_address)]
    metrics: MetricsListen,
    /// Close drafting connections from elsewhere at accept; repeat for more [default: all may connect]
    #[arg(
        long,
        value_name = "ADDR|CIDR",
        env = "DSPARK_ALLOW_PEER",
        hide_env_values = true,
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    allow_peer: Vec<PeerRule>,
    /// Wait this long for a listener's address to appear on an interface
    #[arg(long, value_name = "TIME", env = "DSPARK_BIND_WAIT", hide_env_values = true,
        default_value = "0s", value_parser = args::duration, help_heading = "Listeners")]
    bind_wait: Duration,
    /// Worker name sent in HELLO replies (at most 40 ASCII bytes)
    #[arg(long, env = "DSPARK_NAME", hide_env_values = true, default_value = "dspark", help_heading = "Listeners", value_parser = worker_name)]
    name: String,
    /// Append every request and reply to a new trace file for 'dspark replay'; a folder gets one named
    /// after the time of each start, a file that exists is refused
    #[arg(
        long,
        value_name = "FILE|DIR",
        env = "DSPARK_RECORD",
        hide_env_values = true,
        help_heading = "Recording"
    )]
    record: Option<PathBuf>,
    /// Stop recording after this many bytes
    #[arg(long, value_name = "SIZE", env = "DSPARK_RECORD_LIMIT", hide_env_values = true,
        default_value = "1GiB", value_parser = args::size, help_heading = "Recording")]
    record_limit: u64,
    /// Exit with 70 when drafting has been stuck for this long, for a supervisor to restart
    #[arg(long, value_name = "TIME", env = "DSPARK_STALL_LIMIT", hide_env_values = true,
        default_value = "60s", value_parser = args::positive_duration, help_heading = "Service")]
    stall_limit: Duration,
    /// Use the GPU whenever it was idle for TIME, so that its clocks stay up; a STEP that comes meanwhile
    /// waits for one pass over no rows. 'off' lets it rest
    #[arg(long, value_name = "TIME", env = "DSPARK_KEEP_WARM", hide_env_values = true,
        default_value = "off", value_parser = keep_warm, help_heading = "Service")]
    keep_warm: KeepWarm,
    /// Load and verify everything, print modules, memory and the origin of every setting, and exit
    #[arg(long, help_heading = "Service")]
    check: bool,
}

/// `--control`: a URL or `off`.
#[derive(Clone, Debug)]
enum ControlListen {
    Off,
    At(Endpoint),
}

/// `--metrics`: an address or `off`.
#[derive(Clone, Copy, Debug)]
enum MetricsListen {
    Off,
    At(SocketAddr),
}

/// `--keep-warm`: a time or `off`.
#[derive(Clone, Copy, Debug)]
struct KeepWarm(Option<Duration>);

fn keep_warm(text: &str) -> Result<KeepWarm, String> {
    match text {
        "off" => Ok(KeepWarm(None)),
        time => args::positive_duration(time).map(|time| KeepWarm(Some(time))),
    }
}

fn metrics_address(text: &str) -> Result<MetricsListen, String> {
    match text {
        "off" => Ok(MetricsListen::Off),
        address => address
            .parse()
            .map(MetricsListen::At)
            .map_err(|_| "expected an IP address and a port, or 'off'".into()),
    }
}

fn control_url(text: &str) -> Result<ControlListen, String> {
    match text {
        "off" => Ok(ControlListen::Off),
        url => url.parse().map(ControlListen::At).map_err(|e| format!("{e}")),
    }
}

fn worker_name(text: &str) -> Result<String, String> {
    let printable = text.bytes().all(|b| (b' '..=b'~').contains(&b));
    if printable && text.len() <= 40 {
        Ok(text.to_owned())
    } else {
        Err("a name is at most 40 printable ASCII bytes".into())
    }
}

/// Runs the worker.
pub(crate) fn run(args: ServeArgs, settings: &[Setting], output: &Output) -> Outcome {
    // First what is known at once: no GPU, no port. Hashing can take a minute.
    let choice = BackendChoice::of(&args.compute)?;
    if args.check {
        check_addresses(&args)?;
        let source = open_source(&args.model, output)?;
        return check::run(source, choice, args.listen.len(), settings, output);
    }
    let Passed { drafting: mut listeners, control, metrics } = Passed::take()?;
    let deadline = Instant::now() + args.bind_wait;
    if listeners.is_empty() {
        let bound = args.listen.iter().map(|url| listen(url, deadline));
        listeners = bound.collect::<Result<Vec<_>, _>>()?;
    }
    let control = match (control, &args.control) {
        (Some(passed), _) => Some(passed),
        (None, ControlListen::Off) => None,
        (None, ControlListen::At(endpoint)) => Some(listen(endpoint, deadline)?),
    };
    let metrics = match (metrics, args.metrics) {
        (Some(passed), _) => Some(passed),
        (None, MetricsListen::Off) => None,
        (None, MetricsListen::At(address)) => Some(bind(address, deadline)?),
    };
    if args.allow_peer.is_empty() {
        warn_of_strangers(&listeners);
    }
    service::status("opening the checkpoint");
    let source = open_source(&args.model, output)?;
    let checkpoint = &source.checkpoint;
    let trace = args.record.as_deref().map(trace_path);
    let recorder = trace.as_ref().map(|path| record(&args, path, checkpoint)).transpose()?;
    service::status("loading the drafter and verifying its files");
    let about = About::of(checkpoint);
    let options = ServeOptions {
        listeners,
        control,
        metrics,
        peers: Peers::new(args.allow_peer.clone()),
        name: args.name.clone(),
        checkpoint: about.origin.clone(),
        identities: [about.drafter.0, about.markov.0],
        recorder,
        keep_warm: args.keep_warm.0,
    };
    let running = start_worker(source, choice, options).inspect_err(|_| {
        // Created above and empty; the next start would be refused it.
        if let Some(path) = &trace {
            let _ = std::fs::remove_file(path);
        }
    })?;
    if args.keep_warm.0.is_some() && running.stats.lock().facts().backend.backend == "cpu" {
        tracing::warn!("--keep-warm has no use on the CPU");
    }
    // Before anybody hears that the worker is ready, and may end it.
    let signals = Signals::listen().or_exit(Code::Failed)?;
    if let Err(error) = about.print(&running, output) {
        tracing::warn!(%error, "nobody reads the start-up lines");
    }
    service::ready();
    wait(running, signals, args.stall_limit)
}

fn address(endpoint: &Endpoint) -> Result<SocketAddr, Failure> {
    if endpoint.scheme != Scheme::Tcp {
        let scheme = endpoint.scheme.name();
        return Err(Failure::new(Code::Backend, format!("{scheme}:// is not in this build"))
            .hint("listen on tcp://ADDRESS:PORT"));
    }
    endpoint.listen_address().or_exit(Code::Usage)
}

fn listen(endpoint: &Endpoint, deadline: Instant) -> Result<Listener, Failure> {
    bind(address(endpoint)?, deadline)
}

/// Binds; an address that no interface has yet is waited for until `deadline`.
fn bind(address: SocketAddr, deadline: Instant) -> Result<Listener, Failure> {
    let mut waiting = false;
    let error = loop {
        match Listener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.is_not_here_yet() && Instant::now() < deadline => {
                if !std::mem::replace(&mut waiting, true) {
                    tracing::warn!(%address, "no interface has this address yet; waiting for it");
                    service::status(&format!("waiting for address {address}"));
                }
                std::thread::sleep(BIND_RETRY);
            }
            Err(error) => break error,
        }
    };
    let code = match &error {
        ListenError::Wildcard(_) | ListenError::NotUnicast(_) => Code::Usage,
        ListenError::InUse(_) | ListenError::Io { .. } => Code::Unreachable,
    };
    let not_here = error.is_not_here_yet();
    let in_use = matches!(error, ListenError::InUse(_));
    let failure = Failure::new(code, error);
    Err(if in_use {
        failure.hint("another worker may be running; ask it with 'dspark ping'")
    } else if not_here {
        failure.hint("no interface has this address; --bind-wait TIME waits for a link to come up")
    } else {
        failure
    })
}

/// Every address rule, without a socket.
fn check_addresses(args: &ServeArgs) -> Outcome {
    let control = match &args.control {
        ControlListen::Off => None,
        ControlListen::At(endpoint) => Some(endpoint),
    };
    let endpoints = args.listen.iter().chain(control).map(address);
    let mut addresses = endpoints.collect::<Result<Vec<_>, _>>()?;
    if let MetricsListen::At(address) = args.metrics {
        addresses.push(address);
    }
    addresses.into_iter().try_for_each(Listener::check).or_exit(Code::Usage)
}

/// Says once for each reachable drafting listener without an allow-list what anybody can do to it.
fn warn_of_strangers(listeners: &[Listener]) {
    let addresses = listeners.iter().map(Listener::local);
    for address in addresses.filter(|a| !a.ip().to_canonical().is_loopback()) {
        tracing::warn!(
            endpoint = %Endpoint::tcp(address),
            "the port has no authentication: whoever reaches it can displace the client; \
             --allow-peer ADDR closes others"
        );
    }
}

/// The file to record to: a service that is started again must not be refused its file of the last time.
fn trace_path(path: &Path) -> PathBuf {
    if !path.is_dir() {
        return path.to_owned();
    }
    let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    path.join(format!("{}.trace", now.replace(':', "")))
}

fn record(args: &ServeArgs, path: &Path, checkpoint: &Checkpoint) -> Result<Recorder, Failure> {
    let geometry = checkpoint.config.geometry(args.compute.max_slots).or_exit(Code::BadInput)?;
    let ids = &checkpoint.identities;
    let hello = HelloRequest::new(&geometry, ids.drafter.0, ids.markov.0, "");
    let header = TraceHeader::now(hello, "");
    Recorder::create(path, &header, args.record_limit).map_err(|error| {
        Failure::new(Code::BadInput, format!("{}: cannot be created: {error}", path.display()))
    })
}

/// What the start-up lines say.
struct About {
    origin: String,
    drafter: dspark::digest::Sha256Digest,
    markov: dspark::digest::Sha256Digest,
    shape: String,
}

impl About {
    fn of(checkpoint: &Checkpoint) -> Self {
        let config = &checkpoint.config;
        Self {
            origin: checkpoint.origin.clone(),
            drafter: checkpoint.identities.drafter,
            markov: checkpoint.identities.markov,
            shape: format!(
                "hidden {}, {} layers, vocabulary {}",
                config.hidden, config.stages, config.vocab_size
            ),
        }
    }

    fn print(&self, running: &Running, output: &Output) -> std::io::Result<()> {
        let drafting: Vec<_> =
            running.drafting.iter().map(|a| Endpoint::tcp(*a).to_string()).collect();
        let control = running.control.map(|a| Endpoint::tcp(a).to_string());
        let metrics = running.metrics.map(|a| format!("http://{a}/metrics"));
        let backend = running.stats.lock().facts().backend.clone();
        if output.json() {
            let doc = json!({
                "schema": 1, "version": env!("CARGO_PKG_VERSION"), "checkpoint": self.origin,
                "drafter_identity": self.drafter.to_string(),
                "markov_identity": self.markov.to_string(),
                "drafting": drafting, "control": control, "metrics": metrics, "backend": backend.backend,
                "precision": backend.precision, "logits": backend.logits, "kv": backend.kv,
            });
            return output.document(&doc, true);
        }
        let version = env!("CARGO_PKG_VERSION");
        output.line(format_args!(
            "dspark {version}, checkpoint {} ({}), backend {} ({}), precision {}, logits {}",
            self.origin,
            self.shape,
            backend.backend,
            backend.device,
            backend.precision,
            backend.logits,
        ))?;
        output.line(format_args!("drafter identity {}", self.drafter))?;
        output.line(format_args!("Markov identity  {}", self.markov))?;
        let control = control.map_or("off".into(), |c| c);
        let metrics = metrics.map_or(String::new(), |url| format!(", metrics {url}"));
        let drafting = drafting.join(", ");
        output.line(format_args!("drafting on {drafting}, control {control}{metrics}, ready"))
    }
}

/// SIGINT and SIGTERM, from now on.
struct Signals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let inside = runtime.enter();
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        drop(inside);
        Ok(Self { runtime, interrupt, terminate })
    }

    /// Waits for one of them; `None` when a signal comes before `other`.
    fn wait<T>(&mut self, other: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.interrupt.recv() => None,
                _ = self.terminate.recv() => None,
                other = other => Some(other),
            }
        })
    }
}

/// Waits for a signal; a second one ends the process at once.
fn wait(running: Running, mut signals: Signals, stall_limit: Duration) -> Outcome {
    match signals.wait(service::watch(&running, stall_limit)) {
        None => {}
        Some(Ended::Died) => return Err(Failure::new(Code::Failed, ServeError::Died)),
        Some(Ended::Stuck(age)) => {
            tracing::error!(seconds = age.as_secs(), "drafting is stuck; the worker gives up");
            // The drafting thread cannot be joined, so nothing is left to be tidied.
            std::process::exit(Code::Failed as i32);
        }
    }
    tracing::info!("stopping after the frame in hand");
    service::stopping();
    std::thread::spawn(move || {
        if signals.wait(std::future::pending::<()>()).is_none() {
            std::process::exit(Code::Interrupted as i32);
        }
    });
    running.stop().or_exit(Code::Failed)
}
