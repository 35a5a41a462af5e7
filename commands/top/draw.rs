//! The picture: what fits into the area, whatever its size.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::symbols;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Sparkline, Widget};

use super::model::Model;
use super::panels::{Panel, panels};
use super::view::{KEYS, Theme, Tone, View};

/// Lines that a panel is given before those of a higher rank have theirs: eight slots and their heading.
const LINES_FIRST: u16 = 9;
/// Lines of a sparkline where there is room to spare.
const GRAPH_LINES_MAX: u16 = 3;
/// Narrower sparklines say nothing.
const GRAPH_COLUMNS_MIN: u16 = 8;

/// What the figures mean.
const NOTES: [&str; 5] = [
    " now        since the sample before; ~ is estimated from the worker's buckets",
    " peak       since the start of this program or the last reset",
    " p50, p99   worker time of a round: apply and draft",
    " a round    drafts accepted in rounds where the engine verified drafts and",
    "            kept rows, resyncs left out; rate is accepted of the verified",
];

/// Draws one picture. Depends on nothing but its arguments.
pub(crate) fn draw(area: Rect, buffer: &mut Buffer, model: &Model, view: &View) {
    let area = area.intersection(buffer.area);
    if area.is_empty() {
        return;
    }
    Clear.render(area, buffer);
    let panels = panels(model, view);
    let shown = fit(&panels, area.height, if view.interactive { GRAPH_LINES_MAX } else { 1 });
    let mut top = area.y;
    for (panel, place) in panels.iter().zip(shown) {
        let Some(Place { gap, lines }) = place else { continue };
        top += u16::from(gap);
        let row = Rect { y: top, height: lines, ..area };
        render(panel, row.intersection(area), buffer, view.theme);
        top += lines;
    }
    if view.interactive {
        corner(area, buffer, view);
    }
    if view.help {
        help(area, buffer, view.theme);
    }
    if view.theme.ascii {
        to_ascii(area, buffer);
    }
}

/// Where a panel goes: below a blank line or not, and over how many lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    gap: bool,
    lines: u16,
}

/// Shares `height` lines out in the order of the ranks: first so many that no panel takes all, then the
/// rest of their lines; then blank lines from the top, then higher sparklines.
fn fit(panels: &[Panel], height: u16, graph_lines: u16) -> Vec<Option<Place>> {
    let mut left = height;
    let mut places = vec![Place { gap: false, lines: 0 }; panels.len()];
    let mut order: Vec<usize> = (0..panels.len()).collect();
    order.sort_by_key(|index| panels[*index].rank);
    // Far fewer than 65,536 lines.
    let all = |panel: &Panel| u16::try_from(panel.lines.len()).unwrap_or(u16::MAX);
    for &index in &order {
        let panel = &panels[index];
        if panel.lines_min <= left {
            places[index].lines = all(panel).min(LINES_FIRST).min(left);
            left -= places[index].lines;
        }
    }
    for &index in &order {
        let place = &mut places[index];
        if place.lines > 0 {
            let more = (all(&panels[index]) - place.lines).min(left);
            place.lines += more;
            left -= more;
        }
    }
    for (panel, place) in panels.iter().zip(&mut places) {
        if panel.gap && place.lines > 0 && left > 0 {
            place.gap = true;
            left -= 1;
        }
    }
    let graphs = panels.iter().zip(&mut places);
    let graphs: Vec<_> =
        graphs.filter(|(panel, place)| panel.graph.is_some() && place.lines > 0).collect();
    // There are four.
    let more = left.checked_div(graphs.len() as u16).unwrap_or(0).min(graph_lines - 1);
    graphs.into_iter().for_each(|(_, place)| place.lines += more);
    places.into_iter().map(|place| (place.lines > 0).then_some(place)).collect()
}

fn render(panel: &Panel, area: Rect, buffer: &mut Buffer, theme: Theme) {
    let Some(graph) = &panel.graph else {
        Paragraph::new(panel.lines.clone()).render(area, buffer);
        return;
    };
    let text = panel.lines.iter().map(Line::width).max().unwrap_or(0);
    let text = u16::try_from(text).unwrap_or(area.width);
    let [left, right] =
        Layout::horizontal([Constraint::Length(text), Constraint::Min(0)]).areas(area);
    Paragraph::new(panel.lines.clone()).render(left, buffer);
    if right.width < GRAPH_COLUMNS_MIN || graph.len() < 2 {
        return;
    }
    // The newest value is always at the right edge.
    let columns = usize::from(right.width) - 1;
    let known = &graph[graph.len().saturating_sub(columns)..];
    let missing = columns - known.len();
    let data = std::iter::repeat_n(None, missing).chain(known.iter().copied());
    Sparkline::default()
        .data(data.collect::<Vec<_>>())
        .bar_set(symbols::bar::NINE_LEVELS)
        .absent_value_symbol(" ")
        .style(theme.style(Tone::Graph))
        .render(right, buffer);
}

/// The refresh interval or the pause, in the upper right corner.
fn corner(area: Rect, buffer: &mut Buffer, view: &View) {
    let (text, tone) = if view.paused {
        (" PAUSED ".to_owned(), Tone::Chosen)
    } else {
        (format!(" every {} ", humantime::format_duration(view.interval)), Tone::Label)
    };
    let width = u16::try_from(text.len()).unwrap_or(u16::MAX);
    if view.paused || width.saturating_mul(3) <= area.width {
        let width = width.min(area.width);
        let place = Rect { x: area.right() - width, width, height: 1, ..area };
        Clear.render(place, buffer);
        Span::styled(text, view.theme.style(tone)).render(place, buffer);
    }
}

fn help(area: Rect, buffer: &mut Buffer, theme: Theme) {
    Clear.render(area, buffer);
    let key = |(key, meaning): &(&str, &str)| {
        Line::from(vec![
            Span::styled(format!(" {key:<18}"), theme.style(Tone::Title)),
            Span::raw((*meaning).to_owned()),
        ])
    };
    let mut lines = vec![Line::styled(" dspark top", theme.style(Tone::Title)), Line::default()];
    lines.extend(KEYS.iter().map(key));
    lines.push(Line::default());
    lines.extend(NOTES.map(Line::raw));
    Paragraph::new(lines).render(area, buffer);
}

/// Replaces every character that is not ASCII.
fn to_ascii(area: Rect, buffer: &mut Buffer) {
    for position in area.positions() {
        let cell = &mut buffer[position];
        if !cell.symbol().is_ascii() {
            let plain = match cell.symbol() {
                "▁" => ".",
                "▂" => ":",
                "▃" => "-",
                "▄" => "=",
                "▅" => "+",
                "▆" => "*",
                "▇" => "%",
                "█" => "#",
                "µ" => "u",
                "°" => " ",
                _ => "?",
            };
            cell.set_symbol(plain);
        }
    }
}

/// The picture as lines of text, without the blanks at their ends and the blank lines below.
pub(crate) fn text(width: u16, height: u16, model: &Model, view: &View) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(area, &mut buffer, model, view);
    lines(&buffer)
}

/// A buffer's lines.
fn lines(buffer: &Buffer) -> String {
    let mut lines = Vec::new();
    for row in buffer.area.rows() {
        let (mut line, mut covered) = (String::new(), 0);
        for position in row.positions() {
            let symbol = buffer[position].symbol();
            // A wide character covers the cell after it.
            if covered == 0 {
                line += symbol;
                covered = Span::raw(symbol).width().max(1);
            }
            covered -= 1;
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n").trim_end().to_owned()
}
