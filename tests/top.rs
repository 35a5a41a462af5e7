//! `dspark top` from the built binary: in a pseudo-terminal against a live worker, and as one picture of text.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{Read, Write};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use common::process::{Worker, dspark, run};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use serde_json::Value;

/// Longest wait for something to appear.
const PATIENCE: Duration = Duration::from_secs(30);

/// `dspark top` in a terminal of its own.
struct Top {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    keyboard: Box<dyn Write + Send>,
    shown: Arc<(Mutex<vt100::Parser>, Condvar)>,
    reading: Option<thread::JoinHandle<()>>,
    before: String,
}

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize { rows, cols, ..PtySize::default() }
}

impl Top {
    fn start(arguments: &[&str]) -> Self {
        let pair = native_pty_system().openpty(size(24, 80)).unwrap();
        let before = format!("{:?}", pair.master.get_termios().unwrap());
        let plain = dspark(&[]);
        let mut command = CommandBuilder::new(plain.get_program());
        plain.get_envs().for_each(|(name, _)| command.env_remove(name));
        command.env("TERM", "xterm-256color");
        command.arg("top");
        command.args(arguments);
        let child = pair.slave.spawn_command(command).unwrap();
        // The slave side stays open in the child only, so that its end is seen here.
        drop(pair.slave);
        let shown = Arc::new((Mutex::new(vt100::Parser::default()), Condvar::new()));
        let (mut reader, screen) = (pair.master.try_clone_reader().unwrap(), shown.clone());
        let reading = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of a pseudo-terminal is an error on some systems.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                screen.0.lock().unwrap().process(&bytes[..n]);
                screen.1.notify_all();
            }
        });
        let keyboard = pair.master.take_writer().unwrap();
        Self { child, master: pair.master, keyboard, shown, reading: Some(reading), before }
    }

    /// Waits until the screen holds this text.
    fn see(&self, text: &str) {
        self.until(text, |screen| screen.contents().contains(text));
    }

    fn until(&self, what: &str, holds: impl Fn(&vt100::Screen) -> bool) {
        let parser = self.shown.0.lock().unwrap();
        let waited = self.shown.1.wait_timeout_while(parser, PATIENCE, |p| !holds(p.screen()));
        let (parser, time) = waited.unwrap();
        assert!(!time.timed_out(), "waited for {what:?}, seen:\n{}", parser.screen().contents());
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    fn resize(&self, rows: u16, cols: u16) {
        let mut parser = self.shown.0.lock().unwrap();
        let side = |n| std::num::NonZeroU16::new(n).unwrap();
        parser.screen_mut().set_size(side(rows), side(cols));
        self.master.resize(size(rows, cols)).unwrap();
    }

    fn signal(&self, name: &str) {
        let id = self.child.process_id().unwrap().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits for the end; the terminal must be as it was before. Gives the exit code and what is left on
    /// the screen.
    fn end(mut self) -> (u32, String) {
        let code = self.child.wait().unwrap().exit_code();
        let after = format!("{:?}", self.master.get_termios().unwrap());
        assert_eq!(after, self.before, "the terminal's modes");
        self.reading.take().unwrap().join().unwrap();
        let parser = self.shown.0.lock().unwrap();
        let screen = parser.screen();
        assert!(!screen.alternate_screen(), "the alternate screen was left");
        assert!(!screen.hide_cursor(), "the cursor is back");
        (code, screen.contents())
    }
}

fn replay(worker: &Worker) {
    let endpoint = worker.drafting().to_string();
    let arguments = ["replay", "--demo", "--pace", "max", "--rounds", "40", "--endpoint"];
    let said = run(&[&arguments[..], &[&endpoint]].concat());
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
}

#[test]
fn it_shows_a_worker_in_the_terminal_and_quits_without_a_trace() {
    let worker = Worker::start(&["--demo"]);
    replay(&worker);
    let mut top = Top::start(&[&worker.control().to_string(), "--interval", "100ms"]);
    top.see("rounds/s");
    top.until("the alternate screen", vt100::Screen::alternate_screen);
    top.see("client dspark");
    top.see("entries  OK");
    top.press("?");
    top.see("reset the peaks");
    // Closes the help, does not quit.
    top.press("\x1b");
    top.until("no help", |screen| !screen.contents().contains("reset the peaks"));
    top.press("p");
    top.see("PAUSED");
    top.press("p-");
    top.see("every 200ms");
    top.press("ss");
    top.see("by drafts");
    top.press("q");
    assert_eq!(top.end(), (0, String::new()));
}

#[test]
fn every_size_is_survived() {
    let worker = Worker::start(&["--demo"]);
    let mut top = Top::start(&[&worker.control().to_string(), "--interval", "100ms"]);
    top.see("rounds/s");
    for (rows, cols) in [(1, 1), (1, 200), (60, 1), (5, 20), (2, 3), (40, 120)] {
        top.resize(rows, cols);
        thread::sleep(Duration::from_millis(50));
    }
    top.until("the last size", |screen| {
        let wide = |line: &str| line.len() > 100 && line.trim_end().ends_with("every 100ms");
        screen.contents().lines().any(wide)
    });
    // Ctrl-C as a terminal in raw mode sends it.
    top.press("\x03");
    assert_eq!(top.end(), (0, String::new()));
}

#[test]
fn signals_leave_the_terminal_as_it_was_and_say_so_after() {
    let worker = Worker::start(&["--demo"]);
    for name in ["TERM", "HUP", "INT"] {
        let top = Top::start(&[&worker.control().to_string()]);
        top.see("rounds/s");
        top.signal(name);
        assert_eq!(top.end(), (130, format!("error: ended by SIG{name}")));
    }
}

#[test]
fn it_outlives_its_worker_and_notices_the_next_one() {
    let mut first = Worker::start(&["--demo"]);
    let control = first.control().to_string();
    let other = Worker::start(&["--demo", "--name", "other"]);
    let urls = [&*control, &*other.control().to_string(), "--interval", "100ms"];
    let mut top = Top::start(&urls);
    top.see("dspark demo");
    first.signal("KILL");
    top.see("gone for");
    top.press("2");
    top.see("other demo");
    top.press("\t");
    top.see("gone for");
    let mut next = dspark(&["serve", "--demo", "--json", "-q", "--listen", "tcp://127.0.0.1:0"]);
    let _next = Worker::launch(next.args(["--control", &control]));
    top.see("restarted");
    top.until("no gone worker", |screen| !screen.contents().contains("gone"));
    top.press("q");
    assert_eq!(top.end().0, 0);
}

#[test]
fn a_worker_that_never_was_is_waited_for() {
    let worker = Worker::start(&["--demo"]);
    let control = worker.control().to_string();
    drop(worker);
    let mut top = Top::start(&[&control, "--interval", "100ms"]);
    top.see("not reached for");
    top.press("\x1b");
    assert_eq!(top.end().0, 0);
    // What can never work ends at once.
    let (code, said) = Top::start(&["o1tcp://127.0.0.1:1"]).end();
    assert!(code == 6 && said.contains("not in this build"), "{code} {said}");
}

#[test]
fn without_a_terminal_it_prints_one_picture() {
    let worker = Worker::start(&["--demo"]);
    replay(&worker);
    let control = worker.control().to_string();
    let said = run(&["top", &control, "--interval", "100ms"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{}", said.out);
    assert!(!said.out.contains('\x1b'), "{}", said.out);
    for part in [" dspark demo  up ", "\n rounds/s ", "128/128", "\n since start ", "\n identity "]
    {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let said = run(&["top", &control, "--once", "--ascii", "--interval", "50ms"]);
    assert!(said.code == Some(0) && said.out.is_ascii(), "{}", said.out);

    let said = run(&["top", &control, "--json", "--interval", "100ms"]);
    let doc: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&doc["schema"], doc["workers"].as_array().unwrap().len()), (&1.into(), 1));
    let worker_doc = &doc["workers"][0];
    assert_eq!((&worker_doc["url"], &worker_doc["reachable"]), (&control.into(), &true.into()));
    assert_eq!(worker_doc["stats"]["steps"], 40);
    assert_eq!(worker_doc["stats"]["delta"]["steps_per_s"], 0.0);
    assert!(worker_doc["stats"]["delta"]["interval_s"].as_f64().unwrap() > 0.05);
}

#[test]
fn a_worker_that_cannot_be_reached_or_must_not_be_asked_has_an_exit_code() {
    let worker = Worker::start(&["--demo"]);
    let control = worker.control().to_string();
    let gone = Worker::start(&["--demo"]).control().to_string();
    for arguments in [vec!["top", "--once", &gone], vec!["top", "--json", &gone]] {
        let said = run(&arguments);
        assert_eq!((said.code, said.out.as_str()), (Some(3), ""), "{}", said.err);
        assert!(said.err.starts_with(&format!("error: {gone}: ")), "{}", said.err);
    }
    // One of two: the other one is shown all the same.
    let said = run(&["top", "--once", "--interval", "50ms", &control, &gone]);
    assert_eq!(said.code, Some(3));
    assert!(said.out.contains(" dspark demo") && said.out.contains("not reached"), "{}", said.out);
    let said = run(&["top", "tcp://127.0.0.1:18620"]);
    assert!(said.code == Some(2) && said.err.contains("--takeover"), "{}", said.err);
    assert_eq!(run(&["top", &control, "--interval", "1ms"]).code, Some(2));
}
