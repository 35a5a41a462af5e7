//! A `dspark serve` process on ports of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};

use dspark::transport::Endpoint;
use serde_json::Value;

/// A worker process; killed when dropped.
pub(crate) struct Worker {
    child: Child,
    /// The start-up document it printed.
    pub(crate) ready: Value,
}

impl Worker {
    /// Starts `dspark serve` with these arguments on free loopback ports and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_dspark"))
            .args(["serve", "--json", "-q", "--listen", "tcp://127.0.0.1:0"])
            .args(["--control", "tcp://127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("start dspark serve");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("read the start-up line");
        let ready = serde_json::from_str(&line).expect("the start-up line is JSON");
        Self { child, ready }
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
