//! EXL3 weights: decoding the trellis and multiplying with it on the CPU.
//!
//! A quantised linear layer is stored as 16 x 16 tiles of a tail-biting trellis, one scale per input
//! and one per output feature:
//!
//! ```text
//! W = diag(suh) · H_in · W_inner · H_out · diag(svh)        y = x · W + bias
//! ```
//!
//! with `W_inner` `[in, out]` the decoded trellis and `H` block-diagonal Hadamard matrices over runs of
//! 128 features. [`trellis`] turns packed words into 16-bit states, [`Codebook`] states into values,
//! [`hadamard`] rotates, and [`Exl3Linear`] puts them together. A block-diagonal layer (`wo_a.slice.g`)
//! is one [`Exl3Linear`] per slice; the same layer stored as one matrix is cut with
//! [`Exl3Linear::output_columns`].
//!
//! The module knows nothing of the model, of tensor names or of files: callers hand over bytes and add
//! the tensor's name to an [`Exl3Error`]. The format is that of `turboderp-org/exllamav3`,
//! `exllamav3_ext/quant`; the contract asks only for the identity of the files (contract §6.2).
#![forbid(unsafe_code)]

mod codebook;
pub mod hadamard;
mod linear;
mod product;
pub mod trellis;

pub use codebook::{Codebook, MCG_MARKER, MUL1_MARKER};
pub use linear::{Exl3Linear, Exl3Parts, Packed, Scales};
pub use product::InputRounding;
pub use trellis::Width;

use std::fmt;

/// The side of a layer a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Input features: `suh` or `su`, dimension 0 of the trellis.
    Input,
    /// Output features: `svh` or `sv`, dimension 1 of the trellis.
    Output,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Side::Input => "input",
            Side::Output => "output",
        })
    }
}

/// Why tensors do not form an EXL3 layer. The caller knows the tensor's name and adds it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Exl3Error {
    /// Both codebook markers are present.
    #[error("has the markers mul1 and mcg, at most one may be present")]
    BothMarkers,
    /// A marker that is not the multiplier of its codebook.
    #[error("marker {marker} is {found} ({found:#010x}), expected {expected} ({expected:#010x})")]
    MarkerValue {
        /// `mul1` or `mcg`.
        marker: &'static str,
        /// The codebook's multiplier.
        expected: i32,
        /// What the file holds.
        found: i32,
    },
    /// The last dimension of the trellis is no known width.
    #[error("trellis has {words} words a tile, expected 16·K for K 1 to 8, 1.5, 2.5 or 3.5")]
    UnknownWidth {
        /// `trellis.shape[2]`.
        words: usize,
    },
    /// A half width with a codebook that has none.
    #[error("width {width} exists with codebook mul1 only, not with {codebook}")]
    HalfWidth {
        /// The width found.
        width: Width,
        /// The codebook found.
        codebook: Codebook,
    },
    /// A feature count that the Hadamard blocks do not divide.
    #[error("trellis has {tiles} {side} tiles of 16 features, expected a positive multiple of 8")]
    Features {
        /// Which dimension.
        side: Side,
        /// That dimension.
        tiles: usize,
    },
    /// Fewer or more trellis bytes than the shape says.
    #[error("trellis of shape {shape:?} has {found} bytes, expected two a word")]
    TrellisBytes {
        /// The shape stored with the tensor.
        shape: [usize; 3],
        /// Bytes present.
        found: usize,
    },
    /// Scales that do not match the trellis.
    #[error("{side} scales have {found} bytes, expected {expected} for {features} features")]
    ScaleBytes {
        /// Which scales.
        side: Side,
        /// Features of that side.
        features: usize,
        /// Bytes that many scales take.
        expected: usize,
        /// Bytes present.
        found: usize,
    },
    /// A scale that is infinite or no number.
    #[error("{side} scale {index} is {value}")]
    ScaleNotFinite {
        /// Which scales.
        side: Side,
        /// Feature.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A bias that does not match the trellis.
    #[error("bias has {found} values, expected {expected}")]
    BiasLength {
        /// Output features.
        expected: usize,
        /// Values present.
        found: usize,
    },
    /// A bias that is infinite or no number.
    #[error("bias {index} is {value}")]
    BiasNotFinite {
        /// Output feature.
        index: usize,
        /// The value.
        value: f32,
    },
    /// Columns that cannot be cut out: outside, empty, or through a Hadamard block.
    #[error("columns {start}..{end} of {out_features} are not a run of whole blocks of 128")]
    Columns {
        /// First column.
        start: usize,
        /// End, exclusive.
        end: usize,
        /// Columns there are.
        out_features: usize,
    },
}
