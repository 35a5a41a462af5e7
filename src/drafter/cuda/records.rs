//! The structures that host and kernels share, byte for byte as `kernels/*.cu*` declare them.

use zerocopy::{Immutable, IntoBytes};

/// Rows of the blocks, of the head and of an expert in a pass at most: `ROWS_MAX` of the kernels.
pub(super) const ROWS_MAX: usize = 32;
/// Context rows of a pass at most: `CONTEXT_ROWS` of the kernels.
pub(super) const CONTEXT_ROWS: usize = 512;
/// Rows of a job that takes the launch's own count.
pub(super) const ALL_ROWS: u32 = u32::MAX;

/// `Linear` of exl3.cuh.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct LinearRecord {
    pub(super) trellis: u64,
    pub(super) suh: u64,
    pub(super) svh: u64,
    pub(super) bias: u64,
    pub(super) in_features: u32,
    pub(super) out_features: u32,
    pub(super) row_tiles: u32,
    pub(super) kind: u32,
    pub(super) splits: u32,
    pub(super) pad: [u32; 3],
}

/// `Job` of exl3.cuh.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct JobRecord {
    pub(super) y: u64,
    pub(super) linear: u32,
    pub(super) rows: u32,
    pub(super) row0: u32,
    pub(super) part: u32,
    pub(super) pitch: u32,
    pub(super) x_col: u32,
    pub(super) y_pitch: u32,
    pub(super) pad: u32,
}

/// `Route` of moe.cu.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct RouteRecord {
    pub(super) experts: u32,
    pub(super) chosen: u32,
    pub(super) normalise: u32,
    pub(super) scale: f32,
    pub(super) first_linear: u32,
    pub(super) jobs: u32,
    pub(super) rows_max: u32,
    pub(super) gate_sums: u32,
    pub(super) down_sums: u32,
}

/// `Tables` of markov.cu.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct TablesRecord {
    pub(super) base: u64,
    pub(super) head: u64,
    pub(super) embed: u64,
    pub(super) head_norm: u64,
    pub(super) embed_norm: u64,
    pub(super) slots: u64,
    pub(super) bias: u64,
    pub(super) head_format: u32,
    pub(super) embed_format: u32,
    pub(super) vocab: u32,
    pub(super) rank: u32,
    pub(super) round: u32,
    pub(super) positions: u32,
}

/// Bytes of `Top` of markov.cu.
pub(super) const TOP_BYTES: usize = 16;

/// A size or index as kernels take it.
pub(super) fn word(value: usize) -> u32 {
    u32::try_from(value)
        .expect("sizes of a drafter fit 32 bits; its checkpoint's shapes were checked")
}
