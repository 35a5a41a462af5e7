//! RESET, and the operations without a body (contract §6.4 to §6.6).

use super::header::{AppHeader, HEADER_BYTES, Op};
use zerocopy::IntoBytes;

/// Reads a RESET body: a mask of slots, bit i = slot i (contract §6.4). `None` unless it is 4 bytes.
pub fn reset_mask(body: &[u8]) -> Option<u32> {
    body.try_into().ok().map(u32::from_le_bytes)
}

/// A whole RESET request.
pub fn reset_request(seq: u64, session: u32, slot_mask: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + 4);
    message.extend_from_slice(AppHeader::request(Op::Reset, seq, session, 4).as_bytes());
    message.extend_from_slice(&slot_mask.to_le_bytes());
    message
}

/// A whole PING or STATS request.
pub fn empty_request(op: Op, seq: u64, session: u32) -> [u8; HEADER_BYTES] {
    let mut message = [0; HEADER_BYTES];
    message.copy_from_slice(AppHeader::request(op, seq, session, 0).as_bytes());
    message
}
