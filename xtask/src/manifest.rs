//! `manifest.json`: what the pack was made from and what the compiler said about it.
//!
//! It is committed beside the pack so that a review shows a kernel's registers or instruction
//! counts change, and so that a test without tools can tell that sources and pack belong together.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::resources::Resources;
use crate::sass::Counts;

/// The whole file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Version of this layout.
    pub(crate) format: u32,
    /// Compiler and its full version, such as `nvrtc 12.9.86`.
    pub(crate) compiler: String,
    /// Options of every image, beside architecture and include path.
    pub(crate) options: Vec<String>,
    /// The pack.
    pub(crate) pack: FileHash,
    /// Per source file, sorted by name.
    pub(crate) sources: Vec<SourceRecord>,
}

/// A file by hash and size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileHash {
    /// File name.
    pub(crate) file: String,
    /// SHA-256, hexadecimal.
    pub(crate) sha256: String,
    /// Bytes.
    pub(crate) bytes: usize,
}

/// One translation unit and its images.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SourceRecord {
    /// The `.cu` file.
    #[serde(flatten)]
    pub(crate) source: FileHash,
    /// Project headers it includes.
    pub(crate) headers: Vec<FileHash>,
    /// Images in pack order.
    pub(crate) images: Vec<ImageRecord>,
}

/// One image of a source.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    /// Architecture, `sm_…` or `compute_…`.
    pub(crate) arch: String,
    /// SHA-256 of the image, hexadecimal.
    pub(crate) sha256: String,
    /// Bytes of the image.
    pub(crate) bytes: usize,
    /// Per entry point; empty numbers for PTX, which has no registers yet.
    pub(crate) entries: BTreeMap<String, EntryRecord>,
}

/// One entry point on one architecture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EntryRecord {
    /// ptxas' report.
    #[serde(flatten)]
    pub(crate) resources: Resources,
    /// Instruction counts, where a disassembler was at hand.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) instructions: Option<Counts>,
}

impl Manifest {
    /// The file's text, ending in a newline.
    ///
    /// # Errors
    /// Never in practice: every key is a string.
    pub(crate) fn to_text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The image with this hash, if the manifest has one.
    pub(crate) fn image_with_hash(&self, sha256: &str) -> Option<&ImageRecord> {
        self.sources.iter().flat_map(|source| &source.images).find(|image| image.sha256 == sha256)
    }
}

impl FileHash {
    /// Hashes `bytes` as `file`.
    pub(crate) fn of(file: &str, bytes: &[u8]) -> Self {
        let sha256 = crate::sources::sha256_hex(bytes);
        Self { file: file.to_string(), sha256, bytes: bytes.len() }
    }
}
