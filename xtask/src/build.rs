//! Compiles every source for every architecture and puts pack and manifest together.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::manifest::{EntryRecord, FileHash, ImageRecord, Manifest, SourceRecord};
use crate::nvrtc::{Output, Source};
use crate::pack::{self, Image};
use crate::sources::{self, KernelSource, sha256_hex};
use crate::toolchain::{NVRTC_VERSION, Toolchain};
use crate::{resources, sass};

/// Architectures in pack order: the cards served, the one checked on, the newest consumer
/// generation, and PTX for everything else (and for the emulator).
const TARGETS: [(&str, Output); 4] = [
    ("sm_86", Output::Cubin),
    ("sm_90a", Output::Cubin),
    ("sm_120", Output::Cubin),
    ("compute_80", Output::Ptx),
];

/// Options of every image. Fast-math stays off: results are compared with the CPU backend.
const OPTIONS: [&str; 2] = ["--std=c++17", "--ptxas-options=-v"];

/// The PTX version written by 12.9 is refused by older drivers; the instructions used are of 7.0.
const PTX_VERSION: &str = "7.0";

const PACK_FILE: &str = "kernels.pack";
const MANIFEST_FILE: &str = "manifest.json";

/// Pack and manifest as they would be written.
pub(crate) struct Built {
    pub(crate) images: Vec<Image>,
    pub(crate) pack: Vec<u8>,
    pub(crate) manifest: Manifest,
    /// What could not be recorded, one line each.
    pub(crate) skipped: Vec<String>,
}

/// Compiles all sources of `folder`.
///
/// `previous` supplies instruction counts for unchanged images when there is no disassembler.
///
/// # Errors
/// When a source does not compile.
pub(crate) fn build(
    tools: &Toolchain,
    folder: &Path,
    previous: Option<&Manifest>,
) -> Result<Built> {
    let mut images = Vec::new();
    let mut records = Vec::new();
    let mut skipped = Vec::new();
    for source in sources::read(folder)? {
        let mut image_records = Vec::new();
        for (arch, output) in TARGETS {
            let (image, log) = compile(tools, &source, arch, output, &[])?;
            let sha256 = sha256_hex(&image.bytes);
            let counts = match (output, &tools.nvdisasm) {
                (Output::Ptx, _) => BTreeMap::new(),
                (Output::Cubin, Some(nvdisasm)) => sass::count(nvdisasm, &image.bytes)?,
                (Output::Cubin, None) => {
                    let known = previous.and_then(|manifest| manifest.image_with_hash(&sha256));
                    if known.is_none() {
                        skipped
                            .push(format!("{} {arch}: no disassembler, not counted", source.file));
                    }
                    recorded_counts(known)
                }
            };
            let entries = entries(&image, output, &log, counts)?;
            let bytes = image.bytes.len();
            image_records.push(ImageRecord { arch: arch.to_string(), sha256, bytes, entries });
            images.push(image);
        }
        records.push(source_record(&source, image_records));
    }
    let pack = pack::encode(&images)?;
    let manifest = Manifest {
        format: 1,
        compiler: format!("nvrtc {NVRTC_VERSION}"),
        options: OPTIONS.iter().map(|option| (*option).to_string()).collect(),
        pack: FileHash::of(PACK_FILE, &pack),
        sources: records,
    };
    Ok(Built { images, pack, manifest, skipped })
}

/// Writes `prebuilt/kernels.pack` and `prebuilt/manifest.json`.
///
/// # Errors
/// When the folder cannot be written.
pub(crate) fn write(built: &Built, folder: &Path) -> Result<()> {
    let prebuilt = folder.join("prebuilt");
    std::fs::create_dir_all(&prebuilt)?;
    std::fs::write(prebuilt.join(PACK_FILE), &built.pack)?;
    std::fs::write(prebuilt.join(MANIFEST_FILE), built.manifest.to_text()?)?;
    Ok(())
}

/// Writes single images to `out`: the folder a kernel developer points `DSPARK_KERNEL_DIR` at.
///
/// # Errors
/// When a source does not compile or no source has a wanted name.
pub(crate) fn write_loose(
    tools: &Toolchain,
    folder: &Path,
    out: &Path,
    only: &[String],
    options: &[String],
) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let sources = sources::read(folder)?;
    if let Some(stem) = only.iter().find(|stem| !sources.iter().any(|source| source.stem == **stem))
    {
        bail!("{} has no {stem}.cu", folder.display());
    }
    for source in sources.iter().filter(|source| only.is_empty() || only.contains(&source.stem)) {
        for (arch, output) in TARGETS {
            let (image, log) = compile(tools, source, arch, output, options)?;
            let extension = if output == Output::Ptx { "ptx" } else { "cubin" };
            let file = out.join(format!("{}.{arch}.{extension}", source.stem));
            std::fs::write(&file, &image.bytes)
                .with_context(|| format!("write {}", file.display()))?;
            for (entry, used) in resources::parse(&log) {
                println!(
                    "{} {arch} {entry}: {} registers, {} + {} bytes spilled, {} stack, {} shared",
                    source.file,
                    used.registers,
                    used.spill_store_bytes,
                    used.spill_load_bytes,
                    used.stack_bytes,
                    used.shared_bytes
                );
            }
        }
    }
    Ok(())
}

