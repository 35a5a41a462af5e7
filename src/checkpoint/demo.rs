//! The demo checkpoint: a synthetic drafter of random weights, part of the binary.
//!
//! It has the live checkpoint's tensor names, dtypes and file split, and goes the same way as files do:
//! receipt, digests, headers. Only the directory is missing.

use std::io;

use super::{Checkpoint, CheckpointError, MARKOV_NAME, RECEIPT_NAME, Receipt, verify::Opened};
use crate::buffer::SharedBytes;

/// Where errors and reports say the demo checkpoint comes from.
const ORIGIN: &str = "demo";

macro_rules! embedded {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_bytes!(concat!("../../fixtures/tiny/", $name)).as_slice())),+]
    };
}

static FILES: [(&str, &[u8]); 12] = embedded![
    "DSPARK_COPY_DONE",
    "config.json",
    "exl3_moe_plan.json",
    "markov_top_tokens.json",
    "model-00002-of-00046.safetensors",
    "model-00043-of-00046.safetensors",
    "model-00044-of-00046.safetensors",
    "model-00045-of-00046.safetensors",
    "model-00046-of-00046.safetensors",
    "model-exl3-head.safetensors",
    "model-exl3-mtp-experts.safetensors",
    "model-exl3-mtp.safetensors",
];

fn embedded(name: &str) -> io::Result<SharedBytes> {
    let file = FILES.iter().find(|(other, _)| *other == name);
    file.map(|(_, bytes)| SharedBytes::new(*bytes)).ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl Checkpoint {
    /// The synthetic checkpoint inside the binary, verified against its own receipt.
    ///
    /// # Errors
    /// None, unless the binary was built from altered fixtures.
    pub fn demo() -> Result<Self, CheckpointError> {
        let bytes = |name| embedded(name).map_err(|source| CheckpointError::read(name, source));
        let receipt = Receipt::parse(RECEIPT_NAME, &bytes(RECEIPT_NAME)?)?;
        let files = Opened::with(ORIGIN, receipt.expected_files(), embedded).verify(&())?;
        Self::assemble(ORIGIN, &receipt, files.into_inner(), Some(&bytes(MARKOV_NAME)?))
    }
}
