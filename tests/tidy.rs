//! The rules of the source tree that the compiler does not check: headers, module order, where `unwrap`,
//! `unsafe` and clocks may occur, file length.
//!
//! Every rule is a function of a file's path and text, so that each is also shown to fail on a bad sample.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

/// Modules in dependency order: each may use those above it, except the ones named beside it. A module
/// that is not listed has no place yet; give it one.
const ORDER: &[(&str, &[&str])] = &[
    ("geometry", &[]),
    ("digest", &[]),
    ("random", &[]),
    ("buffer", &[]),
    ("plan", &[]),
    ("protocol", &[]),
    ("window", &[]),
    ("ring", &[]),
    ("session", &[]),
    ("exl3", &[]),
    ("checkpoint", &[]),
    // A backend executes plans; it must not know that they came over a wire.
    ("drafter", &["protocol", "session"]),
    ("transport", &["drafter"]),
    ("trace", &["drafter"]),
    ("client", &["session", "drafter"]),
    // The two ends meet on the wire only.
    ("worker", &["client"]),
    ("shadow", &[]),
];

/// Modules that compute from their arguments alone: no clock, no `unsafe`.
const PURE: [&str; 8] = [
    "src/protocol",
    "src/window",
    "src/ring",
    "src/plan",
    "src/session",
    "src/client/rank0",
    "src/client/breaker",
    "src/shadow",
];

/// The only places where `unsafe` may occur.
const UNSAFE: [&str; 3] = ["src/drafter/cuda", "src/checkpoint/tensors", "src/buffer"];

/// Longest file, in lines.
const LINES_MAX: usize = 600;

/// One source file.
struct Source {
    /// Path from the package root, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// Whether the file is `module` itself or lies in its folder.
    fn is_in(&self, module: &str) -> bool {
        let rest = self.path.strip_prefix(module);
        rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    /// Whether the file is where `module` begins.
    fn is_root_of(&self, module: &str) -> bool {
        let rest = self.path.strip_prefix(module);
        rest.is_some_and(|rest| rest == ".rs" || rest == "/mod.rs")
    }

    /// Name of the library module the file belongs to, if any.
    fn module(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        let name = inside.split(['/', '.']).next()?;
        (name != "lib").then_some(name)
    }

    /// Lines with their numbers, without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate();
        lines.map(|(number, line)| (number + 1, without_comment(line)))
    }

    /// [`code`](Self::code) without items under `#[cfg(test)]`. rustfmt ends an item with its closing
    /// bracket at the item's own indentation.
    fn shipped(&self) -> Vec<(usize, &str)> {
        let mut lines = Vec::new();
        let mut test_item: Option<usize> = None;
        if self.path.ends_with("/tests.rs") {
            return lines;
        }
        for (number, line) in self.code() {
            let indent = line.len() - line.trim_start().len();
            let end = line.trim_end();
            match test_item {
                None if end.trim_start().starts_with("#[cfg(test)]") => test_item = Some(indent),
                None => lines.push((number, line)),
                Some(at) => {
                    let closed = indent == at && (end.ends_with('}') || end.ends_with(';'));
                    if closed {
                        test_item = None;
                    }
                }
            }
        }
        lines
    }
}

/// `line` up to a comment. The slashes of an address (`tcp://`) begin none.
fn without_comment(line: &str) -> &str {
    let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// `text` as whole words.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn missing_header(source: &Source) -> Vec<String> {
    let starts = source.text.starts_with("//! ");
    if starts { vec![] } else { vec!["does not begin with a //! header".to_owned()] }
}

fn too_long(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    if lines <= LINES_MAX { vec![] } else { vec![format!("{lines} lines, at most {LINES_MAX}")] }
}

fn unwraps(source: &Source) -> Vec<String> {
    let shipped = source.shipped().into_iter();
    let unwraps = shipped.filter(|(_, line)| line.contains(".unwrap()"));
    unwraps.map(|(number, _)| format!("line {number}: unwrap outside tests")).collect()
}

fn unsafes(source: &Source) -> Vec<String> {
    if UNSAFE.iter().any(|allowed| source.is_in(allowed)) {
        return vec![];
    }
    let found = source.code().filter(|(_, line)| words(line).any(|word| word == "unsafe"));
    found.map(|(number, _)| format!("line {number}: unsafe has no place here")).collect()
}

fn impurities(source: &Source) -> Vec<String> {
    let Some(module) = PURE.iter().find(|module| source.is_in(module)) else { return vec![] };
    let mut problems = Vec::new();
    let forbids = source.text.lines().any(|line| line == "#![forbid(unsafe_code)]");
    if source.is_root_of(module) && !forbids {
        problems.push("a pure module without #![forbid(unsafe_code)]".to_owned());
    }
    for (number, line) in source.code() {
        for clock in ["Instant::now", "SystemTime::now"] {
            if line.contains(clock) {
                problems.push(format!("line {number}: {clock} in a pure module"));
            }
        }
    }
    problems
}

