//! Threads and listeners of a worker (contract §5, §7.5; contract-notes §1, §2).
//!
//! One drafting thread builds the backend and then does everything a round needs: receive, plan, draft,
//! reply, without a hand-off. One control thread answers PING, STATS and HTTP. Both stop between frames.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::progress::PULSE;
use super::recorder::Recorder;
use super::seats::Seats;
use super::stats::{LinkStats, SharedStats, WorkerFacts};
use super::{Handled, Worker, control, http};
use crate::buffer::FrameBuffer;
use crate::drafter::{DraftError, Drafter};
use crate::geometry::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::protocol::HelloReply;
use crate::session::Seat;
use crate::transport::connection::FRAME_TIME;
use crate::transport::listener::{Accepting, Newest};
use crate::transport::{Connection, Listener, Peer, Peers, RecvError, Repeats};

/// What a worker is started with, besides its backend.
pub struct ServeOptions {
    /// Drafting listeners: one client each, the newest connection wins.
    pub listeners: Vec<Listener>,
    /// Control listener.
    pub control: Option<Listener>,
    /// Where metrics are served over HTTP.
    pub metrics: Option<Listener>,
    /// Whose connections the drafting listeners take.
    pub peers: Peers,
    /// Name sent in HELLO replies.
    pub name: String,
    /// Where the checkpoint came from, in words.
    pub checkpoint: String,
    /// Drafter and Markov identity.
    pub identities: [[u8; 32]; 2],
    /// Where frames are recorded.
    pub recorder: Option<Recorder>,
    /// An idle device is used after this long.
    pub keep_warm: Option<Duration>,
}

/// Why a worker does not start or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The backend could not be built.
    #[error(transparent)]
    Backend(Box<dyn std::error::Error + Send + Sync>),
    /// No memory for a frame.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// A socket or runtime could not be set up.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
    /// The drafting thread ended by a fault of this program.
    #[error("the drafting thread ended unexpectedly")]
    Died,
}

/// A running worker. Dropping it stops the worker after the frame in hand.
pub struct Running {
    /// Addresses of the drafting listeners.
    pub drafting: Vec<SocketAddr>,
    /// Address of the control listener.
    pub control: Option<SocketAddr>,
    /// Address of the metrics listener.
    pub metrics: Option<SocketAddr>,
    /// The counters.
    pub stats: SharedStats,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<()>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Completes when the drafting thread has ended without being told to.
    pub async fn ended(&self) {
        // The sender lives in the drafting thread: an error means that it is gone.
        while self.ended.clone().changed().await.is_ok() {}
    }

