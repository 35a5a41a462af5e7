//! The guides: what they say of statuses is the program's own table, and the flags they use exist.
//!
//! Their console sessions are run by `tests/cli.rs`.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::process::run;
use dspark::protocol::{EntryStatus, FrameStatus};

const GUIDES: [&str; 4] =
    ["README.md", "docs/deployment.md", "docs/gpu-check.md", "docs/troubleshooting.md"];

fn guide(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn the_deployment_guide_explains_every_status_in_the_words_of_the_program() {
    let guide = guide("docs/deployment.md");
    let frames = FrameStatus::ALL.iter().map(|status| status.row());
    for row in frames.chain(EntryStatus::ALL.iter().map(|status| status.row())) {
        let begin = format!("| `{}` | {} | {} | ", row.name, row.meaning, row.action);
        let found = guide.lines().find(|line| line.starts_with(&begin));
        let line = found.unwrap_or_else(|| panic!("docs/deployment.md lacks: {begin}"));
        assert!(line.len() > begin.len() + 10, "{} says nothing to do", row.name);
    }
}

/// Commands of the program in a guide's shell blocks.
fn commands(text: &str) -> Vec<&str> {
    let (mut inside, mut found) = (false, Vec::new());
    for line in text.lines() {
        match line {
            line if line.starts_with("```sh") => inside = true,
            "```" => inside = false,
            line if inside => {
                let starts = line.match_indices("dspark ").map(|(at, _)| at);
                let commands = starts.filter(|at| *at == 0 || line[..*at].ends_with("$("));
                found.extend(commands.map(|at| &line[at..]));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn every_flag_that_a_guide_uses_exists() {
    let mut help: BTreeMap<String, String> = BTreeMap::new();
    let mut seen = 0;
    for path in GUIDES {
        let text = guide(path);
        for line in commands(&text) {
            let end = line.find(['|', ')', '&']).unwrap_or(line.len());
            let words: Vec<_> = line[..end].split_whitespace().collect();
            let depth = match words[1] {
                flag if flag.starts_with('-') => 0,
                "trace" => 2,
                _ => 1,
            };
            let names = &words[1..=depth];
            let help = help.entry(names.join(" ")).or_insert_with(|| {
                let said = run(&[names, &["--help"]].concat());
                assert_eq!(said.code, Some(0), "{path}: {line}: {}", said.err);
                said.out
            });
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                let flag = flag.split('=').next().unwrap();
                let known = help.split(|c: char| !c.is_alphanumeric() && c != '-');
                assert!(known.into_iter().any(|word| word == flag), "{path}: {line}: no {flag}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 12, "{seen} commands");
}
