//! `dspark serve` on the emulated device, as a user meets it: a process, a socket, worked examples; and every
//! way of having no GPU, or of losing it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
mod gpu;

use std::io::Read;
use std::process::{Command, Stdio};

use common::golden::{Pool, entry, hello, message, play, soon};
use common::process::{Worker, dspark};
use common::{fixture, json_files};
use dspark::protocol::refusal::{CheckedReply, sent_header};
use dspark::protocol::{EntryStatus, Limits, ReqEntry, StepReply, StepRequest, check_reply};
use dspark::transport::Caller;
use serde_json::Value;

/// Cases that fit the time of an emulated device; `DSPARK_TEST_ALL=1` runs them all.
const CASES: [&str; 3] = ["02_one_row", "08_gap", "14_n_out"];

/// `dspark serve` of the small checkpoint on free ports, with the emulated driver and these variables.
fn serve(folder: &tempfile::TempDir, variables: &[(&str, &str)], arguments: &[&str]) -> Command {
    let checkpoint = fixture("tiny");
    let mut command = dspark(&["serve", "--json", "--listen", "tcp://127.0.0.1:0"]);
    command
        .args(["--control", "tcp://127.0.0.1:0", "--checkpoint"])
        .arg(checkpoint)
        .args(arguments);
    command.env("LD_LIBRARY_PATH", folder.path()).env("NO_COLOR", "1");
    command.envs(variables.iter().copied());
    command
}

/// Everything of an answer that may not depend on how it was computed.
#[derive(Debug, PartialEq)]
struct Answer {
    at: String,
    status: Option<EntryStatus>,
    ids: Vec<i32>,
    confidence: Vec<u32>,
    margin: Vec<u32>,
}

/// How answers compare with the worked examples, by the rules of tests/acceptance.
#[derive(Default)]
struct Judged {
    /// Positions before the first other id of their block, and those of them outside the spread of roundings.
    positions: usize,
    outside: Vec<String>,
    /// Blocks with other ids than the stable ones: two experts' scores nearly tied in one of its rows.
    others: Vec<String>,
}

impl Judged {
    fn entry(
        &mut self,
        sent: &ReqEntry,
        expect: &Value,
        index: usize,
        reply: &StepReply<'_>,
        answer: &Answer,
    ) {
        let at = &answer.at;
        let status = u64::from(answer.status.unwrap().code());
        assert_eq!(status, expect["status"].as_u64().unwrap(), "{at}: status");
        let rows = u64::from(reply.statuses[index].window_rows.get());
        assert_eq!(rows, expect["window_rows"].as_u64().unwrap_or(0), "{at}: window_rows");
        let Some(golden) = expect.get("f32") else {
            assert!(answer.ids.iter().all(|&id| id == 0), "{at}: ids of an undrafted entry");
            return;
        };
        let consumed = sent.consumed(5);
        let rest = |bits: &[u32]| bits[consumed..].iter().all(|&b| b == 0);
        assert!(answer.ids[consumed..].iter().all(|&id| id == 0), "{at}: ids beyond n_out");
        assert!(rest(&answer.confidence) && rest(&answer.margin), "{at}: values beyond n_out");
        for j in 0..consumed {
            if i64::from(answer.ids[j]) != golden["draft_ids"][j].as_i64().unwrap() {
                if expect["stable"] == true {
                    self.others.push(at.clone());
                }
                // The rest follows another chain.
                return;
            }
            let near = |bits: u32, what: &str, least: f64| {
                let off = f64::from(f32::from_bits(bits)) - golden[what][j].as_f64().unwrap();
                off.abs() <= (2.0 * expect["spread"][what][j].as_f64().unwrap()).max(least)
            };
            self.positions += 1;
            if !near(answer.confidence[j], "confidence", 0.03)
                || !near(answer.margin[j], "margin", 0.2)
            {
                self.outside.push(format!("{at} position {j}"));
            }
        }
    }

    fn accept(&self) {
        let Self { positions, outside, others } = self;
        println!(
            "{positions} positions, outside {outside:?}, other ids than stable ones {others:?}"
        );
        assert!(outside.len() * 100 <= *positions, "{outside:?} of {positions}");
        assert!(others.len() <= 1, "{others:?}");
    }
}