    /// Stops after the frame in hand, and waits for it.
    ///
    /// # Errors
    /// [`ServeError::Died`] if a thread had panicked.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), ServeError> {
        self.stop.send_replace(true);
        let mut died = false;
        for thread in self.threads.drain(..) {
            died |= thread.join().is_err();
        }
        if died { Err(ServeError::Died) } else { Ok(()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody is left to hear of a panic that the thread has printed itself.
        let _ = self.join();
    }
}

type BuildError = Box<dyn std::error::Error + Send + Sync>;

/// Starts a worker: `build` makes the backend on the drafting thread, where it stays. Returns when the
/// worker is ready, with every buffer taken and the listeners served.
///
/// # Errors
/// When the backend, a buffer or a runtime cannot be had.
pub fn start(
    options: ServeOptions,
    build: impl FnOnce() -> Result<Box<dyn Drafter>, BuildError> + Send + 'static,
) -> Result<Running, ServeError> {
    let ServeOptions { listeners, control, metrics, peers, recorder, keep_warm, .. } = options;
    let facts = (options.name, options.checkpoint, options.identities);
    let drafting = listeners.iter().map(Listener::local).collect();
    let control_address = control.as_ref().map(Listener::local);
    let metrics_address = metrics.as_ref().map(Listener::local);
    let (stop, stopped) = watch::channel(false);
    let (alive, ended) = watch::channel(());
    let (ready, is_ready) = mpsc::sync_channel(1);
    let stopping = stopped.clone();
    let body = move || {
        let _alive = alive;
        match prepare(build, facts, listeners, peers) {
            Err(e) => drop(ready.send(Err(e))),
            Ok(Prepared { worker, seats, runtime }) => {
                // The starter waits for this one message.
                let _ = ready.send(Ok(worker.stats().clone()));
                let shared = Shared { worker: RefCell::new(worker), recorder, stopping };
                runtime.block_on(draft(Rc::new(shared), seats, keep_warm));
            }
        }
    };
    let mut threads = vec![spawn("dspark-draft", body)?];
    let stats = match is_ready.recv() {
        Ok(result) => result?,
        Err(_) => return Err(ServeError::Died),
    };
    if control.is_some() || metrics.is_some() {
        let stats = stats.clone();
        let runtime = current_thread()?;
        let control = control.map(|listener| serve_on(&runtime, listener)).transpose()?;
        let metrics = metrics.map(|listener| serve_on(&runtime, listener)).transpose()?;
        let body = move || runtime.block_on(answer(control, metrics, stats, stopped));
        threads.push(spawn("dspark-control", body)?);
    }
    Ok(Running {
        drafting,
        control: control_address,
        metrics: metrics_address,
        stats,
        stop,
        ended,
        threads,
    })
}

struct Prepared {
    worker: Worker,
    seats: Vec<(Accepting, FrameBuffer)>,
    runtime: Runtime,
}

/// Everything that can fail, and every buffer, before "ready".
fn prepare(
    build: impl FnOnce() -> Result<Box<dyn Drafter>, BuildError>,
    (name, checkpoint, identities): (String, String, [[u8; 32]; 2]),
    listeners: Vec<Listener>,
    peers: Peers,
) -> Result<Prepared, ServeError> {
    let drafter = build().map_err(ServeError::Backend)?;
    let geometry = *drafter.geometry();
    let runtime = current_thread()?;
    let reply = HelloReply::new(&geometry, identities[0], identities[1], &name);
    let stats = SharedStats::new(WorkerFacts {
        name,
        checkpoint,
        geometry,
        identities: identities.map(hex::encode),
        backend: drafter.info(),
    });
    *stats.lock().seats() = Seats::of(listeners.iter().map(Listener::local));
    let admit = admission(peers, &stats);
    let seat = |listener| {
        let buffer = drafter.frame_buffer(REQUEST_BYTES_MAX)?;
        Ok((serve_on(&runtime, listener)?.admit(admit.clone()), buffer))
    };
    let seats = listeners.into_iter().map(seat).collect::<Result<_, ServeError>>()?;
    let worker = Worker::new(drafter, reply, stats);
    Ok(Prepared { worker, seats, runtime })
}

fn serve_on(runtime: &Runtime, listener: Listener) -> Result<Accepting, ServeError> {
    let _inside = runtime.enter();
    listener.serve().map_err(|source| ServeError::Io { what: "watch a listener", source })
}

fn current_thread() -> Result<Runtime, ServeError> {
    let built = Builder::new_current_thread().enable_io().enable_time().build();
    built.map_err(|source| ServeError::Io { what: "start a runtime", source })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServeError> {
    let spawned = thread::Builder::new().name(name.into()).spawn(body);
    spawned.map_err(|source| ServeError::Io { what: "start a thread", source })
}

/// Judges who may connect, counts strangers and says once in a while who they are.
fn admission(peers: Peers, stats: &SharedStats) -> impl Fn(SocketAddr) -> bool + Clone + 'static {
    let (peers, stats) = (Arc::new(Mutex::new(peers)), stats.clone());
    move |peer| {
        let mut peers = peers.lock().unwrap_or_else(PoisonError::into_inner);
        let Peer::Stranger { report } = peers.judge(peer.ip(), Instant::now()) else {
            return true;
        };
        stats.lock().link().strangers += 1;
        if report {
            tracing::warn!(%peer, "connection closed: the address is not on the allow-list");
        }
        false
    }
}

/// Everything that is not drafting, until told to stop.
async fn answer(
    control: Option<Accepting>,
    metrics: Option<Accepting>,
    stats: SharedStats,
    mut stopped: watch::Receiver<bool>,
) {
    let local = LocalSet::new();
    if let Some(listener) = control {
        local.spawn_local(control::serve(listener, stats.clone()));
    }
    if let Some(listener) = metrics {
        local.spawn_local(http::serve(listener, stats));
    }
    // An error means that the owner is gone, which ends the worker too.
    let _ = local.run_until(stopped.wait_for(|stop| *stop)).await;
}

/// What the seats of all drafting listeners share on the one drafting thread.
struct Shared {
    worker: RefCell<Worker>,
    recorder: Option<Recorder>,
    stopping: watch::Receiver<bool>,
}

/// Serves every seat until told to stop. A fault in one of them ends all: half a worker looks alive to
/// whoever supervises it.
async fn draft(
    shared: Rc<Shared>,
    seats: Vec<(Accepting, FrameBuffer)>,
    keep_warm: Option<Duration>,
) {
    let local = LocalSet::new();
    let mut tasks = JoinSet::new();
    for (index, (listener, buffer)) in seats.into_iter().enumerate() {
        let shared = shared.clone();
        let serving = async move { seat(index, &listener, buffer, &shared).await };
        tasks.spawn_local_on(serving, &local);
    }
    if let Some(idle) = keep_warm {
        tasks.spawn_local_on(warm(shared.clone(), idle), &local);
    }
    tasks.spawn_local_on(pulse(shared), &local);
    let ended = async {
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ended::Told) => {}
                Ok(Ended::Lost) => return,
                Err(fault) => std::panic::resume_unwind(fault.into_panic()),
            }
        }
    };
    local.run_until(ended).await;
}

