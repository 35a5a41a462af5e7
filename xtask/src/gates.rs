//! Static gates per entry point and image, from `kernels/gates.json`.
//!
//! ```json
//! {
//!   "default":  { "registers": 128, "shared_bytes": 49152 },
//!   "entries": {
//!     "exl3_gemm_*": { "registers": 96, "hmma": 8, "ldg128": 1,
//!                      "threads": 256, "dynamic_shared_bytes": 20480, "blocks_per_sm": 2 },
//!     "exl3_gemm_*_k8": { "blocks_per_sm": 1 }
//!   }
//! }
//! ```
//!
//! Spills, stack and local loads and stores are always 0. `registers` and `shared_bytes` are upper
//! bounds, the instruction names lower bounds (unrolling changes counts between architectures).
//! `blocks_per_sm` is an occupancy floor and wants `threads`; all names of `entries` that match
//! (one `*` stands for any run of characters) apply, the longest last.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::manifest::{EntryRecord, Manifest};
use crate::occupancy::blocks_per_sm;

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gates {
    #[serde(default)]
    default: Gate,
    #[serde(default)]
    entries: BTreeMap<String, Gate>,
}

/// Bounds of an entry point; what is absent is not checked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gate {
    registers: Option<u32>,
    shared_bytes: Option<u32>,
    threads: Option<u32>,
    dynamic_shared_bytes: Option<u32>,
    blocks_per_sm: Option<u32>,
    hmma: Option<u32>,
    ldg128: Option<u32>,
    ldgsts128: Option<u32>,
    ldsm: Option<u32>,
}

/// The verdict on one entry point of one image.
pub(crate) struct Verdict {
    /// Source, architecture and entry point.
    pub(crate) subject: String,
    /// What is out of bounds.
    pub(crate) faults: Vec<String>,
    /// What could not be checked.
    pub(crate) unchecked: Vec<String>,
}

/// Reads `gates.json`.
///
/// # Errors
/// When the file is not there or cannot be understood.
pub(crate) fn read(folder: &Path) -> Result<Gates> {
    let path = folder.join("gates.json");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
}

/// Applies the gates to every entry point of every cubin.
pub(crate) fn apply(gates: &Gates, manifest: &Manifest) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for source in &manifest.sources {
        for image in &source.images {
            for (name, entry) in &image.entries {
                let subject = format!("{} {} {name}", source.source.file, image.arch);
                verdicts.push(judge(&gates.for_entry(name), subject, &image.arch, entry));
            }
        }
    }
    for name in gates.unused(manifest) {
        let fault = "matches no entry point".to_string();
        verdicts.push(Verdict {
            subject: format!("gates.json \"{name}\""),
            faults: vec![fault],
            unchecked: Vec::new(),
        });
    }
    verdicts
}

fn judge(gate: &Gate, subject: String, arch: &str, entry: &EntryRecord) -> Verdict {
    let mut faults = Vec::new();
    let mut unchecked = Vec::new();
    let used = &entry.resources;
    let mut at_most = |what: &str, value: u32, bound: Option<u32>| {
        if let Some(bound) = bound.filter(|bound| value > *bound) {
            faults.push(format!("{what} {value} > {bound}"));
        }
    };
    at_most("spill store bytes", used.spill_store_bytes, Some(0));
    at_most("spill load bytes", used.spill_load_bytes, Some(0));
    at_most("stack bytes", used.stack_bytes, Some(0));
    at_most("registers", used.registers, gate.registers);
    at_most("shared bytes", used.shared_bytes, gate.shared_bytes);
    match &entry.instructions {
        Some(counts) => {
            at_most("local loads and stores", counts.local, Some(0));
            let bounds = [
                ("HMMA", counts.hmma, gate.hmma),
                ("LDG.128", counts.ldg128, gate.ldg128),
                ("LDGSTS.128", counts.ldgsts128, gate.ldgsts128),
                ("LDSM", counts.ldsm, gate.ldsm),
            ];
            for (what, value, bound) in bounds {
                if let Some(bound) = bound.filter(|bound| value < *bound) {
                    faults.push(format!("{what} {value} < {bound}"));
                }
            }
        }
        None => unchecked.push("instruction counts were not recorded".to_string()),
    }
    if let Some(floor) = gate.blocks_per_sm {
        let threads = gate.threads.unwrap_or(1024);
        let shared = used.shared_bytes + gate.dynamic_shared_bytes.unwrap_or(0);
        match blocks_per_sm(arch, used.registers, threads, shared) {
            Some(blocks) if blocks < floor => {
                faults.push(format!("blocks per SM {blocks} < {floor}"))
            }
            Some(_) => {}
            None => unchecked.push(format!("occupancy of {arch} is not tabulated")),
        }
    }
    Verdict { subject, faults, unchecked }
}

