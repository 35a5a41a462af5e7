//! `completions/` and `man/` are what the program prints, byte for byte.
//!
//! `DSPARK_UPDATE=1 cargo test --test generated` writes them anew.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::process::{is_here, run};

/// Shells, with the file names that their scripts are looked for under.
const SHELLS: [(&str, &str); 5] = [
    ("bash", "dspark.bash"),
    ("zsh", "_dspark"),
    ("fish", "dspark.fish"),
    ("elvish", "dspark.elv"),
    ("powershell", "_dspark.ps1"),
];

fn project(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Files of a folder by name.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeMap::new() };
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

/// Compares a committed folder with what the program printed, or writes it.
fn check(folder: &str, printed: &BTreeMap<String, String>) {
    let path = project(folder);
    if std::env::var_os("DSPARK_UPDATE").is_some_and(|value| value == "1") {
        // Pages of commands that are gone go too.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        for (name, text) in printed {
            std::fs::write(path.join(name), text).unwrap();
        }
    }
    let committed = files(&path);
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    let how = "DSPARK_UPDATE=1 cargo test --test generated writes it anew";
    assert_eq!(names(&committed), names(printed), "{folder}/ is out of date; {how}");
    for (name, text) in printed {
        // Not assert_eq: nobody reads two pages of a thousand lines.
        assert!(committed[name] == *text, "{folder}/{name} is out of date; {how}");
    }
}

fn completions() -> BTreeMap<String, String> {
    let script = |(shell, file): (&str, &str)| {
        let said = run(&["completions", shell]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        (file.to_owned(), said.out)
    };
    SHELLS.map(script).into()
}

fn pages() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let said = run(&["man", folder.path().to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let pages = files(folder.path());
    assert_eq!(said.out.lines().count(), pages.len(), "every page is named once");
    pages
}

#[test]
fn the_committed_completions_are_what_the_program_prints() {
    check("completions", &completions());
}

#[test]
fn the_committed_manual_is_what_the_program_prints() {
    check("man", &pages());
}

/// Lines of a page's section.
fn section<'a>(page: &'a str, name: &str) -> &'a str {
    let start = format!(".SH {name}\n");
    let (_, rest) = page.split_once(&*start).unwrap_or_else(|| panic!("no {name}"));
    rest.split("\n.SH ").next().unwrap()
}

#[test]
fn every_page_has_exit_codes_variables_and_examples_and_nothing_of_the_machine() {
    let pages = pages();
    assert!(pages.len() >= 14, "{} pages", pages.len());
    for (name, page) in &pages {
        let codes = section(page, "\"EXIT STATUS\"");
        for code in ["0", "1", "2", "3", "4", "5", "6", "70", "130"] {
            assert!(codes.contains(&format!("\\fB{code}\\fR")), "{name}: no exit code {code}");
        }
        assert!(section(page, "ENVIRONMENT").contains("DSPARK_LOG_FORMAT"), "{name}");
        if name != "dspark-trace.1" {
            assert!(section(page, "EXAMPLES").contains("dspark "), "{name}");
        }
        let machine = env!("CARGO_MANIFEST_DIR");
        assert!(!page.contains(machine) && !page.contains("target/release"), "{name}");
        let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert!(title.contains(" 1 \"\" \"dspark "), "{name}: no date: {title}");
    }
    let serve = &pages["dspark-serve.1"];
    for variable in ["DSPARK_CHECKPOINT", "DSPARK_LISTEN", "DSPARK_STALL_LIMIT"] {
        assert!(section(serve, "ENVIRONMENT").contains(variable), "{variable}");
    }
    assert!(pages["dspark-replay.1"].contains("VLLM_DSPARK_REMOTE_TIMEOUT_MS"));
    assert!(section(&pages["dspark-trace-cut.1"], "\"SEE ALSO\"").contains("dspark\\-trace(1)"));
}

#[test]
fn a_folder_that_cannot_be_made_is_named_and_json_is_no_shell_script() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let said = run(&["man", file.path().to_str().unwrap()]);
    assert_eq!(said.code, Some(5));
    assert!(said.err.contains(file.path().to_str().unwrap()), "{}", said.err);
    assert_eq!(run(&["completions", "bash", "--json"]).code, Some(2));
    assert_eq!(run(&["completions", "tcsh"]).code, Some(2));
}

/// The scripts in a folder of their own: the committed ones may be being written.
fn written() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in completions() {
        std::fs::write(folder.path().join(name), script).unwrap();
    }
    let path = folder.path().to_owned();
    (folder, path)
}

/// What bash offers for the words typed so far; the last one is being completed.
fn offered(script: &Path, words: &[&str]) -> Vec<String> {
    let script = format!(
        "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _dspark dspark '{}' '{}'; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let output = Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    if !is_here("bash") {
        eprintln!("skipped: there is no bash here");
        return;
    }
    let (_folder, scripts) = written();
    let offered = |words: &[&str]| offered(&scripts.join("dspark.bash"), words);
    assert_eq!(offered(&["dspark", "sta"]), ["stats"]);
    assert_eq!(offered(&["dspark", "serve", "--stall"]), ["--stall-limit"]);
    assert_eq!(offered(&["dspark", "serve", "--backend", ""]), ["auto", "cuda", "cpu"]);
    assert!(offered(&["dspark", "trace", ""]).contains(&"merge".to_owned()));
}

#[test]
fn fish_and_zsh_take_their_scripts() {
    let (_folder, scripts) = written();
    for (shell, file, check) in [("fish", "dspark.fish", "--no-execute"), ("zsh", "_dspark", "-n")]
    {
        if !is_here(shell) {
            eprintln!("skipped: there is no {shell} here");
            continue;
        }
        let script = scripts.join(file);
        let output = Command::new(shell).arg(check).arg(script).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{shell}: {said}");
    }
}

#[test]
fn manual_pages_have_no_errors() {
    if !is_here("mandoc") {
        eprintln!("skipped: there is no mandoc here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(&["man", folder.path().to_str().unwrap()]).code, Some(0));
    for page in files(folder.path()).into_keys() {
        let lint = ["-T", "lint", "-W", "error"];
        let output = Command::new("mandoc").args(lint).arg(folder.path().join(&page)).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{page}: {said}");
    }
}

#[test]
fn versions_are_short_and_long() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(run(&["-V"]).out, format!("dspark {version}\n"));
    let said = run(&["--version"]).out;
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], format!("dspark {version}"));
    assert_eq!(lines[1..4], ["contract  1.8", "wire      1", "backends  cpu, cuda"]);
    assert!(lines[4].starts_with("kernels   ") && lines[4].contains("sm_86"), "{said}");
}
