//! `fixtures/SHA256SUMS` lists every fixture, and every fixture is what it was.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::fixture;
use sha2::{Digest, Sha256};

/// Files of the folder that are about the fixtures, not among them.
const NOT_LISTED: [&str; 3] = ["README.md", "SHA256SUMS", ".gitattributes"];

/// SHA-256 of every file below `folder`, by its path from `root`.
fn hashes(root: &Path, folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            hashes(root, &path, found);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
        if !NOT_LISTED.contains(&name.as_str()) {
            let digest = Sha256::digest(std::fs::read(&path).unwrap());
            found.insert(name, hex::encode(digest));
        }
    }
}

/// The list, in the form `sha256sum` writes.
fn listed(sums: &str) -> BTreeMap<String, String> {
    let mut list = BTreeMap::new();
    for line in sums.lines() {
        let (hash, name) = line.split_once("  ").unwrap_or_else(|| panic!("not a sum: {line}"));
        let again = list.insert(name.to_owned(), hash.to_owned());
        assert!(again.is_none(), "{name} is listed twice");
    }
    list
}

/// What differs between the list and the folder, one line each.
fn differences(listed: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Vec<String> {
    let missing = listed.keys().filter(|name| !found.contains_key(*name));
    let missing = missing.map(|name| format!("{name} is listed and not there"));
    let others = found.iter().filter_map(|(name, hash)| match listed.get(name) {
        None => Some(format!("{name} is not listed")),
        Some(sum) if sum != hash => Some(format!("{name} has been changed")),
        Some(_) => None,
    });
    missing.chain(others).collect()
}

#[test]
fn every_fixture_is_listed_and_unchanged() {
    let root = fixture("");
    let mut found = BTreeMap::new();
    hashes(&root, &root, &mut found);
    let sums = std::fs::read_to_string(fixture("SHA256SUMS")).unwrap();
    let problems = differences(&listed(&sums), &found);
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn a_missing_an_extra_and_a_changed_file_are_each_named() {
    let list = listed("aa  gone\nbb  kept\ncc  edited\n");
    let found = listed("bb  kept\ndd  edited\nee  extra\n");
    assert_eq!(
        differences(&list, &found),
        ["gone is listed and not there", "edited has been changed", "extra is not listed"]
    );
}
