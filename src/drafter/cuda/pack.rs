//! The embedded kernel images: `kernels/prebuilt/kernels.pack`, and the developer's folder that can stand
//! in for it.
//!
//! A pack is `DSKPACK1`, a u32 count, per image its source's name and its architecture (u16 length and
//! UTF-8 each) and offset and length (u64) in the stream that follows: raw deflate of all images one after
//! the other. All numbers are little-endian.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::DeflateDecoder;

const MAGIC: &[u8; 8] = b"DSKPACK1";
/// The pack this program was built with.
const EMBEDDED: &[u8] = include_bytes!("../../../kernels/prebuilt/kernels.pack");
/// Largest decompressed stream that is believed: a pack is part of the program, but a bounded read is free.
const STREAM_BYTES_MAX: u64 = 256 << 20;

/// One compiled source for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Name of the source without `.cu`.
    pub source: String,
    /// `sm_86` and so on for machine code, `compute_80` for PTX.
    pub arch: String,
    /// A cubin, or PTX text with a final NUL.
    pub bytes: Vec<u8>,
}

impl Image {
    /// Whether the driver has to compile it.
    pub fn is_ptx(&self) -> bool {
        self.arch.starts_with("compute_")
    }
}

/// Why images cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The pack is cut or was written by another program.
    #[error("kernel pack: {0}")]
    Malformed(&'static str),
    /// The folder of images cannot be read.
    #[error("{folder}: {error}")]
    Folder {
        /// The folder.
        folder: String,
        /// What the operating system says.
        error: io::Error,
    },
}

/// The images this program was built with.
///
/// # Errors
/// [`PackError::Malformed`], which a test of the project excludes.
pub fn embedded() -> Result<Vec<Image>, PackError> {
    read(EMBEDDED)
}

/// Architectures of [`embedded`], without decompressing anything.
///
/// # Errors
/// As [`embedded`].
pub fn architectures() -> Result<Vec<String>, PackError> {
    let archs = entries(&mut &*EMBEDDED)?.into_iter().map(|(_, arch, ..)| arch);
    Ok(archs.collect::<BTreeSet<_>>().into_iter().collect())
}

/// Images `<source>.<arch>.cubin` and `<source>.<arch>.ptx` of a folder, by name.
///
/// # Errors
/// When the folder or a file cannot be read.
pub fn folder(path: &Path) -> Result<Vec<Image>, PackError> {
    let error = |error| PackError::Folder { folder: path.display().to_string(), error };
    let mut images = Vec::new();
    for entry in fs::read_dir(path).map_err(error)? {
        let name = entry.map_err(error)?.file_name().to_string_lossy().into_owned();
        let parts: Vec<&str> = name.split('.').collect();
        if let [source, arch, "cubin" | "ptx"] = parts[..] {
            let bytes = fs::read(path.join(&name)).map_err(error)?;
            images.push(terminated(source.into(), arch.into(), bytes));
        }
    }
    images.sort_by(|a, b| (&a.source, &a.arch).cmp(&(&b.source, &b.arch)));
    Ok(images)
}

fn read(pack: &[u8]) -> Result<Vec<Image>, PackError> {
    let mut rest = pack;
    let entries = entries(&mut rest)?;
    let mut stream = Vec::new();
    let mut inflate = DeflateDecoder::new(rest).take(STREAM_BYTES_MAX);
    inflate.read_to_end(&mut stream).map_err(|_| PackError::Malformed("its stream is broken"))?;
    let image = |(source, arch, at, len): (String, String, usize, usize)| {
        let bytes = at.checked_add(len).and_then(|end| stream.get(at..end));
        let bytes = bytes.ok_or(PackError::Malformed("an image lies outside of the stream"))?;
        Ok(terminated(source, arch, bytes.to_vec()))
    };
    entries.into_iter().map(image).collect()
}

/// Source, architecture, offset and length of every image; `rest` is moved to the stream.
fn entries(rest: &mut &[u8]) -> Result<Vec<(String, String, usize, usize)>, PackError> {
    *rest = rest.strip_prefix(MAGIC).ok_or(PackError::Malformed("it is none"))?;
    let short = PackError::Malformed("it ends early");
    let count = take(rest).map(u32::from_le_bytes).ok_or(short)?;
    let entry = |_| entry(rest).ok_or(PackError::Malformed("its list ends early"));
    (0..count).map(entry).collect()
}

fn entry(rest: &mut &[u8]) -> Option<(String, String, usize, usize)> {
    let (source, arch) = (text(rest)?, text(rest)?);
    let mut size = || usize::try_from(u64::from_le_bytes(take(rest)?)).ok();
    Some((source, arch, size()?, size()?))
}

fn text(rest: &mut &[u8]) -> Option<String> {
    let len = usize::from(u16::from_le_bytes(take(rest)?));
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    String::from_utf8(head.to_vec()).ok()
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

/// The driver reads PTX up to a NUL.
fn terminated(source: String, arch: String, mut bytes: Vec<u8>) -> Image {
    if arch.starts_with("compute_") && bytes.last() != Some(&0) {
        bytes.push(0);
    }
    Image { source, arch, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_pack_has_every_source_for_every_architecture() {
        let images = embedded().unwrap();
        let mut archs: Vec<&str> = images.iter().map(|i| &*i.arch).collect();
        archs.sort_unstable();
        archs.dedup();
        let mut sources: Vec<&str> = images.iter().map(|i| &*i.source).collect();
        sources.sort_unstable();
        sources.dedup();
        assert_eq!(images.len(), archs.len() * sources.len());
        assert!(images.iter().all(|i| !i.is_ptx() || i.bytes.ends_with(&[0])));
    }

    #[test]
    fn a_pack_cut_anywhere_is_refused() {
        // The stream's last bytes may be padding of the compression, the rest may not be missing.
        for len in (0..EMBEDDED.len() - 16).step_by(997) {
            assert!(read(&EMBEDDED[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn a_pack_stays_small() {
        assert!(EMBEDDED.len() < 4 << 20, "{} bytes", EMBEDDED.len());
    }
}
