//! Tensor cores: `ldmatrix` and `mma`.
//!
//! A product is the f32 nearest to the sum that f64 arithmetic gives for all terms and the
//! addend. Hardware adds in another order and cuts bits off on the way, so results agree with it
//! within a measured tolerance only.

use super::access::check_shared;
use super::block::BlockState;
use super::lanes::Row;
use super::program::{Action, MemorySpace, MmaFormat, RowIndex};
use super::traffic;
use super::warp::Warp;
use crate::fault::Trouble;

/// Rows of A and columns of B of every shape here.
const M: usize = 16;
const N: usize = 8;
const K_MAX: usize = 16;

impl Warp {
    /// Lane `8 i + r` gives the address of row `r` of matrix `i`; lane `4 r + c` gets elements
    /// `2 c` and `2 c + 1` of row `r` of every matrix, of column `r` when transposed.
    pub(super) fn load_matrix(
        &mut self,
        block: &mut BlockState<'_>,
        registers: &[RowIndex],
        (address, offset): (RowIndex, i64),
        transposed: bool,
        active: u32,
    ) -> Result<(), Trouble> {
        if active != u32::MAX {
            return Err(Trouble::new(format!("ldmatrix by lanes {active:#010x} only")));
        }
        let (addresses, _) = self.addresses(address, offset, MemorySpace::Shared, active)?;
        let lanes = (u64::MAX >> (64 - 8 * registers.len())) as u32;
        traffic::count_shared(&mut block.counters, &addresses, 16, lanes);
        for (matrix, register) in registers.iter().enumerate() {
            let mut elements = [[0u16; 8]; 8];
            for (row, elements) in elements.iter_mut().enumerate() {
                let lane = 8 * matrix + row;
                let at = check_shared(block, addresses[lane], 16, lane)?;
                self.shared_read(block, at, 16, lane)?;
                let bytes = &block.shared[at..at + 16];
                for (element, pair) in elements.iter_mut().zip(bytes.chunks_exact(2)) {
                    *element = u16::from_le_bytes([pair[0], pair[1]]);
                }
            }
            let out = std::array::from_fn(|lane| {
                let (row, column) = (lane / 4, 2 * (lane % 4));
                let (low, high) = if transposed {
                    (elements[column][row], elements[column + 1][row])
                } else {
                    (elements[row][column], elements[row][column + 1])
                };
                u64::from(low) | u64::from(high) << 16
            });
            self.write(*register, active, &out);
        }
        Ok(())
    }

    pub(super) fn mma(
        &mut self,
        block: &mut BlockState<'_>,
        action: &Action,
        active: u32,
    ) -> Result<(), Trouble> {
        let Action::Mma { format, depth, d, a, b, c } = action else { return Ok(()) };
        if active != u32::MAX {
            return Err(Trouble::new(format!("mma by lanes {active:#010x} only")));
        }
        block.counters.mma += 1;
        let mut left = [[0f64; K_MAX]; M];
        let mut right = [[0f64; K_MAX]; N];
        let mut sums = [[0f64; N]; M];
        // Per register: rows g and g + 8 alternate, then the next eight columns (four for TF32).
        for (index, register) in a.iter().enumerate() {
            let rows = &mut left[8 * (index % 2)..][..8];
            spread(*format, self.row(*register), index / 2, rows);
        }
        for (index, register) in b.iter().enumerate() {
            spread(*format, self.row(*register), index, &mut right);
        }
        for (index, register) in c.iter().enumerate() {
            let row = self.row(*register);
            for (lane, bits) in row.iter().enumerate() {
                let (m, n) = position(index, lane);
                sums[m][n] = f64::from(f32::from_bits(*bits as u32));
            }
        }
        multiply(&left, &right, &mut sums, *depth);
        for (index, register) in d.iter().enumerate() {
            let out = std::array::from_fn(|lane| {
                let (m, n) = position(index, lane);
                u64::from((sums[m][n] as f32).to_bits())
            });
            self.write(*register, active, &out);
        }
        Ok(())
    }
}

/// Row and column of register `index` of the accumulator.
fn position(index: usize, lane: usize) -> (usize, usize) {
    (lane / 4 + 8 * (index / 2), 2 * (lane % 4) + index % 2)
}

/// Puts the factors of one register where they belong: lane `4 g + t` holds, of line `g`, elements
/// `2 t` and `2 t + 1` of the group's eight, or element `t` of four for TF32.
fn spread(format: MmaFormat, row: &Row, group: usize, lines: &mut [[f64; K_MAX]]) {
    for (g, line) in lines.iter_mut().enumerate() {
        let quad = &row[4 * g..4 * g + 4];
        match format {
            MmaFormat::F16 => {
                for (t, bits) in quad.iter().enumerate() {
                    line[8 * group + 2 * t] = f64::from(widen(*bits as u16));
                    line[8 * group + 2 * t + 1] = f64::from(widen((*bits >> 16) as u16));
                }
            }
            MmaFormat::Bf16 => {
                for (t, bits) in quad.iter().enumerate() {
                    let (low, high) = ((*bits as u32) << 16, *bits as u32 & 0xFFFF_0000);
                    line[8 * group + 2 * t] = f64::from(f32::from_bits(low));
                    line[8 * group + 2 * t + 1] = f64::from(f32::from_bits(high));
                }
            }
            MmaFormat::Tf32 => {
                for (t, bits) in quad.iter().enumerate() {
                    // The low 13 bits of the mantissa are ignored.
                    line[4 * group + t] = f64::from(f32::from_bits(*bits as u32 & !0x1FFF));
                }
            }
        }
    }
}

/// f16 to f32 without branches: the exponent is re-biased by an exact product.
#[inline(always)]
fn widen(half: u16) -> f32 {
    let shifted = u32::from(half & 0x7FFF) << 13;
    let magnitude = (f32::from_bits(shifted) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if half & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
    f32::from_bits(magnitude | special | u32::from(half & 0x8000) << 16)
}

type Sums = [[f64; N]; M];

fn multiply(left: &[[f64; K_MAX]; M], right: &[[f64; K_MAX]; N], sums: &mut Sums, depth: usize) {
    let mut columns = [[0f64; N]; K_MAX];
    for (n, line) in right.iter().enumerate() {
        for (k, value) in line.iter().enumerate() {
            columns[k][n] = *value;
        }
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was detected.
        unsafe { multiply_avx2(left, &columns, sums, depth) };
        return;
    }
    multiply_plain(left, &columns, sums, depth);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_avx2(
    left: &[[f64; K_MAX]; M],
    right: &[[f64; N]; K_MAX],
    sums: &mut Sums,
    depth: usize,
) {
    multiply_plain(left, right, sums, depth);
}

/// Products of 16-bit factors are exact in f64, so every variant of this gives the same sums.
#[inline(always)]
fn multiply_plain(
    left: &[[f64; K_MAX]; M],
    right: &[[f64; N]; K_MAX],
    sums: &mut Sums,
    depth: usize,
) {
    for (row, factors) in sums.iter_mut().zip(left) {
        let mut total = *row;
        for (factor, line) in factors.iter().zip(right).take(depth) {
            for (sum, value) in total.iter_mut().zip(line) {
                *sum += factor * value;
            }
        }
        *row = total;
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn widening_is_exact_for_every_f16() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widen(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan(), "{bits:#x}");
        }
    }
}
