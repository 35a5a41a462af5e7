//! Exit codes and messages of commands that end at once, and the `identity` command.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use common::process::{Said, dspark, run};
use common::{copied_checkpoint, fixture};
use serde_json::Value;

const ANY_PORT: [&str; 4] = ["--listen", "tcp://127.0.0.1:0", "--control", "off"];

/// `dspark serve` on a free port with these arguments, which must not start a worker.
fn serve(arguments: &[&str]) -> Said {
    run(&[&["serve"], &ANY_PORT[..], arguments].concat())
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn serve_without_a_checkpoint_says_how_to_give_one() {
    let said = serve(&[]);
    assert_eq!(said.code, Some(2));
    assert_eq!(
        said.err,
        "error: no checkpoint given\n  \
         give one with --checkpoint DIR (or DSPARK_CHECKPOINT), or try the built-in demo:\n    \
         dspark serve --demo\n"
    );
}

#[test]
fn a_damaged_file_of_the_checkpoint_ends_with_5_and_is_named() {
    for (name, damage) in
        [("model-00044-of-00046.safetensors", 5000), ("config.json", 10), ("exl3_moe_plan.json", 3)]
    {
        let copy = copied_checkpoint();
        let file = copy.path().join(name);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[damage] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let said = serve(&["--checkpoint", path(copy.path())]);
        assert_eq!(said.code, Some(5), "{name}: {}", said.err);
        assert_eq!(said.err.matches(name).count(), 1, "said once: {}", said.err);
        assert!(said.out.is_empty());
    }
    let copy = copied_checkpoint();
    std::fs::remove_file(copy.path().join("model-exl3-head.safetensors")).unwrap();
    let said = serve(&["--checkpoint", path(copy.path())]);
    assert_eq!(said.code, Some(5));
    assert!(said.err.contains("model-exl3-head.safetensors"), "{}", said.err);
    let said = serve(&["--checkpoint", "/nowhere/at/all"]);
    assert_eq!(said.code, Some(5));
    assert!(said.err.contains("/nowhere/at/all"), "{}", said.err);
}

#[test]
fn endpoints_that_cannot_be_are_usage_errors() {
    for (flag, url) in [
        ("--listen", "tcp://0.0.0.0:0"),
        ("--listen", "tcp://[::]:0"),
        ("--listen", "tcp://224.0.0.1:0"),
        ("--listen", "udp://127.0.0.1:0"),
        ("--listen", "tcp://127.0.0.1"),
        ("--listen", "tcp://localhost:0"),
        ("--listen", "tcp://127.0.0.1:0?bind=127.0.0.1"),
        ("--control", "tcp://0.0.0.0:0"),
        ("--control", "nonsense"),
    ] {
        let said = run(&["serve", "--demo", flag, url]);
        assert_eq!(said.code, Some(2), "{url}: {}", said.err);
    }
    for url in ["udp://127.0.0.1:1", "tcp://127.0.0.1:0", "tcp://127.0.0.1:99999"] {
        assert_eq!(run(&["ping", url]).code, Some(2), "{url}");
        assert_eq!(run(&["stats", url]).code, Some(2), "{url}");
    }
}

#[test]
fn transports_that_are_not_built_in_end_with_6() {
    for url in ["o1rdma://127.0.0.1:18620", "o1tcp://127.0.0.1:18620"] {
        let said = run(&["serve", "--demo", "--control", "off", "--listen", url]);
        assert_eq!(said.code, Some(6), "{}", said.err);
        for command in ["ping", "stats"] {
            let said = run(&[command, url]);
            assert_eq!(said.code, Some(6), "{command}: {}", said.err);
            assert!(said.err.contains("not in this build"), "{}", said.err);
        }
    }
}

#[test]
fn an_address_of_another_host_ends_with_3() {
    let listen = "tcp://192.0.2.1:0";
    let said = run(&["serve", "--demo", "--control", "off", "--listen", listen]);
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(said.err.contains("192.0.2.1"), "{}", said.err);
}

/// Identities of the small checkpoint.
fn golden() -> [String; 2] {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(fixture("tiny/hello.json")).unwrap()).unwrap();
    ["drafter_identity", "markov_identity"].map(|key| golden[key].as_str().unwrap().to_owned())
}

fn identity(arguments: &[&str]) -> Said {
    let receipt = fixture("tiny/DSPARK_COPY_DONE");
    let markov = fixture("tiny/markov_top_tokens.json");
    let given = ["identity", "--receipt", path(&receipt), "--markov", path(&markov)];
    run(&[&given, arguments].concat())
}

#[test]
fn identity_prints_both_digests_and_only_one_bare() {
    let [drafter, markov] = golden();
    let said = identity(&["-q"]);
    assert_eq!(said.code, Some(0));
    assert_eq!(said.out, format!("drafter {drafter}\nmarkov  {markov}\n"));
    assert_eq!(said.err, "");
    assert_eq!(identity(&["--only", "drafter"]).out, format!("{drafter}\n"));
    assert_eq!(identity(&["--only", "markov"]).out, format!("{markov}\n"));
    let doc: Value = serde_json::from_str(&identity(&["--json"]).out).unwrap();
    assert_eq!(
        (&doc["drafter_identity"], &doc["markov_identity"]),
        (&drafter.into(), &markov.into())
    );
    assert_eq!(doc["files"].as_array().unwrap().len(), 10);
    let receipt = fixture("tiny/DSPARK_COPY_DONE");
    let said = run(&["identity", "--receipt", path(&receipt), "--only", "markov"]);
    assert_eq!(said.out, format!("{}\n", "0".repeat(64)), "zeros without a cache");
}

