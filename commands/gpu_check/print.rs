//! A stage as tables.

use std::io;

use serde_json::Value;

use super::report::{Case, Outcome, Section, StageReport};
use crate::output::{Output, count, micros, table};

/// Prints a stage.
pub(super) fn print(report: &StageReport, output: &Output) -> io::Result<()> {
    let stage = report.stage;
    output.line(format_args!("{stage}: {} in {:.1} s", report.tally(), report.seconds))?;
    for note in &report.notes {
        output.line(format_args!("  {note}"))?;
    }
    for section in &report.sections {
        output.line("")?;
        print_section(section, output)?;
    }
    output.line("")
}

fn print_section(section: &Section, output: &Output) -> io::Result<()> {
    let judged = section.cases.iter().any(|case| case.outcome != Outcome::Noted);
    let mut header = vec![section.title.clone()];
    header.extend(judged.then(|| "result".to_owned()));
    header.extend(section.columns.iter().map(|key| title(key).0));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut rows = table(&header);
    for case in &section.cases {
        let mut cells = vec![case.name.clone()];
        cells.extend(judged.then(|| outcome(case.outcome).to_owned()));
        cells.extend(section.columns.iter().map(|key| cell(key, case.figures.get(key))));
        rows.add_row(cells);
    }
    output.line(rows)?;
    for Case { name, outcome, reason, .. } in &section.cases {
        if let Some(reason) = reason {
            let what = if *outcome == Outcome::Failed { "FAILED" } else { "skipped" };
            output.line(format_args!("  {name} {what}: {reason}"))?;
        }
    }
    Ok(())
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "ok",
        Outcome::Failed => "FAILED",
        Outcome::Skipped => "skipped",
        Outcome::Noted => "",
    }
}

/// A key without its unit, and the unit.
fn title(key: &str) -> (String, Option<&'static str>) {
    for (ending, unit) in [("_us", "us"), ("_bytes", "bytes"), ("_khz", "khz"), ("_gb_s", "gb_s")] {
        if let Some(name) = key.strip_suffix(ending) {
            return (name.replace('_', " "), Some(unit));
        }
    }
    (key.replace('_', " "), None)
}

fn cell(key: &str, value: Option<&Value>) -> String {
    // What is no number, such as the distance of NaN, is null.
    let Some(value) = value.filter(|value| !value.is_null()) else { return "n/a".into() };
    match (title(key).1, value) {
        (Some("us"), Value::Number(n)) => micros(n.as_f64().unwrap_or(f64::NAN)),
        (Some("gb_s"), Value::Number(n)) => {
            format!("{n:.1} GB/s", n = n.as_f64().unwrap_or(f64::NAN))
        }
        (Some("khz"), Value::Number(n)) => format!("{} MHz", n.as_u64().unwrap_or(0) / 1000),
        (Some("bytes"), Value::Number(n)) => bytes(n.as_u64().unwrap_or(0)),
        (_, Value::Bool(yes)) => (if *yes { "yes" } else { "no" }).into(),
        (_, Value::String(text)) => text.clone(),
        (_, Value::Number(n)) => match (n.as_u64(), n.as_f64()) {
            (Some(n), _) => count(n),
            (None, Some(n)) if n != 0.0 && n.abs() < 0.01 => format!("{n:.1e}"),
            (None, n) => format!("{:.2}", n.unwrap_or(f64::NAN)),
        },
        (_, other) => other.to_string(),
    }
}

fn bytes(n: u64) -> String {
    match n {
        ..1_000_000 => count(n),
        _ => format!("{} MB", count((n + 500_000) / 1_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_are_written_with_the_unit_of_their_key() {
        let shown = |key: &str, value: Value| cell(key, Some(&value));
        assert_eq!(title("p50_us"), ("p50".into(), Some("us")));
        assert_eq!(shown("p50_us", json!(2312.4)), "2312 µs");
        assert_eq!(shown("read_bytes", json!(1_959_400_000u64)), "1,959 MB");
        assert_eq!(shown("read_gb_s", json!(847.96)), "848.0 GB/s");
        assert_eq!(shown("clock_khz", json!(1_400_000)), "1400 MHz");
        assert_eq!(shown("ratio", json!(0.906)), "0.91");
        assert_eq!(shown("difference", json!(3.1e-6)), "3.1e-6");
        assert_eq!(shown("equal", json!(true)), "yes");
        assert_eq!(cell("ratio", None), "n/a");
    }
}