/// Top-level modules that shipped code names as `crate::module` or `crate::{module, ..}`.
fn used_modules(source: &Source) -> BTreeSet<String> {
    let code: String = source.shipped().into_iter().flat_map(|(_, line)| [line, "\n"]).collect();
    let mut used = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let path = &code[at + "crate::".len()..];
        match path.strip_prefix('{') {
            Some(group) => used.extend(group_heads(group)),
            None => used.extend(words(path).next().map(str::to_owned)),
        }
    }
    used
}

/// First names of the comma-separated paths up to the group's closing brace.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut fresh) = (0, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && (c.is_alphabetic() || c == '_') => {
                heads.extend(words(&group[at..]).next().map(str::to_owned));
                fresh = false;
            }
            _ => {}
        }
    }
    heads
}

fn broken_edges(source: &Source) -> Vec<String> {
    let Some(module) = source.module() else { return vec![] };
    let place = |name: &str| ORDER.iter().position(|(listed, _)| *listed == name);
    let Some(own) = place(module) else {
        return vec![format!("module {module} has no place in the module order")];
    };
    let mut problems = Vec::new();
    for used in used_modules(source) {
        // Modules are in lower case; what is not is a constant or a type of lib.rs.
        if used.starts_with(char::is_uppercase) {
            continue;
        }
        let Some(other) = place(&used) else {
            problems.push(format!("uses crate::{used}, which has no place in the module order"));
            continue;
        };
        if other > own {
            problems.push(format!("{module} uses {used}, which comes after it"));
        } else if ORDER[own].1.contains(&used.as_str()) {
            problems.push(format!("{module} must not know {used}"));
        }
    }
    problems
}

/// What is wrong with a file, one line each.
type Rule = fn(&Source) -> Vec<String>;

/// Every rule, by name.
const RULES: &[(&str, Rule)] = &[
    ("header", missing_header),
    ("length", too_long),
    ("unwrap", unwraps),
    ("unsafe", unsafes),
    ("pure", impurities),
    ("order", broken_edges),
];

fn collect(root: &Path, folder: &Path, sources: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, sources);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
            sources.push(Source { path: name, text: std::fs::read_to_string(&path).unwrap() });
        }
    }
}

#[test]
fn the_source_tree_keeps_its_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for folder in ["src", "commands"] {
        collect(root, &root.join(folder), &mut sources);
    }
    assert!(sources.len() > 10, "{} files", sources.len());
    let mut problems = Vec::new();
    for source in &sources {
        for (_, rule) in RULES {
            problems.extend(rule(source).into_iter().map(|p| format!("{}: {p}", source.path)));
        }
    }
    problems.sort();
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// The rules that a sample breaks.
fn broken(path: &str, text: &str) -> Vec<&'static str> {
    let source = Source { path: path.to_owned(), text: text.to_owned() };
    let broken = RULES.iter().filter(|(_, rule)| !rule(&source).is_empty());
    broken.map(|(name, _)| *name).collect()
}

#[test]
fn a_file_without_header_or_too_long_is_found() {
    assert_eq!(broken("src/geometry.rs", "use std::fmt;\n"), ["header"]);
    assert_eq!(broken("commands/main.rs", "fn main() {}\n"), ["header"]);
    assert_eq!(broken("src/geometry.rs", &format!("//! G.\n{}", "\n".repeat(599))), [""; 0]);
    assert_eq!(broken("src/geometry.rs", &format!("//! G.\n{}", "\n".repeat(600))), ["length"]);
}

#[test]
fn unwrap_is_found_outside_tests_only() {
    let shipped = "//! G.\nfn f() {\n    g().unwrap();\n}\n";
    assert_eq!(broken("src/geometry.rs", shipped), ["unwrap"]);
    assert_eq!(broken("commands/worker.rs", shipped), ["unwrap"]);
    let tests =
        "//! G.\n#[cfg(test)]\nmod tests {\n    fn f() {\n        g().unwrap();\n    }\n}\n";
    assert_eq!(broken("src/geometry.rs", tests), [""; 0]);
    let after = format!("{tests}fn f() {{\n    g().unwrap();\n}}\n");
    assert_eq!(broken("src/geometry.rs", &after), ["unwrap"]);
    let one_line = "//! G.\n#[cfg(test)]\nuse a::b;\nfn f() {\n    g().unwrap();\n}\n";
    assert_eq!(broken("src/geometry.rs", one_line), ["unwrap"]);
    let comment = "//! G.\n/// Not `x.unwrap()`.\nfn f() {} // nor y.unwrap()\n";
    assert_eq!(broken("src/geometry.rs", comment), [""; 0]);
    let address = "//! G.\nfn f() {\n    g(\"tcp://\").unwrap();\n}\n";
    assert_eq!(broken("src/geometry.rs", address), ["unwrap"]);
    assert_eq!(broken("src/session/tests.rs", shipped), [""; 0]);
}

