//! Recording frames to a trace without delaying a round.
//!
//! The drafting thread copies a frame into a bounded queue; a thread of its own writes it. When the queue
//! or the size limit is full the record is dropped and counted, and the round goes on.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::trace::{RecordKind, TraceHeader, TraceWriter};

/// Bytes that may wait for the disk.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

struct Item {
    kind: RecordKind,
    time_us: u64,
    message: Vec<u8>,
}

/// The drafting thread's end of the queue. Dropping it writes what is queued and closes the file.
pub struct Recorder {
    queue: Option<Sender<Item>>,
    queued: Arc<AtomicU64>,
    /// Bytes accepted so far, against `limit`.
    taken: AtomicU64,
    limit: u64,
    started: Instant,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Creates the trace file and its writer thread. Recording stops for good after `limit` bytes of
    /// frames.
    ///
    /// # Errors
    /// When the file cannot be created; an existing one is refused.
    pub fn create(path: &Path, header: &TraceHeader, limit: u64) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path)?;
        let trace = TraceWriter::create(BufWriter::with_capacity(1 << 20, file), header)?;
        let (queue, items) = channel();
        let queued = Arc::new(AtomicU64::new(0));
        let waiting = queued.clone();
        let body = move || write_all(trace, &items, &waiting);
        let writer = thread::Builder::new().name("dspark-record".into()).spawn(body)?;
        Ok(Self {
            queue: Some(queue),
            queued,
            taken: AtomicU64::new(0),
            limit,
            started: Instant::now(),
            writer: Some(writer),
        })
    }

    /// Queues one message; false when it was dropped.
    pub fn record(&self, kind: RecordKind, message: &[u8]) -> bool {
        let len = message.len() as u64;
        let taken = self.taken.load(Ordering::Relaxed);
        let full = self.queued.load(Ordering::Relaxed) + len > QUEUE_BYTES_MAX;
        if full || taken + len > self.limit {
            return false;
        }
        let time_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let item = Item { kind, time_us, message: message.to_vec() };
        let sent = self.queue.as_ref().is_some_and(|queue| queue.send(item).is_ok());
        if sent {
            self.queued.fetch_add(len, Ordering::Relaxed);
            self.taken.store(taken + len, Ordering::Relaxed);
        }
        sent
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // A panic there has been printed; the trace is readable up to its cut.
            let _ = writer.join();
        }
    }
}

fn write_all(mut trace: TraceWriter<BufWriter<File>>, items: &Receiver<Item>, queued: &AtomicU64) {
    for item in items {
        let written = trace.record(item.kind, item.time_us, &item.message);
        queued.fetch_sub(item.message.len() as u64, Ordering::Relaxed);
        if let Err(error) = written {
            // Dropping the receiver makes every further record a dropped one, which is counted.
            tracing::error!(%error, "recording stopped");
            return;
        }
    }
    if let Err(error) = trace.finish() {
        tracing::error!(%error, "the trace may be cut short");
    }
}
