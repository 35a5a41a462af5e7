//! What the build says of the embedded kernels: the manifest, and the gates they passed.

use std::collections::BTreeMap;

use serde::Deserialize;

const MANIFEST: &str = include_str!("../../kernels/prebuilt/manifest.json");
const GATES: &str = include_str!("../../kernels/gates.json");

/// `kernels/prebuilt/manifest.json`, as far as it is compared.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) compiler: String,
    pub(super) pack: Pack,
    sources: Vec<Source>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Pack {
    pub(super) sha256: String,
}

#[derive(Debug, Deserialize)]
struct Source {
    file: String,
    images: Vec<ImageRecord>,
}

#[derive(Debug, Deserialize)]
struct ImageRecord {
    arch: String,
    /// None for PTX, of which the driver makes what it likes.
    entries: BTreeMap<String, Entry>,
}

/// Resources of a kernel as the compiler states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Entry {
    pub(super) registers: u32,
    pub(super) stack_bytes: u32,
    pub(super) shared_bytes: u32,
}

impl Manifest {
    /// The manifest of this build.
    pub(super) fn embedded() -> Self {
        serde_json::from_str(MANIFEST).expect("a test reads the manifest")
    }

    /// What it says of a kernel in machine code for `arch`.
    pub(super) fn entry(&self, source: &str, arch: &str, kernel: &str) -> Option<Entry> {
        let source = self.sources.iter().find(|s| s.file.strip_suffix(".cu") == Some(source))?;
        let image = source.images.iter().find(|image| image.arch == arch)?;
        image.entries.get(kernel).copied()
    }
}

/// `kernels/gates.json`, as far as the driver can answer for it.
#[derive(Debug, Deserialize)]
pub(super) struct Gates {
    default: Gate,
    entries: BTreeMap<String, Gate>,
}

/// What occupancy is asked of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Gate {
    /// Dynamic shared memory of a block.
    pub(super) dynamic_shared_bytes: Option<u32>,
    /// Blocks of a multiprocessor at least.
    pub(super) blocks_per_sm: Option<u32>,
}

impl Gates {
    /// The gates of this build.
    pub(super) fn embedded() -> Self {
        serde_json::from_str(GATES).expect("a test reads the gates")
    }

    /// The gate of a kernel: all names that match apply, the longest last.
    pub(super) fn of(&self, kernel: &str) -> Gate {
        let mut names: Vec<_> =
            self.entries.iter().filter(|(name, _)| matches(name, kernel)).collect();
        names.sort_by_key(|(name, _)| name.len());
        names.into_iter().fold(self.default, |gate, (_, next)| Gate {
            dynamic_shared_bytes: next.dynamic_shared_bytes.or(gate.dynamic_shared_bytes),
            blocks_per_sm: next.blocks_per_sm.or(gate.blocks_per_sm),
        })
    }
}

/// Whether a name of the gates means a kernel: one `*` stands for any run of characters.
fn matches(name: &str, kernel: &str) -> bool {
    match name.split_once('*') {
        Some((start, end)) => kernel.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
        None => name == kernel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_and_gates_know_the_kernels() {
        let (manifest, gates) = (Manifest::embedded(), Gates::embedded());
        assert_eq!(manifest.pack.sha256.len(), 64);
        for arch in ["sm_86", "sm_90a", "sm_120"] {
            let entry = manifest.entry("exl3_gemm", arch, "exl3_gemm_mul1_k5");
            assert!(entry.is_some_and(|entry| entry.registers > 0 && entry.stack_bytes == 0));
        }
        assert_eq!(manifest.entry("exl3_gemm", "compute_80", "exl3_gemm_mul1_k5"), None);
        let gate = gates.of("exl3_gemm_mul1_k5");
        assert!(gate.dynamic_shared_bytes.is_some() && gate.blocks_per_sm.is_some());
        assert_ne!(gate, gates.of("norm_rotate"));
    }

    #[test]
    fn the_longest_matching_gate_has_the_last_word() {
        let text = r#"{ "default": { "blocks_per_sm": 4 }, "entries": {
            "a_*": { "blocks_per_sm": 2, "dynamic_shared_bytes": 100 },
            "a_*_k8": { "blocks_per_sm": 1 }, "b": {} } }"#;
        let gates: Gates = serde_json::from_str(text).unwrap();
        let gate = |dynamic_shared_bytes, blocks| Gate {
            dynamic_shared_bytes,
            blocks_per_sm: Some(blocks),
        };
        assert_eq!(gates.of("a_x_k8"), gate(Some(100), 1));
        assert_eq!(gates.of("a_x_k4"), gate(Some(100), 2));
        assert_eq!(gates.of("b"), gate(None, 4));
        assert_eq!(gates.of("bb"), gate(None, 4));
    }
}
