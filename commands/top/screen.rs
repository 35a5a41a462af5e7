//! The terminal: entered, drawn on, and left as it was found, however the program ends.

use std::io::{self, Stdout, stdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, KeyEvent};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use serde_json::Value;

use super::draw::draw;
use super::feed;
use super::gpu::Cards;
use super::model::Model;
use super::view::{View, Wish};
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::query::{Query, QueryError};
use crate::signals;

/// Longest time between two pictures: ages pass although nothing is heard.
const TICK: Duration = Duration::from_millis(500);
/// How long a signal waits for a picture that the terminal does not take.
const GRACE: Duration = Duration::from_secs(1);
/// Exit code after a panic, the runtime's own.
const PANICKED: i32 = 101;

/// What the picture depends on.
pub(crate) enum Event {
    /// A worker's answer, when it was asked and when that came.
    Answer(usize, [Instant; 2], Result<Value, QueryError>),
    /// A reading of the cards.
    Cards(Cards),
    /// A key.
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// A signal that ends the program.
    Signal(&'static str),
    /// The keyboard is gone.
    NoKeys(io::Error),
}

/// The terminal while it is ours.
struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    fn enter() -> io::Result<Self> {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            previous(panic);
            // In whatever thread it was: the others would go on drawing over the message.
            std::process::exit(PANICKED);
        }));
        // From here on `drop` undoes whatever part of this was done.
        let screen = Self(Terminal::new(CrosstermBackend::new(stdout()))?);
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    fn draw(&mut self, model: &Model, view: &View) -> io::Result<()> {
        self.0.draw(|frame| draw(frame.area(), frame.buffer_mut(), model, view))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Leaves the terminal as it was found. A terminal that is gone needs nothing.
fn leave() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Shows the workers until a key or a signal ends it.
pub(crate) fn run(mut model: Model, mut view: View, queries: Vec<Query>, cards: bool) -> Outcome {
    let started = Instant::now();
    let endpoints: Vec<_> = queries.iter().map(|query| query.endpoint().clone()).collect();
    let (sender, events) = channel();
    start_signals(&sender).or_exit(Code::CheckFailed)?;
    let mut screen = Screen::enter().map_err(no_terminal)?;
    start_keys(&sender).map_err(no_terminal)?;
    let intervals = feed::start(queries, view.interval, &sender).or_exit(Code::CheckFailed)?;
    if cards {
        feed::start_cards(&sender).or_exit(Code::CheckFailed)?;
    }
    let mut frozen: Option<Model> = None;
    loop {
        model.now = started.elapsed();
        screen.draw(frozen.as_ref().unwrap_or(&model), &view).map_err(no_terminal)?;
        for event in next(&events, view.interval.min(TICK)) {
            match event {
                Event::Answer(worker, _, Err(error)) if error.is_final() => {
                    return Err(error.failure(&endpoints[worker]));
                }
                Event::Answer(worker, times, answer) => {
                    let times = times.map(|time| time.saturating_duration_since(started));
                    model.answer(worker, times, answer.map_err(|error| error.to_string()));
                }
                Event::Cards(cards) => model.cards = cards,
                Event::Resized => {}
                Event::Signal(name) => {
                    return Err(Failure::interrupted(name));
                }
                Event::NoKeys(error) => return Err(no_terminal(error)),
                Event::Key(key) => match view.key(key) {
                    Wish::Quit => return Ok(()),
                    Wish::ResetPeaks => model.reset_peaks(),
                    Wish::Interval => {
                        // A thread that is gone has said why.
                        for interval in &intervals {
                            let _ = interval.send(view.interval);
                        }
                    }
                    Wish::Nothing if view.paused => {
                        frozen.get_or_insert_with(|| model.clone());
                    }
                    Wish::Nothing => frozen = None,
                },
            }
        }
    }
}

fn no_terminal(error: io::Error) -> Failure {
    Failure::new(Code::CheckFailed, format!("the terminal cannot be used: {error}"))
        .hint("--once prints one picture as text")
}

/// All events that there are; the first is waited for.
fn next(events: &Receiver<Event>, wait: Duration) -> Vec<Event> {
    match events.recv_timeout(wait) {
        Ok(first) => std::iter::once(first).chain(events.try_iter()).collect(),
        // The caller keeps a sender: there is always somebody who might say something.
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
    }
}

fn start_keys(events: &Sender<Event>) -> io::Result<()> {
    let events = events.clone();
    let body = move || {
        loop {
            let event = match event::read() {
                Ok(event::Event::Key(key)) => Event::Key(key),
                Ok(event::Event::Resize(..)) => Event::Resized,
                Ok(_) => continue,
                Err(error) => Event::NoKeys(error),
            };
            let last = matches!(event, Event::NoKeys(_));
            if events.send(event).is_err() || last {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".into()).spawn(body)?;
    Ok(())
}

/// Turns the signals that end a program into an event.
fn start_signals(events: &Sender<Event>) -> io::Result<()> {
    let events = events.clone();
    signals::first(move |name| {
        // Without a reader the program is ending anyway.
        let _ = events.send(Event::Signal(name));
        thread::sleep(GRACE);
        // The terminal takes no output, so that the picture is never finished.
        let _ = disable_raw_mode();
        std::process::exit(Code::Interrupted as i32);
    })
}

/// Enters the terminal and panics elsewhere while it is ours.
#[cfg(test)]
pub(super) fn panic_on_another_thread() {
    let screen = Screen::enter().expect("a terminal");
    let panicking = thread::spawn(|| panic!("nobody expects this"));
    // Never returns: the hook ends the process.
    let _ = panicking.join();
    drop(screen);
}
