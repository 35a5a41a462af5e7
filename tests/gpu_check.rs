//! `dspark gpu-check`: what it finds on the emulated device, that it can fail, and that it skips without one.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
mod gpu;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::process::dspark;
use dspark::checkpoint::Checkpoint;
use dspark::drafter::cuda::{CudaOptions, pack};
use dspark::drafter::stage::{Stage, StageObserver};
use dspark::drafter::{DraftBlocks, Drafter};
use dspark::plan::{Append, Draft, RowBlock, StepPlan};
use serde_json::Value;

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    /// The document, as its schema describes it.
    fn json(&self) -> Value {
        let doc = serde_json::from_str(&self.out);
        described(doc.unwrap_or_else(|e| panic!("{e}: {}{}", self.out, self.err)))
    }

    /// The tally that ends the text.
    fn last_line(&self) -> &str {
        self.out.lines().last().unwrap_or_default()
    }
}

/// A document that `fixtures/schema` describes.
fn described(doc: Value) -> Value {
    let schema = fs::read(common::fixture("schema/gpu-check.schema.json")).unwrap();
    let schema: Value = serde_json::from_slice(&schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let problems: Vec<String> =
        validator.iter_errors(&doc).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(problems.is_empty(), "{problems:#?}\n{doc:#}");
    let mut more = doc.clone();
    more["planted"] = 1.into();
    assert!(!validator.is_valid(&more), "the schema admits any key");
    doc
}

fn finish(command: &mut Command) -> Said {
    let output = command.output().expect("run dspark");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// `dspark gpu-check` on the emulated device, with these variables.
fn check(arguments: &[&str], variables: &[(&str, &str)]) -> Said {
    let driver = gpu::folder();
    let mut command = dspark(&[&["gpu-check"], arguments].concat());
    command.env("LD_LIBRARY_PATH", driver.path()).envs(variables.iter().copied());
    finish(&mut command)
}

/// Cases of a document by name.
fn case<'a>(doc: &'a Value, name: &str) -> &'a Value {
    let sections = doc["stages"].as_array().unwrap().iter().flat_map(|s| s["sections"].as_array());
    let mut cases = sections.flatten().flat_map(|s| s["cases"].as_array().unwrap());
    cases.find(|case| case["name"] == name).unwrap_or_else(|| panic!("no {name} in {doc:#}"))
}

/// A folder of the built-in PTX as `arch`, in which `change` may alter a source's text.
fn images(arch: &str, folder: &Path, change: impl Fn(&str, String) -> String) {
    for image in pack::embedded().unwrap().into_iter().filter(pack::Image::is_ptx) {
        let text = String::from_utf8(image.bytes).unwrap();
        let text = change(&image.source, text);
        fs::write(folder.join(format!("{}.{arch}.ptx", image.source)), text).unwrap();
    }
}

/// `text` with one kernel that decodes no weight: the first sum of bytes is left out.
fn without_a_byte_sum(text: String, kernel: &str) -> String {
    let entry = text.find(&format!(".entry {kernel}(")).unwrap();
    let start = entry + text[entry..].find("dp4a.u32.u32").unwrap();
    let end = start + text[start..].find(';').unwrap();
    let operands: Vec<&str> =
        text[start..end].trim_start_matches("dp4a.u32.u32").split(',').collect();
    format!("{}mov.u32 {},{}{}", &text[..start], operands[0], operands[3], &text[end..])
}

/// `text` with a kernel that returns at once.
fn without_a_kernel(text: &str, kernel: &str) -> String {
    let entry = text.find(&format!(".entry {kernel}(")).unwrap();
    let first = entry + text[entry..].find("ld.param").unwrap();
    format!("{}ret;\n\t{}", &text[..first], &text[first..])
}

/// `text` with a kernel that has 64 bytes of local memory, as if it spilled registers.
fn with_local_memory(text: &str, kernel: &str) -> String {
    let entry = text.find(&format!(".entry {kernel}(")).unwrap();
    let body = entry + text[entry..].find('{').unwrap() + 1;
    format!("{}\n.local .align 4 .b8 spilled[64];{}", &text[..body], &text[body..])
}

