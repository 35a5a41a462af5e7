//! Which positions a request slot holds, and how one entry of a STEP changes that (contract §7.2).
//!
//! Positions only: row data lives in a backend or in rank 0's [ring](crate::ring). Both ends of the wire
//! apply this rule, so they cannot disagree.
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

use std::ops::Range;

/// Per-slot generation, compared by serial-number arithmetic (contract §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// Whether `self` is older than `other`: `(self − other) mod 2³²` in 2³¹ ..= 2³² − 1. Exactly 2³¹ apart
    /// is older in both directions (contract-notes D28).
    pub fn is_older_than(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) >= 1 << 31
    }

    /// The generation of the next owner.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Positions `lo ..= hi`, inclusive as the contract writes `[lo, hi]`. Never empty; 0 ≤ lo ≤ hi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First position held.
    pub lo: i64,
    /// Last position held, below `i64::MAX`.
    pub hi: i64,
}

impl Span {
    /// Number of positions.
    pub fn rows(&self) -> i64 {
        self.hi - self.lo + 1
    }
}

/// A slot: its generation and the contiguous positions it holds.
///
/// Invariants: a span holds at most W positions; without a generation there is no span; the span is the
/// whole truth, older bytes still in memory are gone (contract-notes D35).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// `None` until the first entry: any first value is accepted (contract-notes D29).
    pub generation: Option<Generation>,
    /// `None` when empty.
    pub span: Option<Span>,
}

/// What the rule reads of a STEP entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Generation of the entry.
    pub generation: Generation,
    /// NEW_GEN: empty the window first.
    pub new_gen: bool,
    /// NEED_DRAFT.
    pub need_draft: bool,
    /// Position of the first row; ignored without rows.
    pub first_pos: i64,
    /// Rows the entry claims.
    pub n_rows: u32,
    /// Whether those rows lie in the row block.
    pub rows_fit: bool,
    /// Last valid context position + 1.
    pub anchor_pos: i64,
    /// Whether the anchor token is inside the vocabulary; looked at with `need_draft` only (D37).
    pub anchor_token_valid: bool,
}

/// An accepted entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Context positions an anchor at `anchor_pos` attends to, `[max(lo, anchor_pos − W), anchor_pos)`.
    pub context: Range<i64>,
    /// Rows that context would have if none were missing: min(W, anchor_pos).
    pub expected: i64,
}

impl Applied {
    /// Rows the anchor attends to, at most W.
    pub fn window_rows(&self) -> i64 {
        self.context.end - self.context.start
    }

    /// Whether rows are missing (PARTIAL_WINDOW when drafting).
    pub fn is_partial(&self) -> bool {
        self.window_rows() < self.expected
    }
}

/// Why an entry is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The generation is older than the slot's: STALE_GENERATION, the window is kept.
    #[error("generation {entry} is older than the slot's {slot}")]
    Stale {
        /// Generation of the entry.
        entry: u32,
        /// Generation of the slot.
        slot: u32,
    },
    /// BAD_ENTRY; a new generation was adopted all the same (contract-notes D27).
    #[error(transparent)]
    Bad(#[from] BadEntry),
}

/// The broken rule of a BAD_ENTRY (contract §7.2 step 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// More rows than a window holds.
    #[error("{n_rows} rows, a window holds {window}")]
    TooManyRows {
        /// Rows claimed.
        n_rows: u32,
        /// W.
        window: u32,
    },
    /// The claimed rows are not in the row block.
    #[error("{n_rows} rows do not fit the row block")]
    RowsOutsideBlock {
        /// Rows claimed.
        n_rows: u32,
    },
    /// A negative position, or one past the end of i64.
    #[error("position {0} is out of range")]
    Position(i64),
    /// The anchor does not follow the rows.
    #[error("anchor at {anchor_pos}, the rows end at {end}")]
    Anchor {
        /// Anchor of the entry.
        anchor_pos: i64,
        /// `first_pos + n_rows`.
        end: i64,
    },
    /// No rows, and the window does not reach the anchor.
    #[error("no rows, and the window ends before the anchor at {anchor_pos}")]
    NotReached {
        /// Anchor of the entry.
        anchor_pos: i64,
    },
    /// The anchor token is outside the vocabulary.
    #[error("anchor token outside the vocabulary")]
    AnchorToken,
}

impl Window {
    /// Applies one entry: generation, checks, roll-back or gap, growth, trim, in the contract's order.
    /// `window` is W.
    ///
    /// # Errors
    /// [`Rejection::Stale`] changes nothing; [`Rejection::Bad`] changes nothing but a generation that is
    /// new, which empties the window.
    pub fn apply(&mut self, entry: &Entry, window: u32) -> Result<Applied, Rejection> {
        self.adopt(entry)?;
        self.check(entry, window)?;
        let w = i64::from(window);
        let anchor = entry.anchor_pos;
        self.span = if entry.n_rows == 0 {
            // Roll back to the anchor; nothing may be left (contract-notes D32).
            self.span.filter(|s| s.lo < anchor).map(|s| Span { lo: s.lo, hi: anchor - 1 })
        } else {
            let first = entry.first_pos;
            let lo = match self.span {
                Some(s) if first <= s.hi + 1 => s.lo.min(first),
                _ => first,
            };
            Some(Span { lo: lo.max(anchor - w), hi: anchor - 1 })
        };
        let start = self.span.map_or(anchor, |s| s.lo.max(anchor - w));
        Ok(Applied { context: start..anchor, expected: anchor.min(w) })
    }

