//! What a replay prints: a document, or text for people.

use std::io;

use dspark::client::breaker::State;
use dspark::protocol::EntryStatus;
use dspark::shadow::ShadowReport;
use serde_json::json;

use super::engine::Engine;
use super::verify::Verdict;
use crate::output::{Output, count, micros, table};

/// Prints the report.
pub(crate) fn report(
    engine: &Engine<'_>,
    verdict: Option<&Verdict>,
    output: &Output,
) -> io::Result<()> {
    if output.json() { document(engine, verdict, output) } else { text(engine, verdict, output) }
}

fn document(engine: &Engine<'_>, verdict: Option<&Verdict>, output: &Output) -> io::Result<()> {
    let rank0 = engine.client.rank0();
    let mut doc = engine.report.to_json(rank0.counters());
    doc["connects"] = engine.client.connects().into();
    doc["used"] = json!({ "remote": engine.used.remote, "local": engine.used.local,
        "zeros": engine.used.zeros });
    if let Some(reason) = rank0.last_bad_reply() {
        doc["last_bad_reply"] = reason.into();
    }
    if engine.recorded.blocks() > 0 {
        doc["recorded"] = engine.recorded.to_json();
    }
    if engine.local_side.blocks() > 0 {
        doc["local"] = engine.local_side.to_json();
    }
    if let Some(verdict) = verdict {
        doc["verdict"] = json!({ "windows_equal": verdict.windows_equal(),
            "slots": verdict.comparison.blocks(), "missing": verdict.missing,
            "resynced": verdict.resynced });
    }
    output.document(&doc, false)
}

fn text(engine: &Engine<'_>, verdict: Option<&Verdict>, output: &Output) -> io::Result<()> {
    let report = &engine.report;
    let counters = engine.client.rank0().counters();
    let accepted = match report.accepted_entries {
        0 => "n/a".into(),
        n => format!("{:.1}", report.accepted as f64 / n as f64),
    };
    output.line(format_args!(
        "{} rounds, {} failed   rows {}   drafts {}   accepted {accepted} per round (recorded)   late {}",
        count(report.rounds),
        count(report.failed),
        count(counters.rows),
        count(report.drafts),
        count(report.late),
    ))?;
    let statuses: Vec<_> = EntryStatus::ALL
        .iter()
        .map(|s| format!("{s} {}", count(report.entries[*s as usize])))
        .collect();
    output.line(format_args!("entries  {}", statuses.join("  ")))?;
    failures(engine, output)?;
    agreement("recorded", &engine.recorded, output)?;
    agreement("local", &engine.local_side, output)?;
    latencies(engine, output)?;
    faults(engine, verdict, output)
}

/// Rounds that sent nothing or failed, by reason; nothing when there were none.
fn failures(engine: &Engine<'_>, output: &Output) -> io::Result<()> {
    let (report, c) = (&engine.report, engine.client.rank0().counters());
    if report.failed + report.not_sent == 0 {
        return Ok(());
    }
    let reasons = [
        ("timeout", c.fallback_timeout),
        ("transport", c.fallback_transport),
        ("bad reply", c.fallback_bad_reply),
        ("frame error", c.fallback_frame_error),
        ("no connection", c.fallback_no_connection),
        ("cooldown", c.fallback_cooldown),
        ("outdated", c.fallback_outdated),
        ("disabled", c.fallback_disabled),
    ];
    let reasons: Vec<_> = reasons
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .map(|(name, n)| format!("{name} {}", count(n)))
        .collect();
    output.line(format_args!("lost rounds  {}", reasons.join("  ")))?;
    output.line(format_args!(
        "connections {}  sessions {}  resyncs {} with {} rows  drafts used: remote {}, local {}, zeros {}",
        count(engine.client.connects()),
        count(c.sessions),
        count(c.resyncs),
        count(c.resync_rows),
        count(engine.used.remote),
        count(engine.used.local),
        count(engine.used.zeros),
    ))?;
    if let State::Open { left } = engine.client.breaker().state() {
        output.line(format_args!("the breaker is open for {left} more rounds"))?;
    }
    match engine.client.rank0().last_bad_reply() {
        Some(reason) => output.line(format_args!("last refused reply: {reason}")),
        None => Ok(()),
    }
}

fn agreement(side: &str, report: &ShadowReport, output: &Output) -> io::Result<()> {
    if report.blocks() == 0 {
        return Ok(());
    }
    let share = report.agreement().map_or("n/a".into(), |a| format!("{:.2}%", 100.0 * a));
    let equal = report.steady.equal_blocks + report.resync.equal_blocks;
    output.line(format_args!(
        "agreement with the {side} drafts  {share} of comparable positions, {} of {} blocks, {} near-ties",
        count(equal),
        count(report.blocks()),
        count(report.near_ties()),
    ))
}

fn latencies(engine: &Engine<'_>, output: &Output) -> io::Result<()> {
    let mut times = table(&["", "p50", "p90", "p99", "max", "rounds"]);
    for (name, percentiles) in engine.report.latencies() {
        match percentiles {
            Some(p) => {
                let cells = [p.p50, p.p90, p.p99, p.max].map(|us| micros(us as f64));
                times.add_row([name.to_owned()].into_iter().chain(cells).chain([count(p.count)]));
            }
            None if name == "corrected" => {}
            None => {
                times.add_row([name, "n/a", "n/a", "n/a", "n/a", "0"]);
            }
        }
    }
    for (class, p) in engine.report.classes() {
        let cells = [p.p50, p.p90, p.p99, p.max].map(|us| micros(us as f64));
        times.add_row([class.name()].into_iter().chain(cells).chain([count(p.count)]));
    }
    output.line(times)?;
    output.line(format_args!(
        "latencies leave out the first {} rounds; 'corrected' adds how late a round began",
        engine.report.warmup
    ))
}

fn faults(engine: &Engine<'_>, verdict: Option<&Verdict>, output: &Output) -> io::Result<()> {
    if engine.report.faults.total() > 0 {
        let mut faults = table(&["fault", "injected", "answered", "failed"]);
        for (kind, n) in engine.report.faults.iter().filter(|(_, n)| *n > 0) {
            let outcome = engine.report.fault(kind);
            faults.add_row([
                kind.name().to_owned(),
                count(n),
                count(outcome.answered),
                count(outcome.failed),
            ]);
        }
        output.line(faults)?;
    }
    let Some(verdict) = verdict else { return Ok(()) };
    let windows = if verdict.windows_equal() { "equal to" } else { "DIFFERENT from" };
    output.line(format_args!(
        "verdict: windows {windows} the undisturbed run's ({} slots); {} failed rounds without an injected \
         fault",
        verdict.comparison.blocks() + verdict.missing,
        count(engine.report.unexplained),
    ))
}
