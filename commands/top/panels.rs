//! The parts of the picture as lines of text, each with how much it matters.

use std::time::Duration;

use dspark::worker::progress::{STALL, progress};
use ratatui::text::{Line, Span};
use serde_json::Value;

use super::gpu::Cards;
use super::latency::Estimate;
use super::model::{Link, Model, Point, Worker};
use super::view::{Sort, Theme, Tone, View};
use crate::acceptance::{Acceptance, percent, share};
use crate::link::round_trips;
use crate::output::{count, micros};
use crate::stats::{SLOT_COLUMNS, counts, latency, slot_cells};

/// Largest value of a sparkline, which is multiplied by its height.
const GRAPH_MAX: f64 = 1e12;
/// A restart is mentioned for this long.
const RESTART_SHOWN: Duration = Duration::from_secs(60);

/// Lines that belong together.
pub(crate) struct Panel {
    /// Panels of a lower rank are shown first where there is little room.
    pub(crate) rank: u8,
    /// Whether a blank line above it helps.
    pub(crate) gap: bool,
    /// The least lines for the panel to be shown at all.
    pub(crate) lines_min: u16,
    pub(crate) lines: Vec<Line<'static>>,
    /// A sparkline beside the first line, oldest value first.
    pub(crate) graph: Option<Vec<Option<u64>>>,
}

impl Panel {
    fn new(rank: u8, lines: Vec<Line<'static>>) -> Self {
        Self { rank, gap: false, lines_min: 1, lines, graph: None }
    }

    fn spaced(self) -> Self {
        Self { gap: true, ..self }
    }
}

/// All panels of the worker shown, from top to bottom.
pub(crate) fn panels(model: &Model, view: &View) -> Vec<Panel> {
    let Some(worker) = model.workers.get(view.tab) else { return Vec::new() };
    let theme = view.theme;
    let mut panels = vec![Panel::new(0, vec![title(worker, theme)])];
    if model.workers.len() > 1 {
        panels.push(Panel::new(1, vec![tabs(model, view)]));
    }
    let remarks = remarks(model, worker, theme);
    if !remarks.is_empty() {
        panels.push(Panel::new(0, remarks));
    }
    if worker.last.is_some() {
        rates(worker, theme, &mut panels);
        let slots = slots(model, worker, view);
        panels.push(Panel { lines_min: 2, ..Panel::new(5, slots).spaced() });
        panels.push(Panel { lines_min: 2, ..Panel::new(7, acceptance(worker, theme)).spaced() });
        panels
            .push(Panel::new(8, vec![labelled(&counts(worker.doc(), "entries"), theme)]).spaced());
        panels.push(Panel::new(9, vec![labelled(&counts(worker.doc(), "frames"), theme)]));
        panels.push(Panel::new(8, vec![link(worker.doc(), theme)]));
        if worker.doc()["markov"].is_object() {
            panels.push(Panel::new(11, vec![labelled(&counts(worker.doc(), "markov"), theme)]));
        }
        panels.push(Panel::new(8, cards(model, worker, theme)));
        panels.push(Panel::new(10, about(worker, theme)));
    }
    if view.interactive {
        panels.push(Panel::new(6, vec![keys(theme)]).spaced());
    }
    panels
}

fn span(text: impl Into<String>, tone: Tone, theme: Theme) -> Span<'static> {
    Span::styled(text.into(), theme.style(tone))
}

/// A line whose first word is a label.
fn labelled(text: &str, theme: Theme) -> Line<'static> {
    let (label, rest) = text.split_once(' ').unwrap_or((text, ""));
    Line::from(vec![
        span(format!(" {label:<9}"), Tone::Label, theme),
        span(rest.trim_start().to_owned(), Tone::Plain, theme),
    ])
}

fn string<'a>(doc: &'a Value, key: &str) -> &'a str {
    doc[key].as_str().unwrap_or("n/a")
}

fn title(worker: &Worker, theme: Theme) -> Line<'static> {
    let doc = worker.doc();
    if worker.last.is_none() {
        return Line::from(vec![span(format!(" {}", worker.url), Tone::Title, theme)]);
    }
    let checkpoint = string(doc, "checkpoint");
    let checkpoint = checkpoint.trim_end_matches('/').rsplit('/').next().unwrap_or(checkpoint);
    let up = doc["uptime_s"].as_f64().unwrap_or(0.0);
    let session = match doc["session"].as_u64() {
        Some(id) if id != 0 => format!("session {id:#010x}"),
        _ => "no session".into(),
    };
    let client = doc["client"].as_str().map_or(String::new(), |c| format!("  client {c}"));
    Line::from(vec![
        span(format!(" {} {checkpoint}", string(doc, "worker")), Tone::Title, theme),
        span(
            format!("  up {}  {session}  {}{client}", clock(up), string(doc, "backend")),
            Tone::Plain,
            theme,
        ),
    ])
}

