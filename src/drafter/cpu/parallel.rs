//! When to split work over threads, and how without changing a bit.
//!
//! Each piece of output is computed whole by one thread in one fixed order, so the thread count is
//! invisible in the result. Small work stays on the calling thread, where nothing is allocated.

use rayon::prelude::*;

/// Multiply-adds below which handing work to other threads costs more than it saves: about a quarter of
/// a millisecond of one core.
const WORTH_SPLITTING: usize = 1 << 20;

/// Calls `f(index, piece)` for every `piece`-sized part of `values`. `work` is the number of
/// multiply-adds of the whole call.
pub(super) fn for_each(
    values: &mut [f32],
    piece: usize,
    work: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    if work < WORTH_SPLITTING {
        values.chunks_mut(piece).enumerate().for_each(|(i, v)| f(i, v));
    } else {
        values.par_chunks_mut(piece).enumerate().for_each(|(i, v)| f(i, v));
    }
}

/// Like [`for_each`] over two arrays walked in step.
pub(super) fn for_each_pair(
    a: &mut [f32],
    a_piece: usize,
    b: &mut [f32],
    b_piece: usize,
    work: usize,
    f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    if work < WORTH_SPLITTING {
        let pairs = a.chunks_mut(a_piece).zip(b.chunks_mut(b_piece));
        pairs.enumerate().for_each(|(i, (a, b))| f(i, a, b));
    } else {
        let pairs = a.par_chunks_mut(a_piece).zip(b.par_chunks_mut(b_piece));
        pairs.enumerate().for_each(|(i, (a, b))| f(i, a, b));
    }
}
