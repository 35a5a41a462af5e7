//! Loading on the emulated device: what `--check` says, damage found while weights are placed, memory that
//! cannot be locked, and passes that keep the device warm.
#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod common;
mod gpu;
mod requests;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::fixture;
use common::process::{Worker, dspark};
use dspark::checkpoint::{
    Checkpoint, CheckpointPaths, Progress, RECEIPT_NAME, Receipt, Unverified,
};
use dspark::drafter::Drafter;
use dspark::drafter::cuda::{CudaError, CudaOptions};
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

/// A copy of the tiny checkpoint, to be damaged.
fn copy() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture("tiny")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Names of the files that are verified.
fn verified_names() -> Vec<String> {
    let receipt = Receipt::read(&fixture("tiny").join(RECEIPT_NAME)).unwrap();
    receipt.expected_files().into_iter().map(|file| file.name.clone()).collect()
}

/// Makes the last byte of a file another one.
fn flip_the_last_bit(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn unverified(dir: &Path, progress: impl Progress + Send + 'static) -> (Checkpoint, Unverified) {
    let paths = CheckpointPaths { dir: dir.into(), receipt: None, markov: None };
    Checkpoint::open_unverified(&paths, Box::new(progress)).unwrap()
}

/// The error of loading a directory that opens.
fn refusal(checkpoint: &Checkpoint, files: &Unverified) -> CudaError {
    let loaded = gpu::from_files(checkpoint, files, CudaOptions::default());
    loaded.map(|_| ()).unwrap_err()
}

/// Bytes that are uploaded while they are hashed: a trellis that is one bit off loads and must not serve.
#[test]
fn a_bit_that_no_loader_could_notice_ends_the_start_with_5() {
    let folder = gpu::folder();
    let names = verified_names();
    assert_eq!(names.len(), 10);
    for name in &names {
        let copy = copy();
        flip_the_last_bit(&copy.path().join(name));
        let trellis = name == "model-exl3-mtp-experts.safetensors";
        for arguments in [&["--check"][..], &[]].into_iter().take(1 + usize::from(trellis)) {
            let mut command = serve(&folder, arguments);
            let output = command.arg("--checkpoint").arg(copy.path()).output().unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(5), "{name}: {err}");
            assert!(
                err.contains("1 of 10 files differ from the receipt") && err.contains(name),
                "{name}: {err}"
            );
            assert!(output.stdout.is_empty(), "nothing is ready");
        }
    }
}

#[test]
fn every_file_that_differs_is_named_after_one_pass() {
    let copy = copy();
    let names = ["model-exl3-mtp-experts.safetensors", "model-exl3-head.safetensors"];
    names.iter().for_each(|name| flip_the_last_bit(&copy.path().join(name)));
    let (checkpoint, files) = unverified(copy.path(), ());
    let error = refusal(&checkpoint, &files);
    let text = error.to_string();
    assert!(matches!(error, CudaError::Files(_)), "{text}");
    assert!(text.contains("2 of 10 files") && names.iter().all(|n| text.contains(n)), "{text}");
}

/// A mapping cannot say so: the pass reads the files themselves.
#[test]
fn a_file_that_ends_early_while_it_is_read_cannot_be_read() {
    let copy = copy();
    let (checkpoint, files) = unverified(copy.path(), ());
    let path = copy.path().join("model-exl3-head.safetensors");
    let bytes = std::fs::metadata(&path).unwrap().len();
    File::options().write(true).open(&path).unwrap().set_len(bytes - 1).unwrap();
    let text = refusal(&checkpoint, &files).to_string();
    assert!(text.contains("model-exl3-head.safetensors: cannot be read: "), "{text}");
}

/// Counts what a pass tells.
#[derive(Clone, Default)]
struct Count(Arc<[AtomicU64; 3]>);

