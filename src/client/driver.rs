//! Rank 0's end of one connection: HELLO, STEP with every reply checked, and what each round took
//! (contract §4.2, §6.3, §7.5).

use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use crate::geometry::Geometry;
use crate::protocol::refusal::{CheckedReply, check_frame};
use crate::protocol::step::{STEP_HEADER_BYTES, WANT_MARGIN};
use crate::protocol::{
    AppHeader, FrameStatus, HelloReply, HelloRequest, LayoutError, Limits, Op, ReplyRefusal,
    StepHeader, StepReply, StepRequest, check_reply,
};
use crate::transport::{CallError, Caller, Endpoint};

/// One client session and its current connection. A failed round closes the connection: a late reply is
/// never seen (§7.5). [`connect`](Self::connect) continues the session.
pub struct SparkClient {
    endpoint: Endpoint,
    hello: HelloRequest,
    geometry: Geometry,
    session: u32,
    seq: u64,
    timeout: Duration,
    caller: Option<Caller>,
}

/// Why a session or a round failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The transport.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The reply breaks a rule of contract §6.3.
    #[error("reply refused: {0}")]
    Refused(#[from] ReplyRefusal),
    /// The worker refused the HELLO; its own values are attached where it sends them.
    #[error("the worker answered HELLO with {status}")]
    Hello {
        /// Frame status.
        status: FrameStatus,
        /// The worker's values.
        worker: Option<Box<HelloReply>>,
    },
    /// The worker refused the frame.
    #[error("the worker answered STEP with {0}")]
    Frame(FrameStatus),
    /// The STEP to send is none.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No connection; [`SparkClient::connect`] comes first.
    #[error("not connected")]
    NotConnected,
}

/// What one answered round took, µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTimes {
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

/// An answered round.
pub struct Round<'a> {
    /// The STEP as it was sent.
    pub step: StepRequest<'a>,
    /// The checked reply.
    pub reply: StepReply<'a>,
    /// Durations.
    pub times: RoundTimes,
}

impl SparkClient {
    /// A client of `endpoint` with a nonzero `session` id. Nothing is sent yet.
    pub fn new(endpoint: Endpoint, hello: HelloRequest, session: u32, timeout: Duration) -> Self {
        let geometry = hello.geometry();
        Self { endpoint, hello, geometry, session, seq: 0, timeout, caller: None }
    }

    /// Whether a HELLO was accepted on the current connection.
    pub fn is_connected(&self) -> bool {
        self.caller.is_some()
    }

    /// Connects and sends HELLO; the session continues if there was one.
    ///
    /// # Errors
    /// Any failure leaves the client unconnected.
    pub fn connect(&mut self) -> Result<HelloReply, ClientError> {
        self.caller = None;
        let deadline = Instant::now() + self.timeout;
        let mut caller = Caller::connect(&self.endpoint, deadline)?;
        self.seq += 1;
        let len = u32::try_from(self.hello.as_bytes().len()).expect("192");
        let header = AppHeader::request(Op::Hello, self.seq, self.session, len);
        let message = caller.call(&[header.as_bytes(), self.hello.as_bytes()], deadline)?;
        let (status, body) = check_frame(&header, message)?;
        let reply = HelloReply::read_from_bytes(body).ok();
        match (status, reply) {
            (FrameStatus::Ok, Some(reply)) => {
                // What the worker enforces is what this client must stay within.
                self.geometry.max_slots = reply.max_slots.get();
                self.geometry.max_rows_per_step = reply.max_rows_per_step.get();
                self.caller = Some(caller);
                Ok(reply)
            }
            (FrameStatus::Ok, None) => Err(ReplyRefusal::Length(body.len()).into()),
            (status, worker) => Err(ClientError::Hello { status, worker: worker.map(Box::new) }),
        }
    }

    /// Sends a recorded STEP body under this session and the next sequence number, asking for margins if
    /// `margins`, and checks the reply. `head` and `reply` are reused memory.
    ///
    /// # Errors
    /// Any failure but a frame status closes the connection.
    pub fn step<'a>(
        &mut self,
        body: &'a [u8],
        margins: bool,
        reply: &'a mut Vec<u8>,
    ) -> Result<Round<'a>, ClientError> {
        let limits = Limits {
            max_slots: self.hello.max_slots.get().min(crate::geometry::SLOTS_MAX),
            max_rows_per_step: u32::MAX,
            row_bytes: self.hello.row_bytes.get(),
        };
        let step = StepRequest::parse(body, &limits)?;
        let mut caller = self.caller.take().ok_or(ClientError::NotConnected)?;
        self.seq += 1;
        let len = u32::try_from(body.len()).map_err(|_| CallError::Length(u32::MAX))?;
        let header = AppHeader::request(Op::Step, self.seq, self.session, len);
        let step_header =
            StepHeader { step_flags: if margins { WANT_MARGIN } else { 0 }.into(), ..*step.header };
        let sent = Instant::now();
        let parts = [header.as_bytes(), step_header.as_bytes(), &body[STEP_HEADER_BYTES..]];
        let message = caller.call(&parts, sent + self.timeout)?;
        let total_us = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
        reply.clear();
        reply.extend_from_slice(message);
        let checked = match check_reply(&header, &step, &self.geometry, reply) {
            Ok(checked) => checked,
            Err(refusal) => {
                caller.close();
                return Err(refusal.into());
            }
        };
        self.caller = Some(caller);
        match checked {
            CheckedReply::Frame(status) => Err(ClientError::Frame(status)),
            CheckedReply::Step(reply) => {
                let times = RoundTimes {
                    total_us,
                    worker_us: reply.header.worker_us.get().into(),
                    recv_to_send_us: reply.header.recv_to_send_us.get().into(),
                };
                Ok(Round { step, reply, times })
            }
        }
    }
}
