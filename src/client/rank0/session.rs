//! Connection, session and sequence numbers of rank 0 (contract §6.2, §7.5, §9.1).

use std::num::NonZeroU32;

use zerocopy::{FromBytes, IntoBytes};

use crate::protocol::hello::HELLO_BYTES;
use crate::protocol::refusal::{check_frame, sent_header};
use crate::protocol::{AppHeader, FrameStatus, HelloReply, HelloRequest, Op, ReplyRefusal};

/// The connection as rank 0 sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Down,
    /// Connected; a HELLO is due.
    Ungreeted,
    /// Connected, and the HELLO of this session was accepted.
    Ready,
}

/// Why a HELLO did not open the session.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HelloError {
    /// The worker can never serve this client: the remote drafter is off (contract §9.1).
    #[error("HELLO answered with {status}")]
    Fatal {
        /// The status.
        status: FrameStatus,
        /// The worker's own values, where the reply carries them: both digests are logged.
        worker: Option<Box<HelloReply>>,
    },
    /// The worker refused for now.
    #[error("HELLO answered with {0}")]
    Status(FrameStatus),
    /// The reply cannot be used.
    #[error(transparent)]
    Reply(#[from] ReplyRefusal),
}

/// Numbers of the wire.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    pub(super) link: Link,
    /// Counts accepted HELLOs: entries are built for one and sent under no other.
    pub(super) epoch: u64,
    pub(super) session: NonZeroU32,
    pub(super) disabled: Option<FrameStatus>,
    hello: HelloRequest,
    seq: u64,
    renew: bool,
}

impl Wire {
    pub(super) fn new(hello: HelloRequest, session: NonZeroU32) -> Self {
        Self { link: Link::Down, epoch: 0, session, disabled: None, hello, seq: 0, renew: false }
    }

    /// Sequence numbers start at 1 and grow over everything sent, also across sessions.
    pub(super) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The next HELLO names a new session, which drops every window and generation of the worker.
    pub(super) fn renew_session(&mut self) {
        self.renew = true;
        self.ask_for_hello();
    }

    /// Writes a HELLO. Returns whether it starts a new session.
    pub(super) fn write_hello(
        &mut self,
        message: &mut Vec<u8>,
        new_session: impl FnOnce() -> NonZeroU32,
    ) -> bool {
        let renewed = std::mem::take(&mut self.renew);
        if renewed {
            let id = new_session();
            // A source that repeats itself would leave the old session open.
            let other = NonZeroU32::new(id.get() ^ 1).unwrap_or(NonZeroU32::MAX);
            self.session = if id == self.session { other } else { id };
        }
        let body_len = u32::try_from(HELLO_BYTES).expect("192");
        let header = AppHeader::request(Op::Hello, self.next_seq(), self.session.get(), body_len);
        message.clear();
        message.extend_from_slice(header.as_bytes());
        message.extend_from_slice(self.hello.as_bytes());
        renewed
    }

    pub(super) fn judge_hello(
        &mut self,
        sent: &[u8],
        reply: &[u8],
    ) -> Result<HelloReply, HelloError> {
        let (status, body) = check_frame(&sent_header(sent), reply)?;
        let worker = HelloReply::read_from_bytes(body).ok();
        if status == FrameStatus::Ok {
            let worker = worker.ok_or(ReplyRefusal::Length(body.len()))?;
            self.link = Link::Ready;
            self.epoch += 1;
            return Ok(worker);
        }
        if status.is_fatal() {
            self.disabled = Some(status);
            return Err(HelloError::Fatal { status, worker: worker.map(Box::new) });
        }
        // The session is known to the worker with a higher seq, so it is not ours alone: repeating it
        // could only be refused again.
        self.renew |= status == FrameStatus::StaleSeq;
        Err(HelloError::Status(status))
    }

    /// What a frame error on a STEP means for the connection (contract §9.1).
    pub(super) fn frame_error(&mut self, status: FrameStatus) {
        match status {
            FrameStatus::NoSession | FrameStatus::StaleSeq => self.ask_for_hello(),
            status if status.is_fatal() => self.disabled = Some(status),
            _ => {}
        }
    }

    fn ask_for_hello(&mut self) {
        if self.link == Link::Ready {
            self.link = Link::Ungreeted;
        }
    }
}
