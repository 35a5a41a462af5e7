//! A table of rows that stays in the dtype and the memory of its file, read as f32.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::buffer::SharedBytes;

/// Dtypes a plain tensor may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl Float {
    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// `[rows, cols]`, row-major, little-endian, of one float dtype.
#[derive(Clone, Debug)]
pub struct Matrix {
    dtype: Float,
    rows: usize,
    cols: usize,
    data: SharedBytes,
}

/// f16 values converted at once: large enough for the vector conversion, small enough for the stack.
const F16_BLOCK: usize = 64;

impl Matrix {
    /// Views `data`; `None` if its length is not `rows · cols` values.
    pub fn new(dtype: Float, rows: usize, cols: usize, data: SharedBytes) -> Option<Self> {
        let bytes = rows.checked_mul(cols)?.checked_mul(dtype.bytes())?;
        (data.len() == bytes).then_some(Self { dtype, rows, cols, data })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored dtype.
    pub fn dtype(&self) -> Float {
        self.dtype
    }

    /// The stored bytes.
    pub fn bytes(&self) -> &SharedBytes {
        &self.data
    }

    /// Values `start .. start + out.len()` of row `row` as f32; exact.
    ///
    /// # Panics
    /// If they do not lie inside the row.
    pub fn read(&self, row: usize, start: usize, out: &mut [f32]) {
        assert!(row < self.rows && start + out.len() <= self.cols, "read outside a matrix");
        let size = self.dtype.bytes();
        let data = &self.data[(row * self.cols + start) * size..][..out.len() * size];
        match self.dtype {
            Float::Bf16 => {
                for (out, &bytes) in out.iter_mut().zip(data.as_chunks().0) {
                    *out = bf16::from_le_bytes(bytes).to_f32();
                }
            }
            Float::F16 => read_f16(data, out),
            Float::F32 => {
                for (out, &bytes) in out.iter_mut().zip(data.as_chunks().0) {
                    *out = f32::from_le_bytes(bytes);
                }
            }
        }
    }

    /// Rows `rows` as a matrix of their own, sharing the bytes.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn row_range(&self, rows: std::ops::Range<usize>) -> Self {
        let row = self.cols * self.dtype.bytes();
        let data = self.data.slice(rows.start * row..rows.end * row);
        Self { dtype: self.dtype, rows: rows.len(), cols: self.cols, data }
    }

    /// All values as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        for (row, out) in values.chunks_exact_mut(self.cols.max(1)).enumerate() {
            self.read(row, 0, out);
        }
        values
    }
}

/// Converts through the vector instructions `half` finds, which single values do not use.
fn read_f16(data: &[u8], out: &mut [f32]) {
    let mut block = [f16::ZERO; F16_BLOCK];
    for (out, data) in out.chunks_mut(F16_BLOCK).zip(data.chunks(2 * F16_BLOCK)) {
        let block = &mut block[..out.len()];
        for (half, &bytes) in block.iter_mut().zip(data.as_chunks().0) {
            *half = f16::from_le_bytes(bytes);
        }
        block.convert_to_f32_slice(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_exact_in_every_dtype_and_at_every_offset() {
        let values: Vec<f32> = (0..300).map(|i| (i as f32 - 150.0) * 0.25).collect();
        let bytes = |dtype| -> Vec<u8> {
            let one = |v: &f32| match dtype {
                Float::Bf16 => bf16::from_f32(*v).to_le_bytes().to_vec(),
                Float::F16 => f16::from_f32(*v).to_le_bytes().to_vec(),
                Float::F32 => v.to_le_bytes().to_vec(),
            };
            values.iter().flat_map(one).collect()
        };
        for dtype in [Float::Bf16, Float::F16, Float::F32] {
            let matrix = Matrix::new(dtype, 3, 100, SharedBytes::new(bytes(dtype))).unwrap();
            assert_eq!(matrix.to_f32(), values, "{dtype:?}");
            let mut part = [0.0; 70];
            matrix.row_range(1..3).read(1, 30, &mut part);
            assert_eq!(part[..], values[230..], "{dtype:?}");
        }
        assert!(Matrix::new(Float::F16, 3, 100, SharedBytes::new(vec![0; 599])).is_none());
    }
}
