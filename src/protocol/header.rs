//! AppHeader, the 32 bytes in front of every message (contract §6.1), and the operations.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::status::FrameStatus;

/// First four bytes of every message: `D S P 1`.
pub const MAGIC: u32 = 0x3150_5344;
/// The wire version of contract 1.x.
pub const VERSION: u16 = 1;
/// Bytes of [`AppHeader`].
pub const HEADER_BYTES: usize = 32;

/// §6.1 AppHeader, 32 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AppHeader {
    /// [`MAGIC`].
    pub magic: U32,
    /// [`VERSION`].
    pub version: U16,
    /// An [`Op`] code.
    pub op: U16,
    /// Client sequence number; the reply echoes it.
    pub seq: U64,
    /// Session id; the reply echoes it.
    pub session: U32,
    /// Bytes after the header.
    pub body_len: U32,
    /// 0 in requests, a [`FrameStatus`] code in replies.
    pub status: I32,
    /// Reserved, 0.
    pub flags: U32,
}

const _: () = {
    assert!(size_of::<AppHeader>() == HEADER_BYTES);
    assert!(offset_of!(AppHeader, version) == 4 && offset_of!(AppHeader, op) == 6);
    assert!(offset_of!(AppHeader, seq) == 8 && offset_of!(AppHeader, session) == 16);
    assert!(offset_of!(AppHeader, body_len) == 20 && offset_of!(AppHeader, status) == 24);
    assert!(offset_of!(AppHeader, flags) == 28);
};

/// Operation of a message (contract §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Op {
    /// Opens or continues a session.
    Hello = 1,
    /// One engine round: rows in, drafts out.
    Step = 2,
    /// Empties windows.
    Reset = 3,
    /// Worker counters as JSON.
    Stats = 4,
    /// Round trip, no effect.
    Ping = 5,
}

impl Op {
    /// The operation with this code; 6 is reserved (contract §12).
    pub fn from_code(code: u16) -> Option<Self> {
        match code {
            1 => Some(Self::Hello),
            2 => Some(Self::Step),
            3 => Some(Self::Reset),
            4 => Some(Self::Stats),
            5 => Some(Self::Ping),
            _ => None,
        }
    }

    /// Code on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }
}

impl AppHeader {
    /// Header of a request.
    pub fn request(op: Op, seq: u64, session: u32, body_len: u32) -> Self {
        Self {
            magic: MAGIC.into(),
            version: VERSION.into(),
            op: op.code().into(),
            seq: seq.into(),
            session: session.into(),
            body_len: body_len.into(),
            status: 0.into(),
            flags: 0.into(),
        }
    }

    /// Header of the reply to `self`: op, seq and session are echoed even when they are wrong, version is
    /// ours, flags 0 (contract-notes D8).
    pub fn reply(&self, status: FrameStatus, body_len: u32) -> Self {
        let code = i32::try_from(status.code()).expect("frame statuses are below 10");
        Self {
            magic: MAGIC.into(),
            version: VERSION.into(),
            body_len: body_len.into(),
            status: code.into(),
            flags: 0.into(),
            ..*self
        }
    }

    /// Splits a message into header and body without judging either. `None` below 32 bytes.
    pub fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        Self::read_from_prefix(message).ok()
    }

    /// The reply's frame status, if its number is one of contract §9.1.
    pub fn frame_status(&self) -> Option<FrameStatus> {
        u32::try_from(self.status.get()).ok().and_then(FrameStatus::from_code)
    }
}
