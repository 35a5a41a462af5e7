//! Instruction counts of the machine code: is the tensor core used, are loads wide, is local
//! memory untouched.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// How often the instructions a kernel is built around occur in its code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Tensor-core products (`HMMA`).
    pub(crate) hmma: u32,
    /// Plain 16-byte loads from global memory (`LDG.E.128`).
    pub(crate) ldg128: u32,
    /// Asynchronous 16-byte copies into shared memory (`LDGSTS…128`).
    pub(crate) ldgsts128: u32,
    /// Matrix loads from shared memory (`LDSM`).
    pub(crate) ldsm: u32,
    /// Loads from and stores to local memory (`LDL`, `STL`).
    pub(crate) local: u32,
}

/// Disassembles a cubin and counts per entry point.
///
/// # Errors
/// When `nvdisasm` cannot be run or does not know the file.
pub(crate) fn count(nvdisasm: &Path, cubin: &[u8]) -> Result<BTreeMap<String, Counts>> {
    let file = std::env::temp_dir().join(format!("xtask-{}.cubin", std::process::id()));
    std::fs::write(&file, cubin).with_context(|| format!("write {}", file.display()))?;
    let output = Command::new(nvdisasm).arg("-c").arg(&file).output();
    std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
    let output = output.with_context(|| format!("run {}", nvdisasm.display()))?;
    if !output.status.success() {
        bail!("nvdisasm: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

fn parse(listing: &str) -> BTreeMap<String, Counts> {
    let mut entries: BTreeMap<String, Counts> = BTreeMap::new();
    let mut current = None;
    for line in listing.lines() {
        if let Some(section) = line.trim().strip_prefix(".section\t") {
            current = section.trim().split([',', ' ', '\t']).next().and_then(text_section);
            if let Some(name) = &current {
                entries.entry(name.clone()).or_default();
            }
            continue;
        }
        let Some(counts) = current.as_ref().and_then(|name| entries.get_mut(name)) else {
            continue;
        };
        let code = line.split("*/").nth(1).unwrap_or("").trim();
        let code = code
            .strip_prefix('@')
            .and_then(|rest| rest.split_once(' '))
            .map_or(code, |(_, rest)| rest.trim());
        counts.add(code.split([' ', ';']).next().unwrap_or(""));
    }
    entries
}

fn text_section(name: &str) -> Option<String> {
    name.strip_prefix(".text.").map(str::to_string)
}

impl Counts {
    fn add(&mut self, opcode: &str) {
        let wide = opcode.split('.').any(|part| part == "128");
        match opcode.split('.').next().unwrap_or("") {
            "HMMA" => self.hmma += 1,
            "LDG" if wide => self.ldg128 += 1,
            "LDGSTS" if wide => self.ldgsts128 += 1,
            "LDSM" => self.ldsm += 1,
            "LDL" | "STL" => self.local += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_count_for_the_section_they_stand_in() {
        let listing = "\
\t.section\t.text.gemm,\"ax\",@progbits
\t.sectionflags\t@\"SHF_BARRIERS=1\"
        /*0010*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0020*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0030*/                   LDG.E R4, [R2.64] ;
        /*0040*/                   LDGSTS.E.BYPASS.128 [R0], [R2.64] ;
\t.section\t.text.other,\"ax\",@progbits
        /*0010*/                   STL [R1], R4 ;";
        let entries = parse(listing);
        let gemm = Counts { hmma: 1, ldg128: 1, ldgsts128: 1, ..Counts::default() };
        assert_eq!(entries["gemm"], gemm);
        assert_eq!(entries["other"], Counts { local: 1, ..Counts::default() });
    }
}
