//! Row bytes of one slot keyed by `pos mod W`: rank 0's own copy of a window (contract §7.3).
//!
//! The ring stores where the [window](crate::window) says rows are; it knows no generations.
#![forbid(unsafe_code)]

use std::ops::Range;

/// W rows of `row_bytes` bytes each. Memory is taken once.
#[derive(Clone, Debug)]
pub struct RowRing {
    bytes: Vec<u8>,
    row_bytes: usize,
    window: i64,
}

impl RowRing {
    /// A ring of `window` zeroed rows.
    ///
    /// # Panics
    /// If either argument is 0: a geometry has neither.
    pub fn new(window: u32, row_bytes: usize) -> Self {
        assert!(window > 0 && row_bytes > 0, "a ring without rows");
        let bytes = vec![0; window as usize * row_bytes];
        Self { bytes, row_bytes, window: i64::from(window) }
    }

    /// Stores the whole rows in `rows` as positions `first_pos ..`. Of more than W rows the last W stay.
    pub fn store(&mut self, first_pos: i64, rows: &[u8]) {
        for (pos, row) in (first_pos..).zip(rows.chunks_exact(self.row_bytes)) {
            let at = self.offset(pos);
            self.bytes[at..at + self.row_bytes].copy_from_slice(row);
        }
    }

    /// The row stored last for `pos` or for a position W away from it.
    pub fn row(&self, pos: i64) -> &[u8] {
        let at = self.offset(pos);
        &self.bytes[at..at + self.row_bytes]
    }

    /// The rows of `positions`, in order, as at most two contiguous pieces.
    ///
    /// # Panics
    /// If more than W positions are asked for.
    pub fn rows(&self, positions: Range<i64>) -> [&[u8]; 2] {
        let n = positions.end - positions.start;
        assert!((0..=self.window).contains(&n), "{n} positions in a ring of {}", self.window);
        let start = self.offset(positions.start);
        let len = usize::try_from(n).expect("at most W") * self.row_bytes;
        let first = len.min(self.bytes.len() - start);
        [&self.bytes[start..start + first], &self.bytes[..len - first]]
    }

    fn offset(&self, pos: i64) -> usize {
        usize::try_from(pos.rem_euclid(self.window)).expect("below W") * self.row_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_w_apart_share_a_place_and_a_span_reads_back_in_order() {
        let mut ring = RowRing::new(4, 2);
        let bytes: Vec<u8> = (0..12).collect();
        ring.store(5, &bytes);
        assert_eq!(ring.row(10), [10, 11]);
        assert_eq!(ring.row(7), [4, 5]);
        assert_eq!(ring.rows(7..11).concat(), [4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(ring.rows(9..9), [&[] as &[u8], &[]]);
    }
}