#[test]
fn unsafe_is_found_outside_its_three_places() {
    let text = "//! G.\nfn f() {\n    unsafe { g() }\n}\n";
    for allowed in [
        "src/drafter/cuda/mod.rs",
        "src/drafter/cuda.rs",
        "src/checkpoint/tensors.rs",
        "src/buffer.rs",
    ] {
        assert_eq!(broken(allowed, text), [""; 0], "{allowed}");
    }
    for forbidden in
        ["src/geometry.rs", "src/drafter/cudart.rs", "src/exl3/mod.rs", "commands/a.rs"]
    {
        assert_eq!(broken(forbidden, text), ["unsafe"], "{forbidden}");
    }
    let lint = "//! G.\n#![deny(unsafe_op_in_unsafe_fn)]\n// unsafe\n";
    assert_eq!(broken("src/geometry.rs", lint), [""; 0]);
}

#[test]
fn a_pure_module_that_may_be_unsafe_or_reads_a_clock_is_found() {
    let forbids = "//! G.\n#![forbid(unsafe_code)]\n";
    for root in [
        "src/window.rs",
        "src/protocol/mod.rs",
        "src/client/rank0.rs",
        "src/client/breaker/mod.rs",
        "src/shadow.rs",
    ] {
        assert_eq!(broken(root, forbids), [""; 0], "{root}");
        assert_eq!(broken(root, "//! G.\n"), ["pure"], "{root}");
        for clock in ["std::time::Instant::now()", "SystemTime::now()"] {
            let text = format!("{forbids}fn f() {{\n    {clock};\n}}\n");
            assert_eq!(broken(root, &text), ["pure"], "{root}");
        }
    }
    // The root forbids for the files below it; a clock is found there too. Others may read one.
    let clock = "//! G.\nfn f() {\n    Instant::now();\n}\n";
    assert_eq!(broken("src/protocol/step.rs", "//! G.\n"), [""; 0]);
    assert_eq!(broken("src/protocol/step.rs", clock), ["pure"]);
    assert_eq!(broken("src/client/mod.rs", clock), [""; 0]);
}

#[test]
fn an_edge_against_the_module_order_is_found() {
    let uses = |path: &str, line: &str| {
        broken(path, &format!("//! G.\n#![forbid(unsafe_code)]\n{line}\n"))
    };
    assert_eq!(uses("src/session.rs", "use crate::window::Window;"), [""; 0]);
    assert_eq!(uses("src/protocol/step.rs", "use crate::protocol::Op;"), [""; 0]);
    assert_eq!(uses("src/window.rs", "use crate::session::Session;"), ["order"]);
    assert_eq!(uses("src/plan.rs", "fn f(x: crate::protocol::Op) {}"), ["order"]);
    assert_eq!(
        uses("src/plan.rs", "pub(crate) use crate::{buffer::A, window::{B, C}, digest};"),
        ["order"]
    );
    assert_eq!(uses("src/plan.rs", "use crate::{buffer::{A, window}, digest};"), [""; 0]);
    assert_eq!(uses("src/plan.rs", "use crate::{\n    digest,\n    ring::R,\n};"), ["order"]);
    assert_eq!(uses("src/plan.rs", "// crate::session\nuse othercrate::session;"), [""; 0]);
    assert_eq!(
        uses("src/plan.rs", "#[cfg(test)]\nmod t {\n    use crate::session::S;\n}"),
        [""; 0]
    );
    // The pairs that never know each other, in both directions.
    for (path, other) in [
        ("src/client/mod.rs", "worker"),
        ("src/worker/mod.rs", "client"),
        ("src/drafter/cpu/mod.rs", "protocol"),
        ("src/protocol/step.rs", "drafter"),
    ] {
        assert_eq!(uses(path, &format!("use crate::{other}::X;")), ["order"], "{path}");
    }
    assert_eq!(uses("src/metrics.rs", ""), ["order"]);
    assert_eq!(uses("src/session.rs", "use crate::metrics::M;"), ["order"]);
    assert_eq!(uses("src/session.rs", "use crate::CONTRACT_VERSION;"), [""; 0]);
    assert_eq!(uses("commands/replay.rs", "use crate::args::Args;"), [""; 0]);
    assert_eq!(uses("src/lib.rs", "pub mod metrics;"), [""; 0]);
}
