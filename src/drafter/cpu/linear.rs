//! Products with a linear layer in whichever form it is stored.

use super::math::dot;
use super::{Precision, parallel};
use crate::drafter::weights::{Linear, Matrix};
use crate::exl3::InputRounding;

/// Weights of a plain row read at once. Part of the definition of the sum: rows are added up block by
/// block.
const BLOCK: usize = 256;
/// Output rows one task of a plain product computes.
const TASK_ROWS: usize = 32;

/// f32s of scratch a product with `linear` needs for `rows` rows.
pub(super) fn scratch_len(linear: &Linear, rows: usize) -> usize {
    match linear {
        Linear::Exl3(exl3) => exl3.scratch_len(rows),
        Linear::Dense(matrix) => rows * matrix.rows(),
    }
}

/// Runs products, with memory for the largest one.
pub(super) struct Products {
    precision: Precision,
    scratch: Vec<f32>,
}

impl Products {
    /// Products with `scratch` f32s of memory, the largest [`scratch_len`] there will be.
    pub(super) fn new(precision: Precision, scratch: usize) -> Self {
        Self { precision, scratch: vec![0.0; scratch] }
    }

    /// `y` [rows, out] = `x` [rows, in] · Wᵀ, f32 sums in an order that depends on neither the number of
    /// rows nor of threads. EXL3 inputs are rounded to f16 under bf16 precision; the output is not
    /// rounded.
    pub(super) fn linear(&mut self, linear: &Linear, x: &[f32], y: &mut [f32]) {
        match linear {
            Linear::Exl3(exl3) => {
                let rounding = match self.precision {
                    Precision::Bf16 => InputRounding::F16,
                    Precision::F32 => InputRounding::F32,
                };
                let rows = x.len() / exl3.in_features();
                exl3.forward(x, rows, y, rounding, &mut self.scratch);
            }
            Linear::Dense(matrix) => self.matrix(matrix, x, y),
        }
    }

    /// The same with a plain matrix [out, in], whose inputs are not rounded.
    pub(super) fn matrix(&mut self, matrix: &Matrix, x: &[f32], y: &mut [f32]) {
        product(matrix, x, x.len() / matrix.cols(), y, &mut self.scratch);
    }
}

/// `y` [rows, matrix.rows] = `x` [rows, matrix.cols] · matrixᵀ; each weight is converted once for all
/// rows. `scratch` holds `y` transposed, so that tasks write disjoint memory.
fn product(matrix: &Matrix, x: &[f32], rows: usize, y: &mut [f32], scratch: &mut [f32]) {
    let outputs = matrix.rows();
    if rows == 0 {
        return;
    }
    let transposed = &mut scratch[..rows * outputs];
    let work = rows * outputs * matrix.cols();
    parallel::for_each(transposed, TASK_ROWS * rows, work, |task, sums| {
        for (i, sums) in sums.chunks_exact_mut(rows).enumerate() {
            output_row(matrix, task * TASK_ROWS + i, x, sums);
        }
    });
    for (output, sums) in transposed.chunks_exact(rows).enumerate() {
        for (row, &sum) in sums.iter().enumerate() {
            y[row * outputs + output] = sum;
        }
    }
}

/// Output `output` of every row of `x`.
fn output_row(matrix: &Matrix, output: usize, x: &[f32], sums: &mut [f32]) {
    let cols = matrix.cols();
    let mut block = [0.0; BLOCK];
    sums.fill(0.0);
    for start in (0..cols).step_by(BLOCK) {
        let weights = &mut block[..BLOCK.min(cols - start)];
        matrix.read(output, start, weights);
        for (sum, x) in sums.iter_mut().zip(x.chunks_exact(cols)) {
            *sum += dot(weights, &x[start..start + weights.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::SharedBytes;
    use crate::drafter::weights::Float;

    /// Large enough that the product is split over threads.
    const SHAPE: (usize, usize, usize) = (3, 700, 600);

    fn case() -> (Matrix, Vec<f32>) {
        let (rows, outputs, inputs) = SHAPE;
        let value = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0;
        let weights: Vec<u8> = (0..outputs * inputs).flat_map(|i| value(i).to_le_bytes()).collect();
        let matrix = Matrix::new(Float::F32, outputs, inputs, SharedBytes::new(weights)).unwrap();
        (matrix, (0..rows * inputs).map(|i| value(7 * i + 3)).collect())
    }

    fn run(matrix: &Matrix, x: &[f32], rows: usize) -> Vec<f32> {
        let mut y = vec![f32::NAN; rows * matrix.rows()];
        product(matrix, x, rows, &mut y, &mut vec![f32::NAN; rows * matrix.rows()]);
        y
    }

    #[test]
    fn a_product_is_the_same_bits_for_any_number_of_threads_and_rows() {
        let (matrix, x) = case();
        let (rows, outputs, inputs) = SHAPE;
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let one = pool(1).install(|| run(&matrix, &x, rows));
        let three = pool(3).install(|| run(&matrix, &x, rows));
        assert_eq!(one, three);
        for row in 0..rows {
            let alone = run(&matrix, &x[row * inputs..][..inputs], 1);
            assert_eq!(alone, one[row * outputs..][..outputs]);
        }
    }

    #[test]
    fn a_product_is_the_sum_over_the_inputs() {
        let (matrix, x) = case();
        let (rows, outputs, inputs) = SHAPE;
        let y = run(&matrix, &x, rows);
        let weights = matrix.to_f32();
        for (i, &y) in y.iter().enumerate() {
            let (row, output) = (i / outputs, i % outputs);
            let pairs = x[row * inputs..][..inputs].iter().zip(&weights[output * inputs..]);
            let exact: f64 = pairs.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            assert!((f64::from(y) - exact).abs() < 1e-4, "row {row} output {output}: {y} {exact}");
        }
    }
}
