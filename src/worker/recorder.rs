//! Recording frames to a trace without delaying a round.
//!
//! The drafting thread copies a frame and its reply into a bounded queue; a thread of its own writes them.
//! When the queue is full the pair is dropped and counted, and the round goes on. At the size limit
//! recording ends for good: what is in the file has no hole because of it.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::trace::writer::record_bytes;
use crate::trace::{RecordKind, TraceHeader, TraceWriter};

/// Bytes that may wait for the disk.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// A request and its reply, each with its time in µs.
struct Pair {
    request: (u64, Vec<u8>),
    reply: (u64, Vec<u8>),
}

impl Pair {
    /// Bytes it takes in the file.
    fn bytes(&self) -> u64 {
        record_bytes(self.request.1.len()) + record_bytes(self.reply.1.len())
    }
}

/// The drafting thread's end of the queue. Dropping it writes what is queued and closes the file.
pub struct Recorder {
    queue: Option<Sender<Pair>>,
    queued: Arc<AtomicU64>,
    /// Bytes the file may still grow by; `None` when it has reached its limit.
    left: Cell<Option<u64>>,
    started: Instant,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Creates the trace file and its writer thread. The file stays within `limit` bytes.
    ///
    /// # Errors
    /// When the file cannot be created; an existing one is refused.
    pub fn create(path: &Path, header: &TraceHeader, limit: u64) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path)?;
        let trace = TraceWriter::create(BufWriter::with_capacity(1 << 20, file), header)?;
        let left = Cell::new(Some(limit.saturating_sub(trace.bytes())));
        let (queue, pairs) = channel();
        let queued = Arc::new(AtomicU64::new(0));
        let waiting = queued.clone();
        let body = move || write_all(trace, &pairs, &waiting);
        let writer = thread::Builder::new().name("dspark-record".into()).spawn(body)?;
        let started = Instant::now();
        Ok(Self { queue: Some(queue), queued, left, started, writer: Some(writer) })
    }

    /// Queues a request that had arrived at `arrived`, and the reply it gets now; false when they were
    /// dropped.
    pub fn record(&self, arrived: Instant, request: &[u8], reply: &[u8]) -> bool {
        let bytes = record_bytes(request.len()) + record_bytes(reply.len());
        let Some(left) = self.left.get() else { return false };
        let Some(left) = left.checked_sub(bytes) else {
            tracing::warn!("the recording has reached its limit and ends here");
            self.left.set(None);
            return false;
        };
        if self.queued.load(Ordering::Relaxed) + bytes > QUEUE_BYTES_MAX {
            return false;
        }
        let pair = Pair {
            request: (self.micros(arrived), request.to_vec()),
            reply: (self.micros(Instant::now()), reply.to_vec()),
        };
        // Before it is sent: the writer subtracts as soon as it has it.
        self.queued.fetch_add(bytes, Ordering::Relaxed);
        self.left.set(Some(left));
        self.queue.as_ref().is_some_and(|queue| queue.send(pair).is_ok())
    }

    fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
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

fn write_all(mut trace: TraceWriter<BufWriter<File>>, pairs: &Receiver<Pair>, queued: &AtomicU64) {
    for pair in pairs {
        let bytes = pair.bytes();
        let Pair { request, reply } = pair;
        let written = trace
            .record(RecordKind::Request, request.0, &request.1)
            .and_then(|()| trace.record(RecordKind::Reply, reply.0, &reply.1));
        queued.fetch_sub(bytes, Ordering::Relaxed);
        if let Err(error) = written {
            // Dropping the receiver makes every further frame an unrecorded one, which is counted.
            tracing::error!(%error, "recording stopped");
            return;
        }
    }
    if let Err(error) = trace.finish() {
        tracing::error!(%error, "the trace may be cut short");
    }
}