/// The manifest that is committed, if it can be read.
pub(crate) fn prebuilt_manifest(folder: &Path) -> Option<Manifest> {
    let text = std::fs::read_to_string(folder.join("prebuilt").join(MANIFEST_FILE)).ok()?;
    serde_json::from_str(&text).ok()
}

/// The pack and manifest bytes that are committed.
///
/// # Errors
/// When one of them is missing.
pub(crate) fn prebuilt_files(folder: &Path) -> Result<(Vec<u8>, String)> {
    let prebuilt = folder.join("prebuilt");
    let pack = prebuilt.join(PACK_FILE);
    let manifest = prebuilt.join(MANIFEST_FILE);
    let pack = std::fs::read(&pack).with_context(|| format!("read {}", pack.display()))?;
    let text = std::fs::read_to_string(&manifest)
        .with_context(|| format!("read {}", manifest.display()))?;
    Ok((pack, text))
}

impl Built {
    /// A few lines for the person who ran the build.
    pub(crate) fn describe(&self) -> String {
        let total: usize = self.images.iter().map(|image| image.bytes.len()).sum();
        let mut text: String = self.skipped.iter().map(|line| format!("{line}\n")).collect();
        text += &format!(
            "{} sources, {} images, {total} bytes, packed {}",
            self.manifest.sources.len(),
            self.images.len(),
            self.pack.len()
        );
        text
    }
}

fn compile(
    tools: &Toolchain,
    source: &KernelSource,
    arch: &str,
    output: Output,
    extra: &[String],
) -> Result<(Image, String)> {
    let mut options = vec![format!("--gpu-architecture={arch}")];
    // ptxas does not run for PTX, and NVRTC warns about options it then ignores.
    let common =
        OPTIONS.iter().filter(|option| output == Output::Cubin || !option.contains("ptxas"));
    options.extend(common.map(|option| (*option).to_string()));
    options.push(format!("--include-path={}", tools.include.display()));
    options.extend(extra.iter().cloned());
    let input = Source { name: &source.file, text: &source.text, headers: &source.headers };
    let compiled = tools.nvrtc.compile(&input, &options, output)?;
    for line in compiled.log.lines().filter(|line| line.contains("warning")) {
        eprintln!("{arch}: {line}");
    }
    let bytes = match output {
        Output::Cubin => compiled.image,
        Output::Ptx => lower_version(&compiled.image)?,
    };
    let image = Image { name: source.stem.clone(), arch: arch.to_string(), bytes };
    Ok((image, compiled.log))
}

/// Rewrites the `.version` line of PTX text.
fn lower_version(ptx: &[u8]) -> Result<Vec<u8>> {
    let text = std::str::from_utf8(ptx).context("PTX is not text")?;
    let Some(line) = text.lines().find(|line| line.starts_with(".version ")) else {
        bail!("PTX has no .version line");
    };
    Ok(text.replacen(line, &format!(".version {PTX_VERSION}"), 1).into_bytes())
}

fn entries(
    image: &Image,
    output: Output,
    log: &str,
    counts: BTreeMap<String, sass::Counts>,
) -> Result<BTreeMap<String, EntryRecord>> {
    if output == Output::Ptx {
        return Ok(BTreeMap::new());
    }
    let reported = resources::parse(log);
    if reported.is_empty() {
        bail!("{} {}: the compiler reported no entry point", image.name, image.arch);
    }
    let record = |(name, resources): (String, _)| {
        let instructions = counts.get(&name).cloned();
        (name, EntryRecord { resources, instructions })
    };
    Ok(reported.into_iter().map(record).collect())
}

fn recorded_counts(image: Option<&ImageRecord>) -> BTreeMap<String, sass::Counts> {
    let entries = image.map(|image| &image.entries).into_iter().flatten();
    entries.filter_map(|(name, entry)| Some((name.clone(), entry.instructions.clone()?))).collect()
}

fn source_record(source: &KernelSource, images: Vec<ImageRecord>) -> SourceRecord {
    let headers =
        source.headers.iter().map(|(name, text)| FileHash::of(name, text.as_bytes())).collect();
    SourceRecord { source: FileHash::of(&source.file, source.text.as_bytes()), headers, images }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_line_is_lowered() {
        let text = lower_version(b"// head\n.version 8.8\n.target sm_80\n").unwrap();
        assert_eq!(text, b"// head\n.version 7.0\n.target sm_80\n");
    }
}
