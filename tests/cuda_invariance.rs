//! What must not show in a draft of the CUDA backend: the batch, `n_out`, how rows were split over STEPs, what
//! memory held before, graphs, the pruning of the Markov step, a neighbour's garbage. All comparisons are bit
//! for bit (contract §6.3, contract-notes D38, D41), executed on the emulated device.

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod gpu;
mod requests;

use cases::{N, ROW_BYTES, W};
use dspark::drafter::Drafter;
use dspark::drafter::cuda::{CudaDrafter, CudaOptions};
use gpu::Emulated;
use requests::{Bits, Request, four, step, zeros};

fn drafter(options: CudaOptions) -> Emulated {
    gpu::drafter(&cases::checkpoint(), options)
}

/// Each of the four requests alone, in order.
fn alone(drafter: &mut CudaDrafter) -> Vec<Bits> {
    four().iter().map(|r| step(&mut *drafter, std::slice::from_ref(r)).remove(0)).collect()
}

#[test]
fn a_request_has_the_same_bits_alone_and_in_any_company_and_order() {
    let mut drafter = drafter(CudaOptions::default());
    let requests = four();
    let alone = alone(&mut drafter);
    assert!(alone.iter().all(|bits| bits.finite));
    let order = [2, 3, 1, 0];
    let batch: Vec<Request> = order.iter().map(|&i| requests[i].clone()).collect();
    for (answer, &i) in step(&mut *drafter, &batch).iter().zip(&order) {
        assert_eq!(*answer, alone[i], "request {i} in order {order:?}");
    }
    let mixed = [requests[1].clone(), requests[3].clone().append_only()];
    assert_eq!(step(&mut *drafter, &mixed), alone[1..2], "beside an append");
}

/// Launch by launch, every row of the vocabulary multiplied, no bias row held ready, memory full of NaN: none of
/// it shows.
#[test]
fn graphs_pruning_and_what_memory_held_do_not_show() {
    let plain = CudaOptions {
        graphs: false,
        prune: false,
        markov_bytes: 0,
        fill: 0xFF,
        ..CudaOptions::default()
    };
    let (mut fast, mut plain) = (drafter(CudaOptions::default()), drafter(plain));
    // Row counts and drafts that change buckets from STEP to STEP, also down to nothing.
    let requests = four();
    let again = Request { rows: vec![], ..requests[1].clone() };
    for batch in [&requests[..], &requests[1..2], &[again][..], &requests[2..]] {
        assert_eq!(step(&mut *fast, batch), step(&mut *plain, batch));
    }
    let (fast, plain) = (fast.markov_counters(), plain.markov_counters());
    let steps = plain.dense;
    assert_eq!((plain.resident, plain.pruned, plain.rows), (0, 0, plain.rows_full), "{plain:?}");
    assert_eq!((fast.resident + fast.pruned + fast.dense, fast.rows_full), (steps, plain.rows));
    assert!(fast.rows < fast.rows_full, "{fast:?}");
}

#[test]
fn positions_below_n_out_are_the_bits_of_the_full_block_and_the_rest_is_zero() {
    let mut drafter = drafter(CudaOptions::default());
    let requests = &four()[1..3];
    let full = step(&mut *drafter, requests);
    for n_out in [1, 3] {
        let short = [requests[0].clone().n_out(n_out), requests[1].clone().n_out(N - n_out)];
        let part = step(&mut *drafter, &short).remove(0);
        part.assert_begins(n_out, &full[0]);
    }
}

#[test]
fn a_resync_in_one_step_has_the_bits_of_the_rounds_it_replaces() {
    let mut drafter = drafter(CudaOptions::default());
    let rounds = [(0, 100), (100, 3), (103, 6), (109, 1), (110, 37)];
    let mut last = Vec::new();
    for (first, n) in rounds {
        let request = Request::new(0, first, n, first as usize, 0);
        let is_last = first + n as i64 == 147;
        last = step(&mut *drafter, &[if is_last { request } else { request.append_only() }]);
    }
    let mut resync = Request::new(3, 147 - W, 128, 147 - 128, 0);
    resync.draft.as_mut().unwrap().1 = 110;
    assert_eq!(step(&mut *drafter, &[resync]), last);
}

/// Fills every tap of `request` with one bf16 pattern.
fn taps(mut request: Request, pattern: u16) -> Request {
    request.rows.as_chunks_mut::<2>().0.iter_mut().for_each(|tap| *tap = pattern.to_le_bytes());
    request
}

#[test]
fn garbage_taps_cost_their_own_entry_and_heal_with_new_rows() {
    let mut drafter = drafter(CudaOptions::default());
    let requests = &four()[1..3];
    let clean = step(&mut *drafter, requests);
    // NaN, and a number beyond f16.
    for pattern in [0x7FC0, 0x7F7F] {
        let batch = [taps(requests[0].clone(), pattern), requests[1].clone()];
        assert_eq!(step(&mut *drafter, &batch), [zeros(), clean[1].clone()], "taps {pattern:#06x}");
    }
    let mut one_nan = requests.to_vec();
    one_nan[1].rows[ROW_BYTES - 2..].copy_from_slice(&0x7FC0u16.to_le_bytes());
    assert_eq!(step(&mut *drafter, &one_nan), [clean[0].clone(), zeros()], "one NaN");
    assert_eq!(step(&mut *drafter, requests), clean, "healed");
    // Zeros and the largest ordinary numbers are input like any other.
    for pattern in [0x0000, 0x4416] {
        assert!(
            step(&mut *drafter, &[taps(requests[1].clone(), pattern)])[0].finite,
            "{pattern:#06x}"
        );
    }
}

#[test]
fn blocks_without_context_and_at_the_end_of_i64_draft() {
    let mut drafter = drafter(CudaOptions::default());
    let empty = Request { slot: 0, first_pos: 0, rows: vec![], draft: Some((40..40, 7, N)) };
    assert!(step(&mut *drafter, &[empty])[0].finite);
    let first = i64::MAX - 6;
    let end = step(&mut *drafter, &[Request::new(0, first, 6, 50, first)]).remove(0);
    // All positions beyond the table have one rotation, so another such place drafts the same.
    let beyond = step(&mut *drafter, &[Request::new(1, 400_000, 6, 50, 400_000)]).remove(0);
    assert!(end.finite);
    assert_eq!(end, beyond);
}

/// Seven drafts of five rows do not fit one launch of 32 rows.
#[test]
fn more_slots_than_one_pass_holds_are_served_in_several() {
    let options = CudaOptions { max_slots: 7, ..CudaOptions::default() };
    let mut drafter = drafter(options);
    assert_eq!(drafter.geometry().max_slots, 7);
    let requests: Vec<Request> =
        (0..7).map(|slot| Request::new(slot, 10, 2, 30 * usize::from(slot), 10).n_out(1)).collect();
    let together = step(&mut *drafter, &requests);
    for i in [0, 6] {
        assert_eq!(step(&mut *drafter, &requests[i..=i])[0], together[i], "request {i}");
    }
}
