//! Which replies rank 0 refuses (contract §6.3, v1.4): drafts become the target's input ids and
//! confidences feed the depth policy, so every reply is checked before anything of it is used.

use super::header::{AppHeader, MAGIC, Op, VERSION};
use super::reply::StepReply;
use super::status::{EntryStatus, FrameStatus};
use super::step::{ReqEntry, StepRequest};
use crate::geometry::Geometry;

/// The rule a reply breaks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplyRefusal {
    /// The 32 bytes in front are not a header of this protocol.
    #[error("the reply has no valid header")]
    Header,
    /// A field of the header is not the request's.
    #[error("{field} is not echoed: sent {sent}, got {got}")]
    Echo {
        /// Field name.
        field: &'static str,
        /// Value of the request.
        sent: u64,
        /// Value of the reply.
        got: u64,
    },
    /// The header's status is not one of contract §9.1.
    #[error("frame status {0} is not a status of the contract")]
    UnknownFrameStatus(i32),
    /// The body's length is not what its header announces, or `body_len` is wrong.
    #[error("the reply body has {0} bytes, which is not what it announces")]
    Length(usize),
    /// An entry's status number is not one of contract §9.2.
    #[error("entry {entry}: status {code} is not a status of the contract")]
    UnknownStatus {
        /// Index of the entry.
        entry: usize,
        /// The number.
        code: u16,
    },
    /// An entry's generation is not echoed.
    #[error("entry {entry}: generation is not echoed: sent {sent}, got {got}")]
    Generation {
        /// Index of the entry.
        entry: usize,
        /// Generation sent.
        sent: u32,
        /// Generation of the reply.
        got: u32,
    },
    /// `window_rows` contradicts the anchor or the status.
    #[error("entry {entry}: {status} with {window_rows} window rows of {expected}")]
    WindowRows {
        /// Index of the entry.
        entry: usize,
        /// Its status.
        status: EntryStatus,
        /// Rows the reply states.
        window_rows: u16,
        /// Rows a full window has at this anchor.
        expected: u16,
    },
    /// A consumed draft id is outside the vocabulary.
    #[error("entry {entry} position {position}: draft id {id} is outside the vocabulary")]
    DraftId {
        /// Index of the entry.
        entry: usize,
        /// Draft position.
        position: usize,
        /// The id.
        id: i32,
    },
    /// A consumed confidence is not a finite value in [0, 1].
    #[error("entry {entry} position {position}: confidence {value} is not in [0, 1]")]
    Confidence {
        /// Index of the entry.
        entry: usize,
        /// Draft position.
        position: usize,
        /// The value.
        value: f32,
    },
    /// A consumed margin is not a finite value ≥ 0.
    #[error("entry {entry} position {position}: margin {value} is not finite and ≥ 0")]
    Margin {
        /// Index of the entry.
        entry: usize,
        /// Draft position.
        position: usize,
        /// The value.
        value: f32,
    },
    /// A position nobody consumes is not zero.
    #[error("entry {entry} position {position} is not consumed but not zero")]
    NotZero {
        /// Index of the entry.
        entry: usize,
        /// Draft position.
        position: usize,
    },
}

/// A reply rank 0 may use: drafts, or a frame error.
#[derive(Clone, Copy, Debug)]
pub enum CheckedReply<'a> {
    /// The STEP was answered.
    Step(StepReply<'a>),
    /// The frame was refused with this status.
    Frame(FrameStatus),
}

/// Judges the reply `message` to the STEP `sent`.
///
/// # Errors
/// The first broken rule of contract §6.3.
pub fn check_reply<'a>(
    sent: &AppHeader,
    step: &StepRequest<'_>,
    geometry: &Geometry,
    message: &'a [u8],
) -> Result<CheckedReply<'a>, ReplyRefusal> {
    let (status, body) = check_frame(sent, message)?;
    if status != FrameStatus::Ok {
        // Error replies to a STEP have an empty body (contract-notes D8).
        return if body.is_empty() {
            Ok(CheckedReply::Frame(status))
        } else {
            Err(ReplyRefusal::Length(body.len()))
        };
    }
    let reply = StepReply::parse(body).ok_or(ReplyRefusal::Length(body.len()))?;
    let header = reply.header;
    echo("step_id", step.header.step_id.get(), header.step_id.get())?;
    echo("n_req", step.header.n_req.get().into(), header.n_req.get().into())?;
    echo("num_spec", geometry.num_spec.into(), header.num_spec.get().into())?;
    for (entry, sent) in step.entries.iter().enumerate() {
        let status = check_status(entry, sent, &reply, geometry)?;
        check_values(entry, sent, status, &reply, geometry)?;
    }
    Ok(CheckedReply::Step(reply))
}

