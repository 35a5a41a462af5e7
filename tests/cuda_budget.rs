//! Bytes of a draft round, from the emulated device's counters, against the byte budget of the design: every
//! weight once, whatever the number of rows (`cargo test --release --test cuda_budget -- --nocapture` prints the
//! tables of kernels/README.md).

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod gpu;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use dspark::drafter::cuda::{CudaDrafter, CudaOptions};
use dspark::drafter::stage::{Stage, StageObserver};
use dspark::drafter::weights::ModuleRow;
use requests::{Request, observed, step};
use serde_json::Value;

const LAYERS: usize = 3;
const HIDDEN: u64 = 256;

/// What one kernel did in a round.
#[derive(Clone, Copy, Default)]
struct Counts {
    launches: u64,
    /// Weights and tables: bytes touched, and bytes moved by requests.
    constant: u64,
    constant_moved: u64,
    /// Bytes touched of everything else, and bytes written.
    other: u64,
    written: u64,
    wavefronts: u64,
    wavefronts_ideal: u64,
}

/// Counts of every kernel between two reports.
fn between(before: &Value, after: &Value) -> BTreeMap<String, Counts> {
    let kernels = after["kernels"].as_object().unwrap();
    let counts = kernels.iter().map(|(name, after)| {
        let of = |what: &str| {
            after[what].as_u64().unwrap() - before["kernels"][name][what].as_u64().unwrap_or(0)
        };
        let counts = Counts {
            launches: of("launches"),
            constant: of("footprint_constant_bytes"),
            constant_moved: 32 * of("constant_sectors"),
            other: of("footprint_read_bytes") - of("footprint_constant_bytes"),
            written: of("footprint_written_bytes"),
            wavefronts: of("shared_wavefronts"),
            wavefronts_ideal: of("shared_wavefronts_ideal"),
        };
        (name.clone(), counts)
    });
    counts.filter(|(_, c)| c.launches > 0).collect()
}

/// Bytes of a module as it is stored: `A · B · K / 8 + 2 (A + B) + 4` of an EXL3 layer.
fn bytes(module: &ModuleRow) -> u64 {
    let values = module.shape.iter().product::<usize>() as u64;
    match (module.form.as_str(), &module.width) {
        ("exl3", Some(width)) => {
            let [outputs, inputs] = module.shape[..] else { panic!("{module:?}") };
            values * width.parse::<u64>().unwrap() / 8 + 2 * (inputs + outputs) as u64 + 4
        }
        ("f32", _) => 4 * values,
        _ => 2 * values,
    }
}

/// How often a round reads a module whose draft rows take these experts: every one once, other experts and the
/// Markov step's tables not at all; `wkv` once for the context rows and once for the block.
fn readings(module: &ModuleRow, experts: &[BTreeSet<u32>]) -> u64 {
    let parts: Vec<&str> = module.module.split('.').collect();
    if let Some(at) = parts.iter().position(|&part| part == "experts") {
        let layer: usize = parts[1].parse().unwrap();
        return u64::from(experts[layer].contains(&parts[at + 1].parse().unwrap()));
    }
    match parts[..] {
        [_, _, "markov_head", ..] | ["embed", ..] => 0,
        [.., "wkv"] => 2,
        _ => 1,
    }
}

/// The budget of a round, with a row of the embedding for every anchor and one for the noise token; nothing for the
/// Markov step.
fn budget(modules: &[ModuleRow], requests: usize, experts: &[BTreeSet<u32>]) -> u64 {
    let weights: u64 = modules.iter().map(|m| readings(m, experts) * bytes(m)).sum();
    weights + (requests as u64 + 1) * 2 * HIDDEN
}

/// Tiles of every layer of one width.
fn tiles(modules: &[ModuleRow], width: &str, experts: &[BTreeSet<u32>]) -> u64 {
    let of_width = modules.iter().filter(|m| m.width.as_deref() == Some(width));
    let tiles = |m: &ModuleRow| {
        let values = m.shape.iter().product::<usize>() as u64;
        readings(m, experts) * values * width.parse::<u64>().unwrap() / 8
    };
    of_width.map(tiles).sum()
}

/// Experts chosen in each layer.
#[derive(Default)]
struct Experts(Vec<BTreeSet<u32>>);

impl StageObserver for Experts {
    fn stage(&mut self, stage: Stage, _: Option<usize>, values: &[f32]) -> ControlFlow<()> {
        if stage == Stage::RouterIds {
            self.0.push(values.iter().map(|&id| id as u32).collect());
        }
        ControlFlow::Continue(())
    }
}

/// Counts of one round after the first, and the experts it takes.
fn round(
    drafter: &mut CudaDrafter,
    requests: &[Request],
) -> (BTreeMap<String, Counts>, Vec<BTreeSet<u32>>) {
    let mut experts = Experts::default();
    observed(drafter, requests, &mut experts);
    assert_eq!(experts.0.len(), LAYERS);
    step(drafter, requests);
    let before = gpu::report();
    step(drafter, requests);
    (between(&before, &gpu::report()), experts.0)
}

