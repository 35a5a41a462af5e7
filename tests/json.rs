//! What every command prints: JSON that its schema in `fixtures/schema` describes and nothing else, to
//! stdout alone, and without a word to a reader that has gone.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
mod gpu;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use common::process::{Said, Worker, dspark, run};
use common::{fixture, json_files};
use jsonschema::{Retrieve, Uri, Validator};
use serde_json::Value;

/// A schema by its name.
fn schema(name: &str) -> Value {
    let text = std::fs::read(fixture(&format!("schema/{name}.schema.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Finds a schema that another one refers to.
struct Committed;

impl Retrieve for Committed {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        let name = uri.as_str().strip_prefix("urn:dspark:schema:").ok_or("not one of ours")?;
        Ok(schema(name))
    }
}

fn validator(schema: &Value) -> Validator {
    jsonschema::draft202012::options().with_retriever(Committed).build(schema).unwrap()
}

/// What is wrong with a document, one line each.
fn problems(schema: &Value, doc: &Value) -> Vec<String> {
    let validator = validator(schema);
    let errors = validator.iter_errors(doc);
    errors.map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Every object of a value, by its pointer.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.push(at.to_owned());
            for (key, value) in map {
                objects(value, &format!("{at}/{key}"), found);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                objects(value, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// Checks a document against a schema, and that the schema refuses it once anything is changed: a key
/// more anywhere, a required key less, a value of another type.
fn check(name: &str, text: &str) -> Value {
    let schema = schema(name);
    let doc: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    let found = problems(&schema, &doc);
    assert!(found.is_empty(), "{name}: {found:#?}\n{doc:#}");

    let validator = validator(&schema);
    let refused = |doc: &Value, what: &str| assert!(!validator.is_valid(doc), "{name}: {what}");
    let mut all = Vec::new();
    objects(&doc, "", &mut all);
    // A trace's note is whatever its author wrote, figures have many names, STATS has a schema of its own.
    let open = ["/header/note", "/figures", "/stats"];
    all.retain(|at| !open.iter().any(|part| at.contains(part)));
    for pointer in all {
        let mut more = doc.clone();
        more.pointer_mut(&pointer).unwrap()["planted"] = "x".into();
        refused(&more, &format!("a key more in '{pointer}' passes"));
    }
    for key in doc.as_object().unwrap().keys() {
        let required = schema["required"].as_array().unwrap().contains(&key.clone().into());
        let mut less = doc.clone();
        less.as_object_mut().unwrap().remove(key);
        assert_eq!(validator.is_valid(&less), !required, "{name}: without {key}");
        let mut other = doc.clone();
        other[key] = if doc[key].is_boolean() { 7.into() } else { true.into() };
        refused(&other, &format!("{key} of another type passes"));
    }
    doc
}

/// Runs a command that succeeds and says nothing beside its result.
fn result(arguments: &[&str]) -> String {
    let Said { code, out, err } = run(&[arguments, &["--json", "--quiet"]].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
    out
}

/// A worker that has served a replay, with its listeners.
fn served() -> (Worker, String, String) {
    let worker = Worker::start(&["--demo", "--metrics", "127.0.0.1:0"]);
    let (drafting, control) = (worker.drafting().to_string(), worker.control().to_string());
    let replay = ["replay", "--demo", "--pace", "max", "--rounds", "60", "--backoff", "0"];
    let more = ["--seed", "4", "--fault", "close=0.05", "--endpoint", &drafting];
    let doc = check("replay", &result(&[&replay[..], &more].concat()));
    assert!(doc["faults"]["close"]["injected"].as_u64().unwrap() > 0, "{doc:#}");
    assert!(doc["verdict"]["windows_equal"].as_bool().unwrap(), "{doc:#}");
    (worker, drafting, control)
}

#[test]
fn documents_of_and_about_a_worker_are_as_described() {
    let fresh = Worker::start(&["--demo"]);
    check("serve", &fresh.ready.to_string());
    // Before any STEP: nothing is known, and nothing is null or not a number.
    let stats = check("stats", &result(&["stats", &fresh.control().to_string()]));
    assert!(stats.get("worker_us_p50").is_none() && stats.get("client").is_none(), "{stats:#}");

    let (worker, _, control) = served();
    check("serve", &worker.ready.to_string());
    let stats = check("stats", &result(&["stats", &control]));
    assert!(stats["worker_us_p50"].is_number() && stats["client"].is_string(), "{stats:#}");
    check("ping", &result(&["ping", "-c", "5", "-i", "0", "--histogram", &control]));
    check("ping-wait", &result(&["ping", "--wait", "5s", &control]));

    let gone = Worker::start(&["--demo"]).control().to_string();
    let said = run(&["top", "--json", "--interval", "50ms", &control, &gone]);
    let workers = &check("top", &said.out)["workers"];
    assert_eq!(
        (said.code, &workers[0]["error"], &workers[1]["stats"]),
        (Some(3), &Value::Null, &Value::Null)
    );
    assert!(workers[0]["stats"]["delta"].is_object() && workers[1]["error"].is_string());
    check("doctor", &result(&["doctor"]));

    let mut watch = dspark(&["stats", "--watch", "50ms", "--json", &control]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let lines: Vec<_> = lines.take(2).map(|line| check("stats", &line.unwrap())).collect();
    // The pipe is closed, and the next line ends it.
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    assert!(lines[0].get("delta").is_none() && lines[1].get("delta").is_some());

    drop(worker);
    let said = run(&["ping", "-c", "2", "-i", "0", "--timeout", "200ms", "--json", &control]);
    assert_eq!(said.code, Some(3));
    assert_eq!(check("ping", &said.out)["rtt_us"], Value::Null);
}

#[test]
fn documents_about_files_are_as_described() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let tiny = fixture("tiny").to_str().unwrap().to_owned();
    let receipt = fixture("tiny/DSPARK_COPY_DONE").to_str().unwrap().to_owned();

    check("serve-check", &result(&["serve", "--demo", "--check"]));
    // Whatever it finds of this machine.
    check("doctor", &run(&["doctor", "--json"]).out);
    check("identity", &result(&["identity", "--receipt", &receipt]));
    let doc = check("identity", &result(&["identity", "--receipt", &receipt, "--verify", &tiny]));
    assert!(doc["verified"].as_array().unwrap().iter().all(|file| file["result"] == "ok"));
    let said = run(&["identity", "--receipt", &receipt, "--verify", &file(""), "--json"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let doc = check("identity", &said.out);
    assert!(doc["verified"].as_array().unwrap().iter().all(|file| file["result"] == "missing"));

    let (trace, cut) = (file("a.trace"), file("b.trace"));
    let synth = ["trace", "synth", "--demo", "--rounds", "20", "-o", &trace];
    assert_eq!(check("trace-written", &result(&synth))["rounds"], 20);
    let cut_out = result(&["trace", "cut", &trace, "3..9", "-o", &cut]);
    assert_eq!(check("trace-written", &cut_out)["rounds"], 7);
    let merged = result(&["trace", "merge", &trace, &cut, "-o", &file("c.trace")]);
    assert!(check("trace-written", &merged)["records"].as_u64().unwrap() > 27);
    check("trace-info", &result(&["trace", "info", &trace]));
    let bytes = std::fs::read(&trace).unwrap();
    std::fs::write(&trace, &bytes[..bytes.len() - 7]).unwrap();
    let said = run(&["trace", "info", &trace, "--json"]);
    assert_eq!(said.code, Some(5));
    assert!(check("trace-info", &said.out)["cut"].is_object());

    let shadow = fixture("demo/shadow.trace").to_str().unwrap().to_owned();
    let doc = check("shadow-diff", &result(&["shadow-diff", &shadow, "--near-tie", "0.0625"]));
    assert_eq!(doc["mismatches"].as_array().unwrap().len(), 2);
    let replay = ["replay", "--demo", "--rounds", "12", "--pace", "500", "--policy", "shadow"];
    let doc = check("replay", &result(&replay));
    assert!(doc["local"]["blocks"].as_u64().unwrap() > 0 && doc["corrected_us"].is_object());
    check("man", &result(&["man", &file("man")]));
}

/// The result of a command on the emulated GPU.
fn emulated(arguments: &[&str]) -> String {
    let driver = gpu::folder();
    let mut command = dspark(&[arguments, &["--json", "--quiet"]].concat());
    let output = command.env("LD_LIBRARY_PATH", driver.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn documents_about_a_gpu_are_as_described() {
    let doc = check("gpu-check", &emulated(&["gpu-check", "facts"]));
    assert_eq!((&doc["device"]["emulated"], &doc["failed"]), (&true.into(), &0.into()), "{doc:#}");
    let doc = check("serve-check", &emulated(&["serve", "--demo", "--check", "--backend", "cuda"]));
    assert!(doc["memory"]["plan"]["weights_bytes"].as_u64().unwrap() > 0, "{doc:#}");
    let said = run(&["gpu-check", "facts", "--json", "--device", "4000"]);
    let doc: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
    assert!(doc["skipped_because"].is_string(), "{doc:#}");
    check("gpu-check", &said.out);
}

/// Checks of every schema below `node`.
fn strict(name: &str, at: &str, node: &Value) {
    let Value::Object(map) = node else { return };
    if let Some(properties) = map.get("properties").and_then(Value::as_object) {
        assert_eq!(map["additionalProperties"], false, "{name}{at} allows any key");
        for (key, property) in properties {
            let text = property["description"].as_str().unwrap_or_default();
            assert!(text.len() > 3, "{name}{at}/{key} has no description");
            let measured = property["type"] == "number" || key.ends_with("_us");
            let units = ["µs", "second", "0 to 1", "logits", "confidence", "per ", "blocks"];
            let named = units.iter().chain(&["relative", "ratio"]).any(|unit| text.contains(unit));
            assert!(!measured || named, "{name}{at}/{key} has no unit: {text}");
        }
    }
    for (key, below) in map {
        match below {
            Value::Array(list) => list.iter().for_each(|below| strict(name, at, below)),
            below => strict(name, &format!("{at}/{key}"), below),
        }
    }
}

#[test]
fn schemas_are_valid_and_describe_every_key_with_its_unit() {
    let schemas = json_files("schema", "");
    assert!(schemas.len() >= 11, "{} schemas", schemas.len());
    for (name, schema) in schemas {
        assert!(jsonschema::draft202012::meta::is_valid(&schema), "{name}");
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
        assert_eq!(schema["properties"]["schema"]["const"], 1, "{name}");
        strict(&name, "", &schema);
    }
}

/// A command line of every command that prints something and ends by itself.
fn commands(control: &str, drafting: &str, scratch: &Path) -> Vec<Vec<String>> {
    let receipt = fixture("tiny/DSPARK_COPY_DONE");
    let (receipt, tiny) = (receipt.to_str().unwrap(), fixture("tiny"));
    let shadow = fixture("demo/shadow.trace");
    let (tiny, shadow) = (tiny.to_str().unwrap(), shadow.to_str().unwrap());
    let trace = scratch.join("a.trace");
    let (trace, pages) = (trace.to_str().unwrap(), scratch.join("man"));
    let demo = ["replay", "--demo", "--pace", "max", "--rounds", "8", "--endpoint", drafting];
    let lines: [&[&str]; 17] = [
        &["--help"],
        &["--version"],
        &["serve", "--help"],
        &["serve", "--demo", "--check"],
        &["identity", "--receipt", receipt],
        &["identity", "--receipt", receipt, "--verify", tiny, "--only", "drafter"],
        &["ping", "-c", "2", "-i", "0", control],
        &["stats", control],
        &["stats", "--openmetrics", control],
        &demo,
        &["shadow-diff", shadow, "--near-tie", "0.0625"],
        &["trace", "info", trace],
        &["top", "--once", "--interval", "50ms", control],
        &["top", "--json", "--interval", "50ms", control],
        &["doctor"],
        &["completions", "zsh"],
        &["man", pages.to_str().unwrap()],
    ];
    lines.iter().map(|line| line.iter().map(|word| (*word).to_owned()).collect()).collect()
}

#[test]
fn results_go_to_stdout_alone_and_nobody_panics_when_a_pipe_is_closed() {
    let worker = Worker::start(&["--demo"]);
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("a.trace");
    run(&["trace", "synth", "--demo", "--rounds", "20", "-o", trace.to_str().unwrap()]);
    let (control, drafting) = (worker.control().to_string(), worker.drafting().to_string());
    let mut all = commands(&control, &drafting, scratch.path());
    for line in &all {
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let said = run(&words);
        assert_eq!(said.code, Some(0), "{line:?}: {}", said.err);
        assert!(!said.out.is_empty(), "{line:?}");
        // Logs, progress and colours are for a terminal and for stderr.
        for noise in ["\r", "\u{1b}", " INFO ", " WARN "] {
            assert!(!said.out.contains(noise), "{line:?}: {noise:?} on stdout");
        }
        assert!(!said.err.contains(['\r', '\u{1b}']), "{line:?}: {:?}", said.err);
        // With stderr closed the result and the exit code are the same.
        let closed = dspark(&words).stderr(gone()).stdout(Stdio::null()).status().unwrap();
        assert_eq!(closed.code(), Some(0), "{line:?} without stderr");
    }
    all.push(["stats", "--watch", "10ms", &control].map(str::to_owned).to_vec());
    all.push(["stats", "--watch", "10ms", "--json", &control].map(str::to_owned).to_vec());
    for line in all {
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let output = dspark(&words).stdout(gone()).stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{line:?}: {err}");
        assert!(!err.contains("panicked") && !err.contains("error"), "{line:?}: {err}");
    }
}

/// The writing end of a pipe that nobody reads.
fn gone() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}
