//! The two versions of the product kernel: for the few rows of a round, and for the many of a prompt's end.
//!
//! Both give a row the same bits (kernels/exl3_product.cuh), so that which one ran does not show.

use super::linears::Kind;
use super::records::ROWS_MAX;

/// Rows of a group, one B operand of a tensor core instruction.
const GROUP: usize = 8;

/// A version of the product kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Product {
    /// Its source, with which the names of its kernels start.
    pub(super) source: &'static str,
    /// Rows of a tile: eight times `GROUPS` of the source.
    rows: usize,
    /// `STAGES` of the source.
    stages: usize,
}

impl Product {
    /// Both versions.
    pub(super) const ALL: [Self; 2] = [
        Self { source: "exl3_gemm", rows: ROWS_MAX, stages: 4 },
        Self { source: "exl3_wide", rows: 128, stages: 2 },
    ];

    /// The version for launches of `rows` rows.
    pub(super) fn of(rows: usize) -> Self {
        let [narrow, wide] = Self::ALL;
        if rows <= narrow.rows { narrow } else { wide }
    }

    /// Tiles of a launch of `rows` rows.
    pub(super) fn tiles(self, rows: usize) -> usize {
        rows.div_ceil(self.rows).max(1)
    }

    /// Name of the kernel for layers of a kind.
    pub(super) fn kernel(self, kind: Kind) -> String {
        format!("{}_{}", self.source, kind.suffix())
    }

    /// Bytes of shared memory of a launch of `rows` rows.
    pub(super) fn shared(self, kind: Kind, rows: usize) -> usize {
        let rows = rows.min(self.rows).next_multiple_of(GROUP);
        self.stages * (1024 * kind.bits() + 144 * rows)
    }

    /// Of the largest launch.
    pub(super) fn shared_max(self, kind: Kind) -> usize {
        self.shared(kind, self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_kernel_of_each_version() {
        let names: Vec<String> = Product::ALL
            .into_iter()
            .flat_map(|version| Kind::all().map(move |kind| version.kernel(kind)))
            .collect();
        assert_eq!(names.len(), 42);
        assert!(names.contains(&"exl3_gemm_mul1_k5".into()));
        assert!(names.contains(&"exl3_gemm_3inst_k2".into()));
        assert!(names.contains(&"exl3_wide_mcg_k8".into()));
    }

    #[test]
    fn the_wide_version_begins_where_the_other_ends() {
        assert_eq!(Product::of(1).source, "exl3_gemm");
        assert_eq!(Product::of(32).source, "exl3_gemm");
        assert_eq!(Product::of(33).source, "exl3_wide");
        assert_eq!(Product::of(512).source, "exl3_wide");
        assert_eq!(
            [1, 32, 33, 128, 129, 512].map(|rows| Product::of(rows).tiles(rows)),
            [1, 1, 1, 1, 2, 4]
        );
    }
}