#[test]
fn without_a_gpu_every_stage_is_skipped_and_nothing_fails() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("made/here");
    let none = [("GPUSIM_DEVICES", "0")];
    let said = check(&["--out", out.to_str().unwrap()], &none);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.len(), 2, "{}", said.out);
    assert!(lines[0].starts_with("no GPU to check: no CUDA device"), "{}", said.out);
    assert_eq!(lines[1], "0 passed, 0 failed, 6 skipped");
    let doc = fs::read(out.join("gpu-check.json")).unwrap();
    let doc = described(serde_json::from_slice(&doc).unwrap());
    assert_eq!((&doc["schema"], &doc["skipped"]), (&1.into(), &6.into()));
    let said = check(&["step", "facts", "step", "--json"], &none);
    assert_eq!((said.code, &said.json()["skipped"]), (Some(0), &2.into()));
    // No driver library at all, unless this machine has one.
    let said =
        finish(dspark(&["gpu-check", "kernels", "--only", "k2"]).env_remove("LD_LIBRARY_PATH"));
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
}

#[test]
fn facts_and_kernels_pass_and_are_counted() {
    let said = check(&["kernels", "facts"], &[]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let (facts, kernels) = (said.out.find("facts: "), said.out.find("kernels: "));
    assert!(facts.is_some() && facts < kernels, "{}", said.out);
    assert!(said.out.contains("gpusim emulated device"), "{}", said.out);
    assert!(said.last_line().ends_with(" 0 failed, 6 skipped"), "{}", said.last_line());

    let doc = check(&["facts", "kernels", "--json"], &[]).json();
    assert_eq!((&doc["schema"], &doc["device"]["emulated"]), (&1.into(), &true.into()));
    let tally: Vec<u64> =
        ["passed", "failed", "skipped"].iter().map(|key| doc[key].as_u64().unwrap()).collect();
    let cases = case(&doc, "exl3_gemm_mul1_k5/384x256/9");
    assert!(cases["figures"]["difference"].as_f64().unwrap() < 1e-5);
    assert_eq!(format!("{} passed, 0 failed, 6 skipped", tally[0]), said.last_line());
    assert_eq!(case(&doc, "norm_rotate")["figures"]["local_bytes"], 0);
    assert_eq!(case(&doc, "image")["figures"]["value"], "compute_80");
}

#[test]
fn a_wrong_kernel_fails_its_cases_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    images("compute_80", folder.path(), |source, text| match source {
        "exl3_gemm" => without_a_byte_sum(text, "exl3_gemm_mul1_k2"),
        _ => text,
    });
    let said = check(
        &["kernels", "--only", "_k2/", "--json"],
        &[("DSPARK_KERNEL_DIR", folder.path().to_str().unwrap())],
    );
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.err.contains("error: 1 check failed"), "{}", said.err);
    let doc = said.json();
    let wrong = case(&doc, "exl3_gemm_mul1_k2/256x128/3");
    assert_eq!(wrong["outcome"], "failed");
    assert!(wrong["reason"].as_str().unwrap().contains("from the CPU"), "{wrong}");
    assert_eq!((&doc["passed"], &doc["failed"]), (&5.into(), &1.into()));
}

#[test]
fn a_kernel_that_spills_and_one_that_is_missing_fail_the_facts() {
    let folder = tempfile::tempdir().unwrap();
    images("compute_80", folder.path(), |source, text| match source {
        "norm" => text.replace(".entry kv_store(", ".entry kv_stored("),
        _ => text,
    });
    let variable = [("DSPARK_KERNEL_DIR", folder.path().to_str().unwrap())];
    let said = check(&["facts"], &variable);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("kernel kv_store for compute_80"), "{}", said.out);
    assert_eq!(said.last_line(), "0 passed, 1 failed, 0 skipped");
    images("compute_80", folder.path(), |source, text| match source {
        "norm" => with_local_memory(&text, "kv_store"),
        _ => text,
    });
    let said = check(&["facts"], &variable);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("kv_store FAILED: 64 bytes of local memory"), "{}", said.out);
    assert!(said.last_line().contains(" 1 failed"), "{}", said.last_line());
}

