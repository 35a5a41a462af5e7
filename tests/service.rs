//! `serve` as a service: what it tells a supervisor, what `--check` says, which settings it refuses.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::process::{Worker, dspark, run};
use dspark::protocol::Op;
use dspark::protocol::control::empty_request;
use dspark::transport::{Caller, Endpoint};
use serde_json::Value;

fn project(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// When a test gives up.
fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Runs the program with these variables.
fn run_with(variables: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String, String) {
    let output =
        dspark(arguments).envs(variables.iter().copied()).output().expect("run the program");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A supervisor's end of `sd_notify`.
struct Supervisor {
    socket: UnixDatagram,
    path: String,
    _folder: tempfile::TempDir,
}

impl Supervisor {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, path: path.to_str().unwrap().to_owned(), _folder: folder }
    }

    fn launch(&self, arguments: &[&str]) -> Worker {
        let listen = ["serve", "--json", "-q", "--demo", "--listen", "tcp://127.0.0.1:0"];
        let mut command: Command = dspark(&listen);
        command.args(["--control", "tcp://127.0.0.1:0"]).args(arguments);
        command.env("NOTIFY_SOCKET", &self.path).env("WATCHDOG_USEC", "2000000");
        Worker::launch(&mut command)
    }

    /// Assignments of the next datagram.
    fn next(&self) -> Vec<String> {
        let mut buffer = [0; 4096];
        let n = self.socket.recv(&mut buffer).expect("the worker speaks");
        String::from_utf8_lossy(&buffer[..n]).lines().map(str::to_owned).collect()
    }

    /// Datagrams up to the first with this assignment.
    fn until(&self, assignment: &str) -> Vec<String> {
        let mut all = Vec::new();
        while !all.iter().any(|said| said == assignment) {
            all.extend(self.next());
        }
        all
    }
}

#[test]
fn a_supervisor_hears_loading_ready_the_watchdog_and_stopping_in_this_order() {
    let supervisor = Supervisor::new();
    let mut worker = supervisor.launch(&[]);
    let before = supervisor.until("READY=1");
    assert_eq!(before[0], "STATUS=opening the checkpoint");
    assert!(
        before.contains(&"STATUS=loading the drafter and verifying its files".to_owned()),
        "{before:?}"
    );
    assert!(!before.contains(&"WATCHDOG=1".to_owned()), "{before:?}");
    supervisor.until("WATCHDOG=1");
    supervisor.until("WATCHDOG=1");
    worker.terminate();
    supervisor.until("STOPPING=1");
}

#[test]
fn check_says_module_memory_and_the_origin_of_every_setting_and_listens_nowhere() {
    // The port is taken, and it does not matter.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("tcp://{}", taken.local_addr().unwrap());
    let variables = [("DSPARK_MAX_SLOTS", "3"), ("DSPARK_LOG", "warn")];
    let arguments = ["serve", "--demo", "--check", "--listen", &listen];
    let (code, out, err) = run_with(&variables, &[&arguments[..], &["--json"]].concat());
    assert_eq!(code, Some(0), "{err}");
    let doc: Value = serde_json::from_str(&out).unwrap();
    let setting = |name: &str| {
        let all = doc["settings"].as_array().unwrap();
        let found = all.iter().find(|s| s["setting"] == name).unwrap_or_else(|| panic!("{name}"));
        (found["value"].clone(), found["origin"].as_str().unwrap().to_owned())
    };
    assert_eq!(setting("--listen"), (listen.clone().into(), "flag".into()));
    assert_eq!(setting("--max-slots"), ("3".into(), "DSPARK_MAX_SLOTS".into()));
    assert_eq!(setting("--control"), ("tcp://127.0.0.1:18629".into(), "default".into()));
    assert_eq!(setting("--markov"), (Value::Null, "not set".into()));
    assert_eq!(setting("DSPARK_LOG"), ("warn".into(), "DSPARK_LOG".into()));
    let modules = doc["modules"].as_array().unwrap();
    let exl3 = modules.iter().find(|m| m["form"] == "exl3").unwrap();
    assert!(exl3["k"].is_string() && exl3["codebook"].is_string(), "{exl3}");
    assert!(modules.iter().all(|m| m["file"].is_string() && m["shape"].is_array()));
    // 3 layers, 3 slots, 128 rows of one head, f32.
    let kv = doc["memory"]["window_kv_bytes"].as_u64().unwrap();
    assert!(kv > 0 && kv.is_multiple_of(3 * 3 * 128 * 4), "{kv}");
    assert_eq!(doc["memory"]["frame_buffers_bytes"], 16 << 20);

    let (code, out, err) = run_with(&[], &arguments);
    assert_eq!(code, Some(0), "{err}");
    for text in ["module", "window KV", "setting", "--stall-limit", "nothing was listened on"] {
        assert!(out.contains(text), "no {text} in\n{out}");
    }
    let (code, _, err) =
        run_with(&[], &["serve", "--demo", "--check", "--listen", "tcp://0.0.0.0:1"]);
    assert_eq!(code, Some(2), "{err}");
}

