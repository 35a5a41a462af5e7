//! Bugs planted in the text of the product kernel that is shipped: the emulated device finds each of them.
//!
//! What it finds in a smaller kernel, one bug a test, is in gpusim/tests/tile.rs.

#![allow(clippy::unwrap_used, missing_docs)]

mod gpu;

use std::fmt::Write;

use dspark::drafter::cuda::cases::LayerCase;
use dspark::drafter::cuda::{LayerCheck, pack};
use dspark::exl3::Codebook;

const KERNEL: &str = "exl3_gemm_mul1_k5";
const ROWS: usize = 3;
/// Enough steps for every stage of the kernel's ring to be used twice: 160 blocks, two splits of six steps.
const SHAPE: [usize; 2] = [768, 20_480];

/// Puts a bug into a kernel's text.
type Plant = Box<dyn Fn(&str) -> String>;

/// What shows a bug.
enum Shows {
    /// The launch fails, and the emulator says this.
    Fault(&'static str),
    /// The product is another one.
    WrongProduct,
    /// The product is right, and shared memory takes this many times as many passes.
    Passes(f64),
}

/// The PTX of the product kernels with one kernel's text changed.
fn planted(text: &str, change: impl Fn(&str) -> String) -> String {
    let start = text.find(&format!(".entry {KERNEL}(")).unwrap();
    let end = start + text[start..].find("\n}").unwrap();
    let changed = change(&text[start..end]);
    assert_ne!(changed, text[start..end], "the text to change is not there");
    format!("{}{changed}{}", &text[..start], &text[end..])
}

/// Swaps the first two registers of the first factor of every product.
fn swap_factors(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if let Some((head, tail)) = line.split_once("},{").filter(|_| line.contains("mma.sync")) {
            let registers: Vec<&str> = tail.splitn(3, ',').collect();
            writeln!(out, "{head}}},{{{},{},{}", registers[1], registers[0], registers[2]).unwrap();
        } else {
            writeln!(out, "{line}").unwrap();
        }
    }
    out
}

/// Bank passes of the product kernel so far.
fn passes() -> u64 {
    gpu::report()["kernels"][KERNEL]["shared_wavefronts"].as_u64().unwrap_or(0)
}

#[test]
fn every_planted_bug_shows() {
    let folder = tempfile::tempdir().unwrap();
    let images = pack::embedded().unwrap().into_iter().filter(pack::Image::is_ptx);
    let mut product = String::new();
    for image in images {
        let text = String::from_utf8(image.bytes).unwrap().trim_end_matches('\0').to_owned();
        let file = folder.path().join(format!("{}.{}.ptx", image.source, image.arch));
        std::fs::write(file, &text).unwrap();
        if image.source == "exl3_gemm" {
            product = text;
        }
    }
    // SAFETY: the only test of the process, and nothing of it has read the environment yet.
    unsafe { std::env::set_var("DSPARK_KERNEL_DIR", folder.path()) };
    gpu::load();
    let case = LayerCase::new(Codebook::Mul1, 5, SHAPE, ROWS);
    let run = |text: &str| {
        std::fs::write(folder.path().join("exl3_gemm.compute_80.ptx"), text).unwrap();
        let before = passes();
        let found = case.run(&LayerCheck::new(0).unwrap(), 0xFF);
        (found.map(|found| found.difference), passes() - before)
    };
    let (sound, passes) = run(&product);
    assert!(sound.unwrap() < 2e-5);

    let once = |from: &'static str, to: &'static str| move |text: &str| text.replacen(from, to, 1);
    let bugs: [(&str, Plant, Shows); 7] = [
        ("no wait", Box::new(once("cp.async.wait_group 2;", "")), Shows::WrongProduct),
        (
            "a wait for too few",
            Box::new(once("wait_group 2;", "wait_group 3;")),
            Shows::Fault("race"),
        ),
        ("no barrier", Box::new(once("bar.sync \t0;", "")), Shows::Fault("race")),
        (
            "an output index off by one",
            Box::new(|text: &str| text.replacen("], %f340;", "+4], %f340;", 1)),
            Shows::WrongProduct,
        ),
        (
            "a misaligned copy",
            Box::new(once("], 16, %r", "+8], 16, %r")),
            Shows::Fault("misaligned"),
        ),
        ("swapped factors", Box::new(swap_factors), Shows::WrongProduct),
        ("no padding", Box::new(|text: &str| text.replace(", 144", ", 128")), Shows::Passes(1.2)),
    ];
    for (bug, plant, shows) in bugs {
        let (outcome, now) = run(&planted(&product, plant));
        match shows {
            Shows::Fault(word) => {
                let said = gpu::report()["last_error"].as_str().unwrap().to_owned();
                println!("{bug}: {said}");
                assert!(outcome.is_err(), "{bug}: not found");
                assert!(said.contains(word) && said.contains(KERNEL), "{bug}: {said}");
            }
            Shows::WrongProduct => {
                let far = outcome.unwrap();
                println!("{bug}: off by {far:.1e} of a row's RMS");
                assert!(far > 0.1, "{bug}: {far}");
            }
            Shows::Passes(factor) => {
                let times = now as f64 / passes as f64;
                println!("{bug}: {times:.2} times the bank passes");
                assert!(outcome.unwrap() < 2e-5 && times > factor, "{bug}: {times}");
            }
        }
    }
}