/// `HH:MM:SS`, with the days in front where there are any.
fn clock(seconds: f64) -> String {
    // Saturates: no worker is up for that long.
    let s = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (s / 86_400, s / 3600 % 24, s / 60 % 60);
    let time = format!("{hours:02}:{minutes:02}:{:02}", s % 60);
    if days > 0 { format!("{days}d {time}") } else { time }
}

fn tabs(model: &Model, view: &View) -> Line<'static> {
    let theme = view.theme;
    let mut spans = Vec::new();
    for (index, worker) in model.workers.iter().enumerate() {
        let tone = match (index == view.tab, worker.is_up()) {
            (true, _) => Tone::Chosen,
            (false, true) => Tone::Plain,
            (false, false) => Tone::Bad,
        };
        let state = match &worker.link {
            Link::Gone(..) => " gone",
            Link::Asked | Link::Up => "",
        };
        let address = worker.url.strip_prefix("tcp://").unwrap_or(&worker.url);
        spans.push(Span::raw(" "));
        spans.push(span(format!("{} {address}{state}", index + 1), tone, theme));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

/// What is out of the ordinary.
fn remarks(model: &Model, worker: &Worker, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut say = |text: String, tone| lines.push(Line::from(span(text, tone, theme)));
    let ago = |since: Duration| age(model.now.saturating_sub(since).as_secs_f64());
    match &worker.link {
        Link::Up => {}
        Link::Asked => say(" asking ...".into(), Tone::Label),
        Link::Gone(since, why) => {
            let gone = if worker.last.is_some() { "gone" } else { "not reached" };
            say(format!(" {gone} for {}, retrying: {why}", ago(*since)), Tone::Bad);
        }
    }
    if let (n, Some(at)) = worker.restarts
        && model.now.saturating_sub(at) < RESTART_SHOWN
    {
        let times = if n > 1 { format!(", {n} times so far") } else { String::new() };
        say(format!(" restarted {} ago{times}", ago(at)), Tone::Warn);
    }
    if worker.is_up()
        && let Err(stall) = progress(worker.doc(), STALL, false)
    {
        say(format!(" does not draft: {stall}"), Tone::Bad);
    }
    lines
}

/// Rates and latencies with their sparklines.
fn rates(worker: &Worker, theme: Theme, panels: &mut Vec<Panel>) {
    let doc = worker.doc();
    let heading = format!(" {:<9}{:>10}{:>10}{:>12}", "worker", "now", "peak", "since start");
    panels.push(Panel::new(4, vec![Line::from(span(heading, Tone::Label, theme))]).spaced());
    let now = worker.rates.as_ref().and_then(|_| worker.history.back().copied().flatten());
    let up = doc["uptime_s"].as_f64().filter(|up| *up > 0.0);
    let average = |key: &str| up.zip(doc[key].as_f64()).map(|(up, n)| n / up);
    let peaks = &worker.peaks;
    let mut row = |rank, label: &str, cells: [String; 3], value: &dyn Fn(&Point) -> Option<f64>| {
        let [now, peak, start] = cells;
        let line = Line::from(vec![
            span(format!(" {label:<9}"), Tone::Label, theme),
            span(format!("{now:>10}"), Tone::Title, theme),
            span(format!("{peak:>10}{start:>12} "), Tone::Plain, theme),
        ]);
        let graph = worker.history.iter().map(|point| {
            // A tenth is finer than eight levels can show.
            point.as_ref().and_then(value).map(|v| (v * 10.0).round().min(GRAPH_MAX) as u64)
        });
        panels.push(Panel { graph: Some(graph.collect()), ..Panel::new(rank, vec![line]) });
    };
    let per_s = |value: Option<f64>| value.map_or("n/a".to_owned(), rate);
    let cells = |now: Option<f64>, peak, key| [per_s(now), per_s(peak), per_s(average(key))];
    row(1, "rounds/s", cells(now.map(|p| p.rounds_per_s), peaks.rounds_per_s, "steps"), &|p| {
        Some(p.rounds_per_s)
    });
    row(3, "rows/s", cells(now.map(|p| p.rows_per_s), peaks.rows_per_s, "rows"), &|p| {
        Some(p.rows_per_s)
    });
    let us = |value: Option<Estimate>| value.map_or("n/a".to_owned(), estimate);
    let cells = |now, peak, key: &str| {
        [us(now), us(peak), doc[key].as_f64().map_or("n/a".to_owned(), micros)]
    };
    let p50 = cells(now.and_then(|p| p.p50), peaks.p50, "worker_us_p50");
    row(3, "p50", p50, &|p| p.p50.map(|e| e.us));
    let p99 = cells(now.and_then(|p| p.p99), peaks.p99, "worker_us_p99");
    row(2, "p99", p99, &|p| p.p99.map(|e| e.us));
    // In the order in which a STEP goes through them.
    for (rank, key, label) in
        [(10, "receive_us", "receiving"), (9, "recv_to_send_us", "received to sent")]
    {
        let text = format!(" {}", latency(doc, key, &format!("{label:<16}")));
        panels.push(Panel::new(rank, vec![Line::from(span(text, Tone::Label, theme))]));
    }
    let line = |text: &String| {
        Line::from(span(format!(" {:<16}  {text}", "link round trip"), Tone::Label, theme))
    };
    panels.push(Panel::new(9, round_trips(doc).iter().map(line).collect()));
}

fn rate(value: f64) -> String {
    // Rates are not negative; a worker does far fewer than 2^53 of anything a second.
    if value < 1000.0 { format!("{value:.1}") } else { count(value.round() as u64) }
}

fn estimate(estimate: Estimate) -> String {
    format!("{}{}", if estimate.beyond { '>' } else { '~' }, micros(estimate.us))
}

/// A time that has passed.
fn age(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 600.0 => format!("{s:.0} s"),
        s => clock(s),
    }
}

