//! The kernel sources: every `*.cu` of a folder with the headers it includes, and their hashes.
//!
//! Only `#include "name"` of the same folder counts as a header of the project; `<cuda_fp16.h>`
//! and its like belong to the pinned toolchain.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// One translation unit.
pub(crate) struct KernelSource {
    /// File name, such as `norm.cu`.
    pub(crate) file: String,
    /// File name without `.cu`: the name of its images.
    pub(crate) stem: String,
    /// The text.
    pub(crate) text: String,
    /// Headers it includes, directly or through another, by name.
    pub(crate) headers: Vec<(String, String)>,
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Reads all sources of `folder`, sorted by name.
///
/// # Errors
/// When a file cannot be read or includes a header that is not there.
pub(crate) fn read(folder: &Path) -> Result<Vec<KernelSource>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".cu") {
            files.push(name);
        }
    }
    files.sort();
    files.into_iter().map(|file| read_one(folder, file)).collect()
}

fn read_one(folder: &Path, file: String) -> Result<KernelSource> {
    let text = read_text(folder, &file)?;
    let mut headers = BTreeMap::new();
    collect_headers(folder, &file, &text, &mut headers)?;
    let stem = file.trim_end_matches(".cu").to_string();
    Ok(KernelSource { file, stem, text, headers: headers.into_iter().collect() })
}

fn collect_headers(
    folder: &Path,
    file: &str,
    text: &str,
    headers: &mut BTreeMap<String, String>,
) -> Result<()> {
    for name in included(text) {
        if headers.contains_key(name) {
            continue;
        }
        if name.contains('/') {
            bail!("{file} includes \"{name}\": kernel headers lie beside the sources");
        }
        let header = read_text(folder, name).with_context(|| format!("included by {file}"))?;
        headers.insert(name.to_string(), header.clone());
        collect_headers(folder, name, &header, headers)?;
    }
    Ok(())
}

fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
        rest.trim_start().strip_prefix('"')?.split('"').next()
    })
}

fn read_text(folder: &Path, name: &str) -> Result<String> {
    let path = folder.join(name);
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_headers_are_found_once_and_system_headers_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("a.cu", "#include <cuda_fp16.h>\n#include \"b.cuh\"\n# include \"c.cuh\"\n");
        write("b.cuh", "#include \"c.cuh\"\n");
        write("c.cuh", "#pragma once\n");
        let sources = read(folder.path()).unwrap();
        assert_eq!(sources.len(), 1);
        let names: Vec<_> = sources[0].headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b.cuh", "c.cuh"]);
    }

    #[test]
    fn a_missing_header_names_header_and_source() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.cu"), "#include \"gone.cuh\"\n").unwrap();
        let error = format!("{:#}", read(folder.path()).err().unwrap());
        assert!(error.contains("gone.cuh") && error.contains("a.cu"), "{error}");
    }
}
