//! The apply rule of contract §7.2 against a naive model: every sequence of three entries at W = 3.
//!
//! The model knows no `lo` and `hi`. It is a set of positions, each with the row stored there, and follows
//! the contract's sentences. A [`RowRing`] is fed the accepted rows; it must hold exactly the model's.
#![allow(clippy::unwrap_used)]

use dspark::ring::RowRing;
use dspark::window::{Entry, Generation, Rejection, Span, Window};

/// W.
const W: u32 = 3;
/// Positions the entries below can reach, and some more.
const POSITIONS: usize = 16;

/// Status and window_rows an entry must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok(i64),
    PartialWindow(i64),
    Stale,
    Bad,
}

/// One entry, in the model's words: generations are small numbers whose order is the plain one.
#[derive(Clone, Copy, Debug)]
struct Sent {
    generation: u32,
    new_gen: bool,
    need_draft: bool,
    first_pos: i64,
    n_rows: u32,
    rows_fit: bool,
    anchor_pos: i64,
    token_valid: bool,
}

impl Sent {
    /// The same entry for the rule under test. Generations 0, 1, 2 become 2³² − 1, 0, 1: across the wrap.
    fn entry(&self) -> Entry {
        Entry {
            generation: Generation(u32::MAX.wrapping_add(self.generation)),
            new_gen: self.new_gen,
            need_draft: self.need_draft,
            first_pos: self.first_pos,
            n_rows: self.n_rows,
            rows_fit: self.rows_fit,
            anchor_pos: self.anchor_pos,
            anchor_token_valid: self.token_valid,
        }
    }
}

/// The slot as a set of positions with what is stored there.
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    generation: Option<u32>,
    rows: [Option<u8>; POSITIONS],
}

impl Model {
    fn held(&self) -> impl Iterator<Item = i64> + '_ {
        (0..POSITIONS).filter(|p| self.rows[*p].is_some()).map(|p| p as i64)
    }

    fn retain(&mut self, keep: impl Fn(i64) -> bool) {
        for (pos, row) in self.rows.iter_mut().enumerate() {
            if !keep(pos as i64) {
                *row = None;
            }
        }
    }

    fn apply(&mut self, sent: &Sent, payload: u8) -> Verdict {
        // Step 1.
        match self.generation {
            Some(slot) if sent.generation < slot => return Verdict::Stale,
            Some(slot) if sent.generation == slot && !sent.new_gen => {}
            _ => {
                self.retain(|_| false);
                self.generation = Some(sent.generation);
            }
        }
        // Step 2.
        let n = i64::from(sent.n_rows);
        let end = sent.first_pos + n;
        let hi = self.held().last();
        let misplaced = if n > 0 {
            sent.first_pos < 0 || sent.anchor_pos != end
        } else {
            sent.anchor_pos < 0 || hi.is_none_or(|hi| hi + 1 < sent.anchor_pos)
        };
        let token = sent.need_draft && !sent.token_valid;
        if n > i64::from(W) || !sent.rows_fit || misplaced || token {
            return Verdict::Bad;
        }
        // Step 3.
        if n > 0 {
            if hi.is_some_and(|hi| sent.first_pos > hi + 1) {
                self.retain(|_| false);
            }
            self.retain(|pos| pos < sent.first_pos);
            for pos in sent.first_pos..end {
                self.rows[pos as usize] = Some(payload + pos as u8);
            }
            self.retain(|pos| pos >= end - i64::from(W));
        } else {
            self.retain(|pos| pos < sent.anchor_pos);
        }
        // Steps 4 and 5.
        let seen = sent.anchor_pos - i64::from(W)..sent.anchor_pos;
        let window_rows = self.held().filter(|pos| seen.contains(pos)).count() as i64;
        if sent.need_draft && window_rows < sent.anchor_pos.min(i64::from(W)) {
            Verdict::PartialWindow(window_rows)
        } else {
            Verdict::Ok(window_rows)
        }
    }
}