/// Prints both rounds as a table of kernels/README.md.
fn print([one, four]: [&BTreeMap<String, Counts>; 2]) {
    println!(
        "| kernel | launches | weights read, B | moved / read | else read, B | written, B | passes / ideal |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let ratio = |a: u64, b: u64| format!("{:.2}", a as f64 / b as f64);
    let mut all = [Counts::default(); 2];
    for (name, a) in one {
        let b = &four[name];
        // Where hardly any weights are read, most of it is the records that every warp asks for.
        let moved =
            if a.constant < 65_536 { "–".into() } else { ratio(a.constant_moved, a.constant) };
        let passes = match a.wavefronts_ideal {
            0 => "–".into(),
            ideal => ratio(a.wavefronts, ideal),
        };
        println!(
            "| `{name}` | {} | {} / {} | {moved} | {} / {} | {} / {} | {passes} |",
            a.launches, a.constant, b.constant, a.other, b.other, a.written, b.written,
        );
        for (all, c) in all.iter_mut().zip([a, b]) {
            all.launches += c.launches;
            all.constant += c.constant;
            all.other += c.other;
            all.written += c.written;
        }
    }
    let [a, b] = all;
    println!(
        "| all | {} | {} / {} | | {} / {} | {} / {} | |",
        a.launches, a.constant, b.constant, a.other, b.other, a.written, b.written
    );
}

/// Weights read outside the Markov step.
fn weights(counts: &BTreeMap<String, Counts>) -> u64 {
    counts.iter().filter(|(name, _)| !name.starts_with("markov")).map(|(_, c)| c.constant).sum()
}

/// Held by a test that counts: the emulated device counts for the whole process.
static COUNTING: Mutex<()> = Mutex::new(());

#[test]
fn a_round_reads_every_weight_it_needs_once() {
    let _turn = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut drafter = gpu::drafter(&cases::checkpoint(), CudaOptions::default());
    let one = [Request::new(0, 0, 6, 10, 0)];
    let four = [(0, 10), (1, 301), (2, 77), (3, 440)];
    let four = four.map(|(slot, pool)| Request::new(slot, 0, 6, pool, 0).n_out(4));
    let rounds = [("1 request, 5 head rows", &one[..]), ("4 requests, 16 head rows", &four)];
    let mut all = Vec::new();
    for (title, requests) in rounds {
        let (counts, experts) = round(&mut drafter, requests);
        let modules = &drafter.report().modules;
        let budget = budget(modules, requests.len(), &experts);
        let distinct: Vec<usize> = experts.iter().map(BTreeSet::len).collect();
        let read = weights(&counts);
        let off = read as f64 / budget as f64 - 1.0;
        println!(
            "{title}, {distinct:?} distinct experts: budget {budget} B, read {read} B, {:+.1} %",
            100.0 * off
        );
        assert!(off.abs() <= 0.05, "{title}: {off}");
        for width in ["4", "5", "6"] {
            let c = counts[&format!("exl3_gemm_mul1_k{width}")];
            let tiles = tiles(modules, width, &experts);
            // Beside its tiles a launch reads its records; every warp of every block asks for those.
            let records = c.constant - tiles;
            assert!(records <= 256 * c.launches + tiles / 50, "{title}, K {width}: {records}");
            let again = c.constant_moved as f64 / c.constant as f64;
            assert!(again < 1.25, "{title}, K {width}: moved {again} times");
        }
        all.push(counts);
    }
    print([&all[0], &all[1]]);
    let head: Vec<Counts> = all.iter().map(|counts| counts["exl3_gemm_mul1_k6"]).collect();
    assert_eq!(head[0].launches, 1);
    assert_eq!(
        (head[0].constant, head[0].constant_moved),
        (head[1].constant, head[1].constant_moved)
    );
}

/// A window of rows, and four, are multiplied in one launch that reads the projection once, as six rows are.
#[test]
fn a_window_of_rows_reads_its_weights_once() {
    let _turn = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut drafter = gpu::drafter(&cases::checkpoint(), CudaOptions::default());
    let append =
        |slot: u8, n: usize| Request::new(slot, 0, n, 100 * usize::from(slot), 0).append_only();
    let mut counted = |requests: &[Request]| {
        step(&mut *drafter, requests);
        let before = gpu::report();
        step(&mut *drafter, requests);
        between(&before, &gpu::report())
    };
    let narrow = counted(&[append(0, 6)])["exl3_gemm_mul1_k5"];
    // The projection, and `wkv` of all layers in one launch.
    assert_eq!(narrow.launches, 2);
    let cases: [(Vec<Request>, usize); 4] = [
        (vec![append(0, 128)], 128),
        (vec![append(0, 20), append(1, 13)], 33),
        (vec![append(0, 128), append(1, 1)], 129),
        ((0..4).map(|slot| append(slot, 128)).collect(), 512),
    ];
    for (requests, rows) in cases {
        let counts = counted(&requests);
        assert!(!counts.contains_key("exl3_gemm_mul1_k5"), "{rows} rows");
        let wide = counts["exl3_wide_mul1_k5"];
        let moved = wide.constant_moved as f64 / narrow.constant_moved as f64;
        println!("{rows} rows: weights read {} B, moved {moved:.2} of six rows'", wide.constant);
        assert_eq!((wide.launches, wide.constant), (2, narrow.constant), "{rows} rows");
        assert!(moved <= 1.15 * rows.div_ceil(128) as f64, "{rows} rows: {moved}");
    }
}