/// All answers to the wanted cases from a worker with these variables.
fn worked_examples(folder: &tempfile::TempDir, variables: &[(&str, &str)]) -> Vec<Answer> {
    let arguments = ["--backend", "cuda", "--logits", "f32", "-q"];
    let mut worker = Worker::launch(&mut serve(folder, variables, &arguments));
    assert_eq!(worker.ready["backend"], "cuda");
    let all = std::env::var_os("DSPARK_TEST_ALL").is_some();
    let wanted = |name: &str| name != "measured" && (all || CASES.contains(&name));
    let cases = json_files("cases", "").into_iter().filter(|(name, _)| wanted(name));
    let mut caller = Caller::connect(&worker.drafting(), soon()).unwrap();
    let (pool, mut answers, mut judged) = (Pool::open(), Vec::new(), Judged::default());
    for (session, (name, case)) in (1u32..).zip(cases) {
        play(&mut caller, session, &case, &pool, |step, entries, reply| {
            for (index, expect) in step["expect"].as_array().unwrap().iter().enumerate() {
                let answer = Answer {
                    at: format!("{name} step {} entry {index}", step["step_id"]),
                    status: reply.status(index),
                    ids: reply.ids(index).collect(),
                    confidence: reply.confidence(index).map(f32::to_bits).collect(),
                    margin: reply.margin(index).map(f32::to_bits).collect(),
                };
                judged.entry(&entries[index], expect, index, reply, &answer);
                answers.push(answer);
            }
        });
    }
    worker.terminate();
    judged.accept();
    answers
}

/// A copy that is reused too early, or read before it is there, shows when nothing runs before a wait.
#[test]
fn the_served_binary_answers_worked_examples_and_the_same_when_work_runs_late() {
    let folder = gpu::folder();
    let eager = worked_examples(&folder, &[]);
    assert!(eager.len() >= 15);
    assert_eq!(worked_examples(&folder, &[("GPUSIM_LAZY", "1")]), eager);
}

