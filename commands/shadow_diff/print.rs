//! The comparison as text with bars, or as a document.

use std::io;

use dspark::shadow::{MARGIN_CLASSES, Mismatch};
use serde_json::json;

use super::{Found, ShadowDiffArgs};
use crate::output::{Output, count, table};

/// Width of a full bar.
const BAR: usize = 30;

/// Prints the comparison.
pub(super) fn report(found: &Found, args: &ShadowDiffArgs, output: &Output) -> io::Result<()> {
    if output.json() {
        let mut doc = found.report.to_json();
        doc["rounds"] = found.rounds.into();
        doc["acceptance"] = json!({ "estimator": "n_rows - 1 of k_window; prefill and resyncs left out",
            "accepted": found.accepted.accepted, "entries": found.accepted.accepted_entries });
        return output.document(&doc, false);
    }
    summary(found, output)?;
    positions(found, output)?;
    margins(found, output)?;
    worst(found, args.show, output)
}

fn summary(found: &Found, output: &Output) -> io::Result<()> {
    let r = &found.report;
    let share = |a: Option<f64>| a.map_or("n/a".into(), |a| format!("{:.2}%", 100.0 * a));
    output.line(format_args!(
        "{} rounds, {} blocks compared, {} equal, {} on one side only",
        count(found.rounds),
        count(r.blocks()),
        count(r.steady.equal_blocks + r.resync.equal_blocks),
        count(r.one_sided),
    ))?;
    output.line(format_args!(
        "agreement {} of comparable positions (token-weighted), {} near-ties apart",
        share(r.agreement()),
        count(r.near_ties()),
    ))?;
    for (name, group) in [("steady", &r.steady), ("behind a resync", &r.resync)] {
        if group.blocks > 0 {
            output.line(format_args!(
                "  {name}: {} blocks, token-weighted {}, request-weighted {}",
                count(group.blocks),
                share(group.token_agreement()),
                share(group.request_agreement()),
            ))?;
        }
    }
    let accepted = match found.accepted.accepted_entries {
        0 => "n/a".into(),
        n => format!("{:.2}", found.accepted.accepted as f64 / n as f64),
    };
    output.line(format_args!(
        "accepted {accepted} drafts a round by the trace (n_rows - 1 of k_window; prefill and resyncs left out)"
    ))
}

fn positions(found: &Found, output: &Output) -> io::Result<()> {
    let r = &found.report;
    let mut rows =
        table(&["position", "comparable", "equal", "near-ties", "agreement", "confidence"]);
    for (j, p) in r.steady.positions.iter().enumerate() {
        let agreement = p.agreement();
        let delta = if p.equal > 0 { format!("{:.1e}", p.confidence_max) } else { "n/a".into() };
        rows.add_row([
            j.to_string(),
            count(p.comparable),
            count(p.equal),
            count(p.near_ties),
            agreement.map_or("n/a".into(), |a| format!("{:6.2}% {}", 100.0 * a, bar(a))),
            delta,
        ]);
    }
    output.line(rows)?;
    let none = r.first_mismatch.len() - 1;
    let first: Vec<_> =
        r.first_mismatch
            .iter()
            .enumerate()
            .map(|(j, n)| {
                if j == none {
                    format!("none {}", count(*n))
                } else {
                    format!("{j}: {}", count(*n))
                }
            })
            .collect();
    output.line(format_args!("first mismatch  {}", first.join("  ")))
}

fn margins(found: &Found, output: &Output) -> io::Result<()> {
    let known: u64 = found.report.by_margin.iter().map(|[n, _]| n).sum();
    if known == 0 {
        return output.line("margins unknown: the left side was recorded without them");
    }
    let mut rows = table(&["margin up to", "comparable", "mismatches", "share"]);
    for (index, [comparable, mismatches]) in found.report.by_margin.iter().enumerate() {
        let up_to = MARGIN_CLASSES.get(index).map_or("above".to_owned(), f32::to_string);
        let share = if *comparable == 0 {
            "n/a".to_owned()
        } else {
            let share = *mismatches as f64 / *comparable as f64;
            format!("{:6.2}% {}", 100.0 * share, bar(share))
        };
        rows.add_row([up_to, count(*comparable), count(*mismatches), share]);
    }
    output.line(rows)
}

fn worst(found: &Found, show: usize, output: &Output) -> io::Result<()> {
    for m in found.report.worst().into_iter().take(show) {
        let Mismatch { at, position, margin, near_tie, ids } = m;
        let margin = margin.map_or("unknown".into(), |m| format!("{m:.4}"));
        output.line(format_args!(
            "step {} slot {} position {position} margin {margin}{}{}  left {:?}  right {:?}",
            at.step_id,
            at.slot,
            if *near_tie { "  near-tie" } else { "" },
            if at.resync { "  behind a resync" } else { "" },
            ids[0],
            ids[1],
        ))?;
    }
    Ok(())
}

fn bar(share: f64) -> String {
    // A share is between 0 and 1, so the product is a small whole number.
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    "█".repeat(full) + &"·".repeat(BAR - full)
}
