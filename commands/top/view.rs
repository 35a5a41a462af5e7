//! What the person at the keyboard chose: keys in, a view out. Knows no worker.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};

/// Refresh intervals that + and - step through.
const INTERVALS_MS: [u64; 8] = [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000];

/// How things are shown.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Index of the worker shown.
    pub(crate) tab: usize,
    /// Number of workers.
    pub(crate) tabs: usize,
    /// Order of the slots.
    pub(crate) sort: Sort,
    /// Slots scrolled past.
    pub(crate) scroll: usize,
    /// Whether the keys are explained.
    pub(crate) help: bool,
    /// Whether the picture stands still.
    pub(crate) paused: bool,
    /// Between two questions.
    pub(crate) interval: Duration,
    /// Whether somebody can press keys.
    pub(crate) interactive: bool,
    /// Colours and characters.
    pub(crate) theme: Theme,
}

/// Order of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Slot,
    Age,
    Drafts,
    Accepted,
    Rows,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Slot => Self::Age,
            Self::Age => Self::Drafts,
            Self::Drafts => Self::Accepted,
            Self::Accepted => Self::Rows,
            Self::Rows => Self::Slot,
        }
    }

    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Slot => "slot",
            Self::Age => "age",
            Self::Drafts => "drafts",
            Self::Accepted => "accepted",
            Self::Rows => "rows",
        }
    }
}

/// What a key asks of the rest of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing: the view has changed, or the key has no meaning.
    Nothing,
    /// Another interval.
    Interval,
    /// New peaks.
    ResetPeaks,
    /// The end.
    Quit,
}

/// The keys, for the help.
pub(crate) const KEYS: [(&str, &str); 9] = [
    ("q, Esc, Ctrl-C", "quit"),
    ("p, Space", "pause the picture; counting goes on"),
    ("s", "sort slots by slot, age, drafts, accepted, rows"),
    ("Up, Down", "scroll the slots"),
    ("r", "reset the peaks"),
    ("+, -", "refresh more often, less often"),
    ("Tab, Left, Right", "next or previous worker"),
    ("1 .. 9", "that worker"),
    ("?, h", "this help"),
];

impl View {
    /// The first of `tabs` workers.
    pub(crate) fn new(tabs: usize, interval: Duration, theme: Theme) -> Self {
        Self {
            tab: 0,
            tabs,
            sort: Sort::Slot,
            scroll: 0,
            help: false,
            paused: false,
            interval,
            interactive: true,
            theme,
        }
    }

    /// Does what a key means.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return Wish::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => return Wish::ResetPeaks,
            KeyCode::Char('+' | '=') => return self.refresh(true),
            KeyCode::Char('-' | '_') => return self.refresh(false),
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Tab | KeyCode::Right => self.show((self.tab + 1) % self.tabs),
            KeyCode::BackTab | KeyCode::Left => {
                self.show((self.tab + self.tabs - 1) % self.tabs);
            }
            KeyCode::Char(digit @ '1'..='9') => self.show(digit as usize - '1' as usize),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            _ => {}
        }
        Wish::Nothing
    }

    fn show(&mut self, tab: usize) {
        if tab < self.tabs {
            (self.tab, self.scroll) = (tab, 0);
        }
    }

    fn refresh(&mut self, faster: bool) -> Wish {
        let mut steps = INTERVALS_MS.iter().map(|ms| Duration::from_millis(*ms));
        let next = if faster {
            steps.rfind(|step| *step < self.interval)
        } else {
            steps.find(|step| *step > self.interval)
        };
        let Some(next) = next else { return Wish::Nothing };
        self.interval = next;
        Wish::Interval
    }
}

/// Colours and characters that may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(crate) color: bool,
    pub(crate) ascii: bool,
}

/// What a text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// Names of what stands beside.
    Label,
    Title,
    Chosen,
    Good,
    Warn,
    Bad,
    Graph,
}

impl Theme {
    /// How a tone looks. Without colours the modifiers still tell.
    pub(crate) fn style(self, tone: Tone) -> Style {
        let (color, modifier) = match tone {
            Tone::Plain => (None, Modifier::empty()),
            Tone::Label => (Some(Color::DarkGray), Modifier::empty()),
            Tone::Title => (None, Modifier::BOLD),
            Tone::Chosen => (None, Modifier::REVERSED),
            Tone::Good => (Some(Color::Green), Modifier::empty()),
            Tone::Warn => (Some(Color::Yellow), Modifier::empty()),
            Tone::Bad => (Some(Color::Red), Modifier::BOLD),
            Tone::Graph => (Some(Color::Cyan), Modifier::empty()),
        };
        let style = Style::new().add_modifier(modifier);
        match color {
            Some(color) if self.color => style.fg(color),
            _ => style,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Theme = Theme { color: false, ascii: false };

    fn press(view: &mut View, code: KeyCode) -> Wish {
        view.key(KeyEvent::from(code))
    }

    #[test]
    fn tabs_go_round_and_numbers_name_them() {
        let mut view = View::new(3, Duration::from_secs(1), PLAIN);
        press(&mut view, KeyCode::BackTab);
        assert_eq!(view.tab, 2);
        press(&mut view, KeyCode::Right);
        assert_eq!(view.tab, 0);
        press(&mut view, KeyCode::Char('2'));
        press(&mut view, KeyCode::Char('9'));
        assert_eq!(view.tab, 1, "there is no ninth");
    }

    #[test]
    fn plus_and_minus_step_through_the_intervals_and_stop_at_the_ends() {
        let mut view = View::new(1, Duration::from_millis(700), PLAIN);
        assert_eq!(press(&mut view, KeyCode::Char('+')), Wish::Interval);
        assert_eq!(view.interval, Duration::from_millis(500));
        assert_eq!(press(&mut view, KeyCode::Char('-')), Wish::Interval);
        assert_eq!(view.interval, Duration::from_secs(1));
        for _ in 0..20 {
            press(&mut view, KeyCode::Char('+'));
        }
        assert_eq!(view.interval, Duration::from_millis(100));
        assert_eq!(press(&mut view, KeyCode::Char('+')), Wish::Nothing);
    }

    #[test]
    fn three_keys_quit_and_escape_closes_the_help_first() {
        let mut view = View::new(1, Duration::from_secs(1), PLAIN);
        assert_eq!(press(&mut view, KeyCode::Char('q')), Wish::Quit);
        assert_eq!(press(&mut view, KeyCode::Char('c')), Wish::Nothing);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(control_c), Wish::Quit);
        press(&mut view, KeyCode::Char('?'));
        assert_eq!((press(&mut view, KeyCode::Esc), view.help), (Wish::Nothing, false));
        assert_eq!(press(&mut view, KeyCode::Esc), Wish::Quit);
    }

    #[test]
    fn every_order_of_the_slots_is_reached() {
        let mut view = View::new(1, Duration::from_secs(1), PLAIN);
        let mut seen = vec![view.sort];
        loop {
            press(&mut view, KeyCode::Char('s'));
            if view.sort == Sort::Slot {
                break;
            }
            seen.push(view.sort);
        }
        assert_eq!(seen.len(), 5);
    }
}