/// Says again and again that this thread is in its loop, and not inside a STEP.
async fn pulse(shared: Rc<Shared>) -> Ended {
    let mut stopping = shared.stopping.clone();
    let mut ticks = interval(PULSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => return Ended::Told,
            _ = ticks.tick() => shared.worker.borrow().stats().lock().pulse(),
        }
    }
}

/// Uses the device whenever it has been idle for this long. A STEP that comes meanwhile waits for one pass
/// over no rows.
async fn warm(shared: Rc<Shared>, idle: Duration) -> Ended {
    let mut stopping = shared.stopping.clone();
    loop {
        let due = shared.worker.borrow().used() + idle;
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => return Ended::Told,
            () = sleep_until(due.into()) => {}
        }
        let mut worker = shared.worker.borrow_mut();
        if worker.used().elapsed() >= idle && worker.keep_warm() {
            return Ended::Lost;
        }
    }
}

/// Why a seat is served no longer.
enum Ended {
    /// The worker was told to stop.
    Told,
    /// The backend will never draft again; the thread ends and with it the worker.
    Lost,
}

/// How a connection ended.
enum End {
    /// A newer one was accepted.
    Displaced(Newest),
    /// The client closed it, or it was closed for this reason.
    Closed(Option<RecvError>),
    /// The worker stops.
    Stopped,
    /// The backend will never draft again.
    Lost,
}

