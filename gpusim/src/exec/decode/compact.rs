//! Fewer rows: registers that are never needed at the same time share one.
//!
//! PTX names every value once, so a kernel has thousands of registers of which a hundred are alive
//! at a time. A row is 256 bytes; the register file of a warp should stay in the cache.
//!
//! Lanes run on their own, so liveness is that of one thread: a write under a predicate, or by
//! some lanes only, leaves the other lanes' values alone.

use std::collections::BTreeMap;

use super::rows::Role;
use crate::exec::program::{Action, Instruction, RowIndex};

/// First and last position at which a row must be kept.
#[derive(Clone, Copy)]
struct Interval {
    row: RowIndex,
    first: usize,
    last: usize,
}

/// Renumbers the rows of `code`. `pinned` rows hold their values from the start and come last.
/// Returns the number of rows, and the new index of every pinned one.
pub(super) fn compact(
    code: &mut [Instruction],
    rows: usize,
    pinned: &[RowIndex],
) -> (usize, BTreeMap<RowIndex, RowIndex>) {
    // A device function's rows live beside those of its callers: no sharing.
    let has_calls = code.iter().any(|i| matches!(i.action, Action::Call { .. }));
    if has_calls {
        return (rows, pinned.iter().map(|row| (*row, *row)).collect());
    }
    let mut new_of = vec![None; rows];
    let mut used = 0;
    for (row, place) in share(intervals(code, rows, pinned)) {
        used = used.max(usize::from(place) + 1);
        new_of[usize::from(row)] = Some(place);
    }
    let mut moved = BTreeMap::new();
    for row in pinned {
        // The count only shrinks, so it stays within the index type.
        let place = used as RowIndex;
        used += 1;
        new_of[usize::from(*row)] = Some(place);
        moved.insert(*row, place);
    }
    for instruction in code {
        instruction.action.visit_rows(&mut |row, _| {
            *row = new_of[usize::from(*row)].expect("every row of the code has an interval");
        });
    }
    (used, moved)
}

/// Gives every interval a place that is free for its length.
fn share(mut intervals: Vec<Interval>) -> Vec<(RowIndex, RowIndex)> {
    intervals.sort_by_key(|interval| (interval.first, interval.row));
    let mut free: Vec<RowIndex> = Vec::new();
    let mut busy: BTreeMap<usize, Vec<RowIndex>> = BTreeMap::new();
    let mut count: RowIndex = 0;
    let mut places = Vec::with_capacity(intervals.len());
    for interval in intervals {
        let ahead = busy.split_off(&interval.first);
        free.extend(std::mem::replace(&mut busy, ahead).into_values().flatten());
        let place = free.pop().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        busy.entry(interval.last).or_default().push(place);
        places.push((interval.row, place));
    }
    places
}

/// A set of rows.
#[derive(Clone, PartialEq, Eq)]
struct RowSet(Vec<u64>);

impl RowSet {
    fn new(rows: usize) -> Self {
        Self(vec![0; rows.div_ceil(64)])
    }
    fn add(&mut self, row: RowIndex) {
        self.0[usize::from(row) / 64] |= 1 << (row % 64);
    }
    fn remove(&mut self, row: RowIndex) {
        self.0[usize::from(row) / 64] &= !(1 << (row % 64));
    }
    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine |= theirs);
    }
    fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * index + bit)
        })
    }
}

/// A straight piece of code.
struct Piece {
    first: usize,
    last: usize,
    next: Vec<usize>,
    live_in: RowSet,
    live_out: RowSet,
}

/// What an instruction reads and surely writes. A write that may not happen keeps the old value.
fn effects(instruction: &mut Instruction) -> (Vec<RowIndex>, Vec<RowIndex>, Vec<RowIndex>) {
    let (mut reads, mut kills, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    let certain = instruction.guard.is_none();
    instruction.action.visit_rows(&mut |row, role| match role {
        Role::Read => reads.push(*row),
        Role::Write => {
            writes.push(*row);
            if certain {
                kills.push(*row);
            }
        }
    });
    (reads, kills, writes)
}

fn intervals(code: &mut [Instruction], rows: usize, pinned: &[RowIndex]) -> Vec<Interval> {
    let mut pieces = pieces(code, rows);
    solve(code, &mut pieces);
    // Reads happen at even, writes at odd times, so that a result may take its source's place.
    let mut span: Vec<Option<(usize, usize)>> = vec![None; rows];
    let mut extend = |row: usize, time: usize| {
        let (first, last) = span[row].unwrap_or((time, time));
        span[row] = Some((first.min(time), last.max(time)));
    };
    for (position, instruction) in code.iter_mut().enumerate() {
        let (reads, _, writes) = effects(instruction);
        reads.iter().for_each(|row| extend(usize::from(*row), 2 * position));
        writes.iter().for_each(|row| extend(usize::from(*row), 2 * position + 1));
    }
    for piece in &pieces {
        piece.live_in.iter().for_each(|row| extend(row, 2 * piece.first));
        piece.live_out.iter().for_each(|row| extend(row, 2 * piece.last + 1));
    }
    pinned.iter().for_each(|row| span[usize::from(*row)] = None);
    let interval = |(row, span): (usize, Option<(usize, usize)>)| {
        // Row numbers came from the index type.
        span.map(|(first, last)| Interval { row: row as RowIndex, first, last })
    };
    span.into_iter().enumerate().filter_map(interval).collect()
}

/// Cuts the code at jumps and their targets.
fn pieces(code: &[Instruction], rows: usize) -> Vec<Piece> {
    let mut starts = vec![0];
    for (position, instruction) in code.iter().enumerate() {
        let targets = targets(&instruction.action);
        if !targets.is_empty() || matches!(instruction.action, Action::Exit) {
            starts.push(position + 1);
        }
        starts.extend(targets);
    }
    starts.retain(|start| *start < code.len());
    starts.sort_unstable();
    starts.dedup();
    let piece_at = |position: usize| starts.partition_point(|start| *start <= position) - 1;
    let piece = |(index, &first): (usize, &usize)| {
        let last = starts.get(index + 1).copied().unwrap_or(code.len()) - 1;
        let end = &code[last];
        let mut next: Vec<usize> = targets(&end.action).into_iter().map(piece_at).collect();
        let leaves = matches!(
            end.action,
            Action::Branch { .. } | Action::BranchIndexed { .. } | Action::Exit
        );
        if (!leaves || end.guard.is_some()) && index + 1 < starts.len() {
            next.push(index + 1);
        }
        let empty = RowSet::new(rows);
        Piece { first, last, next, live_in: empty.clone(), live_out: empty }
    };
    starts.iter().enumerate().map(piece).collect()
}

fn targets(action: &Action) -> Vec<usize> {
    match action {
        Action::Branch { target } => vec![*target],
        Action::BranchIndexed { targets, .. } => targets.clone(),
        _ => Vec::new(),
    }
}

/// Backward liveness to a fixed point.
fn solve(code: &mut [Instruction], pieces: &mut [Piece]) {
    loop {
        let mut changed = false;
        for index in (0..pieces.len()).rev() {
            let mut live = pieces[index].live_out.clone();
            for next in &pieces[index].next {
                live.join(&pieces[*next].live_in);
            }
            pieces[index].live_out = live.clone();
            for position in (pieces[index].first..=pieces[index].last).rev() {
                let (reads, kills, _) = effects(&mut code[position]);
                kills.iter().for_each(|row| live.remove(*row));
                reads.iter().for_each(|row| live.add(*row));
            }
            changed |= live != pieces[index].live_in;
            pieces[index].live_in = live;
        }
        if !changed {
            return;
        }
    }
}
