//! What ptxas reports per entry point: registers, spills, stack, static shared memory.
//!
//! The report is the part of NVRTC's program log that `--ptxas-options=-v` adds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Resources of one entry point on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resources {
    /// Registers per thread.
    pub(crate) registers: u32,
    /// Bytes of local memory per thread that are not spills: arrays that could not be kept in
    /// registers.
    pub(crate) stack_bytes: u32,
    /// Bytes of spill stores.
    pub(crate) spill_store_bytes: u32,
    /// Bytes of spill loads.
    pub(crate) spill_load_bytes: u32,
    /// Bytes of static shared memory.
    pub(crate) shared_bytes: u32,
}

/// Reads the report of one program.
pub(crate) fn parse(log: &str) -> BTreeMap<String, Resources> {
    let mut entries: BTreeMap<String, Resources> = BTreeMap::new();
    let mut current = None;
    for line in log.lines() {
        if let Some(name) = quoted_after(line, "Compiling entry function") {
            entries.insert(name.clone(), Resources::default());
            current = Some(name);
            continue;
        }
        if let Some(name) = line.trim().split("Function properties for ").nth(1) {
            // Lines about device functions that were not inlined belong to no entry.
            current = entries.contains_key(name.trim()).then(|| name.trim().to_string());
            continue;
        }
        let Some(entry) = current.as_ref().and_then(|name| entries.get_mut(name)) else { continue };
        if line.contains("bytes stack frame") {
            entry.stack_bytes = number_before(line, " bytes stack frame");
            entry.spill_store_bytes = number_before(line, " bytes spill stores");
            entry.spill_load_bytes = number_before(line, " bytes spill loads");
        } else if line.contains("Used ") && line.contains(" registers") {
            entry.registers = number_before(line, " registers");
            entry.shared_bytes = number_before(line, " bytes smem");
        }
    }
    entries
}

fn quoted_after(line: &str, marker: &str) -> Option<String> {
    line.split(marker).nth(1)?.split('\'').nth(1).map(str::to_string)
}

/// The number that stands directly before `marker`; 0 when the report does not mention it.
fn number_before(line: &str, marker: &str) -> u32 {
    let Some(end) = line.find(marker) else { return 0 };
    let digits = line[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    line[digits..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read_per_entry() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'norm_rows' for 'sm_86'
ptxas info    : Function properties for norm_rows
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 48 registers, used 1 barriers, 16 bytes stack, 1040 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'other' for 'sm_86'
ptxas info    : Function properties for other
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]";
        let entries = parse(log);
        let norm = &entries["norm_rows"];
        assert_eq!((norm.registers, norm.shared_bytes), (48, 1040));
        assert_eq!((norm.stack_bytes, norm.spill_store_bytes, norm.spill_load_bytes), (16, 4, 8));
        assert_eq!(entries["other"], Resources { registers: 8, ..Resources::default() });
    }
}