#[test]
fn two_images_that_differ_are_told_from_two_that_agree() {
    let folder = tempfile::tempdir().unwrap();
    // The emulated device takes both for PTX; to the program the first is machine code for it.
    images("sm_80", folder.path(), |_, text| text);
    images("compute_80", folder.path(), |_, text| text);
    let variable = [("DSPARK_KERNEL_DIR", folder.path().to_str().unwrap())];
    let said = check(&["images", "--json"], &variable);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let doc = said.json();
    assert_eq!(case(&doc, "9+8+8+8 rows")["figures"]["same_bits"], true);
    assert_eq!(case(&doc, "exl3_gemm_mcg_k7/256x128/3")["figures"]["other_values"], 0);
    images("compute_80", folder.path(), |source, text| match source {
        "exl3_gemm" => without_a_byte_sum(text, "exl3_gemm_mul1_k4"),
        _ => text,
    });
    let said = check(&["images", "--only", "mul1_k4", "--json"], &variable);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert_eq!(case(&said.json(), "exl3_gemm_mul1_k4/256x128/3")["outcome"], "failed");
}

#[test]
fn a_step_agrees_with_the_cpu_unless_a_kernel_does_nothing() {
    let said = check(&["step", "--only", "7", "--json"], &[]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let doc = said.json();
    for figure in ["repeats", "graph_is_eager", "prefix"] {
        assert_eq!(case(&doc, "7")["figures"][figure], true, "{figure}");
    }
    let folder = tempfile::tempdir().unwrap();
    images("compute_80", folder.path(), |source, text| match source {
        "exl3_finish" => without_a_kernel(&text, "exl3_finish_post"),
        _ => text,
    });
    let variable = [("DSPARK_KERNEL_DIR", folder.path().to_str().unwrap())];
    let said = check(&["step", "--only", "7", "--json"], &variable);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    let doc = said.json();
    let reason = case(&doc, "7")["reason"].as_str().unwrap();
    assert!(reason.contains("layer0.attn_out"), "{reason}");
}

#[test]
fn timing_runs_everywhere_and_says_when_it_means_nothing() {
    let doc = check(&["timing", "--json"], &[]).json();
    let notes = doc["stages"][0]["notes"].to_string();
    assert!(notes.contains("these times mean nothing"), "{notes}");
    assert!(case(&doc, "1 x 128")["figures"]["device_us"].as_f64().unwrap() > 0.0);
    let round = &case(&doc, "1 x 6")["figures"];
    for figure in ["p50_us", "p99_us", "host_us", "device_us", "cold_us", "rate_gb_s", "of_copy"] {
        assert!(round[figure].as_f64().unwrap() > 0.0, "{figure}");
    }
    let sections = doc["stages"][0]["sections"].as_array().unwrap();
    let titled = |title: &str| sections.iter().find(|section| section["title"] == title).unwrap();
    let parts = titled("bytes of a round")["cases"][0]["figures"].as_object().unwrap();
    let sum: u64 = parts.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(round["read_bytes"], sum);
    let kernels = titled("kernels of 1 x 6")["cases"].as_array().unwrap();
    let names: BTreeSet<&str> = kernels.iter().map(|k| k["name"].as_str().unwrap()).collect();
    assert!(names.contains("attention") && names.contains("exl3_gemm_mul1_k5"), "{names:?}");
}

/// A stand-in for compute-sanitizer that runs what it is given, except under one tool, where it finds something.
const SANITIZER: &str = r#"#!/bin/sh
echo "========= COMPUTE-SANITIZER"
[ "$2" = racecheck ] && { echo "========= Error: a race"; exit "$4"; }
shift 4
exec "$@"
"#;

/// A folder with this script as compute-sanitizer, and a PATH that begins with it.
fn sanitizer(script: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("compute-sanitizer");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    (folder, path)
}

#[test]
fn sanitizers_run_where_they_are_and_what_they_find_fails() {
    let said = check(&["sanitizers"], &[("PATH", "/nowhere")]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.out.contains("compute-sanitizer is not on PATH"), "{}", said.out);
    assert_eq!(said.last_line(), "0 passed, 0 failed, 1 skipped");
    let (_folder, path) = sanitizer(SANITIZER);
    let said = check(&["sanitizers"], &[("PATH", &path)]);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("racecheck FAILED"), "{}", said.out);
    assert!(said.out.contains("========= Error: a race"), "{}", said.out);
    assert_eq!(said.last_line(), "3 passed, 1 failed, 0 skipped");
}

