//! Golden scripts of rank 0 and its breaker (contract §6.3, §7, §9, §10), one test per file of
//! `scripts/breaker` and `scripts/rank0`.
//!
//! `breaker` scripts say what each round was and show whether the next may send; `rank0` scripts let
//! rank 0 and a worker's session exchange real frames and show both ends. Outputs are written by
//! `UPDATE_GOLDENFILES=1` and then reviewed against the contract.
#![allow(clippy::unwrap_used)]

#[path = "scripts/breaker_runner.rs"]
mod breaker_runner;
#[path = "scripts/rank0_runner.rs"]
mod rank0_runner;

test_each_file::test_each_path! { in "./tests/scripts/breaker" as breaker => |path: &std::path::Path| {
    goldenscript::run(&mut breaker_runner::BreakerRunner::default(), path).expect("script runs");
} }

test_each_file::test_each_path! { in "./tests/scripts/rank0" as rank0 => |path: &std::path::Path| {
    goldenscript::run(&mut rank0_runner::Rank0Runner::default(), path).expect("script runs");
} }
