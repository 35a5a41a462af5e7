//! A checkpoint directory as an operator meets it: identities, verification, and what is refused.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dspark::checkpoint::{
    Checkpoint, CheckpointError, CheckpointPaths, Difference, Identities, Receipt,
    drafter_identity, identity_lines, verify_directory,
};
use dspark::digest::Sha256Digest;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tiny");
const DRAFTER: &str = "1b50ea14b5ff54c2ab8630d599c9fd987f1fd1b33aa76723b9b2824d9b99430d";
const MARKOV: &str = "3d32061a9b4ea9696c228c45b0f86d5fe7e041f8b51b4c92b90133f309280e27";
const EXPERTS: &str = "model-exl3-mtp-experts.safetensors";

fn paths(dir: impl Into<PathBuf>) -> CheckpointPaths {
    CheckpointPaths { dir: dir.into(), receipt: None, markov: None }
}

fn tiny_receipt() -> String {
    fs::read_to_string(Path::new(TINY).join("DSPARK_COPY_DONE")).unwrap()
}

/// A writable copy of the tiny checkpoint.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(TINY).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

/// Replaces a file and writes a receipt that agrees with it, so that only the content is at fault.
fn replace(dir: &Path, name: &str, content: &[u8]) {
    let path = dir.join(name);
    let old = Sha256Digest::of(&fs::read(&path).unwrap()).to_string();
    fs::write(&path, content).unwrap();
    let receipt = fs::read_to_string(dir.join("DSPARK_COPY_DONE")).unwrap();
    let receipt = receipt.replace(&old, &Sha256Digest::of(content).to_string());
    fs::write(dir.join("DSPARK_COPY_DONE"), receipt).unwrap();
}

fn refusal(paths: &CheckpointPaths) -> String {
    Checkpoint::open(paths, &()).unwrap_err().to_string()
}

#[test]
fn the_tiny_checkpoint_opens_with_both_known_identities() {
    let checkpoint = Checkpoint::open(&paths(TINY), &()).unwrap();
    assert_eq!(checkpoint.identities.drafter.to_string(), DRAFTER);
    assert_eq!(checkpoint.identities.markov.to_string(), MARKOV);
    assert_eq!(checkpoint.markov.unwrap().tokens().len(), 96);
    assert_eq!(checkpoint.warnings, [""; 0]);
    assert_eq!(checkpoint.bytes, 3_298_619);
    assert_eq!(checkpoint.origin, TINY);
}

#[test]
fn the_demo_checkpoint_is_the_tiny_one() {
    let (demo, files) = (Checkpoint::demo().unwrap(), Checkpoint::open(&paths(TINY), &()).unwrap());
    assert_eq!(demo.identities, files.identities);
    assert_eq!(demo.config, files.config);
    assert_eq!(demo.markov, files.markov);
    assert_eq!((demo.tensors.len(), demo.bytes), (files.tensors.len(), files.bytes));
    for (a, b) in demo.tensors.iter().zip(files.tensors.iter()) {
        assert_eq!(
            (&a.name, &a.file, &a.shape, &a.data[..]),
            (&b.name, &b.file, &b.shape, &b.data[..])
        );
    }
}

#[test]
fn the_tiny_tensors_are_the_drafters_and_one_is_ignored() {
    let tensors = Checkpoint::demo().unwrap().tensors;
    let mut dtypes = BTreeMap::<String, usize>::new();
    tensors.iter().for_each(|t| *dtypes.entry(t.dtype.to_string()).or_default() += 1);
    let counted: Vec<_> = dtypes.iter().map(|(dtype, n)| (&**dtype, *n)).collect();
    assert_eq!(counted, [("BF16", 17), ("F16", 210), ("F32", 21), ("I16", 101), ("I32", 101)]);
    assert_eq!(tensors.len(), 450);

    let ignored: Vec<_> = tensors.iter().filter(|t| tensors.is_ignored(&t.name)).collect();
    assert_eq!(ignored.iter().map(|t| &*t.name).collect::<Vec<_>>(), ["norm.weight"]);
    for tensor in tensors.iter().filter(|t| !tensors.is_ignored(&t.name)) {
        assert_eq!(tensors.canonical(&tensor.name).as_ref(), Some(&tensor.name));
        assert_eq!(tensors.find(&tensor.name).unwrap().file, tensor.file);
    }
    let of = |name: &str| {
        let tensor = tensors.find(name).unwrap_or_else(|| panic!("{name}"));
        (tensor.dtype.to_string(), tensor.shape.clone())
    };
    assert_eq!(of("mtp.0.main_proj.trellis"), ("I16".into(), vec![48, 16, 80]));
    assert_eq!(of("mtp.1.attn.wq_a.suh"), ("F16".into(), vec![256]));
    assert_eq!(of("head.mul1"), ("I32".into(), vec![]));
    assert_eq!(of("embed.weight"), ("BF16".into(), vec![512, 256]));
    assert_eq!(of("mtp.2.hc_ffn_fn"), ("F32".into(), vec![24, 1024]));
    assert_eq!(of("mtp.1.ffn.gate.bias"), ("F16".into(), vec![8]));
}