#[test]
fn a_misspelt_variable_is_warned_about_and_a_carriage_return_refused_by_name() {
    let check = ["serve", "--demo", "--check"];
    let (code, _, err) = run_with(&[("DSPARK_LISTN", "tcp://127.0.0.1:1")], &check);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("DSPARK_LISTN is set, but nothing reads it"), "{err}");
    for (name, value) in [("DSPARK_MAX_SLOTS", "4\r"), ("DSPARK_CHECKPOINT", "/data/pack\r")] {
        let (code, _, err) = run_with(&[(name, value)], &check);
        assert_eq!(code, Some(2), "{err}");
        let said = format!("error: {name} ends in a carriage return: ");
        assert!(err.starts_with(&said) && !err.contains('\r'), "{err:?}");
    }
    let (code, _, err) = run_with(&[("DSPARK_MAX_SLOTS", "4MB")], &check);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("'4MB' for '--max-slots <N>'"), "{err}");
}

#[test]
fn an_address_that_is_not_here_is_waited_for_and_then_exits_with_3() {
    // Documentation addresses belong to nobody (RFC 5737).
    let arguments =
        ["serve", "--demo", "--control", "off", "--listen", "tcp://192.0.2.1:18620", "--bind-wait"];
    let started = Instant::now();
    let said = run(&[&arguments[..], &["600ms"]].concat());
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(started.elapsed() >= Duration::from_millis(600));
    let waiting = said.err.matches("waiting for it").count();
    assert!(waiting == 1 && said.err.contains("no interface has this address"), "{}", said.err);
}