impl Gates {
    fn for_entry(&self, name: &str) -> Gate {
        let mut matching: Vec<&String> =
            self.entries.keys().filter(|pattern| matches(pattern, name)).collect();
        matching.sort_by_key(|pattern| pattern.len());
        matching
            .into_iter()
            .fold(self.default.clone(), |gate, pattern| gate.overridden_by(&self.entries[pattern]))
    }

    fn unused(&self, manifest: &Manifest) -> Vec<&String> {
        let names: Vec<&String> = manifest
            .sources
            .iter()
            .flat_map(|source| &source.images)
            .flat_map(|image| image.entries.keys())
            .collect();
        let is_unused = |pattern: &&String| !names.iter().any(|name| matches(pattern, name));
        self.entries.keys().filter(is_unused).collect()
    }
}

impl Gate {
    fn overridden_by(&self, other: &Gate) -> Gate {
        Gate {
            registers: other.registers.or(self.registers),
            shared_bytes: other.shared_bytes.or(self.shared_bytes),
            threads: other.threads.or(self.threads),
            dynamic_shared_bytes: other.dynamic_shared_bytes.or(self.dynamic_shared_bytes),
            blocks_per_sm: other.blocks_per_sm.or(self.blocks_per_sm),
            hmma: other.hmma.or(self.hmma),
            ldg128: other.ldg128.or(self.ldg128),
            ldgsts128: other.ldgsts128.or(self.ldgsts128),
            ldsm: other.ldsm.or(self.ldsm),
        }
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Resources;
    use crate::sass::Counts;

    fn gates() -> Gates {
        serde_json::from_str(
            r#"{ "default": { "registers": 64 },
                 "entries": { "gemm_*": { "hmma": 8 }, "gemm_wide": { "registers": 128 } } }"#,
        )
        .unwrap()
    }

    fn entry(registers: u32, hmma: u32, spill: u32) -> EntryRecord {
        EntryRecord {
            resources: Resources { registers, spill_load_bytes: spill, ..Resources::default() },
            instructions: Some(Counts { hmma, ..Counts::default() }),
        }
    }

    fn faults(name: &str, entry: &EntryRecord) -> usize {
        judge(&gates().for_entry(name), String::new(), "sm_86", entry).faults.len()
    }

    #[test]
    fn the_longest_matching_name_decides() {
        assert_eq!(faults("gemm_wide", &entry(128, 8, 0)), 0);
        assert_eq!(faults("gemm_small", &entry(128, 8, 0)), 1);
        assert_eq!(faults("norm", &entry(64, 0, 0)), 0);
    }

    #[test]
    fn a_star_stands_anywhere_in_a_name_but_nothing_overlaps_it() {
        assert!(matches("gemm_*_k8", "gemm_mul1_k8") && matches("gemm_*", "gemm_"));
        assert!(!matches("gemm_*_k8", "gemm_mul1_k5") && !matches("gemm_*_k8", "gemm_k8"));
    }

    #[test]
    fn too_few_blocks_on_a_multiprocessor_are_a_fault() {
        let gate =
            |floor| Gate { threads: Some(256), blocks_per_sm: Some(floor), ..Gate::default() };
        let faults = |floor| judge(&gate(floor), String::new(), "sm_86", &entry(64, 0, 0)).faults;
        assert!(faults(4).is_empty());
        assert_eq!(faults(5), ["blocks per SM 4 < 5"]);
    }

    #[test]
    fn missing_instructions_and_spills_are_faults() {
        assert_eq!(faults("gemm_small", &entry(64, 7, 0)), 1);
        assert_eq!(faults("norm", &entry(64, 0, 4)), 1);
    }
}