/// Every entry a sequence is built from.
fn alphabet() -> Vec<Sent> {
    let plain = Sent {
        generation: 0,
        new_gen: false,
        need_draft: true,
        first_pos: 0,
        n_rows: 0,
        rows_fit: true,
        anchor_pos: 0,
        token_valid: true,
    };
    let mut shapes = Vec::new();
    for first_pos in -1..=4 {
        for n_rows in 1..=4 {
            let anchor_pos = first_pos + i64::from(n_rows);
            shapes.push(Sent { first_pos, n_rows, anchor_pos, ..plain });
        }
    }
    // Without rows first_pos is ignored; every other one asks for no draft, and its token is not read.
    for anchor_pos in -1..=7 {
        let need_draft = anchor_pos % 2 == 0;
        let token_valid = need_draft;
        shapes.push(Sent { first_pos: -9, anchor_pos, need_draft, token_valid, ..plain });
    }
    let two = Sent { first_pos: 2, n_rows: 2, anchor_pos: 4, ..plain };
    shapes.push(Sent { anchor_pos: 3, ..two });
    shapes.push(Sent { anchor_pos: 5, ..two });
    shapes.push(Sent { rows_fit: false, ..two });
    shapes.push(Sent { token_valid: false, ..two });
    shapes.push(Sent { token_valid: false, need_draft: false, ..two });
    let mut all = Vec::new();
    for shape in shapes {
        for (generation, new_gen) in [(0, false), (1, false), (1, true), (2, false)] {
            all.push(Sent { generation, new_gen, ..shape });
        }
    }
    // NEW_GEN with the oldest and the newest generation, once each way of the rule.
    all.push(Sent { generation: 0, new_gen: true, ..two });
    all.push(Sent { generation: 2, new_gen: true, ..two });
    all
}

/// The three views of one slot.
#[derive(Clone)]
struct Slot {
    window: Window,
    ring: RowRing,
    model: Model,
}

/// Applies `sent` to all three views and compares them.
fn apply_and_compare(slot: &mut Slot, sent: &Sent, payload: u8) -> Result<(), String> {
    let expected = slot.model.apply(sent, payload);
    let got = match slot.window.apply(&sent.entry(), W) {
        Ok(applied) => {
            let rows: Vec<u8> = (0..sent.n_rows as u8)
                .map(|r| payload.wrapping_add(sent.first_pos as u8).wrapping_add(r))
                .collect();
            slot.ring.store(sent.first_pos, &rows);
            if applied.is_partial() && sent.need_draft {
                Verdict::PartialWindow(applied.window_rows())
            } else {
                Verdict::Ok(applied.window_rows())
            }
        }
        Err(Rejection::Stale { .. }) => Verdict::Stale,
        Err(Rejection::Bad(_)) => Verdict::Bad,
    };
    if got != expected {
        return Err(format!("{got:?}, the model says {expected:?}"));
    }
    let lo = slot.model.held().next();
    let span = lo.zip(slot.model.held().last()).map(|(lo, hi)| Span { lo, hi });
    if slot.window.span != span {
        return Err(format!("holds {:?}, the model {span:?}", slot.window.span));
    }
    let generation = slot.model.generation.map(|g| Generation(u32::MAX.wrapping_add(g)));
    if slot.window.generation != generation {
        return Err(format!("{:?}, the model {generation:?}", slot.window.generation));
    }
    let Some(span) = span else { return Ok(()) };
    let pieces = slot.ring.rows(span.lo..span.hi + 1);
    let ring = pieces.iter().copied().flatten().copied();
    let model = (span.lo..=span.hi).map(|pos| slot.model.rows[pos as usize].unwrap());
    if ring.eq(model) {
        Ok(())
    } else {
        Err(format!("the ring holds {pieces:?} for {span:?}, the model {:?}", slot.model.rows))
    }
}

#[test]
fn every_sequence_of_three_entries_agrees_with_a_set_of_positions() {
    let alphabet = alphabet();
    let empty =
        Slot { window: Window::default(), ring: RowRing::new(W, 1), model: Model::default() };
    let mut applications = 0u64;
    let mut extend = |slot: &Slot, path: &[&Sent]| {
        let mut slot = slot.clone();
        let depth = path.len() as u8;
        let sent = path.last().unwrap();
        applications += 1;
        if let Err(difference) = apply_and_compare(&mut slot, sent, depth * 32) {
            panic!("after {path:#?}\n{difference}");
        }
        slot
    };
    for first in &alphabet {
        let one = extend(&empty, &[first]);
        for second in &alphabet {
            let two = extend(&one, &[first, second]);
            for third in &alphabet {
                extend(&two, &[first, second, third]);
            }
        }
    }
    let n = alphabet.len() as u64;
    assert_eq!(applications, n + n * n + n * n * n);
    assert!(applications > 2_000_000, "{applications} applications");
}

#[test]
fn the_model_can_tell_a_wrong_rule() {
    // A window that forgets to trim, fed to the same comparison.
    let mut slot =
        Slot { window: Window::default(), ring: RowRing::new(W, 1), model: Model::default() };
    let append = |first_pos, n_rows| Sent {
        generation: 1,
        new_gen: false,
        need_draft: true,
        first_pos,
        n_rows,
        rows_fit: true,
        anchor_pos: first_pos + i64::from(n_rows),
        token_valid: true,
    };
    apply_and_compare(&mut slot, &append(0, 3), 32).unwrap();
    slot.window.span = Some(Span { lo: 0, hi: 1 });
    assert!(apply_and_compare(&mut slot, &append(3, 1), 64).is_err());
}
