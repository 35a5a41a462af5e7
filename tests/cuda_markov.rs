//! The roads of the Markov step: every row of the vocabulary multiplied, rows that cannot win left out, bias
//! rows held ready. All have the same bits, on heads made to mislead them, executed on the emulated device.

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod gpu;
mod requests;

use std::ops::ControlFlow;

use dspark::buffer::SharedBytes;
use dspark::checkpoint::{Checkpoint, Dtype, MarkovCache, TensorStore};
use dspark::drafter::Drafter;
use dspark::drafter::MarkovCounters;
use dspark::drafter::cpu::Logits;
use dspark::drafter::cuda::CudaOptions;
use dspark::drafter::stage::{Stage, StageObserver};
use half::f16;
use requests::{Bits, Request, observed, step};
use safetensors::tensor::TensorView;

const VOCAB: usize = 512;
const RANK: usize = 128;
const HEAD: &str = "mtp.2.markov_head.head.weight";

/// The tiny checkpoint with another Markov head, f16 `[512, rank]`, and a cache of these tokens.
fn checkpoint(change: impl Fn(usize, &mut [f32]), tokens: &[u32]) -> Checkpoint {
    let tiny = cases::checkpoint();
    let kept = tiny.tensors.iter().map(|t| {
        let dtype = cases::plain(&t.dtype);
        let mut data = t.data.to_vec();
        if t.name == HEAD {
            assert_eq!((&t.dtype, &t.shape), (&Dtype::F16, &vec![VOCAB, RANK]));
            for (v, row) in data.chunks_mut(2 * RANK).enumerate() {
                let values = row.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32());
                let mut values: Vec<f32> = values.collect();
                change(v, &mut values);
                let halves = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes());
                row.copy_from_slice(&halves.collect::<Vec<u8>>());
            }
        }
        (t.name.clone(), dtype, t.shape.clone(), data)
    });
    let kept: Vec<_> = kept.collect();
    let views = kept.iter().map(|(name, dtype, shape, data)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    let file = ("model.safetensors".to_owned(), SharedBytes::new(bytes));
    let markov = MarkovCache::parse(format!("{tokens:?}").as_bytes(), VOCAB).unwrap();
    Checkpoint {
        tensors: TensorStore::from_files([file]).unwrap(),
        markov: Some(markov),
        ..cases::checkpoint()
    }
}

fn requests() -> Vec<Request> {
    vec![Request::new(0, 0, 3, 10, 0), Request::new(1, 900, 2, 301, 900)]
}

/// Drafts and counters on one road.
fn on_road(
    checkpoint: &Checkpoint,
    logits: Logits,
    prune: bool,
    markov_bytes: u64,
) -> (Vec<Bits>, MarkovCounters) {
    let options = CudaOptions {
        logits,
        prune,
        markov_bytes,
        max_slots: 2,
        graphs: false,
        fill: 0xFF,
        ..CudaOptions::default()
    };
    let mut drafter = gpu::drafter(checkpoint, options);
    let bits = step(&mut *drafter, &requests());
    (bits, drafter.markov_counters())
}

/// Drafts, the same on every road, and how the pruned one went; every second token's row is held on the third.
fn on_every_road(
    change: impl Fn(usize, &mut [f32]),
    logits: Logits,
) -> (Vec<Bits>, MarkovCounters) {
    let tokens: Vec<u32> = (0..VOCAB as u32).step_by(2).collect();
    let checkpoint = checkpoint(change, &tokens);
    let (dense, counts) = on_road(&checkpoint, logits, false, 0);
    assert_eq!((counts.resident, counts.pruned, counts.rows), (0, 0, counts.rows_full));
    let (drafts, pruned) = on_road(&checkpoint, logits, true, 0);
    println!("pruned: {pruned:?}");
    assert_eq!(pruned.resident, 0);
    assert_eq!(drafts, dense, "left out rows that cannot win");
    let (mixed, counts) = on_road(&checkpoint, logits, true, 1 << 30);
    println!("held: {counts:?}");
    assert!(counts.resident > 0 && counts.pruned + counts.dense > 0, "{counts:?}");
    assert!(counts.rows < counts.rows_full);
    assert_eq!(mixed, dense, "held every second row");
    (dense, pruned)
}