/// Judges header and echoes of any reply; returns frame status and body.
///
/// # Errors
/// The first broken rule.
pub fn check_frame<'a>(
    sent: &AppHeader,
    message: &'a [u8],
) -> Result<(FrameStatus, &'a [u8]), ReplyRefusal> {
    let (got, body) = AppHeader::split(message).ok_or(ReplyRefusal::Header)?;
    if got.magic.get() != MAGIC || got.version.get() != VERSION {
        return Err(ReplyRefusal::Header);
    }
    if got.body_len.get() as usize != body.len() {
        return Err(ReplyRefusal::Length(body.len()));
    }
    echo("op", sent.op.get().into(), got.op.get().into())?;
    echo("seq", sent.seq.get(), got.seq.get())?;
    echo("session", sent.session.get().into(), got.session.get().into())?;
    let status = got.frame_status().ok_or(ReplyRefusal::UnknownFrameStatus(got.status.get()))?;
    Ok((status, body))
}

/// The header a request was sent with, for [`check_frame`].
///
/// # Panics
/// If `message` is shorter than a header: it is one of our own.
pub fn sent_header(message: &[u8]) -> AppHeader {
    let (header, _) = AppHeader::split(message).expect("a request of ours has a header");
    debug_assert!(Op::from_code(header.op.get()).is_some());
    header
}

fn echo(field: &'static str, sent: u64, got: u64) -> Result<(), ReplyRefusal> {
    if sent == got { Ok(()) } else { Err(ReplyRefusal::Echo { field, sent, got }) }
}

/// Rows the block at this anchor attends to when none is missing: min(W, anchor_pos), 0 below 0.
pub fn expected_rows(window: u32, anchor_pos: i64) -> u16 {
    let rows = anchor_pos.clamp(0, i64::from(window));
    u16::try_from(rows).expect("W is at most 4096")
}

fn check_status(
    entry: usize,
    sent: &ReqEntry,
    reply: &StepReply<'_>,
    geometry: &Geometry,
) -> Result<EntryStatus, ReplyRefusal> {
    let row = &reply.statuses[entry];
    let code = row.status.get();
    let status = reply.status(entry).ok_or(ReplyRefusal::UnknownStatus { entry, code })?;
    let (generation, got) = (sent.generation.get(), row.generation.get());
    if generation != got {
        return Err(ReplyRefusal::Generation { entry, sent: generation, got });
    }
    let window_rows = row.window_rows.get();
    let expected = expected_rows(geometry.window, sent.anchor_pos.get());
    let fits = window_rows <= expected
        && match status {
            EntryStatus::Ok if sent.need_draft() => window_rows == expected,
            EntryStatus::PartialWindow if sent.need_draft() => window_rows < expected,
            _ => true,
        };
    if fits {
        Ok(status)
    } else {
        Err(ReplyRefusal::WindowRows { entry, status, window_rows, expected })
    }
}

fn check_values(
    entry: usize,
    sent: &ReqEntry,
    status: EntryStatus,
    reply: &StepReply<'_>,
    geometry: &Geometry,
) -> Result<(), ReplyRefusal> {
    let num_spec = geometry.num_spec as usize;
    let drafted = sent.need_draft() && status.has_drafts();
    let consumed = if drafted { sent.consumed(num_spec) } else { 0 };
    let margins = reply.margin(entry).map(Some).chain(std::iter::repeat(None));
    let values = reply.ids(entry).zip(reply.confidence(entry)).zip(margins);
    for (position, ((id, confidence), margin)) in values.enumerate() {
        if position >= consumed {
            // −0.0 compares equal to zero and is as harmless.
            if id != 0 || confidence != 0.0 || margin.is_some_and(|m| m != 0.0) {
                return Err(ReplyRefusal::NotZero { entry, position });
            }
            continue;
        }
        if !u32::try_from(id).is_ok_and(|id| id < geometry.vocab_size) {
            return Err(ReplyRefusal::DraftId { entry, position, id });
        }
        if !(0.0..=1.0).contains(&confidence) {
            return Err(ReplyRefusal::Confidence { entry, position, value: confidence });
        }
        if let Some(value) = margin.filter(|m| !(m.is_finite() && *m >= 0.0)) {
            return Err(ReplyRefusal::Margin { entry, position, value });
        }
    }
    Ok(())
}