#[test]
fn a_flipped_byte_is_named_with_both_digests_and_stops_the_load() {
    let dir = copy();
    let path = dir.path().join(EXPERTS);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let right = Sha256Digest::of(&bytes);
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();

    let message = refusal(&paths(dir.path()));
    let wrong = Sha256Digest::of(&bytes);
    let line = format!("\n  {EXPERTS}: has sha256 {wrong}, the receipt says {right}\n");
    assert!(message.contains("1 of 10 files differ from the receipt"), "{message}");
    assert!(message.contains(&line), "{message}");
}

#[test]
fn all_differences_are_found_at_once() {
    let dir = copy();
    fs::remove_file(dir.path().join("config.json")).unwrap();
    fs::write(dir.path().join("exl3_moe_plan.json"), "{}").unwrap();
    fs::remove_file(dir.path().join(EXPERTS)).unwrap();
    fs::create_dir(dir.path().join(EXPERTS)).unwrap();
    let receipt = Receipt::read(&dir.path().join("DSPARK_COPY_DONE")).unwrap();
    let error = verify_directory(dir.path(), &receipt, &()).unwrap_err();
    let of = |name: &str| {
        let named = |d: &&Difference| d.to_string().starts_with(&format!("{name}: "));
        error.differences.iter().find(named).unwrap_or_else(|| panic!("{name}: {error}"))
    };
    assert_eq!(error.differences.len(), 3);
    assert!(matches!(of("config.json"), Difference::Missing { .. }));
    assert!(matches!(of("exl3_moe_plan.json"), Difference::Size { found_bytes: 2, .. }));
    assert!(matches!(of(EXPERTS), Difference::Unreadable { .. }));
}

#[test]
fn line_ends_byte_order_mark_and_upper_case_leave_the_identity_alone() {
    let plain = tiny_receipt();
    let upper: String = plain
        .split('"')
        .map(|part| if part.len() == 64 { part.to_uppercase() } else { part.into() })
        .collect::<Vec<_>>()
        .join("\"");
    let prefixed = plain.replace("\"sha256\": \"", "\"sha256\": \"sha256:");
    let renamed = plain.replace("\"name\": \"", "\"src\": \"/data/source/");
    let windows = format!("\u{feff}{}", plain.replace('\n', "\r\n"));
    assert_ne!(upper, plain);
    for (what, text) in
        [("upper", upper), ("prefixed", prefixed), ("renamed", renamed), ("windows", windows)]
    {
        let receipt = Receipt::parse("DSPARK_COPY_DONE", text.as_bytes()).unwrap();
        assert_eq!(drafter_identity(&receipt.files).to_string(), DRAFTER, "{what}");
        assert_eq!(receipt.expected_files().len(), 10, "{what}");
    }
}

#[test]
fn the_hashed_lines_can_be_printed_and_hashed_by_hand() {
    let receipt = Receipt::parse("DSPARK_COPY_DONE", tiny_receipt().as_bytes()).unwrap();
    let lines = identity_lines(&receipt.files);
    assert_eq!(lines.len(), 10);
    // A hyphen sorts before a full stop.
    assert!(lines[8].starts_with(EXPERTS) && lines[9].starts_with("model-exl3-mtp.safetensors "));
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(Sha256Digest::of(text.as_bytes()).to_string(), DRAFTER);
    assert_eq!(Identities::of(&receipt, None).markov, Sha256Digest::ZERO);
}

#[test]
fn a_cut_receipt_never_panics() {
    let text = tiny_receipt();
    let whole = text.trim_end().len();
    for end in (0..whole).step_by(7) {
        assert!(Receipt::parse("R", &text.as_bytes()[..end]).is_err(), "{end}");
    }
}

#[test]
fn a_short_digest_is_named_by_its_path() {
    let dir = copy();
    let mut receipt: serde_json::Value = serde_json::from_str(&tiny_receipt()).unwrap();
    let digest = receipt["files"][3]["sha256"].as_str().unwrap()[..62].to_owned();
    receipt["files"][3]["sha256"] = digest.into();
    fs::write(dir.path().join("DSPARK_COPY_DONE"), receipt.to_string()).unwrap();
    let message = refusal(&paths(dir.path()));
    let end = "DSPARK_COPY_DONE: files[3].sha256 has 62 hex digits, expected 64";
    assert!(message.ends_with(end), "{message}");
}

#[test]
fn a_tensor_file_cut_or_padded_is_refused_even_if_the_receipt_agrees() {
    for change in [-1_i64, 7] {
        let dir = copy();
        let mut bytes = fs::read(dir.path().join(EXPERTS)).unwrap();
        let length = usize::try_from(bytes.len() as i64 + change).unwrap();
        bytes.resize(length, 0);
        replace(dir.path(), EXPERTS, &bytes);
        let message = refusal(&paths(dir.path()));
        let end = format!("{EXPERTS}: tensors end at byte 1260792, the file ends at byte {length}");
        assert_eq!(message, end);
    }
}