#[test]
fn identity_compares_with_what_is_expected() {
    let [drafter, markov] = golden();
    let upper = drafter.to_uppercase();
    let said = identity(&["--expect-drafter", &upper, "--expect-markov", &markov]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let said = identity(&["--expect-drafter", &markov]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains(&drafter) && said.err.contains(&markov), "{}", said.err);
    assert_eq!(identity(&["--expect-markov", &"0".repeat(64)]).code, Some(1));
    assert_eq!(identity(&["--expect-drafter", "abc"]).code, Some(2));
}

#[test]
fn identity_verifies_the_files_themselves() {
    let copy = copied_checkpoint();
    let said = identity(&["--verify", path(copy.path())]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.err.contains("bytes match the receipt"), "{}", said.err);
    let file = copy.path().join("model-exl3-mtp.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let said = identity(&["--verify", path(copy.path())]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("model-exl3-mtp.safetensors"), "{}", said.err);
    assert!(said.out.is_empty());
}

#[test]
fn identity_reads_any_receipt_that_is_one() {
    let [drafter, _] = golden();
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture("tiny/DSPARK_COPY_DONE")).unwrap();
    let crlf = folder.path().join("crlf");
    std::fs::write(&crlf, text.replace('\n', "\r\n")).unwrap();
    let said = run(&["identity", "--receipt", path(&crlf), "--only", "drafter"]);
    assert_eq!(said.out, format!("{drafter}\n"), "{}", said.err);
    let mut command = dspark(&["identity", "--receipt", "-", "--only", "drafter"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, format!("{drafter}\n").as_bytes());
    let cut = folder.path().join("cut");
    std::fs::write(&cut, &text[..text.len() / 2]).unwrap();
    for wrong in [path(&cut), "/nowhere", path(folder.path())] {
        let said = run(&["identity", "--receipt", wrong]);
        assert_eq!(said.code, Some(5), "{}", said.err);
        assert!(said.err.contains(wrong), "{}", said.err);
    }
}

#[test]
fn identity_is_the_same_however_a_receipt_is_written_or_refused_and_never_another() {
    let [drafter, _] = golden();
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture("tiny/DSPARK_COPY_DONE")).unwrap();
    let receipt = |change: &dyn Fn(&mut Value)| {
        let mut doc: Value = serde_json::from_str(&text).unwrap();
        change(&mut doc);
        doc.to_string()
    };
    let same = [
        ("bom", format!("\u{feff}{text}")),
        (
            "upper case",
            receipt(&|doc| {
                for list in ["files", "extracted_files"] {
                    for file in doc[list].as_array_mut().unwrap() {
                        file["sha256"] = file["sha256"].as_str().unwrap().to_uppercase().into();
                    }
                }
            }),
        ),
        ("other order", receipt(&|doc| doc["files"].as_array_mut().unwrap().reverse())),
    ];
    let file = folder.path().join("receipt");
    for (what, text) in same {
        std::fs::write(&file, text).unwrap();
        // The order is one of bytes, whatever the locale says of dashes and case.
        for locale in ["C", "de_DE.UTF-8", "tr_TR.UTF-8"] {
            let mut command = dspark(&["identity", "--receipt", path(&file), "--only", "drafter"]);
            let output = command.env("LC_ALL", locale).output().unwrap();
            assert_eq!(output.stdout, format!("{drafter}\n").as_bytes(), "{what} in {locale}");
        }
    }
    let twice = receipt(&|doc| {
        let mut again = doc["files"][0].clone();
        again["name"] = format!("elsewhere/{}", again["name"].as_str().unwrap()).into();
        doc["files"].as_array_mut().unwrap().push(again);
    });
    let nameless = receipt(&|doc| _ = doc["files"][3].as_object_mut().unwrap().remove("name"));
    let refused = [
        (twice, "files[0] and files[10] both name"),
        (nameless, "files[3].name"),
        (receipt(&|doc| doc["files"][2]["sha256"] = Value::Null), "files[2].sha256 is missing"),
        (receipt(&|doc| _ = doc.as_object_mut().unwrap().remove("files")), "files is missing"),
    ];
    for (text, problem) in refused {
        std::fs::write(&file, text).unwrap();
        let said = run(&["identity", "--receipt", path(&file), "--only", "drafter"]);
        assert_eq!((said.code, said.out.as_str()), (Some(5), ""), "{}", said.err);
        assert!(said.err.contains(problem), "no {problem} in {}", said.err);
    }
}

#[test]
fn identity_names_every_file_that_differs_and_prints_no_digest() {
    let copy = copied_checkpoint();
    let damaged = ["model-exl3-mtp.safetensors", "model-exl3-head.safetensors"];
    for name in damaged {
        let file = copy.path().join(name);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[9000] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    std::fs::remove_file(copy.path().join("config.json")).unwrap();
    let said = identity(&["--verify", path(copy.path()), "--only", "drafter"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    for name in damaged.iter().chain(&["config.json: missing"]) {
        assert!(said.err.contains(name), "no {name} in {}", said.err);
    }
    let said = identity(&["--verify", path(copy.path()), "--json"]);
    let doc: Value = serde_json::from_str(&said.out).unwrap();
    let files = doc["verified"].as_array().unwrap();
    let wrong = files.iter().filter(|file| file["result"] != "ok").count();
    assert_eq!((said.code, wrong), (Some(1), 3), "{}", said.out);
}

#[test]
fn a_control_listener_that_is_off_is_explained_to_the_tools() {
    for command in ["ping", "stats"] {
        let output = dspark(&[command]).env("DSPARK_CONTROL", "off").output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("DSPARK_CONTROL=off") && err.contains("give its URL"), "{err}");
    }
}
