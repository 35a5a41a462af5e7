//! Loading on the emulated device: what `--check` says, damage found while weights are placed, memory that
//! cannot be locked, and passes that keep the device warm.
#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod common;
mod gpu;
mod requests;

use std::io::Read;
use std::process::{Command, Stdio};

use common::fixture;
use common::process::{Worker, dspark};
use dspark::drafter::Drafter;
use dspark::drafter::cuda::CudaOptions;
use requests::{four, step};
use serde_json::Value;

/// `dspark serve --backend cuda` with these arguments and the emulated driver.
fn serve(folder: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = dspark(&["serve", "--backend", "cuda", "--listen", "tcp://127.0.0.1:0"]);
    command.args(["--control", "tcp://127.0.0.1:0"]).args(arguments);
    command.env("LD_LIBRARY_PATH", folder.path()).env("NO_COLOR", "1");
    command
}

#[test]
fn check_prints_what_of_the_device_is_taken_for_what() {
    let folder = gpu::folder();
    let output = serve(&folder, &["--demo", "--check", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let doc: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(doc["backend"], "cuda");
    let plan = &doc["memory"]["plan"];
    let bytes = |key: &str| plan[key].as_u64().unwrap();
    let parts: u64 = ["weights_bytes", "window_bytes", "working_bytes"].map(bytes).iter().sum();
    // Every allocation is rounded up to 256 bytes in the plan, and to none when it is made.
    let held = doc["memory"]["device_bytes"].as_u64().unwrap();
    assert!(parts.abs_diff(held) < held / 10, "{plan} and {held}");
    assert!(parts < bytes("free_bytes") && bytes("free_bytes") <= bytes("total_bytes"), "{plan}");
    assert!(bytes("pinned_bytes") > 0);
    let main = &doc["modules"][0];
    assert_eq!((&main["module"], &main["k"]), (&"mtp.0.main_proj".into(), &"5".into()));
    assert_eq!((&main["codebook"], &main["form"]), (&"mul1".into(), &"exl3".into()));

    let output = serve(&folder, &["--demo", "--check"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for row in ["of it weights", "of it working memory", "page-locked"] {
        assert!(text.contains(row), "no {row} in\n{text}");
    }
}

/// Bytes that are placed before they are hashed: a trellis that is one bit off loads and must not serve.
#[test]
fn a_bit_that_no_loader_could_notice_ends_the_start_with_5() {
    let folder = gpu::folder();
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture("tiny")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let name = "model-exl3-mtp-experts.safetensors";
    let mut bytes = std::fs::read(copy.path().join(name)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(copy.path().join(name), bytes).unwrap();
    for arguments in [&["--check"][..], &[]] {
        let mut command = serve(&folder, arguments);
        let output = command.arg("--checkpoint").arg(copy.path()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{err}");
        assert!(
            err.contains("1 of 10 files differ from the receipt") && err.contains(name),
            "{err}"
        );
        assert!(output.stdout.is_empty(), "nothing is ready");
    }
}

#[test]
fn memory_that_cannot_be_locked_is_used_unlocked_and_said_once() {
    let folder = gpu::folder();
    let mut command = serve(&folder, &["--demo", "--json"]);
    command.env("GPUSIM_REFUSE", "cuMemHostAlloc:2").stderr(Stdio::piped());
    let mut worker = Worker::launch(&mut command);
    let endpoint = worker.drafting().to_string();
    let replay = ["replay", "--demo", "--rounds", "4", "--pace", "max", "--timeout", "20s", "-e"];
    let replayed = dspark(&replay).arg(endpoint).output().unwrap();
    assert!(replayed.status.success(), "{replayed:?}");
    let mut err = String::new();
    let mut stderr = worker.stderr();
    worker.terminate();
    stderr.read_to_string(&mut err).unwrap();
    let said: Vec<_> = err.lines().filter(|line| line.contains("page-locked memory: ")).collect();
    assert!(said.len() == 1 && said[0].contains("LimitMEMLOCK"), "{err}");
}

#[test]
fn passes_over_nothing_do_not_show_in_a_draft_or_a_counter() {
    let options = CudaOptions::default();
    let checkpoint = cases::checkpoint();
    let (mut warm, mut cold) =
        (gpu::drafter(&checkpoint, options), gpu::drafter(&checkpoint, options));
    let requests = four();
    for batch in [&requests[..2], &requests[2..], &requests[1..2]] {
        warm.keep_warm().unwrap();
        assert_eq!(step(&mut *warm, batch), step(&mut *cold, batch));
        warm.keep_warm().unwrap();
        assert_eq!(warm.markov(), cold.markov());
    }
}
