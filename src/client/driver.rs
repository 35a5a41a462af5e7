//! Rank 0 on a real connection: connect, HELLO, one round after another, faults on purpose
//! (contract §4.2, §7.5, §10).
//!
//! What to send and what a reply means is [`rank0`](super::rank0)'s; this file owns the socket, and time
//! where a socket needs it. The engine's clock, which the reconnect backoff follows, is an argument: a
//! replay that runs faster than its trace keeps the trace's time.

use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::breaker::{Backoff, Breaker};
use super::faults::{Fault, FaultKind, FaultSchedule};
use super::rank0::{
    EngineRound, Failure, HelloError, NotSent, Outcome, Rank0, RoundError, RoundReport,
};
use crate::protocol::{AppHeader, FrameStatus};
use crate::transport::{CallError, Caller, Endpoint};

/// Connecting and HELLO may take this long: not part of any round's deadline.
pub const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Deadline of a round that checks what a worker holds, however slow it is.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client of one worker.
pub struct SparkClient {
    endpoint: Endpoint,
    timeout: Duration,
    rank0: Rank0,
    breaker: Breaker,
    backoff: Backoff,
    faults: Option<FaultSchedule>,
    new_session: fn() -> NonZeroU32,
    caller: Option<Caller>,
    /// The STEP sent last, and the one before it: a late frame of a dead connection is the latter.
    sent: Vec<u8>,
    earlier: Vec<u8>,
    reply: Vec<u8>,
    connects: u64,
}

/// How a client behaves, besides its rank 0.
pub struct ClientOptions {
    /// The worker's drafting listener.
    pub endpoint: Endpoint,
    /// Deadline of one round.
    pub timeout: Duration,
    /// Rounds that send nothing after repeated failures.
    pub breaker: Breaker,
    /// Pauses between attempts to connect.
    pub backoff: Backoff,
    /// Faults to inject.
    pub faults: Option<FaultSchedule>,
    /// Source of random session ids.
    pub new_session: fn() -> NonZeroU32,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The transport.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The worker's answer to HELLO.
    #[error(transparent)]
    Hello(#[from] HelloError),
}

/// What one answered round took, µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTimes {
    /// From the first byte sent to the last one taken by the socket.
    pub send_us: u64,
    /// From the first byte sent to the reply received.
    pub total_us: u64,
    /// Apply and draft time, as the worker says.
    pub worker_us: u64,
    /// From the request received to the reply sent, as the worker says.
    pub recv_to_send_us: u64,
}

impl RoundTimes {
    /// What the link and both ends' sockets took.
    pub fn link_us(&self) -> u64 {
        self.total_us.saturating_sub(self.recv_to_send_us)
    }
}

/// A finished round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// What became of it.
    pub report: RoundReport,
    /// Durations, if it was answered in time.
    pub times: Option<RoundTimes>,
    /// The fault that was injected into it.
    pub fault: Option<FaultKind>,
}

impl SparkClient {
    /// A client that has not connected yet.
    pub fn new(rank0: Rank0, options: ClientOptions) -> Self {
        let ClientOptions { endpoint, timeout, breaker, backoff, faults, new_session } = options;
        Self {
            endpoint,
            timeout,
            rank0,
            breaker,
            backoff,
            faults,
            new_session,
            caller: None,
            sent: Vec::new(),
            earlier: Vec::new(),
            reply: Vec::new(),
            connects: 0,
        }
    }

    /// Slots, counters and drafts.
    pub fn rank0(&self) -> &Rank0 {
        &self.rank0
    }

    /// As [`rank0`](Self::rank0), to be told of things outside a round.
    pub fn rank0_mut(&mut self) -> &mut Rank0 {
        &mut self.rank0
    }

    /// The breaker.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Connections made.
    pub fn connects(&self) -> u64 {
        self.connects
    }

    /// The STEP sent last, a whole message.
    pub fn sent(&self) -> &[u8] {
        &self.sent
    }

    /// The reply received last, a whole message as it arrived.
    pub fn reply(&self) -> &[u8] {
        &self.reply
    }

    /// From here on the worker's state alone is tested: no injected fault, no open breaker, no hurry.
    pub fn end_faults(&mut self) {
        self.faults = None;
        self.timeout = self.timeout.max(PATIENCE);
        self.breaker = Breaker::new(0, 0);
    }

    /// Closes the connection, as a restart of the client's proxy would.
    pub fn disconnect(&mut self) {
        self.caller = None;
        self.rank0.disconnected();
    }

    /// Connects and greets now, whatever the backoff says. Does nothing when ready.
    ///
    /// # Errors
    /// Why there is no session.
    pub fn connect(&mut self) -> Result<(), ConnectError> {
        if self.rank0.is_ready() {
            return Ok(());
        }
        let result = self.greet();
        if result.is_err() {
            self.disconnect();
        }
        result
    }