#[test]
fn a_tensor_in_two_files_is_refused_even_if_the_receipt_agrees() {
    let dir = copy();
    let head = fs::read(dir.path().join("model-exl3-head.safetensors")).unwrap();
    replace(dir.path(), EXPERTS, &head);
    let message = refusal(&paths(dir.path()));
    assert!(message.contains("are one tensor of the drafter"), "{message}");
}

#[test]
fn a_bad_configuration_is_refused_by_key() {
    let dir = copy();
    let config = fs::read_to_string(dir.path().join("config.json")).unwrap();
    let config = config.replace("\"hc_mult\": 4", "\"hc_mult\": \"four\"");
    replace(dir.path(), "config.json", config.as_bytes());
    assert_eq!(
        refusal(&paths(dir.path())),
        r#"config.json: hc_mult is the string "four", expected a whole number"#
    );
}

#[test]
fn files_the_receipt_does_not_list_are_not_opened() {
    let dir = copy();
    fs::write(dir.path().join("model-foreign.safetensors"), "not a tensor file").unwrap();
    Checkpoint::open(&paths(dir.path()), &()).unwrap();
}

#[test]
fn a_file_replaced_after_opening_does_not_change_the_tensors() {
    let dir = copy();
    let checkpoint = Checkpoint::open(&paths(dir.path()), &()).unwrap();
    let path = dir.path().join("model-00002-of-00046.safetensors");
    let before = checkpoint.tensors.find("embed.weight").unwrap().data.to_vec();
    let other = dir.path().join("other");
    fs::write(&other, vec![0; usize::try_from(fs::metadata(&path).unwrap().len()).unwrap()])
        .unwrap();
    fs::rename(other, path).unwrap();
    assert_eq!(checkpoint.tensors.find("embed.weight").unwrap().data[..], before);
}

#[test]
fn a_markov_cache_that_cannot_be_parsed_keeps_its_identity_and_costs_a_warning() {
    let dir = copy();
    let content = b"[3, 512]";
    fs::write(dir.path().join("markov_top_tokens.json"), content).unwrap();
    let checkpoint = Checkpoint::open(&paths(dir.path()), &()).unwrap();
    assert_eq!(checkpoint.identities.markov, Sha256Digest::of(content));
    assert_eq!(checkpoint.markov, None);
    let [warning] = &checkpoint.warnings[..] else { panic!("{:?}", checkpoint.warnings) };
    assert!(warning.contains("[1] is the number 512, expected a token id below 512"), "{warning}");
}

#[test]
fn a_given_markov_cache_wins_over_the_directorys_and_must_exist() {
    let dir = copy();
    let given = dir.path().join("given.json");
    let mut paths = paths(dir.path());
    paths.markov = Some(given.clone());
    let message = refusal(&paths);
    assert!(message.starts_with(&format!("{}: cannot be read: ", given.display())), "{message}");
    fs::write(&given, "{\"tokens\": [5]}").unwrap();
    let checkpoint = Checkpoint::open(&paths, &()).unwrap();
    assert_eq!(checkpoint.markov.unwrap().tokens(), [5]);
}

#[test]
fn without_a_markov_cache_the_identity_is_zero() {
    let dir = copy();
    fs::remove_file(dir.path().join("markov_top_tokens.json")).unwrap();
    let checkpoint = Checkpoint::open(&paths(dir.path()), &()).unwrap();
    assert_eq!((checkpoint.identities.markov, checkpoint.markov), (Sha256Digest::ZERO, None));
}

#[test]
fn a_receipt_elsewhere_is_read_when_given() {
    let dir = copy();
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    fs::rename(dir.path().join("DSPARK_COPY_DONE"), elsewhere.path()).unwrap();
    let mut paths = paths(dir.path());
    assert!(matches!(Checkpoint::open(&paths, &()), Err(CheckpointError::Receipt(_))));
    paths.receipt = Some(elsewhere.path().into());
    assert_eq!(Checkpoint::open(&paths, &()).unwrap().identities.drafter.to_string(), DRAFTER);
}

#[test]
fn a_receipt_without_configuration_or_tensors_is_refused() {
    let dir = copy();
    let mut receipt: serde_json::Value = serde_json::from_str(&tiny_receipt()).unwrap();
    let keep = |receipt: &mut serde_json::Value, list: &str, names: &[&str]| {
        let files = receipt[list].as_array_mut().unwrap();
        files.retain(|file| names.contains(&file["name"].as_str().unwrap()));
    };
    keep(&mut receipt, "extracted_files", &["config.json"]);
    fs::write(dir.path().join("DSPARK_COPY_DONE"), receipt.to_string()).unwrap();
    assert!(refusal(&paths(dir.path())).ends_with("lists no safetensors file with tensors"));
    let mut receipt: serde_json::Value = serde_json::from_str(&tiny_receipt()).unwrap();
    keep(&mut receipt, "files", &[EXPERTS]);
    keep(&mut receipt, "extracted_files", &[EXPERTS]);
    fs::write(dir.path().join("DSPARK_COPY_DONE"), receipt.to_string()).unwrap();
    assert!(refusal(&paths(dir.path())).ends_with("the receipt lists no config.json"));
}
