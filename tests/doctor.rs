//! `dspark doctor`: what it says of a host, with and without an (emulated) driver, and what can run there.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
mod gpu;

use std::path::Path;

use common::process::{Worker, dspark, run};
use common::{copied_checkpoint, fixture};
use serde_json::Value;

/// Exit code and report of `dspark doctor --json` with these variables.
fn doctor(variables: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = dspark(&["doctor", "--json"]);
    // Ports of whoever runs the tests are not looked at unless a test names some.
    command.env("DSPARK_LISTEN", "tcp://127.0.0.1:0").env("DSPARK_CONTROL", "off");
    let output = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    let doc = serde_json::from_slice(&output.stdout).expect("a document");
    (output.status.code(), doc)
}

/// Result, detail and hint of the checks of one name.
fn checks(doc: &Value, name: &str) -> Vec<[String; 3]> {
    let all = doc["checks"].as_array().unwrap().iter().filter(|check| check["check"] == name);
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    all.map(|check| ["result", "detail", "hint"].map(|key| text(check, key))).collect()
}

/// Result and detail of the only check of that name.
fn check(doc: &Value, name: &str) -> (String, String) {
    let mut found = checks(doc, name);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    let [result, detail, _] = found.remove(0);
    (result, detail)
}

fn can_run(doc: &Value) -> Vec<&str> {
    doc["can_run"].as_array().unwrap().iter().map(|what| what.as_str().unwrap()).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn every_check_is_made_on_any_host_and_the_cpu_can_always_draft() {
    let (code, doc) = doctor(&[], &[]);
    assert_eq!((code, &doc["schema"]), (Some(0), &1.into()));
    for name in [
        "driver",
        "card",
        "kernels",
        "gpu memory",
        "cpu",
        "memory",
        "checkpoint",
        "port",
        "nofile",
        "memlock",
        "clock",
        "environment",
    ] {
        for [result, detail, hint] in checks(&doc, name) {
            assert!(
                ["ok", "warn", "missing", "failed", "-"].contains(&&*result),
                "{name}: {result}"
            );
            assert!(!detail.is_empty(), "{name}");
            assert!(
                ["ok", "-"].contains(&&*result) || !hint.is_empty(),
                "{name}: {detail}: no hint"
            );
        }
        assert!(!checks(&doc, name).is_empty(), "{name}");
    }
    assert_eq!(check(&doc, "checkpoint").0, "-", "none given is no failure");
    assert!(can_run(&doc).starts_with(&["demo", "cpu"]), "{doc}");
}

#[test]
fn people_read_a_table_that_ends_with_the_answer() {
    let output = dspark(&["doctor"]).env("DSPARK_CONTROL", "off").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let last = said.lines().last().unwrap();
    assert!(said.starts_with("check        result   detail\ndriver "), "{said}");
    assert!(last.starts_with("This machine can run: demo, cpu"), "{said}");
}

#[test]
fn a_card_drafts_when_kernels_and_memory_fit_it() {
    let folder = gpu::folder();
    let library = ("LD_LIBRARY_PATH", text(folder.path()));
    let tiny = fixture("tiny");
    let checkpoint = ["--checkpoint", text(&tiny)];
    let (code, doc) = doctor(&[library, ("GPUSIM_CC", "9.0")], &checkpoint);
    assert_eq!((code, can_run(&doc)), (Some(0), vec!["demo", "cpu", "cuda"]), "{doc}");
    assert_eq!(check(&doc, "driver"), ("ok".into(), "libcuda.so.1, CUDA 12.9".into()));
    assert_eq!(check(&doc, "card").1, "0: gpusim emulated device, capability 9.0");
    assert_eq!(check(&doc, "kernels"), ("ok".into(), "sm_90a: machine code".into()));
    assert!(check(&doc, "gpu memory").1.contains("the checkpoint needs about"), "{doc}");

    let (_, doc) = doctor(&[library, ("GPUSIM_CC", "8.0")], &checkpoint);
    assert_eq!(check(&doc, "kernels").0, "warn", "PTX only: {doc}");
    assert_eq!(can_run(&doc), ["demo", "cpu", "cuda"]);

    for (variable, value, failed) in [
        ("GPUSIM_CC", "7.5", "kernels"),
        ("GPUSIM_MEM_MB", "300", "gpu memory"),
        ("GPUSIM_DEVICES", "0", "driver"),
        ("GPUSIM_DRIVER_VERSION", "11080", "driver"),
        ("DSPARK_KERNEL_DIR", "/nowhere", "kernels"),
    ] {
        let (code, doc) = doctor(&[library, (variable, value)], &checkpoint);
        assert_eq!(check(&doc, failed).0, "failed", "{variable}={value}: {doc}");
        assert_eq!((code, can_run(&doc)), (Some(0), vec!["demo", "cpu"]), "{variable}={value}");
    }
}

#[test]
fn a_checkpoint_that_cannot_be_used_leaves_the_demo() {
    let given = |folder: &Path, more: &[&str]| {
        let (code, doc) = doctor(&[], &[&["--checkpoint", text(folder)], more].concat());
        assert_eq!(code, Some(0));
        doc
    };
    let copy = copied_checkpoint();
    let doc = given(copy.path(), &[]);
    let (result, detail) = check(&doc, "checkpoint");
    assert!(result == "ok" && detail.contains("not hashed"), "{detail}");
    let (result, detail) = check(&given(copy.path(), &["--verify"]), "checkpoint");
    assert!(result == "ok" && detail.contains("drafter identity 1b50ea14"), "{detail}");

    // Only hashing sees a flipped bit.
    let file = copy.path().join("model-exl3-mtp.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(check(&given(copy.path(), &[]), "checkpoint").0, "ok");
    let doc = given(copy.path(), &["--verify"]);
    assert_eq!((check(&doc, "checkpoint").0.as_str(), can_run(&doc)), ("failed", vec!["demo"]));

    std::fs::remove_file(&file).unwrap();
    let doc = given(copy.path(), &[]);
    let (result, detail) = check(&doc, "checkpoint");
    assert!(result == "failed" && detail.starts_with("model-exl3-mtp.safetensors"), "{detail}");
    assert_eq!(can_run(&doc), ["demo"]);

    let copy = copied_checkpoint();
    std::fs::write(copy.path().join("config.json"), "{}").unwrap();
    assert_eq!(check(&given(copy.path(), &[]), "checkpoint").0, "failed");
    std::fs::write(copy.path().join("DSPARK_COPY_DONE"), "{").unwrap();
    assert_eq!(check(&given(copy.path(), &[]), "checkpoint").0, "failed");
    let (result, detail) = check(&given(Path::new("/nowhere/at/all"), &[]), "checkpoint");
    assert!(result == "missing" && detail.contains("/nowhere/at/all"), "{detail}");
}

#[test]
fn ports_of_a_running_worker_are_recognised_and_its_client_is_left_alone() {
    let worker = Worker::start(&["--demo"]);
    let (drafting, control) = (worker.drafting().to_string(), worker.control().to_string());
    let (code, doc) = doctor(&[("DSPARK_LISTEN", &drafting), ("DSPARK_CONTROL", &control)], &[]);
    let [first, second] = &checks(&doc, "port")[..] else { panic!("{doc}") };
    assert_eq!((code, first[0].as_str(), second[0].as_str()), (Some(0), "warn", "ok"));
    assert!(first[1].starts_with(&format!("{drafting} is held; not asked")), "{first:?}");
    assert!(second[1].contains("a worker that answers: dspark "), "{second:?}");
    let stats: Value = serde_json::from_str(&run(&["stats", "--json", &control]).out).unwrap();
    assert_eq!(stats["link"]["connections"], 0, "nobody connected to the drafting port");

    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", silent.local_addr().unwrap());
    let (_, doc) = doctor(&[("DSPARK_CONTROL", &url), ("DSPARK_LISTEN", "tcp://192.0.2.1:0")], &[]);
    let [first, second] = &checks(&doc, "port")[..] else { panic!("{doc}") };
    assert!(first[0] == "warn" && first[1].contains("no interface"), "{first:?}");
    assert!(second[0] == "warn" && second[1].contains("another program"), "{second:?}");
    let (_, doc) = doctor(&[("DSPARK_LISTEN", "tcp://0.0.0.0:0")], &[]);
    assert_eq!(check(&doc, "port").0, "failed");
}

#[test]
fn an_environment_that_serve_refuses_runs_nothing_and_is_still_reported() {
    for (variable, value, named) in [
        ("DSPARK_DEVICE", "abc", "--device"),
        ("DSPARK_LOG", "info\r", "DSPARK_LOG"),
        ("DSPARK_LOG_FORMAT", "xml", "DSPARK_LOG_FORMAT"),
        ("DSPARK_CHECKPOINT", "/tmp ", "DSPARK_CHECKPOINT"),
    ] {
        let (code, doc) = doctor(&[(variable, value)], &[]);
        assert_eq!((code, can_run(&doc)), (Some(6), vec![]), "{variable}");
        let (result, detail) = check(&doc, "environment");
        assert!(result == "failed" && detail.contains(named), "{detail}");
    }
    let (code, doc) = doctor(&[("DSPARK_SLOT", "4"), ("DSPARK_CHEKPOINT", "x")], &[]);
    let found = checks(&doc, "environment");
    assert!(code == Some(0) && found.len() == 2 && found.iter().all(|[r, ..]| r == "warn"));
    // What only the emulated client reads does not keep a worker from running.
    let (code, doc) = doctor(&[("VLLM_DSPARK_REMOTE_TIMEOUT_MS", "never")], &[]);
    assert_eq!((code, check(&doc, "environment").0.as_str()), (Some(0), "failed"));
}
