//! `dspark serve`: the worker, until SIGINT or SIGTERM.

use std::path::PathBuf;

use clap::Args;
use dspark::checkpoint::Checkpoint;
use dspark::protocol::HelloRequest;
use dspark::trace::TraceHeader;
use dspark::transport::{Endpoint, ListenError, Listener, Scheme};
use dspark::worker::recorder::Recorder;
use dspark::worker::serve::{Running, ServeError, ServeOptions};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{self, CONTROL, ComputeArgs, DRAFTING, ModelArgs};
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::Output;
use crate::worker::{open_checkpoint, start_worker};

const EXAMPLES: &str = "\
A drafting listener serves one client, and the newest connection wins: point tools at the control
listener, never at the drafting port of a live engine.

Examples:
  dspark serve --demo
  dspark serve --checkpoint /data/dspark/pack --listen tcp://10.202.28.1:18620
  DSPARK_CHECKPOINT=/data/dspark/pack dspark serve --record round.trace";

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
    /// Worker name sent in HELLO replies (at most 40 ASCII bytes)
    #[arg(long, default_value = "dspark", help_heading = "Listeners", value_parser = worker_name)]
    name: String,
    /// Append every request and reply to a new trace file for 'dspark replay'
    #[arg(long, value_name = "FILE", help_heading = "Recording")]
    record: Option<PathBuf>,
    /// Stop recording after this many bytes
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = args::size,
        help_heading = "Recording")]
    record_limit: u64,
}

/// `--control`: a URL or `off`.
#[derive(Clone, Debug)]
enum ControlListen {
    Off,
    At(Endpoint),
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
pub(crate) fn run(args: ServeArgs, output: &Output) -> Outcome {
    // Ports first: a second instance should say so before it spends a minute on hashing.
    let listeners = args.listen.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let control = match &args.control {
        ControlListen::Off => None,
        ControlListen::At(endpoint) => Some(listen(endpoint)?),
    };
    let checkpoint = open_checkpoint(&args.model, output)?;
    let recorder = args.record.as_ref().map(|path| record(&args, path, &checkpoint)).transpose()?;
    let about = About::of(&checkpoint);
    let options = ServeOptions {
        listeners,
        control,
        name: args.name.clone(),
        checkpoint: about.origin.clone(),
        identities: [about.drafter.0, about.markov.0],
        recorder,
    };
    let running = start_worker(checkpoint, &args.compute, options).inspect_err(|_| {
        // Created above and empty; the next start would be refused it.
        if let Some(path) = &args.record {
            let _ = std::fs::remove_file(path);
        }
    })?;
    // Before anybody hears that the worker is ready, and may end it.
    let signals = Signals::listen().or_exit(Code::Failed)?;
    if let Err(error) = about.print(&running, output) {
        tracing::warn!(%error, "nobody reads the start-up lines");
    }
    wait(running, signals)
}

fn listen(endpoint: &Endpoint) -> Result<Listener, Failure> {
    if endpoint.scheme != Scheme::Tcp {
        let scheme = endpoint.scheme.name();
        return Err(Failure::new(Code::Backend, format!("{scheme}:// is not in this build"))
            .hint("listen on tcp://ADDRESS:PORT"));
    }
    let address = endpoint.listen_address().or_exit(Code::Usage)?;
    if !address.ip().to_canonical().is_loopback() {
        tracing::warn!(
            %endpoint,
            "the port has no authentication: whoever reaches it can displace the client"
        );
    }
    Listener::bind(address).map_err(|error| match error {
        ListenError::Wildcard(_) | ListenError::NotUnicast(_) => Failure::new(Code::Usage, error),
        ListenError::InUse(_) => Failure::new(Code::Unreachable, error)
            .hint("another worker may be running; ask it with 'dspark ping'"),
        ListenError::Io { .. } => Failure::new(Code::Unreachable, error),
    })
}

fn record(
    args: &ServeArgs,
    path: &std::path::Path,
    checkpoint: &Checkpoint,
) -> Result<Recorder, Failure> {
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
        let backend = running.stats.lock().facts().backend.clone();
        if output.json() {
            let doc = json!({
                "schema": 1, "version": env!("CARGO_PKG_VERSION"), "checkpoint": self.origin,
                "drafter_identity": self.drafter.to_string(),
                "markov_identity": self.markov.to_string(),
                "drafting": drafting, "control": control, "backend": backend.backend,
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
        output.line(format_args!("drafting on {}, control {control}, ready", drafting.join(", ")))
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
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let inside = runtime.enter();
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        drop(inside);
        Ok(Self { runtime, interrupt, terminate })
    }

    /// Waits for one of them; false when `other` comes first.
    fn wait(&mut self, other: impl Future<Output = ()>) -> bool {
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.interrupt.recv() => true,
                _ = self.terminate.recv() => true,
                () = other => false,
            }
        })
    }
}

/// Waits for a signal; a second one ends the process at once.
fn wait(running: Running, mut signals: Signals) -> Outcome {
    if !signals.wait(running.ended()) {
        return Err(Failure::new(Code::Failed, ServeError::Died));
    }
    tracing::info!("stopping after the frame in hand");
    std::thread::spawn(move || {
        if signals.wait(std::future::pending()) {
            std::process::exit(Code::Interrupted as i32);
        }
    });
    running.stop().or_exit(Code::Failed)
}
