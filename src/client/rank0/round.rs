//! What an engine hands to rank 0 each round: the rows its target has just verified and the anchors to
//! draft from (contract §4.3). Nothing of the wire: no generations, no flags, no resyncs.

use std::ops::Range;

use crate::geometry::Geometry;
use crate::plan::RowBlock;

/// The engine's id of a request: who a slot belongs to (contract §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

/// One request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineRequest {
    /// Request-state index, below `max_slots` and once per round.
    pub slot: u8,
    /// Who the slot belongs to now.
    pub owner: Owner,
    /// Position of the first row; not looked at without rows.
    pub first_pos: i64,
    /// Valid rows of the request: indices into the round's row block, at most W of them.
    pub rows: Range<usize>,
    /// Token at `anchor_pos`.
    pub anchor_token: i32,
    /// Last valid context position + 1: `first_pos` plus the number of rows.
    pub anchor_pos: i64,
    /// Drafts the target verified in the step that made these rows; 0 for prefill.
    pub k_window: u8,
    /// Whether drafts are wanted; a partial prefill chunk wants none.
    pub need_draft: bool,
    /// Draft positions the engine consumes, 0 = all N (contract §6.3, v1.3).
    pub n_out: u8,
}

/// One engine step.
#[derive(Clone, Copy, Debug)]
pub struct EngineRound<'a> {
    /// Engine step counter.
    pub step_id: u64,
    /// Whether to ask for margins.
    pub want_margin: bool,
    /// The batch, in batch order; may be empty.
    pub requests: &'a [EngineRequest],
    /// The rows of all requests.
    pub rows: RowBlock<'a>,
}

/// A round that no engine makes. Nothing of it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoundError {
    /// A slot that does not exist.
    #[error("slot {slot}, there are {max_slots}")]
    NoSuchSlot {
        /// The slot.
        slot: u8,
        /// Slots of the geometry.
        max_slots: u32,
    },
    /// A slot named twice.
    #[error("slot {0} occurs twice")]
    DuplicateSlot(u8),
    /// More rows than a window holds.
    #[error("slot {slot}: {rows} rows, a window holds {window}")]
    TooManyRows {
        /// The slot.
        slot: u8,
        /// Rows of the request.
        rows: usize,
        /// W.
        window: u32,
    },
    /// Rows that are not in the row block, or of another size than the geometry's.
    #[error("slot {slot}: rows {start}..{end} are not {row_bytes}-byte rows of the row block")]
    Rows {
        /// The slot.
        slot: u8,
        /// First index.
        start: usize,
        /// End index.
        end: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// A negative position, or rows that do not end at the anchor.
    #[error("slot {slot}: {rows} rows from position {first_pos} do not end before {anchor_pos}")]
    Anchor {
        /// The slot.
        slot: u8,
        /// Position of the first row.
        first_pos: i64,
        /// Rows of the request.
        rows: usize,
        /// The anchor.
        anchor_pos: i64,
    },
}

impl EngineRequest {
    /// Whether the rows, if any, are positions ≥ 0 that end just before an anchor ≥ 0.
    fn positions_hold(&self) -> bool {
        let rows = i64::try_from(self.rows.len()).unwrap_or(i64::MAX);
        self.anchor_pos >= 0
            && (rows == 0
                || self.first_pos >= 0 && self.first_pos.checked_add(rows) == Some(self.anchor_pos))
    }
}

impl EngineRound<'_> {
    /// Checks what every engine keeps: slots, row ranges, positions.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self, geometry: &Geometry) -> Result<(), RoundError> {
        let mut seen = 0u32;
        for request in self.requests {
            let EngineRequest { slot, first_pos, anchor_pos, .. } = *request;
            if u32::from(slot) >= geometry.max_slots {
                return Err(RoundError::NoSuchSlot { slot, max_slots: geometry.max_slots });
            }
            if seen & 1 << slot != 0 {
                return Err(RoundError::DuplicateSlot(slot));
            }
            seen |= 1 << slot;
            let (start, end, row_bytes) =
                (request.rows.start, request.rows.end, geometry.row_bytes());
            let rows = request.rows.len();
            if start > end
                || end > self.rows.len()
                || self.rows.rows(start..end).len() != rows * row_bytes
            {
                return Err(RoundError::Rows { slot, start, end, row_bytes });
            }
            if rows > geometry.window as usize {
                return Err(RoundError::TooManyRows { slot, rows, window: geometry.window });
            }
            if !request.positions_hold() {
                return Err(RoundError::Anchor { slot, first_pos, rows, anchor_pos });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::LIVE;

    const ROW: usize = LIVE.row_bytes();

    fn request(first_pos: i64, rows: Range<usize>) -> EngineRequest {
        let anchor_pos = first_pos.checked_add_unsigned(rows.len() as u64).unwrap();
        EngineRequest {
            slot: 0,
            owner: Owner(1),
            first_pos,
            rows,
            anchor_token: 5,
            anchor_pos,
            k_window: 0,
            need_draft: true,
            n_out: 0,
        }
    }

    fn verdict(requests: &[EngineRequest], block_rows: usize) -> Result<(), RoundError> {
        let bytes = vec![0; block_rows * ROW];
        let rows = RowBlock::new(&bytes, ROW);
        EngineRound { step_id: 1, want_margin: false, requests, rows }.validate(&LIVE)
    }

    #[test]
    fn the_anchor_is_the_position_after_the_last_row() {
        assert_eq!(verdict(&[request(0, 0..6)], 6), Ok(()));
        for anchor_pos in [5, 7] {
            let off = EngineRequest { anchor_pos, ..request(0, 0..6) };
            let error = RoundError::Anchor { slot: 0, first_pos: 0, rows: 6, anchor_pos };
            assert_eq!(verdict(&[off], 6), Err(error));
        }
    }

    #[test]
    fn rows_slots_and_positions_out_of_range_are_no_round() {
        let slot = |slot, rows| EngineRequest { slot, ..request(0, rows) };
        assert!(matches!(verdict(&[slot(4, 0..1)], 1), Err(RoundError::NoSuchSlot { .. })));
        assert_eq!(verdict(&[slot(2, 0..1), slot(2, 1..2)], 2), Err(RoundError::DuplicateSlot(2)));
        assert!(matches!(verdict(&[slot(0, 0..3)], 2), Err(RoundError::Rows { .. })));
        assert!(matches!(verdict(&[slot(0, 0..129)], 129), Err(RoundError::TooManyRows { .. })));
        let late = EngineRequest { anchor_pos: i64::MIN, ..request(i64::MAX - 1, 0..1) };
        assert!(matches!(verdict(&[late], 1), Err(RoundError::Anchor { .. })));
        // Without rows first_pos is not looked at.
        let redraft = EngineRequest { first_pos: -9, anchor_pos: 6, ..request(0, 0..0) };
        assert_eq!(verdict(&[redraft], 0), Ok(()));
    }
}
