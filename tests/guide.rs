//! The shell blocks of the deployment guide, run as written: a checkpoint, a worker from the environment file, and
//! every command an operator types, on loopback.
//!
//! A block's mark says how it is run: ```` ```sh ```` to its end, ```` ```sh running ```` in the background until the test
//! ends, ```` ```sh host-only ```` not at all; the output of the test names those.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::fixture;
use common::process::is_here;

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// How a block is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    ToItsEnd,
    Running,
    HostOnly,
}

/// The shell blocks of a guide, in order.
fn blocks(text: &str) -> Vec<(Mark, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mark = match line {
            "```sh" => Mark::ToItsEnd,
            "```sh running" => Mark::Running,
            "```sh host-only" => Mark::HostOnly,
            line => {
                assert!(!line.starts_with("```sh"), "unknown mark: {line}");
                continue;
            }
        };
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push((mark, block.join("\n")));
    }
    blocks
}

/// A directory that stands for the host.
struct Sandbox {
    folder: tempfile::TempDir,
    /// What the guide says, and what stands in for it here.
    substitutions: Vec<(&'static str, String)>,
}

impl Sandbox {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().display().to_string();
        // Held together, so that they differ.
        let taken: Vec<_> = (0..5).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let port = |index: usize| taken[index].local_addr().unwrap().port().to_string();
        let substitutions = vec![
            // Both ends of the link.
            ("10.202.28.1", "127.0.0.1".into()),
            ("10.202.28.2", "127.0.0.1".into()),
            // Ports that may be in use here.
            ("18620", port(0)),
            ("18629", port(1)),
            ("18630", port(2)),
            ("18720", port(3)),
            ("18729", port(4)),
            // Directories of the host.
            ("/usr/local", format!("{root}/usr")),
            ("/etc/", format!("{root}/etc/")),
            ("/var/lib/", format!("{root}/var/lib/")),
            ("/data/", format!("{root}/data/")),
            // A busy machine answers late, and that is not what is tested.
            ("--crit 5ms", "--crit 20s".into()),
        ];
        let sandbox = Self { folder, substitutions };
        sandbox.fill();
        sandbox
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// What the guide takes for granted.
    fn fill(&self) {
        for folder in [
            "usr/bin",
            "usr/share",
            "etc/bash_completion.d",
            "etc/systemd/system",
            "var/lib/node_exporter",
            "work/packaging",
            "data/dspark",
        ] {
            std::fs::create_dir_all(self.path(folder)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_dspark"), self.path("work/dspark")).unwrap();
        symlink(fixture("tiny"), self.path("data/dspark/pack")).unwrap();
        for name in ["dspark.env.example", "dspark@.service"] {
            let text = std::fs::read_to_string(project("packaging").join(name)).unwrap();
            std::fs::write(self.path("work/packaging").join(name), self.here(&text)).unwrap();
        }
        let engine = self.path("usr/bin/start-engine");
        std::fs::write(&engine, "#!/bin/sh\necho the engine starts\n").unwrap();
        std::fs::set_permissions(&engine, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A text of the guide as it is run here.
    fn here(&self, text: &str) -> String {
        let replace = |text: String, (said, here): &(&str, String)| text.replace(said, here);
        self.substitutions.iter().fold(text.to_owned(), replace)
    }

    fn shell(&self, block: &str) -> Command {
        let mut command = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|n| n.starts_with("DSPARK_") || n.starts_with("VLLM_")) {
                command.env_remove(name);
            }
        }
        let path = format!("{}:{}", self.path("usr/bin").display(), std::env::var("PATH").unwrap());
        // The default of the tools is a fixed port, which may be in use here.
        let control = self.here("tcp://127.0.0.1:18629");
        command.env("PATH", path).env("DSPARK_CONTROL", control).current_dir(self.path("work"));
        command.args(["--norc", "-euo", "pipefail", "-c", &self.here(block)]).stdin(Stdio::null());
        command
    }
}

/// A block in the background; ended with everything it started when dropped.
struct Background {
    child: Child,
    block: String,
    log: PathBuf,
}

impl Drop for Background {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        // Already gone is as good.
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        let _ = self.child.wait();
    }
}

/// A program that a block calls and this machine has not.
fn missing(block: &str) -> Option<&'static str> {
    let called = |tool: &&str| block.split_whitespace().any(|word| word == *tool);
    ["jq", "curl"].into_iter().filter(called).find(|tool| !is_here(tool))
}

#[test]
fn the_deployment_guide_runs_as_written() {
    let text = std::fs::read_to_string(project("docs/deployment.md")).unwrap();
    let sandbox = Sandbox::new();
    let mut running: Vec<Background> = Vec::new();
    let mut commands = 0;
    for (mark, block) in blocks(&text) {
        let reason = match missing(&block) {
            _ if mark == Mark::HostOnly => Some("host-only".to_owned()),
            tool => tool.map(|tool| format!("there is no {tool} here")),
        };
        if let Some(reason) = reason {
            println!("not run, {reason}:\n{block}\n");
            continue;
        }
        commands += block.lines().count();
        let mut shell = sandbox.shell(&block);
        if mark == Mark::Running {
            let log = sandbox.path(&format!("{}.log", running.len()));
            shell.process_group(0).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
            running.push(Background { child: shell.spawn().unwrap(), block, log });
            continue;
        }
        let output = shell.output().unwrap();
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{}\n{block}\n{out}\n{err}", output.status);
        assert!(!err.contains("panicked") && !err.contains("nothing reads it"), "{block}\n{err}");
    }
    for background in &mut running {
        let ended = background.child.try_wait().unwrap();
        let log = std::fs::read_to_string(&background.log).unwrap();
        assert!(ended.is_none(), "ended by itself: {ended:?}\n{}\n{log}", background.block);
    }
    assert!(commands >= 10 && running.len() >= 3, "{commands} commands");
    let made = ["usr/share/man/man1/dspark-serve.1", "var/lib/node_exporter/dspark.prom"];
    for file in made.iter().chain(&["etc/bash_completion.d/dspark", "work/round.trace"]) {
        assert!(sandbox.path(file).metadata().is_ok_and(|file| file.len() > 100), "{file}");
    }
    println!("{commands} commands ran");
}
