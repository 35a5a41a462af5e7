//! Golden scripts of the slot rule and the session (contract §6, §7), one test per file of `scripts/`.
//!
//! A script can be read without Rust: what is sent, then what comes of it. `window` scripts send entries to
//! one slot; `session` scripts send whole frames over named connections. Outputs are written by
//! `UPDATE_GOLDENFILES=1` and then reviewed against the contract.
#![allow(clippy::unwrap_used)]

mod common;

use std::error::Error;

use common::frames;
use dspark::geometry::LIVE;
use dspark::window::{Entry, Generation, Rejection, Window};
use goldenscript::{Argument, Command, Context, Runner};

#[path = "scripts/session_runner.rs"]
mod session_runner;

use session_runner::SessionRunner;

test_each_file::test_each_path! { in "./tests/scripts/window" as window => |path: &std::path::Path| {
    goldenscript::run(&mut WindowRunner::default(), path).expect("script runs");
} }

test_each_file::test_each_path! { in "./tests/scripts/session" as session => |path: &std::path::Path| {
    goldenscript::run(&mut SessionRunner::default(), path).expect("script runs");
} }

/// Arguments of a script line: `key=value` and bare flags, each used once or the line is an error.
pub(crate) struct Words {
    left: Vec<(String, Option<String>)>,
}

impl Words {
    /// The arguments of a command.
    fn of(command: &Command) -> Self {
        let word = |argument: &Argument| match argument {
            Argument::KeyValue(key, value) => (key.clone(), Some(value.clone())),
            Argument::Positional(flag) => (flag.clone(), None),
            other => panic!("unknown kind of argument: {other}"),
        };
        Self { left: command.args.iter().map(word).collect() }
    }

    /// The words of one quoted argument.
    fn split(text: &str) -> Self {
        let word = |word: &str| match word.split_once('=') {
            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
            None => (word.to_owned(), None),
        };
        Self { left: text.split_whitespace().map(word).collect() }
    }

    /// Takes the number given as `key=`, decimal or `0x` hexadecimal.
    fn number<T: TryFrom<i128>>(&mut self, key: &str) -> Result<Option<T>, Box<dyn Error>> {
        let Some(at) = self.left.iter().position(|(k, v)| k == key && v.is_some()) else {
            return Ok(None);
        };
        let (_, value) = self.left.remove(at);
        let value = value.unwrap();
        let number = match value.strip_prefix("0x") {
            Some(hex) => i128::from_str_radix(hex, 16)?,
            None => value.parse()?,
        };
        let number = T::try_from(number).map_err(|_| format!("{key}={value} is out of range"))?;
        Ok(Some(number))
    }

    /// Takes a bare flag.
    fn flag(&mut self, name: &str) -> bool {
        let at = self.left.iter().position(|(k, v)| k == name && v.is_none());
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// Takes the bare words that are left.
    fn rest(&mut self) -> Vec<String> {
        let (rest, left) = std::mem::take(&mut self.left).into_iter().partition(|w| w.1.is_none());
        self.left = left;
        let rest: Vec<(String, Option<String>)> = rest;
        rest.into_iter().map(|(word, _)| word).collect()
    }

    /// Every word has been used.
    fn end(&self) -> Result<(), Box<dyn Error>> {
        match self.left.first() {
            None => Ok(()),
            Some((word, _)) => Err(format!("unknown word {word}").into()),
        }
    }
}

/// `[lo,hi]`, or `empty`.
pub(crate) fn held(window: &Window) -> String {
    window.span.map_or_else(|| "empty".to_owned(), |s| format!("[{},{}]", s.lo, s.hi))
}

/// The slot's generation, or `none` before the first entry.
pub(crate) fn generation(window: &Window) -> String {
    window.generation.map_or_else(|| "none".to_owned(), |g| g.0.to_string())
}

/// Sends entries to one slot.
///
/// `step` asks for a draft and `append` does not; both take `rows=`, `first=`, `anchor=` (where it is not
/// first + rows), `generation=` (otherwise the one sent last), `new_gen`, `bad_token` (an anchor token
/// outside the vocabulary) and `outside_block` (the rows claimed are not in the frame). `reset` empties
/// the window, `slot` shows it, `worker window=` starts again with another W.
struct WindowRunner {
    window: Window,
    w: u32,
    generation: u32,
}

impl Default for WindowRunner {
    fn default() -> Self {
        Self { window: Window::default(), w: LIVE.window, generation: 1 }
    }
}

impl WindowRunner {
    fn entry(&mut self, words: &mut Words, need_draft: bool) -> Result<Entry, Box<dyn Error>> {
        self.generation = words.number("generation")?.unwrap_or(self.generation);
        let n_rows: u32 = words.number("rows")?.unwrap_or(0);
        let first_pos: i64 = words.number("first")?.unwrap_or(0);
        let end = first_pos.saturating_add(i64::from(n_rows));
        Ok(Entry {
            generation: Generation(self.generation),
            new_gen: words.flag("new_gen"),
            need_draft,
            first_pos,
            n_rows,
            rows_fit: !words.flag("outside_block"),
            anchor_pos: words.number("anchor")?.unwrap_or(end),
            anchor_token_valid: !words.flag("bad_token"),
        })
    }

    fn apply(&mut self, entry: &Entry) -> String {
        let applied = self.window.apply(entry, self.w);
        let slot = format!("generation={} window={}", generation(&self.window), held(&self.window));
        match applied {
            Ok(applied) => {
                let partial = entry.need_draft && applied.is_partial();
                let status = if partial { "PARTIAL_WINDOW" } else { "OK" };
                format!("{status} {slot} rows={}/{}", applied.window_rows(), applied.expected)
            }
            Err(stale @ Rejection::Stale { .. }) => format!("STALE_GENERATION {slot} ({stale})"),
            Err(Rejection::Bad(bad)) => format!("BAD_ENTRY {slot} ({bad})"),
        }
    }
}

impl Runner for WindowRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut words = Words::of(command);
        let output = match command.name.as_str() {
            "step" => {
                let entry = self.entry(&mut words, true)?;
                self.apply(&entry)
            }
            "append" => {
                let entry = self.entry(&mut words, false)?;
                self.apply(&entry)
            }
            "reset" => {
                self.window.empty();
                format!("generation={} window={}", generation(&self.window), held(&self.window))
            }
            "slot" => {
                format!("generation={} window={}", generation(&self.window), held(&self.window))
            }
            "worker" => {
                let w = words.number("window")?.ok_or("worker needs window=")?;
                *self = Self { w, ..Self::default() };
                String::new()
            }
            other => return Err(format!("unknown command {other}").into()),
        };
        words.end()?;
        Ok(output)
    }
}