    /// One engine round at engine time `now`: take the rows, send if a connection and the breaker allow,
    /// judge the reply. `number` picks the fault.
    ///
    /// # Errors
    /// When no engine makes this round; nothing is taken then.
    pub fn round(
        &mut self,
        round: &EngineRound<'_>,
        number: u64,
        now: Duration,
    ) -> Result<Round, RoundError> {
        if !self.rank0.is_ready()
            && self.rank0.disabled().is_none()
            && self.backoff.may_connect(now)
        {
            match self.connect() {
                Ok(()) => self.backoff.succeeded(),
                Err(error) => {
                    tracing::warn!(%error, "no session");
                    self.backoff.failed(now);
                }
            }
        }
        self.rank0.begin(round)?;
        let mut done = Round { report: RoundReport::NOTHING, times: None, fault: None };
        if self.breaker.admit() {
            self.exchange(number, &mut done);
        } else {
            done.report = self.rank0.skip(NotSent::Cooldown);
        }
        self.breaker.record(done.report.facts().attempt());
        if done.report.drops_connection() {
            self.disconnect();
            self.backoff.failed(now);
        } else if done.fault == Some(FaultKind::HalfClose) {
            // The worker closes after this reply; waiting to find out would cost the next round.
            self.disconnect();
        }
        Ok(done)
    }

    /// TCP, then HELLO on it if one is due.
    fn greet(&mut self) -> Result<(), ConnectError> {
        let deadline = Instant::now() + CONNECT_TIME;
        if self.caller.is_none() {
            self.caller = Some(Caller::connect(&self.endpoint, deadline)?);
            self.connects += 1;
            self.rank0.connected();
        }
        let caller = self.caller.as_mut().expect("connected above");
        let reply = caller.call(&[self.rank0.hello(self.new_session)], deadline)?;
        self.rank0.judge_hello(reply)?;
        Ok(())
    }

    /// Sends the STEP of the begun round, plays the fault of round `number`, and ends the round.
    fn exchange(&mut self, number: u64, done: &mut Round) {
        std::mem::swap(&mut self.sent, &mut self.earlier);
        match self.rank0.send() {
            Ok(message) => {
                self.sent.clear();
                self.sent.extend_from_slice(message);
            }
            Err(report) => {
                std::mem::swap(&mut self.sent, &mut self.earlier);
                done.report = report;
                return;
            }
        }
        let fault = self.faults.as_ref().and_then(|schedule| schedule.at(number));
        done.fault = fault.map(|fault| fault.kind);
        let started = Instant::now();
        let deadline = started + self.timeout;
        let answered = self.send_and_receive(fault, started, deadline, done);
        done.report = match answered {
            Ok(()) => self.rank0.judge(&self.reply),
            Err(CallError::TimedOut) => self.rank0.fail(Failure::Timeout),
            Err(error) => {
                tracing::debug!(%error, "round failed");
                self.rank0.fail(Failure::Transport)
            }
        };
        if done.report.outcome != Outcome::Answered {
            done.times = None;
        }
    }

    /// One exchange with `fault` played on it; leaves what arrived in `reply`.
    fn send_and_receive(
        &mut self,
        fault: Option<Fault>,
        started: Instant,
        deadline: Instant,
        done: &mut Round,
    ) -> Result<(), CallError> {
        let caller = self.caller.as_mut().ok_or(CallError::Broken)?;
        let kind = fault.map(|fault| fault.kind);
        if kind == Some(FaultKind::Stale) && !self.earlier.is_empty() {
            caller.send(&[&self.earlier], deadline)?;
            refused_as_stale(caller.receive(deadline)?);
        }
        caller.send(&[&self.sent], deadline)?;
        let send_us = micros(started);
        match kind {
            Some(FaultKind::Close) => return Err(CallError::Closed),
            Some(FaultKind::Drop) => {
                sleep(deadline.saturating_duration_since(Instant::now()));
                return Err(CallError::TimedOut);
            }
            Some(FaultKind::Duplicate) => caller.send(&[&self.sent], deadline)?,
            Some(FaultKind::HalfClose) => caller.end_sending()?,
            _ => {}
        }
        let reply = caller.receive(deadline)?;
        let total_us = micros(started);
        self.reply.clear();
        self.reply.extend_from_slice(reply);
        done.times = times(&self.reply, send_us, total_us);
        if kind == Some(FaultKind::Duplicate) {
            refused_as_stale(caller.receive(deadline)?);
        }
        match fault {
            Some(fault) if fault.kind == FaultKind::Delay => {
                let left = deadline.saturating_duration_since(Instant::now());
                sleep(left.min(fault.delay));
                if fault.delay >= left {
                    return Err(CallError::TimedOut);
                }
                done.times = times(&self.reply, send_us, micros(started));
            }
            Some(fault) if fault.kind == FaultKind::Garbage => fault.garble(&mut self.reply),
            Some(fault) if fault.kind == FaultKind::Truncate => {
                self.reply.truncate(fault.truncated_len(self.reply.len()));
            }
            _ => {}
        }
        Ok(())
    }
}

/// A frame sent twice or late must be refused by its sequence number (contract §7.5).
fn refused_as_stale(reply: &[u8]) {
    let status = AppHeader::split(reply).and_then(|(header, _)| header.frame_status());
    if status != Some(FrameStatus::StaleSeq) {
        tracing::error!(?status, "the worker applied a frame whose seq is not above the last");
    }
}

fn times(reply: &[u8], send_us: u64, total_us: u64) -> Option<RoundTimes> {
    let (header, body) = AppHeader::split(reply)?;
    if header.frame_status() != Some(FrameStatus::Ok) {
        return None;
    }
    let reply = crate::protocol::StepReply::parse(body)?;
    Some(RoundTimes {
        send_us,
        total_us,
        worker_us: reply.header.worker_us.get().into(),
        recv_to_send_us: reply.header.recv_to_send_us.get().into(),
    })
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