impl Progress for Count {
    fn start(&self, files: usize, bytes: u64) {
        self.0[0].fetch_add(files as u64, Ordering::Relaxed);
        self.0[1].fetch_add(bytes, Ordering::Relaxed);
    }
    fn file(&self, _name: &str) {}
    fn advance(&self, bytes: u64) {
        self.0[2].fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Runs itself once more on a device that does nothing before it is waited for, and must draft what was drafted
/// without files and at once.
#[test]
fn files_in_pieces_of_any_size_are_read_once_and_draft_the_same_bits() {
    const NAME: &str = "files_in_pieces_of_any_size_are_read_once_and_draft_the_same_bits";
    /// Set for the second run: what the first one drafted.
    const EXPECTED: &str = "TEST_EXPECTED_DRAFTS";
    let requests = four();
    let (tiny, options) = (fixture("tiny"), CudaOptions::default());
    let drafts = |drafter: &mut gpu::Emulated| format!("{:?}", step(&mut **drafter, &requests));
    let given = std::env::var(EXPECTED);
    let from_memory = || drafts(&mut gpu::drafter(&Checkpoint::demo().unwrap(), options));
    let expected = given.clone().unwrap_or_else(|_| from_memory());
    // Pieces smaller than any tensor, as large as one, and larger than any file.
    for chunk_bytes in [977, 1 << 16, options.chunk_bytes] {
        let count = Count::default();
        let (checkpoint, files) = unverified(&tiny, count.clone());
        let options = CudaOptions { chunk_bytes, ..options };
        let mut drafter = gpu::from_files(&checkpoint, &files, options).unwrap();
        assert_eq!(drafts(&mut drafter), expected, "pieces of {chunk_bytes}");
        let [of_files, total, hashed] = [0, 1, 2].map(|i| count.0[i].load(Ordering::Relaxed));
        assert_eq!((of_files, total, hashed), (10, checkpoint.bytes, checkpoint.bytes));
    }
    if given.is_err() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", NAME]).env(EXPECTED, expected).env("GPUSIM_LAZY", "1");
        let again = again.output().unwrap();
        assert!(again.status.success(), "{again:?}");
    }
}

#[test]
fn a_device_that_fails_in_the_pass_is_left_as_it_was() {
    let folder = gpu::folder();
    let tiny = fixture("tiny");
    let report = folder.path().join("report.json");
    for (backend, code) in [("cuda", 6), ("auto", 0)] {
        let arguments = ["--check", "--json", "--backend", backend, "--listen"];
        let mut command = dspark(&["serve"]);
        command.args(arguments).arg("tcp://127.0.0.1:0").arg("--checkpoint").arg(&tiny);
        command.env("LD_LIBRARY_PATH", folder.path()).env("GPUSIM_REPORT", &report);
        let output = command.env("GPUSIM_REFUSE", "cuMemcpyHtoDAsync_v2:40").output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{backend}: {err}");
        assert!(err.contains("copy to the device: "), "{err}");
        let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert_eq!(report["leaked_bytes"], 0, "{report}");
        if code == 0 {
            let doc: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(doc["backend"], "cpu");
        }
    }
}

#[test]
fn what_is_uploaded_is_read_from_locked_memory_and_said() {
    let folder = gpu::folder();
    let report = folder.path().join("report.json");
    let mut command = serve(&folder, &["--check", "--json"]);
    command.arg("--checkpoint").arg(fixture("tiny")).env("GPUSIM_REPORT", &report);
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let said = |line: &&str| line.contains("verified 0.00 GB and uploaded 0.00 GB in ");
    assert_eq!(err.lines().filter(said).count(), 1, "{err}");
    let doc: Value = serde_json::from_slice(&output.stdout).unwrap();
    let weights = doc["memory"]["plan"]["weights_bytes"].as_u64().unwrap();
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let copies = |key: &str| report["host_to_device"][key].as_u64().unwrap();
    let locked = copies("bytes") - copies("pageable_bytes");
    // Places are rounded up to 256 bytes; row lengths, tables and lists come from plain memory, the first
    // pass over no rows from locked.
    assert!(locked.abs_diff(weights) < weights / 20, "{locked} of {weights}");
    assert!(copies("pageable_bytes") < weights / 20, "{report}");
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
