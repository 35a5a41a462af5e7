//! What an atomic makes of the old value.

use half::{bf16, f16};

use super::lanes::{Lane, Two};
use super::program::{Atomic, AtomicOp};
use crate::ptx::types::Kind;

/// The new value in memory. All arithmetic is that of the type; the rest of the bits stay 0.
pub(super) fn apply(atomic: &Atomic, old: u64, a: u64, b: u64) -> u64 {
    let mask = u64::MAX >> (64 - atomic.ty.bits);
    let (a, b) = (a & mask, b & mask);
    let signed = atomic.ty.is_signed();
    let order = |x: u64| {
        // Flipping the sign bit orders two's complement as unsigned numbers.
        if signed { x ^ (1 << (atomic.ty.bits - 1)) } else { x }
    };
    match atomic.op {
        AtomicOp::Add => add(atomic, old, a) & mask,
        AtomicOp::Min if order(a) < order(old) => a,
        AtomicOp::Max if order(a) > order(old) => a,
        AtomicOp::Min | AtomicOp::Max => old,
        AtomicOp::And => old & a,
        AtomicOp::Or => old | a,
        AtomicOp::Xor => old ^ a,
        AtomicOp::Exch => a,
        AtomicOp::Cas => {
            if old == a {
                b
            } else {
                old
            }
        }
        AtomicOp::Inc => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Dec => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
    }
}

fn add(atomic: &Atomic, old: u64, a: u64) -> u64 {
    match (atomic.ty.kind, atomic.ty.bits) {
        (Kind::Float, 16) => f16::from_f32(f16::get(old).to_f32() + f16::get(a).to_f32()).put(),
        (Kind::Float, 32) => (f32::get(old) + f32::get(a)).put(),
        (Kind::Float, _) => (f64::get(old) + f64::get(a)).put(),
        (Kind::Bf16, _) => bf16::from_f32(bf16::get(old).to_f32() + bf16::get(a).to_f32()).put(),
        (Kind::F16x2, _) => Two::<f16>::get(old)
            .zip(Two::<f16>::get(a), |x, y| f16::from_f32(x.to_f32() + y.to_f32()))
            .put(),
        (Kind::Bf16x2, _) => Two::<bf16>::get(old)
            .zip(Two::<bf16>::get(a), |x, y| bf16::from_f32(x.to_f32() + y.to_f32()))
            .put(),
        _ => old.wrapping_add(a),
    }
}