/// What a worker that must not start said: exit code and standard error.
fn refused(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty(), "{output:?}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// One line that says what, one that says what to do, exit code 6, and no panic.
#[test]
fn every_way_of_having_no_gpu_is_one_line_a_hint_and_exit_code_6() {
    let folder = gpu::folder();
    let cases = [
        (("GPUSIM_DEVICES", "0"), "no CUDA device", "nvidia-smi"),
        (("GPUSIM_DRIVER_VERSION", "11080"), "speaks CUDA 11.8, 12.0 is needed", "update"),
        (("GPUSIM_CC", "5.2"), "5.2", "--backend cpu"),
        (("GPUSIM_MEM_MB", "64"), "and 201 MB beside them for the driver; ", "--backend cpu"),
        (("GPUSIM_REFUSE", "cuDevicePrimaryCtxRetain:1"), "OUT_OF_MEMORY", "nvidia-smi"),
    ];
    for (variable, what, hint) in cases {
        let command = serve(&folder, &[variable], &["--backend", "cuda", "-q"]);
        let (code, err) = refused(command);
        // The emulator speaks too.
        let said: Vec<&str> = err.lines().filter(|line| !line.starts_with("gpusim: ")).collect();
        assert_eq!(code, Some(6), "{variable:?}: {err}");
        assert_eq!(said.len(), 2, "{variable:?}: {err}");
        assert!(said[0].starts_with("error: ") && said[0].contains(what), "{variable:?}: {err}");
        assert!(said[1].starts_with("  ") && said[1].contains(hint), "{variable:?}: {err}");
    }
    let other = serve(&folder, &[], &["--backend", "cuda", "--device", "3", "-q"]);
    let (code, err) = refused(other);
    assert_eq!(code, Some(6), "{err}");
    assert!(err.contains("--device 3 asked for, the driver has 1"), "{err}");
}

#[test]
fn without_a_driver_library_cuda_is_refused_and_auto_drafts_on_the_cpu_and_says_so() {
    let nothing = tempfile::tempdir().unwrap();
    // SAFETY: only looks for libraries by the driver's names.
    if unsafe { cudarc::driver::sys::is_culib_present() } {
        println!("skipped: this machine has a CUDA driver");
        return;
    }
    let (code, err) = refused(serve(&nothing, &[], &["--backend", "cuda", "-q"]));
    assert_eq!(code, Some(6), "{err}");
    assert_eq!(
        err,
        "error: no CUDA driver: libcuda.so.1 was not found\n  \
         install the NVIDIA driver, or draft on the CPU with --backend cpu\n"
    );
    drafts_on_cpu(serve(&nothing, &[], &["--backend", "auto"]), "libcuda.so.1 was not found");
}

#[test]
fn auto_takes_a_usable_gpu_and_says_why_it_does_not_take_another() {
    let folder = gpu::folder();
    let mut worker = Worker::launch(&mut serve(&folder, &[], &["--backend", "auto", "-q"]));
    assert_eq!(worker.ready["backend"], "cuda");
    worker.terminate();
    for (variable, why) in [
        (("GPUSIM_DEVICES", "0"), "no CUDA device"),
        (("GPUSIM_CC", "5.2"), "5.2"),
        (("GPUSIM_MEM_MB", "64"), "too little GPU memory"),
    ] {
        drafts_on_cpu(serve(&folder, &[variable], &["--backend", "auto"]), why);
    }
}

fn drafts_on_cpu(mut command: Command, why: &str) {
    let mut worker = Worker::launch(command.stderr(Stdio::piped()));
    assert_eq!(worker.ready["backend"], "cpu");
    let mut err = String::new();
    let mut stderr = worker.stderr();
    worker.terminate();
    stderr.read_to_string(&mut err).unwrap();
    let said = err.lines().find(|line| line.contains("drafting on the CPU"));
    assert!(said.is_some_and(|line| line.contains(why)), "{err}");
}

/// Sends the steps of `02_one_row` one by one and answers the status of each first entry.
struct Rounds {
    caller: Caller,
    steps: Vec<Value>,
    pool: Pool,
}

impl Rounds {
    fn new(worker: &Worker) -> Self {
        let (_, case) = json_files("cases", "02_one_row").remove(0);
        let mut caller = Caller::connect(&worker.drafting(), soon()).unwrap();
        hello(&mut caller, 1);
        let steps = case["steps"].as_array().unwrap().clone();
        Self { caller, steps, pool: Pool::open() }
    }

    fn step(&mut self, index: usize) -> Option<EntryStatus> {
        let step = &self.steps[index];
        let entries: Vec<ReqEntry> =
            step["entries"].as_array().unwrap().iter().map(entry).collect();
        let message = message(step, &entries, (index as u64 + 2, 1), &self.pool);
        let limits = Limits { max_slots: 4, max_rows_per_step: 512, row_bytes: 1536 };
        let parsed = StepRequest::parse(&message[32..], &limits).unwrap();
        let reply = self.caller.call(&[&message], soon()).unwrap();
        let sent = sent_header(&message);
        match check_reply(&sent, &parsed, &common::golden::TINY, reply).unwrap() {
            CheckedReply::Step(reply) => reply.status(0),
            _ => panic!("the frame was refused"),
        }
    }
}

/// A STEP launches two graphs: one that stores rows, one that drafts.
#[test]
fn a_fault_of_the_device_is_answered_internal_and_ends_the_process_with_70() {
    let folder = gpu::folder();
    // A STEP in one pass is one graph launch, so this is the second STEP's.
    let variables = [("GPUSIM_FAULT", "2")];
    let mut command = serve(&folder, &variables, &["--backend", "cuda"]);
    let mut worker = Worker::launch(command.stderr(Stdio::piped()));
    let mut rounds = Rounds::new(&worker);
    assert_eq!(rounds.step(0), Some(EntryStatus::Ok));
    assert_eq!(rounds.step(1), Some(EntryStatus::Internal));
    let mut err = String::new();
    worker.stderr().read_to_string(&mut err).unwrap();
    assert_eq!(worker.wait().code(), Some(70), "{err}");
    assert!(err.contains("device lost") && err.contains("LAUNCH_FAILED"), "{err}");
    assert!(!err.contains("panicked"), "{err}");
}

/// An error that leaves the device whole costs the slots of its STEP their rows, and nothing else.
#[test]
fn an_error_that_passes_is_answered_internal_and_the_worker_goes_on() {
    let folder = gpu::folder();
    let variables = [("GPUSIM_REFUSE", "cuGraphLaunch:2")];
    let mut command = serve(&folder, &variables, &["--backend", "cuda", "-q"]);
    let mut worker = Worker::launch(command.stderr(Stdio::piped()));
    let mut rounds = Rounds::new(&worker);
    assert_eq!(rounds.step(0), Some(EntryStatus::Ok));
    assert_eq!(rounds.step(1), Some(EntryStatus::Internal));
    // The slot is empty: rows 2 .. leave a gap behind them, and what is drafted has one row of context.
    assert_eq!(rounds.step(2), Some(EntryStatus::PartialWindow));
    worker.terminate();
}

/// What the management library tells of the card, beside what the worker holds of it.
#[test]
fn top_shows_the_card_that_a_worker_drafts_on() {
    let folder = gpu::folder();
    let worker = Worker::launch(&mut serve(&folder, &[], &["--backend", "cuda", "-q"]));
    let control = worker.control().to_string();
    let shown = |variables: &[(&str, &str)]| {
        let mut top = dspark(&["top", "--once", "--interval", "50ms", &control]);
        top.env("LD_LIBRARY_PATH", folder.path()).envs(variables.iter().copied());
        let output = top.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines().skip_while(|line| !line.starts_with(" gpu "));
        let line = lines.next().unwrap_or_else(|| panic!("no line of the card in {text}"));
        format!("{line}\n{}", lines.next().unwrap())
    };
    let card = shown(&[]);
    let [what, does] = [
        " gpu      gpusim emulated device  memory 0.4 of 25.8 GB  worker holds 0.0",
        "\n          clocks 210 / 405 MHz  power 22 W  31 °C  busy 0%",
    ];
    assert!(card.starts_with(what) && card.contains(does), "{card}");
    assert!(card.lines().all(|line| line.chars().count() < 80), "{card}");
    let unified = shown(&[("GPUSIM_UNIFIED", "1")]);
    assert!(!unified.contains("memory ") && unified.contains("power 22 W"), "{unified}");
    let other = shown(&[("GPUSIM_DEVICES", "0")]);
    assert!(other.contains("is not among the cards here"), "{other}");
}
