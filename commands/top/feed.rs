//! The threads that ask: one a worker, so that a worker that hangs delays nobody, and one for the cards.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::gpu::{self, Cards, Reader};
use super::screen::Event;
use crate::query::Query;

/// Asks every worker again and again until `events` has no reader; returns where to send new intervals.
pub(crate) fn start(
    queries: Vec<Query>,
    interval: Duration,
    events: &Sender<Event>,
) -> std::io::Result<Vec<Sender<Duration>>> {
    let start = |(worker, query): (usize, Query)| {
        let (events, (intervals, changes)) = (events.clone(), channel());
        let body = move || poll(worker, query, interval, &changes, &events);
        thread::Builder::new().name(format!("worker-{worker}")).spawn(body)?;
        Ok(intervals)
    };
    queries.into_iter().enumerate().map(start).collect()
}

fn poll(
    worker: usize,
    mut query: Query,
    mut interval: Duration,
    changes: &Receiver<Duration>,
    events: &Sender<Event>,
) {
    loop {
        let asked = Instant::now();
        let answer = query.stats();
        if events.send(Event::Answer(worker, [asked, Instant::now()], answer)).is_err() {
            return;
        }
        // A new interval counts from the same question.
        loop {
            match changes.recv_timeout(interval.saturating_sub(asked.elapsed())) {
                Ok(new) => interval = new,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Reads the cards again and again until `events` has no reader.
pub(crate) fn start_cards(events: &Sender<Event>) -> std::io::Result<()> {
    let events = events.clone();
    let body = move || match Reader::open() {
        Err(why) => {
            // Whoever has gone needs no cards.
            let _ = events.send(Event::Cards(Cards::None(why)));
        }
        Ok(reader) => {
            while events.send(Event::Cards(reader.read())).is_ok() {
                thread::sleep(gpu::INTERVAL);
            }
        }
    };
    thread::Builder::new().name("cards".into()).spawn(body)?;
    Ok(())
}
