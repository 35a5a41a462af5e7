//! Text for people, JSON for programs, progress on terminals.
//!
//! stdout carries the result and nothing else. A reader that goes away ends the program quietly, so
//! every write returns its error instead of panicking.

use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table};
use dspark::checkpoint::Progress;
pub(crate) use dspark::trace::grouped as count;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::args::{ColorWhen, OutputArgs};

/// Where results go.
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    color: ColorWhen,
}

impl Output {
    pub(crate) fn new(args: &OutputArgs) -> Self {
        Self { json: args.json, quiet: args.quiet, color: args.color }
    }

    /// Whether the result is JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Prints text and a line end, and flushes: a pipe's reader sees it now.
    pub(crate) fn line(&self, text: impl std::fmt::Display) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Prints a JSON document: pretty for one, one line each for a sequence.
    pub(crate) fn document(&self, doc: &Value, one_line: bool) -> io::Result<()> {
        if one_line { self.line(doc) } else { self.line(format_args!("{doc:#}")) }
    }

    /// A remark on stderr, unless `--quiet`.
    pub(crate) fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            // A closed stderr must not end a worker.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// A progress bar over bytes; invisible unless stderr is a terminal and neither `--quiet` nor
    /// `--json` is given.
    pub(crate) fn progress(&self) -> Bar {
        let visible = io::stderr().is_terminal() && !self.quiet && !self.json;
        Bar { visible, bar: Mutex::new(None) }
    }

    /// Whether logs are coloured.
    pub(crate) fn colored_logs(&self) -> bool {
        self.colored(io::stderr().is_terminal())
    }

    /// Whether a stream is coloured.
    pub(crate) fn colored(&self, is_terminal: bool) -> bool {
        match self.color {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => is_terminal && !no_color(),
        }
    }
}

/// NO_COLOR counts when it is set and not empty.
fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
}

/// All progress bars there are.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Standard error for log lines: a bar makes way for each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BesideBars;

impl Write for BesideBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        BARS.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A progress bar for hashing files.
pub(crate) struct Bar {
    visible: bool,
    bar: Mutex<Option<ProgressBar>>,
}

impl Bar {
    fn with(&self, act: impl FnOnce(&ProgressBar)) {
        let guard = self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(bar) = &*guard {
            act(bar);
        }
    }
}

impl Progress for Bar {
    fn start(&self, files: usize, bytes: u64) {
        if self.visible {
            let style =
                "  verifying {prefix} files {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {msg}";
            let style = ProgressStyle::with_template(style).expect("a constant template");
            let bar = ProgressBar::new(bytes).with_style(style).with_prefix(files.to_string());
            let bar = BARS.add(bar);
            *self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(bar);
        }
    }

    fn file(&self, name: &str) {
        self.with(|bar| bar.set_message(name.to_owned()));
    }

    fn advance(&self, bytes: u64) {
        self.with(|bar| bar.inc(bytes));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.with(ProgressBar::finish_and_clear);
    }
}

/// A table without borders; all columns but the first are right-aligned.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    for (index, column) in table.column_iter_mut().enumerate() {
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A duration in µs below 10 ms and in ms above, with its unit.
pub(crate) fn micros(us: f64) -> String {
    if us < 100.0 {
        format!("{us:.1} µs")
    } else if us < 10_000.0 {
        format!("{us:.0} µs")
    } else {
        format!("{:.1} ms", us / 1e3)
    }
}

/// As [`micros`].
pub(crate) fn time(duration: Duration) -> String {
    micros(duration.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_read_as_people_write_them() {
        assert_eq!(
            (count(0), count(999), count(1_214)),
            ("0".into(), "999".into(), "1,214".into())
        );
        assert_eq!((count(1_234_567), micros(12.34)), ("1,234,567".into(), "12.3 µs".into()));
        assert_eq!((micros(9_999.0), micros(12_345.0)), ("9999 µs".into(), "12.3 ms".into()));
    }
}
