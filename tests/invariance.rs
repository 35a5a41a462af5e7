//! What must not show in a draft: the batch, `n_out`, how rows were split over STEPs, the number of threads,
//! a neighbour's garbage. All comparisons are bit for bit (contract §6.3, contract-notes D38, D41).

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod requests;

use cases::{Answer, N, ROW_BYTES, W};
use dspark::drafter::cpu::{CpuDrafter, Logits, Precision};
use requests::{Bits, Request, four, step, zeros};

fn drafter() -> CpuDrafter {
    cases::drafter(Precision::Bf16, Logits::Bf16)
}

#[test]
fn a_request_has_the_same_bits_alone_and_in_any_company_and_order() {
    for precision in [Precision::Bf16, Precision::F32] {
        let mut drafter = cases::drafter(precision, Logits::F32);
        let requests = four();
        let alone: Vec<Bits> = requests
            .iter()
            .map(|r| step(&mut drafter, std::slice::from_ref(r)).remove(0))
            .collect();
        for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
            let batch: Vec<Request> = order.iter().map(|&i| requests[i].clone()).collect();
            let together = step(&mut drafter, &batch);
            for (answer, &i) in together.iter().zip(&order) {
                assert_eq!(*answer, alone[i], "{precision:?}, request {i} in order {order:?}");
            }
        }
    }
}

#[test]
fn append_only_entries_between_drafting_ones_change_nothing() {
    let mut drafter = drafter();
    let requests = four();
    let alone = step(&mut drafter, &requests[1..2]).remove(0);
    let mixed: Vec<Request> = requests
        .iter()
        .enumerate()
        .map(|(i, r)| if i == 1 { r.clone() } else { r.clone().append_only() })
        .collect();
    assert_eq!(step(&mut drafter, &mixed), [alone]);
}

#[test]
fn positions_below_n_out_are_the_bits_of_the_full_block_and_the_rest_is_zero() {
    let mut drafter = drafter();
    let full = step(&mut drafter, &four());
    for n_out in 1..=N {
        // The others consume other numbers of positions, so the head runs other batches too.
        let requests: Vec<Request> = four()
            .into_iter()
            .enumerate()
            .map(|(i, r)| r.n_out(if i == 0 { n_out } else { 1 + (n_out + i) % N }))
            .collect();
        let part = step(&mut drafter, &requests).remove(0);
        part.assert_begins(n_out, &full[0]);
    }
}

#[test]
fn a_resync_in_one_step_has_the_bits_of_the_rounds_it_replaces() {
    let mut drafter = drafter();
    let mut last = Vec::new();
    for (first, n) in [(0, 100), (100, 3), (103, 6), (109, 1), (110, 5), (115, 30), (145, 2)] {
        last = step(&mut drafter, &[Request::new(0, first, n, first as usize, 0)]);
    }
    // The token of the last round was that of pool row 145.
    let mut resync = Request::new(3, 147 - W, 128, 147 - 128, 0);
    resync.draft.as_mut().unwrap().1 = 145;
    assert_eq!(step(&mut drafter, &[resync]), last);
}

#[test]
fn drafting_leaves_no_trace_in_the_window() {
    let mut drafter = drafter();
    let request = four().remove(0);
    let first = step(&mut drafter, std::slice::from_ref(&request));
    let mut again = request;
    again.rows.clear();
    for _ in 0..3 {
        assert_eq!(step(&mut drafter, std::slice::from_ref(&again)), first);
    }
}

#[test]
fn the_number_of_threads_does_not_show() {
    // A full resync of four slots is work enough to be split.
    let requests: Vec<Request> =
        (0..4).map(|s| Request::new(s, 0, 128, 100 * s as usize, 0)).collect();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| step(&mut drafter(), &requests))
    };
    let one = run(1);
    assert_eq!(run(2), one);
    assert_eq!(run(3), one);
}

#[test]
fn a_block_without_context_drafts() {
    let mut drafter = drafter();
    let mut fill = |request: Request| step(&mut drafter, &[request]).remove(0);
    let empty = || Request { slot: 0, first_pos: 0, rows: vec![], draft: Some((40..40, 7, N)) };
    let fresh = fill(empty());
    assert!(fresh.finite);
    let with_rows = fill(Request::new(0, 0, 40, 3, 0));
    assert_eq!(fill(empty()), fresh, "rows outside the context must not show");
    assert_ne!(with_rows, fresh);
}

