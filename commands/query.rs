//! Asking a worker PING or STATS: what `ping` and `stats` share.

use std::time::{Duration, Instant};

use dspark::protocol::control::empty_request;
use dspark::protocol::refusal::{check_frame, sent_header};
use dspark::protocol::{FrameStatus, Op, ReplyRefusal};
use dspark::transport::{CallError, Caller, Endpoint};
use serde_json::Value;

use crate::args::{AskingArgs, ControlUrl};
use crate::exit::{Code, Failure};
use crate::guard;

/// A connection that asks one thing after another and reconnects by itself.
pub(crate) struct Query {
    endpoint: Endpoint,
    timeout: Duration,
    caller: Option<Caller>,
    seq: u64,
}

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// The worker is not there, or too late.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The reply is none.
    #[error("{0}")]
    Refusal(#[from] ReplyRefusal),
    /// The worker answered with an error.
    #[error("the worker answered {0}")]
    Status(FrameStatus),
    /// STATS is not JSON.
    #[error("STATS is not JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl QueryError {
    /// Whether asking again cannot help.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Call(CallError::NotBuilt(_)))
    }

    /// The failure of a command that needs this answer.
    pub(crate) fn failure(self, endpoint: &Endpoint) -> Failure {
        let code = match &self {
            Self::Call(CallError::NotBuilt(_)) => Code::Backend,
            Self::Call(_) => Code::Unreachable,
            Self::Refusal(_) | Self::Status(_) | Self::Json(_) => Code::CheckFailed,
        };
        let failure = Failure::new(code, format!("{endpoint}: {self}"));
        if code == Code::Unreachable {
            failure.hint("is the worker running, and is this its control listener?")
        } else {
            failure
        }
    }
}

impl Query {
    /// Asks the worker that a tool's flags name.
    pub(crate) fn of(control: &ControlUrl) -> Result<Self, Failure> {
        Self::at(&control.url, &control.asking)
    }

    /// Asks the worker at `url`.
    pub(crate) fn at(url: &Endpoint, asking: &AskingArgs) -> Result<Self, Failure> {
        guard::check(url, asking)?;
        Self::new(url.clone(), asking.timeout)
    }

    pub(crate) fn new(endpoint: Endpoint, timeout: Duration) -> Result<Self, Failure> {
        endpoint.check_client().map_err(|e| Failure::new(Code::Usage, e))?;
        Ok(Self { endpoint, timeout, caller: None, seq: 0 })
    }

    /// Changes how long an answer may take.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// One PING: the time from the first byte sent to the last received.
    pub(crate) fn ping(&mut self) -> Result<Duration, QueryError> {
        self.ask(Op::Ping, |_| Ok(())).map(|((), time)| time)
    }

    /// The STATS document.
    pub(crate) fn stats(&mut self) -> Result<Value, QueryError> {
        self.timed_stats().map(|(doc, _)| doc)
    }

    /// The STATS document, and the time from the question sent to the answer received.
    pub(crate) fn timed_stats(&mut self) -> Result<(Value, Duration), QueryError> {
        self.ask(Op::Stats, |body| Ok(serde_json::from_slice(body)?))
    }

    fn ask<T>(
        &mut self,
        op: Op,
        read: impl FnOnce(&[u8]) -> Result<T, QueryError>,
    ) -> Result<(T, Duration), QueryError> {
        let deadline = Instant::now() + self.timeout;
        let mut caller = match self.caller.take() {
            Some(caller) => caller,
            None => Caller::connect(&self.endpoint, deadline)?,
        };
        self.seq += 1;
        let message = empty_request(op, self.seq, 0);
        let sent = Instant::now();
        let reply = caller.call(&[&message], deadline)?;
        let time = sent.elapsed();
        let (status, body) = check_frame(&sent_header(&message), reply)?;
        if status != FrameStatus::Ok {
            return Err(QueryError::Status(status));
        }
        let answer = read(body)?;
        self.caller = Some(caller);
        Ok((answer, time))
    }
}