#[test]
fn a_stranger_is_closed_at_accept_and_displaces_nobody() {
    let worker = Worker::start(&["--demo", "--allow-peer", "127.0.0.2,192.0.2.0/24"]);
    let deadline = || Instant::now() + Duration::from_secs(10);
    let bound = |address: &str| -> Endpoint {
        format!("{}?bind={address}", worker.drafting()).parse().unwrap()
    };
    let ping = |caller: &mut Caller| {
        caller.call(&[&empty_request(Op::Ping, 1, 0)], deadline()).map(<[u8]>::len)
    };
    let mut friend = Caller::connect(&bound("127.0.0.2"), deadline()).unwrap();
    assert_eq!(ping(&mut friend).unwrap(), 32);
    for _ in 0..3 {
        let mut stranger = Caller::connect(&bound("127.0.0.3"), deadline()).unwrap();
        assert!(ping(&mut stranger).is_err());
    }
    assert_eq!(ping(&mut friend).unwrap(), 32, "the friend was not displaced");
    let said = run(&["stats", "--json", &worker.control().to_string()]);
    let stats: Value = serde_json::from_str(&said.out).unwrap();
    let link = &stats["link"];
    assert_eq!((&link["strangers"], &link["connections"]), (&3.into(), &1.into()), "{link}");
    let said = run(&["serve", "--demo", "--allow-peer", "spark-a"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
}

#[test]
fn tools_do_not_connect_to_the_drafting_port_unless_told_to() {
    for command in ["ping", "stats"] {
        let said = run(&[command, "tcp://127.0.0.1:18620"]);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains("drops the live client"), "{}", said.err);
        assert!(said.err.contains("--takeover"), "{}", said.err);
    }
}

#[test]
fn tools_know_a_drafting_listener_on_any_port_by_what_settings_and_workers_say() {
    let worker = Worker::start(&["--demo"]);
    let other = Worker::start(&["--demo"]);
    let (drafting, control) = (worker.drafting().to_string(), worker.control().to_string());
    let mut live = Caller::connect(&worker.drafting(), deadline()).unwrap();
    let mut ask = |seq| live.call(&[&empty_request(Op::Ping, seq, 0)], deadline()).is_ok();
    assert!(ask(1));
    let listen = format!("tcp://127.0.0.1:1,{drafting}");
    let named = drafting.replace("127.0.0.1", "localhost");
    // By the worker behind DSPARK_CONTROL, then by DSPARK_LISTEN, however the address is written.
    for (variable, value, url, source) in [
        ("DSPARK_CONTROL", &control, &drafting, format!("(the worker at {control} says so)")),
        ("DSPARK_LISTEN", &listen, &drafting, "(DSPARK_LISTEN of this environment)".to_owned()),
        ("DSPARK_LISTEN", &listen, &named, "(DSPARK_LISTEN of this environment)".to_owned()),
    ] {
        for command in ["ping", "stats", "top"] {
            let (code, out, err) = run_with(&[(variable, value)], &[command, url]);
            assert_eq!((code, out.as_str()), (Some(2), ""), "{command} {url}: {err}");
            let expected =
                format!("error: {url} is a drafting listener {source}: connecting drops");
            assert!(err.starts_with(&expected) && err.contains("--takeover"), "{err}");
        }
    }
    assert!(ask(2), "the live client is still there");
    // Another worker's control listener is asked as ever.
    let control = other.control().to_string();
    let (code, _, err) = run_with(&[("DSPARK_LISTEN", &listen)], &["stats", &control]);
    assert_eq!(code, Some(0), "{err}");
    // Who insists is let through, and the client is gone.
    let ping = ["ping", "--count", "1", "--takeover", &drafting];
    assert_eq!(run_with(&[("DSPARK_LISTEN", &listen)], &ping).0, Some(0));
    assert!(!ask(3));
}

#[test]
fn ping_thresholds_remark_or_fail_and_the_histogram_holds_every_reply() {
    let worker = Worker::start(&["--demo"]);
    let url = worker.control().to_string();
    let ping = |more: &[&str]| {
        let base = ["ping", "-c", "20", "-i", "0", "--json"];
        let said = run(&[&base[..], more, &[&url]].concat());
        let doc: Value = serde_json::from_str(&said.out).unwrap();
        (said.code, doc, said.err)
    };
    let (code, doc, _) = ping(&["--warn", "20s", "--crit", "30s", "--histogram"]);
    assert_eq!((code, &doc["verdict"]), (Some(0), &"ok".into()));
    let counts = doc["histogram"].as_array().unwrap();
    let total: u64 = counts.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum();
    assert_eq!(total, 20);
    let (code, doc, err) = ping(&["--warn", "1ns", "--crit", "30s"]);
    assert_eq!((code, &doc["verdict"]), (Some(0), &"warn".into()));
    assert!(err.contains("warning: p99 "), "{err}");
    let (code, doc, err) = ping(&["--crit", "1ns"]);
    assert_eq!((code, &doc["verdict"]), (Some(1), &"crit".into()));
    assert!(err.contains("is above"), "{err}");
}

#[test]
fn watching_shows_what_changed_and_names_the_denominators() {
    let worker = Worker::start(&["--demo"]);
    let (endpoint, url) = (worker.drafting().to_string(), worker.control().to_string());
    let arguments = ["replay", "--demo", "--rounds", "40", "--pace", "max", "-e", &endpoint];
    assert_eq!(run(&arguments).code, Some(0));
    let said = run(&["stats", &url]);
    for text in ["acceptance  ", " verified drafts (", "k_window > 0", "position", "contract 1.8"] {
        assert!(said.out.contains(text), "no {text} in\n{}", said.out);
    }
    let mut watch = dspark(&["stats", "--json", "--watch", "50ms", &url]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    let lines: Vec<Value> =
        lines.take(2).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert!(lines[0].get("delta").is_none());
    let delta = &lines[1]["delta"];
    assert_eq!((&delta["steps"], &delta["steps_per_s"]), (&0.into(), &0.0.into()));
    assert!(
        delta["interval_s"].as_f64().unwrap() > 0.0 && delta.get("accepted_per_round").is_none()
    );
}

#[test]
fn the_example_environment_sets_nothing_that_is_not_read_and_the_unit_uses_it() {
    let example = project("packaging/dspark.env.example");
    let lines = example.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
    let variables: Vec<(&str, &str)> = lines
        .filter(|line| line.starts_with("DSPARK_"))
        .filter_map(|l| l.split_once('='))
        .collect();
    assert!(variables.len() >= 10, "{variables:?}");
    // The demo stands in for the checkpoint, and nothing is recorded.
    let kept = |name: &str| !["DSPARK_CHECKPOINT", "DSPARK_RECORD"].contains(&name);
    let used: Vec<_> = variables.iter().copied().filter(|(name, _)| kept(name)).collect();
    let (code, out, err) = run_with(&used, &["serve", "--demo", "--check", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(!err.contains("nothing reads it"), "{err}");
    for (name, value) in &used {
        assert!(out.contains(&format!("\"origin\": \"{name}\"")), "{name}={value} has no effect");
    }
    let unit = project("packaging/dspark@.service");
    for line in ["Type=notify", "EnvironmentFile=/etc/dspark/%i.env", "WatchdogSec=30"] {
        assert!(unit.lines().any(|l| l == line), "no {line}");
    }
}

#[test]
fn a_json_log_has_one_object_a_line_one_line_a_change_of_state_and_no_repetition() {
    let serve = ["serve", "--json", "--demo", "--listen", "tcp://127.0.0.1:0", "--control", "off"];
    let mut command = dspark(&[&serve[..], &["--allow-peer", "127.0.0.2"]].concat());
    command.env("DSPARK_LOG_FORMAT", "json").env("DSPARK_LISTN", "x").stderr(Stdio::piped());
    let mut worker = Worker::launch(&mut command);
    let stderr = worker.stderr();
    let mut friend = worker.drafting();
    friend.bind = Some("127.0.0.2".parse().unwrap());
    let arguments = ["replay", "--demo", "--rounds", "20", "--pace", "max", "--endpoint"];
    for _ in 0..2 {
        let said = run(&[&arguments[..], &[&friend.to_string()]].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
    }
    for _ in 0..5 {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut stranger = Caller::connect(&worker.drafting(), deadline).unwrap();
        assert!(stranger.call(&[&empty_request(Op::Ping, 1, 0)], deadline).is_err());
    }
    worker.terminate();
    let log = std::io::read_to_string(stderr).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()));
    let count = |message: &str| {
        let said = |line: &&Value| line["fields"]["message"].as_str().unwrap().starts_with(message);
        lines.iter().filter(said).count()
    };
    for (message, times) in [
        ("DSPARK_LISTN is set, but nothing reads it", 1),
        ("client connected", 2),
        ("session opened", 2),
        ("connection closed: the address is not on the allow-list", 1),
        ("stopping after the frame in hand", 1),
    ] {
        assert_eq!(count(message), times, "{message}\n{log}");
    }
    // The second may come before the end of the first is seen.
    assert_eq!(count("client disconnected") + count("client displaced"), 2, "{log}");
    assert!(lines.len() < 15, "twenty rounds are no news:\n{log}");
}

#[test]
fn a_log_setting_that_means_nothing_is_refused() {
    for (name, value) in [("DSPARK_LOG_FORMAT", "jsn"), ("DSPARK_LOG", "loud=very")] {
        let (code, out, err) = run_with(&[(name, value)], &["serve", "--demo", "--check"]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.starts_with(&format!("error: {name}")), "{err}");
    }
}

#[test]
fn the_log_is_coloured_where_it_is_asked_for_and_never_by_itself_in_a_file() {
    let coloured = |more: &[&str], no_color: Option<&str>| {
        let mut command = dspark(&[&["serve", "--demo", "--check"], more].concat());
        command.env("DSPARK_LISTN", "x").env_remove("NO_COLOR");
        command.envs(no_color.map(|value| ("NO_COLOR", value)));
        let err = String::from_utf8(command.output().unwrap().stderr).unwrap();
        assert!(err.contains("nothing reads it"), "{err}");
        err.contains('\u{1b}')
    };
    assert!(!coloured(&[], None) && !coloured(&[], Some("")) && !coloured(&[], Some("1")));
    assert!(coloured(&["--color", "always"], None));
    // What is typed beats what is set.
    assert!(coloured(&["--color", "always"], Some("1")) && !coloured(&["--color", "never"], None));
}

/// Opens listeners of these names as a supervisor does and becomes the program.
const SUPERVISOR: &str = "
import os, socket, sys
names = sys.argv[1].split(':')
for index, name in enumerate(names):
    listener = socket.socket()
    listener.bind(('127.0.0.1', 0))
    listener.listen(8)
    os.dup2(listener.fileno(), 100 + index)
for index in range(len(names)):
    os.dup2(100 + index, 3 + index)
    os.close(100 + index)
os.environ.update(LISTEN_FDS=str(len(names)), LISTEN_FDNAMES=sys.argv[1], LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
";

/// `dspark serve --demo` with passed sockets; its flags name a port that it must not open.
fn passed(names: &str, forbidden: &str) -> Option<Command> {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: no python3 to pass sockets");
        return None;
    }
    let program = dspark(&["serve", "--json", "-q", "--demo", "--listen", forbidden]);
    let mut command = Command::new("python3");
    command.args(["-c", SUPERVISOR, names]).arg(program.get_program()).args(program.get_args());
    command.args(["--control", "off"]).stdin(Stdio::null());
    Some(command)
}

#[test]
fn sockets_of_a_supervisor_take_the_place_of_listeners() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let forbidden = format!("tcp://{}", taken.local_addr().unwrap());
    let Some(mut command) = passed("metrics:drafting:control", &forbidden) else { return };
    let mut worker = Worker::launch(&mut command);
    assert!(worker.drafting().to_string() != forbidden && worker.ready["metrics"].is_string());
    let endpoint = worker.drafting().to_string();
    let replay = ["replay", "--demo", "--rounds", "5", "--pace", "max", "-e", &endpoint];
    let said = run(&replay);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(run(&["ping", &worker.control().to_string()]).code, Some(0));
    worker.terminate();
    for (names, why) in [("what", "nobody knows"), ("control:control", "one of this name")] {
        let output = passed(names, &forbidden).unwrap().output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains(why), "{err}");
    }
    let unit = project("packaging/dspark@.socket");
    assert!(unit.lines().any(|line| line == "FileDescriptorName=drafting"));
}

#[test]
fn a_client_of_a_synthetic_checkpoint_needs_only_its_name() {
    let mut worker = Worker::start(&["--synthetic", "small:3"]);
    let endpoint = worker.drafting().to_string();
    let folder = tempfile::tempdir().unwrap();
    for (name, code) in [("small:3", 0), ("small:4", 4), ("live", 4)] {
        let trace = folder.path().join(name);
        let trace = trace.to_str().unwrap();
        let synth = ["trace", "synth", "--synthetic", name, "--rounds", "30", "-o", trace];
        let said = run(&synth);
        assert_eq!(said.code, Some(0), "{}", said.err);
        let said = run(&["replay", trace, "--pace", "max", "--timeout", "20s", "-e", &endpoint]);
        assert_eq!(said.code, Some(code), "{name}: {}{}", said.out, said.err);
    }
    worker.terminate();
    let said = run(&["serve", "--synthetic", "huge"]);
    assert!(said.code == Some(2) && said.err.contains("live or small"), "{}", said.err);
}