fn slots(model: &Model, worker: &Worker, view: &View) -> Vec<Line<'static>> {
    let theme = view.theme;
    let doc = worker.doc();
    let since =
        worker.last.as_ref().map_or(Duration::ZERO, |last| model.now.saturating_sub(last.at));
    let mut entries: Vec<&Value> = doc["slots"].as_array().into_iter().flatten().collect();
    let number = |slot: &Value, key: &str| slot[key].as_u64().unwrap_or(0);
    let last = |slot: &Value| slot["last_age_s"].as_f64().unwrap_or(f64::INFINITY);
    let accepted = |slot: &Value| share(number(slot, "verified"), number(slot, "accepted"));
    // Stable: equal slots stay in the worker's order.
    entries.sort_by(|a, b| match view.sort {
        Sort::Slot => std::cmp::Ordering::Equal,
        Sort::Age => last(a).total_cmp(&last(b)),
        Sort::Drafts => number(b, "drafts").cmp(&number(a, "drafts")),
        Sort::Rows => number(b, "rows").cmp(&number(a, "rows")),
        Sort::Accepted => accepted(b).unwrap_or(-1.0).total_cmp(&accepted(a).unwrap_or(-1.0)),
    });
    let all = entries.len();
    let scroll = view.scroll.min(all.saturating_sub(1));
    let mut rows: Vec<Vec<String>> = Vec::with_capacity(all + 1);
    rows.push(SLOT_COLUMNS.iter().map(|name| (*name).to_owned()).chain(["age".into()]).collect());
    for slot in entries.into_iter().skip(scroll) {
        let passed = slot["last_age_s"].as_f64().map(|s| age(s + since.as_secs_f64()));
        let cells = slot_cells(doc, slot).into_iter();
        rows.push(cells.chain([passed.unwrap_or_else(|| "-".into())]).collect());
    }
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..=SLOT_COLUMNS.len()).map(width).collect();
    let status = SLOT_COLUMNS.len() - 1;
    let line = |(index, row): (usize, &Vec<String>)| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let tone = match (index, column) {
                (0, _) => Tone::Label,
                (_, column) if column == status => tone_of(cell),
                _ => Tone::Plain,
            };
            span(format!(" {cell:>width$} "), tone, theme)
        });
        let mut line = Line::from(cells.collect::<Vec<_>>());
        if index == 0 && view.sort != Sort::Slot {
            line.push_span(span(format!(" by {}", view.sort.name()), Tone::Label, theme));
        }
        if index == 0 && scroll > 0 {
            line.push_span(span(format!(" from {} of {all}", scroll + 1), Tone::Label, theme));
        }
        line
    };
    rows.iter().enumerate().map(line).collect()
}

fn tone_of(status: &str) -> Tone {
    match status {
        "OK" => Tone::Good,
        "-" => Tone::Plain,
        "PARTIAL_WINDOW" => Tone::Warn,
        _ => Tone::Bad,
    }
}