    /// Empties the window and keeps the generation (RESET, contract-notes D30).
    pub fn empty(&mut self) {
        self.span = None;
    }

    fn adopt(&mut self, entry: &Entry) -> Result<(), Rejection> {
        if let Some(slot) = self.generation {
            if entry.generation.is_older_than(slot) {
                return Err(Rejection::Stale { entry: entry.generation.0, slot: slot.0 });
            }
            if slot == entry.generation && !entry.new_gen {
                return Ok(());
            }
        }
        *self = Self { generation: Some(entry.generation), span: None };
        Ok(())
    }

    fn check(&self, entry: &Entry, window: u32) -> Result<(), BadEntry> {
        let Entry { n_rows, first_pos, anchor_pos, .. } = *entry;
        if n_rows > window {
            return Err(BadEntry::TooManyRows { n_rows, window });
        }
        if !entry.rows_fit {
            return Err(BadEntry::RowsOutsideBlock { n_rows });
        }
        if n_rows > 0 {
            if first_pos < 0 {
                return Err(BadEntry::Position(first_pos));
            }
            let end = first_pos.checked_add(i64::from(n_rows));
            let end = end.ok_or(BadEntry::Position(first_pos))?;
            if anchor_pos != end {
                return Err(BadEntry::Anchor { anchor_pos, end });
            }
        } else if anchor_pos < 0 {
            return Err(BadEntry::Position(anchor_pos));
        } else if self.span.is_none_or(|s| s.hi + 1 < anchor_pos) {
            return Err(BadEntry::NotReached { anchor_pos });
        }
        if entry.need_draft && !entry.anchor_token_valid {
            return Err(BadEntry::AnchorToken);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u32 = 128;

    fn rows(generation: u32, first_pos: i64, n_rows: u32) -> Entry {
        Entry {
            generation: Generation(generation),
            new_gen: false,
            need_draft: true,
            first_pos,
            n_rows,
            rows_fit: true,
            anchor_pos: first_pos.saturating_add(i64::from(n_rows)),
            anchor_token_valid: true,
        }
    }

    #[test]
    fn older_generation_is_stale_even_with_new_gen() {
        let mut window = Window::default();
        window.apply(&rows(10, 0, 4), W).unwrap();
        let before = window;
        let stale = Entry { new_gen: true, ..rows(9, 0, 4) };
        assert_eq!(window.apply(&stale, W), Err(Rejection::Stale { entry: 9, slot: 10 }));
        assert_eq!(window, before);
    }

    #[test]
    fn half_the_number_circle_apart_is_older_both_ways() {
        let (a, b) = (Generation(10), Generation(0x8000_000A));
        assert!(a.is_older_than(b) && b.is_older_than(a));
        assert!(Generation(u32::MAX).is_older_than(Generation(0)));
        assert!(!Generation(0).is_older_than(Generation(u32::MAX)));
    }

    #[test]
    fn trimmed_rows_do_not_come_back_after_a_roll_back() {
        let mut window = Window::default();
        window.apply(&rows(1, 0, 128), W).unwrap();
        window.apply(&rows(1, 128, 6), W).unwrap();
        assert_eq!(window.span, Some(Span { lo: 6, hi: 133 }));
        let back = Entry { n_rows: 0, anchor_pos: 130, ..rows(1, -5, 0) };
        let applied = window.apply(&back, W).unwrap();
        assert_eq!((applied.window_rows(), applied.expected), (124, 128));
        assert_eq!(window.span, Some(Span { lo: 6, hi: 129 }));
    }

    #[test]
    fn a_roll_back_to_or_below_lo_leaves_nothing_and_is_partial() {
        let mut window = Window::default();
        window.apply(&rows(1, 50, 10), W).unwrap();
        let applied = window.apply(&Entry { anchor_pos: 50, ..rows(1, 0, 0) }, W).unwrap();
        assert_eq!((window.span, applied.window_rows(), applied.is_partial()), (None, 0, true));
    }

    #[test]
    fn the_last_position_of_i64_is_an_anchor_and_no_more() {
        let mut window = Window::default();
        window.apply(&rows(1, i64::MAX - 6, 6), W).unwrap();
        assert_eq!(window.span.unwrap().hi, i64::MAX - 1);
        let wraps = rows(1, i64::MAX - 1, 6);
        assert_eq!(window.apply(&wraps, W), Err(Rejection::Bad(BadEntry::Position(i64::MAX - 1))));
    }

    #[test]
    fn a_bad_entry_with_a_newer_generation_adopts_it_and_empties_the_window() {
        let mut window = Window::default();
        window.apply(&rows(1, 0, 4), W).unwrap();
        let bad = Entry { anchor_pos: 99, ..rows(2, 0, 4) };
        assert!(matches!(window.apply(&bad, W), Err(Rejection::Bad(_))));
        assert_eq!(window, Window { generation: Some(Generation(2)), span: None });
    }
}
