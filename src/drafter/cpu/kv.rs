//! Window K=V of every layer and slot: a ring of W rows, position `pos` in row `pos mod W`.
//!
//! Which rows are valid is not known here; a draft names its context (see `plan`). A roll-back needs no
//! action, since later rows overwrite earlier ones.

use std::ops::Range;

/// The rings, f32 values (rounded to bf16 first under bf16 precision).
pub(super) struct WindowKv {
    values: Vec<f32>,
    slots: usize,
    window: usize,
    head_dim: usize,
}

impl WindowKv {
    /// Zeroed rings of `layers` layers and `slots` slots.
    pub(super) fn new(layers: usize, slots: usize, window: usize, head_dim: usize) -> Self {
        let values = vec![0.0; layers * slots * window * head_dim];
        Self { values, slots, window, head_dim }
    }

    /// Stores the row of `pos`.
    pub(super) fn store(&mut self, layer: usize, slot: usize, pos: i64, row: &[f32]) {
        let at = self.ring(layer, slot).start + self.index(pos) * self.head_dim;
        self.values[at..at + self.head_dim].copy_from_slice(row);
    }

    /// Rows of the positions `context`, ascending, as two contiguous runs `[n, head_dim]` (the second is
    /// empty unless the context wraps).
    ///
    /// # Panics
    /// If `context` holds more than W positions.
    pub(super) fn context(&self, layer: usize, slot: usize, context: &Range<i64>) -> [&[f32]; 2] {
        let ring = &self.values[self.ring(layer, slot)];
        let len = if context.start < context.end {
            usize::try_from(context.end.abs_diff(context.start)).unwrap_or(usize::MAX)
        } else {
            0
        };
        assert!(len <= self.window, "context of {len} rows in a window of {}", self.window);
        let first = self.index(context.start);
        let head = len.min(self.window - first);
        let rows =
            |range: Range<usize>| &ring[range.start * self.head_dim..range.end * self.head_dim];
        [rows(first..first + head), rows(0..len - head)]
    }

    fn ring(&self, layer: usize, slot: usize) -> Range<usize> {
        let len = self.window * self.head_dim;
        let at = (layer * self.slots + slot) * len;
        at..at + len
    }

    fn index(&self, pos: i64) -> usize {
        // W is at most 4096 and the remainder below it, so neither conversion can truncate.
        pos.rem_euclid(self.window as i64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_across_the_seam_comes_in_position_order() {
        let mut kv = WindowKv::new(2, 2, 4, 1);
        for pos in 0..10 {
            kv.store(1, 1, pos, &[pos as f32]);
        }
        let [head, tail] = kv.context(1, 1, &(6..10));
        assert_eq!([head, tail].concat(), [6.0, 7.0, 8.0, 9.0]);
        let [head, tail] = kv.context(1, 1, &(7..9));
        assert_eq!([head, tail].concat(), [7.0, 8.0]);
        assert_eq!(kv.context(1, 1, &(9..9)), [&[] as &[f32]; 2]);
        assert_eq!(kv.context(1, 0, &(0..4))[0], [0.0; 4], "another slot is untouched");
    }

    #[test]
    fn the_last_positions_of_i64_have_rows() {
        let mut kv = WindowKv::new(1, 1, 128, 1);
        kv.store(0, 0, i64::MAX - 1, &[1.0]);
        let [head, tail] = kv.context(0, 0, &(i64::MAX - 128..i64::MAX));
        let rows = [head, tail].concat();
        assert_eq!((rows.len(), rows[127]), (128, 1.0));
    }
}