fn acceptance(worker: &Worker, theme: Theme) -> Vec<Line<'static>> {
    let all = worker.acceptance();
    let positions = (0..all.positions.len()).map(|position| format!("{position:>7}"));
    let heading = format!(
        " {:<11}{:>10}{:>10}{:>9} {}",
        "accepted",
        "a round",
        "rate",
        "rounds",
        positions.collect::<String>()
    );
    let line = |label: &str, counts: &Acceptance| {
        let by_position = counts.rates().map(|rate| format!("{:>7}", percent(rate, 1)));
        let text = format!(
            "{:>10}{:>10}{:>9} {}",
            counts.per_round().map_or("n/a".to_owned(), |mean| format!("{mean:.2}")),
            percent(counts.rate(), 1),
            count(counts.rounds),
            by_position.collect::<String>(),
        );
        Line::from(vec![
            span(format!(" {label:<11}"), Tone::Label, theme),
            span(text, Tone::Plain, theme),
        ])
    };
    let mut lines = vec![Line::from(span(heading, Tone::Label, theme)), line("since start", &all)];
    if let Some((time, lately)) = worker.acceptance_lately() {
        lines.push(line(&format!("last {}", age(time.as_secs_f64())), &lately));
    }
    lines
}

/// Connections first: they tell whether somebody else is there.
fn link(doc: &Value, theme: Theme) -> Line<'static> {
    const ALWAYS: [&str; 3] = ["connections", "displaced", "strangers"];
    let link = &doc["link"];
    let mut text = String::from("link");
    for name in ALWAYS {
        let n = link[name].as_u64().map_or("n/a".to_owned(), count);
        text += &format!("  {name} {n}");
    }
    for (name, n) in link.as_object().into_iter().flatten() {
        let n = n.as_u64().filter(|n| *n > 0);
        if let Some(n) = n.filter(|_| !ALWAYS.contains(&name.as_str())) {
            text += &format!("  {name} {}", count(n));
        }
    }
    labelled(&text, theme)
}

fn cards(model: &Model, worker: &Worker, theme: Theme) -> Vec<Line<'static>> {
    let doc = worker.doc();
    let held = doc["gpu_mem_bytes"].as_u64().filter(|bytes| *bytes > 0);
    let held = held.map_or(String::new(), |b| format!("  worker holds {:.2} GB", b as f64 / 1e9));
    let device = string(doc, "device");
    let none = |why: &str| vec![labelled(&format!("gpu n/a ({why}){held}"), theme)];
    if doc["backend"] != "cuda" {
        return none(&format!("backend {}, {device}", string(doc, "backend")));
    }
    if !worker.local {
        return none(&format!("{device}, on another host"));
    }
    let cards = match &model.cards {
        Cards::None(why) => return none(why),
        Cards::Read(cards) => cards,
    };
    // The document names the card's model, not its index: several of one model are all shown.
    let own: Vec<_> = cards.iter().filter(|card| device.starts_with(&card.name)).collect();
    if own.is_empty() {
        return none(&format!("{device} is not among the cards here"));
    }
    let mut lines = Vec::new();
    for (index, card) in own.iter().enumerate() {
        let [what, does] = card.text();
        let held = if index == 0 { held.as_str() } else { "" };
        lines.push(labelled(&format!("gpu {what}{held}"), theme));
        if !does.is_empty() {
            lines.push(labelled(&format!(" {does}"), theme));
        }
    }
    lines
}

fn about(worker: &Worker, theme: Theme) -> Vec<Line<'static>> {
    let doc = worker.doc();
    let modes = format!(
        "modes backend {} ({})  kv {}  logits {}  precision {}  version {}  contract {}",
        string(doc, "backend"),
        string(doc, "device"),
        string(doc, "kv"),
        string(doc, "logits"),
        string(doc, "precision"),
        string(doc, "version"),
        string(doc, "contract"),
    );
    let identities = ["drafter_identity", "markov_identity"].map(|key| {
        // Enough to compare by eye; 'dspark stats' prints all of it.
        let short: String = string(doc, key).chars().take(16).collect();
        format!("{} {short}", key.trim_end_matches("_identity"))
    });
    vec![labelled(&modes, theme), labelled(&format!("identity {}", identities.join("  ")), theme)]
}

fn keys(theme: Theme) -> Line<'static> {
    let text = " q quit  p pause  s sort  r reset peaks  +/- refresh  Tab worker  ? help";
    Line::from(span(text, Tone::Label, theme))
}