/// One drafting listener: serves the newest connection until a newer one comes (contract-notes D2).
async fn seat(
    index: usize,
    listener: &Accepting,
    mut buffer: FrameBuffer,
    shared: &Shared,
) -> Ended {
    let mut reply = Vec::with_capacity(REPLY_BYTES_MAX);
    let mut stopping = shared.stopping.clone();
    let mut next = None;
    let closed = Repeats::default();
    loop {
        let newest = match next.take() {
            Some(newest) => newest,
            None => tokio::select! {
                biased;
                _ = stopping.wait_for(|stop| *stop) => return Ended::Told,
                newest = listener.newest() => newest,
            },
        };
        shared.count(|link| {
            link.connections += 1 + newest.passed_over;
            link.displaced += newest.passed_over;
        });
        let connection = newest.connection;
        let peer = connection.peer();
        tracing::info!(%peer, "client connected");
        shared.note(|seats| seats.take(index, peer));
        let end = serve_one(listener, connection, &mut buffer, &mut reply, shared).await;
        shared.note(|seats| seats.leave(index));
        match end {
            End::Displaced(newer) => {
                tracing::info!(%peer, by = %newer.connection.peer(), "client displaced");
                shared.count(|link| link.displaced += 1);
                next = Some(newer);
            }
            End::Lost => {
                tracing::error!("the backend is lost; ending");
                return Ended::Lost;
            }
            End::Closed(None) => tracing::info!(%peer, "client disconnected"),
            End::Closed(Some(reason)) => {
                if let Some(unsaid) = closed.pass(Instant::now()) {
                    tracing::warn!(%peer, %reason, unsaid, "connection closed");
                }
                shared.count(|link| count_end(link, &reason));
            }
            End::Stopped => return Ended::Told,
        }
    }
}

fn count_end(link: &mut LinkStats, reason: &RecvError) {
    match reason {
        RecvError::Length(..) => link.bad_lengths += 1,
        RecvError::Slow(_) | RecvError::Cut => link.cut_frames += 1,
        RecvError::Io(_) => {}
    }
}

/// Frames of one connection, in order, until it ends, a newer one is accepted, or the worker stops. A
/// frame being received is dropped then; a frame being handled is finished, and its reply dropped if a
/// newer connection waits (contract-notes D9, D11).
async fn serve_one(
    listener: &Accepting,
    mut connection: Connection,
    buffer: &mut FrameBuffer,
    reply: &mut Vec<u8>,
    shared: &Shared,
) -> End {
    let mut seat = Seat::default();
    let mut stopping = shared.stopping.clone();
    loop {
        let received = tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => return End::Stopped,
            newer = listener.newest() => return End::Displaced(newer),
            received = connection.recv(buffer, FRAME_TIME) => received,
        };
        let len = match received {
            Ok(Some(len)) => len,
            Ok(None) => return End::Closed(None),
            Err(reason) => return End::Closed(Some(reason)),
        };
        let handled = shared.handle(&mut seat, buffer.frame(len), reply);
        shared.worker.borrow().stats().lock().received(buffer.frame(len), connection.receiving());
        if handled == Handled::ReplyAndEnd {
            // Whether the client gets the answer changes nothing any more.
            let _ = connection.send(reply).await;
            return End::Lost;
        }
        // The kernel is asked first: the runtime has not looked at the listener since the frame came.
        let sent = match listener.pending() {
            Some(newer) => Err(newer),
            None => tokio::select! {
                biased;
                sent = connection.send(reply) => Ok(sent),
                newer = listener.newest() => Err(newer),
            },
        };
        match sent {
            Ok(Ok(())) if handled == Handled::Reply => {}
            Ok(Ok(())) => return End::Closed(None),
            Ok(Err(error)) => {
                tracing::debug!(%error, "reply not delivered");
                shared.count(|link| link.unsent_replies += 1);
                return End::Closed(None);
            }
            Err(newer) => {
                shared.count(|link| link.dropped_replies += 1);
                return End::Displaced(newer);
            }
        }
    }
}

impl Shared {
    /// Handles a frame that has just arrived. Does not yield: no other seat runs meanwhile.
    fn handle(&self, seat: &mut Seat, frame: &[u8], reply: &mut Vec<u8>) -> Handled {
        let arrived = Instant::now();
        let handled = self.worker.borrow_mut().handle(seat, frame, arrived, reply);
        if let Some(recorder) = &self.recorder
            && !recorder.record(arrived, frame, reply)
        {
            self.count(|link| link.unrecorded_frames += 1);
        }
        handled
    }

    fn count(&self, change: impl FnOnce(&mut LinkStats)) {
        change(self.worker.borrow().stats().lock().link());
    }

    fn note(&self, change: impl FnOnce(&mut Seats)) {
        change(self.worker.borrow().stats().lock().seats());
    }
}
