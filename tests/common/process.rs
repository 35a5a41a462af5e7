//! A `dspark serve` process on ports of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use dspark::transport::Endpoint;
use serde_json::Value;

/// The built program, deaf to the settings of whoever runs the tests.
pub(crate) fn dspark(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dspark"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|n| n.starts_with("DSPARK_") || n.starts_with("VLLM_")) {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Whether a program of this name is found here.
pub(crate) fn is_here(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// What a finished command said.
pub(crate) struct Said {
    /// Exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// Longest run of a command that should end at once. `ping --wait` in tests waits less.
const END: Duration = Duration::from_secs(40);

/// Runs the built program to its end. A command that does not end, a worker that should not have started,
/// is killed: its exit code is `None`.
pub(crate) fn run(arguments: &[&str]) -> Said {
    let mut command = dspark(arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run dspark");
    let (id, (ended, wait)) = (child.id().to_string(), channel::<()>());
    let guard = thread::spawn(move || {
        if wait.recv_timeout(END) == Err(RecvTimeoutError::Timeout) {
            // Ended meanwhile is as good.
            let _ = Command::new("kill").args(["-s", "KILL", &id]).status();
        }
    });
    let output = child.wait_with_output().expect("wait for dspark");
    drop(ended);
    guard.join().expect("the guard only waits");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program prints UTF-8");
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A worker process; killed when dropped.
pub(crate) struct Worker {
    child: Child,
    /// The start-up document it printed.
    pub(crate) ready: Value,
}

impl Worker {
    /// Starts `dspark serve` with these arguments on free loopback ports and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = dspark(&["serve", "--json", "-q", "--listen", "tcp://127.0.0.1:0"]);
        // What a hostile peer does is logged; a panic is printed all the same.
        command.env("DSPARK_LOG", "off");
        Self::launch(command.args(["--control", "tcp://127.0.0.1:0"]).args(arguments))
    }

    /// Runs a whole `dspark serve --json` command and waits until it is ready.
    pub(crate) fn launch(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start dspark serve");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("read the start-up line");
        let ready = serde_json::from_str(&line).expect("the start-up line is JSON");
        Self { child, ready }
    }

    /// Its standard error, where the command pipes it. Dropping it breaks the pipe.
    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("a pipe")
    }

    /// The first drafting listener.
    pub(crate) fn drafting(&self) -> Endpoint {
        self.url(&self.ready["drafting"][0])
    }

    /// The control listener.
    pub(crate) fn control(&self) -> Endpoint {
        self.url(&self.ready["control"])
    }

    /// Process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its own end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("wait for dspark serve")
    }

    /// Sends SIGTERM and waits: the worker must end with exit code 0.
    pub(crate) fn terminate(&mut self) {
        let status = self.signal("TERM");
        assert!(status.success(), "after SIGTERM: {status}");
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn signal(&mut self, name: &str) -> ExitStatus {
        let kill = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(kill.expect("run kill").success());
        self.child.wait().expect("wait for dspark serve")
    }

    fn url(&self, value: &Value) -> Endpoint {
        value.as_str().expect("a URL").parse().expect("a URL")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