#[test]
fn the_context_is_the_named_rows_and_no_others() {
    let mut drafter = drafter();
    let whole = step(&mut drafter, &[Request::new(0, 0, 50, 9, 0)]).remove(0);
    let part = step(&mut drafter, &[Request::new(0, 0, 50, 9, 30)]).remove(0);
    assert_ne!(part, whole);
    // Only rows 30..50, in a slot that holds nothing else.
    let alone = step(&mut drafter, &[Request::new(1, 30, 20, 39, 30)]);
    let mut same_token = Request::new(1, 30, 20, 39, 30);
    same_token.draft.as_mut().unwrap().1 = 9;
    assert_ne!(alone[0], part, "another anchor token");
    assert_eq!(step(&mut drafter, &[same_token])[0], part);
}

#[test]
fn positions_at_the_end_of_i64_draft_and_share_the_last_rotation() {
    let mut drafter = drafter();
    let first = i64::MAX - 6;
    let end = step(&mut drafter, &[Request::new(0, first, 6, 50, first)]).remove(0);
    assert!(end.finite);
    // The very last position can be stored, though no anchor can follow it.
    let last = Request::new(2, i64::MAX - 5, 5, 50, 0);
    step(&mut drafter, &[Request { first_pos: i64::MAX - 4, ..last }.append_only()]);
    // All positions beyond the table have one rotation, so another such place drafts the same.
    let beyond = step(&mut drafter, &[Request::new(1, 400_000, 6, 50, 400_000)]).remove(0);
    assert_eq!(end, beyond);
}

/// Fills every tap of `request` with one bf16 pattern.
fn taps(mut request: Request, pattern: u16) -> Request {
    request.rows.as_chunks_mut::<2>().0.iter_mut().for_each(|tap| *tap = pattern.to_le_bytes());
    request
}

#[test]
fn garbage_taps_cost_their_own_entry_and_heal_with_new_rows() {
    let mut drafter = drafter();
    let clean = step(&mut drafter, &four());
    // Quiet and signalling NaN, both infinities, the largest bf16, a number beyond f16, and 3e4, which f16
    // holds but its rotation does not.
    for pattern in [0x7FC0, 0xFF81, 0x7F80, 0xFF80, 0x7F7F, 0x4B00, 0x46EA] {
        for victim in 0..4 {
            let mut requests = four();
            requests[victim] = taps(requests[victim].clone(), pattern);
            let answers = step(&mut drafter, &requests);
            for (i, answer) in answers.iter().enumerate() {
                let expected = if i == victim { &zeros() } else { &clean[i] };
                assert_eq!(answer, expected, "taps {pattern:#06x} in request {victim}, answer {i}");
            }
        }
        assert_eq!(step(&mut drafter, &four()), clean, "after taps {pattern:#06x}");
    }
}

#[test]
fn one_nan_among_good_taps_is_enough() {
    let mut drafter = drafter();
    let mut requests = four();
    let clean = step(&mut drafter, &requests);
    requests[0].rows[ROW_BYTES * 77 + 400..][..2].copy_from_slice(&0x7FC0u16.to_le_bytes());
    let answers = step(&mut drafter, &requests);
    assert_eq!(answers[0], zeros());
    assert_eq!(answers[1..], clean[1..]);
}

#[test]
fn zero_denormal_and_large_finite_taps_are_ordinary_input() {
    // The largest number differs: f16 inputs overflow where f32 ones do not.
    for (precision, large) in [(Precision::Bf16, 0x4416), (Precision::F32, 0x46EA)] {
        let mut drafter = cases::drafter(precision, Logits::F32);
        // Zeros of both signs, the smallest denormal and normal numbers, 600 or 3e4.
        for pattern in [0x0000, 0x8000, 0x0001, 0x0080, large] {
            let answers = step(&mut drafter, &[taps(four().remove(0), pattern)]);
            assert!(answers[0].finite, "{precision:?}, taps {pattern:#06x}");
            assert!(answers[0].ids.iter().all(|id| (0..512).contains(id)));
        }
    }
}

#[test]
fn the_worked_examples_have_the_same_bits_twice() {
    let pool = cases::pool();
    let case = cases::case("13_four_requests");
    let run = || -> Vec<Vec<Answer>> {
        let mut drafter = drafter();
        case.steps.iter().map(|s| cases::run(&mut drafter, &cases::plan(s, &pool))).collect()
    };
    assert_eq!(run(), run());
}
