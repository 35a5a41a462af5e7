//! The pool of tap rows that the worked examples refer to, which is a circle.

use std::path::Path;

/// Rows in the pool, and bytes of one: three taps of 256 bf16 values.
const ROWS: usize = 512;
const ROW_BYTES: usize = 3 * 256 * 2;

/// The rows.
pub(crate) struct Pool(Vec<u8>);

impl Pool {
    /// Reads the pool.
    pub(crate) fn open() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/cases/taps.safetensors");
        let bytes = std::fs::read(path).expect("the pool of taps");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let taps = tensors.tensor("taps").expect("taps").data().to_vec();
        assert_eq!(taps.len(), ROWS * ROW_BYTES);
        Self(taps)
    }

    /// Bytes of row `index`.
    pub(crate) fn row(&self, index: usize) -> &[u8] {
        &self.0[index % ROWS * ROW_BYTES..][..ROW_BYTES]
    }
}
