//! `kernels --check`: do sources, pack and manifest belong together, and do the gates hold.
//!
//! Without a compiler the hashes and gates are still checked and the rebuild counts as skipped.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::manifest::{FileHash, Manifest};
use crate::pack::{self, Image};
use crate::{build, gates, sources, toolchain};

/// Above this a pack no longer belongs into every binary.
const PACK_BYTES_MAX: usize = 4 << 20;

/// How the checks went.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Summary {
    fn note(&mut self, what: &str, holds: bool, detail: &str) {
        if holds {
            self.passed += 1;
        } else {
            self.failed += 1;
            println!("FAILED  {what}: {detail}");
        }
    }

    fn skip(&mut self, what: &str, why: &str) {
        self.skipped += 1;
        println!("skipped {what}: {why}");
    }
}

/// Runs every check on `folder`.
///
/// # Errors
/// When the committed files cannot be read at all, or a source does not compile.
pub(crate) fn run(root: &Path, folder: &Path) -> Result<Summary> {
    let (pack_bytes, text) = build::prebuilt_files(folder)?;
    let manifest: Manifest = serde_json::from_str(&text).context("read manifest.json")?;
    let images = pack::decode(&pack_bytes)?;
    let mut summary = Summary::default();

    check_sources(&mut summary, folder, &manifest)?;
    check_pack(&mut summary, &manifest, &pack_bytes, &images);
    match toolchain::find(root) {
        Ok(tools) => {
            let built = build::build(&tools, folder, Some(&manifest))?;
            check_rebuild(&mut summary, &images, &built);
            summary.note("kernels.pack", built.pack == pack_bytes, "differs from the rebuild");
            summary.note(
                "manifest.json",
                built.manifest.to_text()? == text,
                "differs from the rebuild",
            );
        }
        Err(error) => summary.skip("rebuild", &format!("{error:#}")),
    }
    for verdict in gates::apply(&gates::read(folder)?, &manifest) {
        for reason in &verdict.unchecked {
            summary.skip(&verdict.subject, reason);
        }
        summary.note(&verdict.subject, verdict.faults.is_empty(), &verdict.faults.join(", "));
    }
    Ok(summary)
}

fn check_sources(summary: &mut Summary, folder: &Path, manifest: &Manifest) -> Result<()> {
    let stale = "changed since the pack was built; run `cargo run -p xtask -- kernels`";
    let sources = sources::read(folder)?;
    for source in &sources {
        let record = manifest.sources.iter().find(|record| record.source.file == source.file);
        let same = record.is_some_and(|record| {
            let headers: Vec<FileHash> = source
                .headers
                .iter()
                .map(|(name, text)| FileHash::of(name, text.as_bytes()))
                .collect();
            record.source == FileHash::of(&source.file, source.text.as_bytes())
                && record.headers == headers
        });
        summary.note(&source.file, same, stale);
    }
    for record in &manifest.sources {
        let there = sources.iter().any(|source| source.file == record.source.file);
        if !there {
            summary.note(&record.source.file, false, "in the manifest, but the file is gone");
        }
    }
    Ok(())
}

fn check_pack(summary: &mut Summary, manifest: &Manifest, bytes: &[u8], images: &[Image]) {
    let recorded = FileHash::of(&manifest.pack.file, bytes);
    summary.note("pack hash", recorded == manifest.pack, "not the manifest's");
    let small = bytes.len() <= PACK_BYTES_MAX;
    summary.note("pack size", small, &format!("{} bytes > {PACK_BYTES_MAX}", bytes.len()));
    let records: Vec<_> = manifest.sources.iter().flat_map(|source| &source.images).collect();
    let same = records.len() == images.len()
        && records.iter().zip(images).all(|(record, image)| {
            record.arch == image.arch && record.sha256 == sources::sha256_hex(&image.bytes)
        });
    summary.note("images", same, "not the manifest's");
}

fn check_rebuild(summary: &mut Summary, committed: &[Image], built: &build::Built) {
    for line in &built.skipped {
        summary.skip("instruction counts", line);
    }
    for image in &built.images {
        let what = format!("{} {} rebuild", image.name, image.arch);
        summary.note(&what, committed.contains(image), "other bytes than committed");
    }
}