/// A stand-in that hangs in another program, which speaks up when it is left behind.
const HANGING: &str = r#"#!/bin/sh
(echo hanging >&2; sleep 20; echo late >&2) &
wait
"#;

#[test]
fn a_signal_ends_the_stage_in_hand_and_all_it_has_started() {
    let (driver, (_folder, path)) = (gpu::folder(), sanitizer(HANGING));
    let mut command = dspark(&["gpu-check", "sanitizers", "--quiet"]);
    command.env("LD_LIBRARY_PATH", driver.path()).env("PATH", path).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "hanging\n");
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // Ends when nobody is left who could write.
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "error: ended by SIGINT\n");
}

#[test]
fn a_stage_that_takes_too_long_is_ended_and_mistakes_are_named() {
    let said = check(&["facts", "kernels", "--limit", "1ms"], &[]);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("not done in"), "{}", said.out);
    assert_eq!(said.last_line(), "0 passed, 2 failed, 0 skipped");
    let said = check(&["kernels", "--only", "nothing"], &[]);
    assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
    let said = check(&["kernels", "--device", "3"], &[]);
    assert_eq!(said.code, Some(6), "{}{}", said.out, said.err);
    assert!(said.err.contains("--device 3"), "{}", said.err);
    assert_eq!(check(&["nonsense"], &[]).code, Some(2));
    let said = check(&["facts", "--only", "norm_rotate", "--out", "/proc/none"], &[]);
    assert_eq!(said.code, Some(5), "{}{}", said.out, said.err);
}

/// Experts that the rows of a STEP took, by layer.
#[derive(Default)]
struct Experts(Vec<BTreeSet<usize>>);

impl StageObserver for Experts {
    fn stage(&mut self, stage: Stage, _: Option<usize>, values: &[f32]) -> ControlFlow<()> {
        if stage == Stage::RouterIds {
            self.0.push(values.iter().map(|&id| id as usize).collect());
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn the_bytes_of_a_round_are_those_the_kernels_read() {
    let options = CudaOptions { graphs: false, ..CudaOptions::default() };
    let mut drafter = gpu::drafter(&Checkpoint::demo().unwrap(), options);
    let geometry = *drafter.geometry();
    let draft = Draft {
        entry: 0,
        slot: 0,
        context: 0..6,
        anchor_token: 3,
        anchor_pos: 6,
        n_out: geometry.num_spec as usize,
    };
    let plan = StepPlan {
        appends: vec![Append { slot: 0, first_pos: 0, rows: 0..6 }],
        drafts: vec![draft],
        max_model_len: geometry.max_model_len.into(),
    };
    // Rows of small numbers, each another: bf16 words around 1.
    let rows: Vec<u8> = (0..6 * geometry.row_elems())
        .flat_map(|i| (0x3F00 + (i * 37 % 256) as u16).to_le_bytes())
        .collect();
    let (mut out, mut experts) = (DraftBlocks::new(&geometry), Experts::default());
    let (before, markov) = (gpu::report(), drafter.markov_counters());
    let rows = RowBlock::new(&rows, geometry.row_bytes());
    let _ = drafter.step_observed(&plan, rows, &mut out, &mut experts).unwrap();
    let after = gpu::report();
    let bytes = drafter.round_bytes(&plan, &experts.0, markov);
    assert!(!bytes.products.is_empty());
    for (kernel, &expected) in &bytes.products {
        let count = |report: &Value| {
            report["kernels"][kernel]["footprint_constant_bytes"].as_u64().unwrap_or(0)
        };
        // The records of layers and jobs are constant too, and K=V weights are read for both kinds of rows.
        let share = (count(&after) - count(&before)) as f64 / expected as f64;
        println!("{kernel}: {share:.3} of {expected} bytes read");
        assert!((1.0..1.15).contains(&share), "{kernel}: {share}");
    }
}
