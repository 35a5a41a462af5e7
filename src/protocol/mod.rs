//! Bytes to messages and back, for both ends of the wire (contract §6), and nothing else.
//!
//! Each wire struct is the contract's table, once, with the compiler as witness of size and offsets.
//! Decoding views the received bytes; nothing is copied and nothing is applied. What a message *means* is
//! the session's business, except for the two judgements that are pure functions of bytes: the layout of
//! a STEP ([`StepRequest::parse`]) and whether rank 0 may use a reply ([`ReplyRefusal`]).
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

pub mod control;
pub mod header;
pub mod hello;
pub mod refusal;
pub mod reply;
pub mod status;
pub mod step;

pub use header::{AppHeader, HEADER_BYTES, MAGIC, Op, VERSION};
pub use hello::{ConfigMismatch, HelloReply, HelloRequest};
pub use refusal::{ReplyRefusal, check_reply};
pub use reply::{ReplyHeader, ReqStatus, StepReply, StepReplyWriter};
pub use status::{EntryStatus, FrameStatus};
pub use step::{LayoutError, Limits, ReqEntry, StepHeader, StepRequest, StepWriter};
