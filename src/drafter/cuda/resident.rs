//! Bias rows of the Markov step that are held ready: those of the Markov cache's tokens, as many as fit.
//!
//! A row is what the step would compute, by the same function on the same device, kept as it would be rounded:
//! bf16 under bf16 logits, else f32. So a token's road does not show in a draft, and the list is a matter of
//! speed alone.

use zerocopy::IntoBytes;

use super::device::{DeviceError, DeviceMemory};
use super::engine::Engine;
use super::kernels::{Arg, record};
use super::records::word;
use super::shape::Shape;

/// In `slots`: a token without a row.
const NONE: u32 = u32::MAX;

/// Where the rows are; zeros where none is held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResidentAt {
    /// `[vocab]` row of each token.
    pub(super) slots: u64,
    /// `[rows, vocab]`
    pub(super) bias: u64,
}

/// How many rows are held, and what they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResidentSize {
    pub(super) rows: usize,
    row_bytes: usize,
    table_bytes: usize,
}

impl ResidentSize {
    /// As many of `wanted` rows as `bytes` hold.
    pub(super) fn fitting(shape: &Shape, round_logits: bool, wanted: usize, bytes: u64) -> Self {
        let row_bytes = shape.vocab * if round_logits { 2 } else { 4 };
        let table_bytes = 4 * shape.vocab;
        // A row also has its token in a list.
        let room = bytes.saturating_sub(table_bytes as u64) / (row_bytes + 4) as u64;
        let rows = usize::try_from(room).unwrap_or(usize::MAX).min(wanted);
        if rows == 0 { Self::default() } else { Self { rows, row_bytes, table_bytes } }
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> u64 {
        (self.rows * (self.row_bytes + 4) + self.table_bytes) as u64
    }
}

impl Engine {
    /// Takes memory for the rows of the first tokens and computes them.
    pub(super) fn hold_bias_rows(
        &mut self,
        memory: &mut DeviceMemory,
        size: ResidentSize,
        tokens: &[u32],
    ) -> Result<(), DeviceError> {
        if size.rows == 0 {
            return Ok(());
        }
        let tokens = &tokens[..size.rows];
        let mut slots = vec![NONE; self.shape.vocab];
        for (row, &token) in (0..).zip(tokens) {
            // The cache holds tokens of the vocabulary only, each once.
            slots[token as usize] = row;
        }
        let list = memory.take(4 * tokens.len(), 0)?;
        let at = ResidentAt {
            slots: memory.take(size.table_bytes, 0)?,
            bias: memory.take(size.rows * size.row_bytes, 0)?,
        };
        let tables = self.tables();
        let grid = [self.shape.vocab.div_ceil(8), tokens.len().div_ceil(4), 1];
        // SAFETY: the lists are as long on both sides and wait for below; arguments as markov.cu declares
        // them, and `bias` has room for a row a token.
        unsafe {
            self.device.upload(list, tokens.as_bytes())?;
            self.device.upload(at.slots, slots.as_bytes())?;
            let args =
                [record(&tables), Arg::At(list), Arg::Word(word(tokens.len())), Arg::At(at.bias)];
            self.kernels.launch(self.kernels.markov_bias, grid, 0, &args)?;
        }
        self.device.synchronize()?;
        self.resident = at;
        Ok(())
    }
}