/// Few rows are long and win from far behind; the others are short, so that almost all can be left out.
#[test]
fn a_winner_far_from_the_best_base_logits_is_found_on_every_road() {
    let few = |v: usize, row: &mut [f32]| {
        let factor = if v % 61 == 7 { 4.0 } else { 0.02 };
        row.iter_mut().for_each(|x| *x *= factor);
    };
    for logits in [Logits::F32, Logits::Bf16] {
        let (dense, counts) = on_every_road(few, logits);
        assert!(dense.iter().all(|bits| bits.finite));
        assert!(counts.dense == 0 && counts.rows * 2 < counts.rows_full, "{counts:?}");
        let ranks = base_ranks(&checkpoint(few, &[]), logits, &dense);
        println!("ranks of the winners among the base logits: {ranks:?}");
        assert!(ranks.iter().filter(|&&rank| rank >= 32).count() >= 3, "{ranks:?}");
    }
}

/// bf16 steps of 16 and more in the thousands: many rows tie for the best, and the lowest id wins.
#[test]
fn ties_go_to_the_lowest_id_on_every_road() {
    // Rows v, v + 1, v + 2 and v + 3 are one row.
    let rows = |v: usize, row: &mut [f32]| {
        row.iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = ((v / 4 * 37 + i * 11) % 97) as f32 - 48.0);
    };
    let (dense, _) = on_every_road(rows, Logits::Bf16);
    for bits in &dense {
        assert!(bits.finite);
        assert!(bits.margin.contains(&0), "{:?}", bits.margin.iter().map(|&m| f32::from_bits(m)));
    }
}

#[test]
fn a_row_that_is_no_number_is_refused_on_every_road() {
    let spoiled = |v: usize, row: &mut [f32]| {
        if v == 300 {
            row[5] = f32::NAN;
        }
    };
    for bits in on_every_road(spoiled, Logits::Bf16).0 {
        assert_eq!(bits, requests::zeros());
    }
}

/// The head of the list is held, the rest is computed; what does not fit costs speed alone.
#[test]
fn as_many_rows_as_fit_are_held() {
    let tokens: Vec<u32> = (0..VOCAB as u32).rev().collect();
    let checkpoint = checkpoint(|_, _| {}, &tokens);
    // A table of slots, and two bytes a row's value under bf16 logits, four a token.
    let room = |rows: u64| 4 * VOCAB as u64 + rows * (2 * VOCAB as u64 + 4);
    for (bytes, rows) in [(0, 0), (room(1) - 1, 0), (room(3), 3), (u64::MAX, VOCAB as u64)] {
        let options = CudaOptions {
            markov_bytes: bytes,
            max_slots: 1,
            graphs: false,
            ..CudaOptions::default()
        };
        let drafter = gpu::drafter(&checkpoint, options);
        let plan = drafter.memory_plan();
        assert_eq!(plan.markov_rows, rows, "{bytes} bytes");
        assert!(plan.markov <= bytes);
        assert!(drafter.info().gpu_mem_bytes >= plan.markov);
    }
}

/// Base logits of a STEP, row by row.
struct Base(Vec<f32>);

impl StageObserver for Base {
    fn stage(&mut self, stage: Stage, _: Option<usize>, values: &[f32]) -> ControlFlow<()> {
        if stage == Stage::BaseLogits {
            self.0 = values.to_vec();
        }
        ControlFlow::Continue(())
    }
}

/// How many base logits are above that of each drafted token.
fn base_ranks(checkpoint: &Checkpoint, logits: Logits, drafts: &[Bits]) -> Vec<usize> {
    let options = CudaOptions { logits, max_slots: 2, graphs: false, ..CudaOptions::default() };
    let mut drafter = gpu::drafter(checkpoint, options);
    let mut base = Base(Vec::new());
    observed(&mut drafter, &requests(), &mut base);
    let winners = drafts.iter().flat_map(|bits| &bits.ids);
    base.0
        .chunks(VOCAB)
        .zip(winners)
        .map(|(row, &id)| row.iter().filter(|&&logit| logit > row[id as usize]).count())
        .collect()
}
