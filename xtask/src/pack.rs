//! `kernels.pack`: all images in one solid compressed stream.
//!
//! Layout, little-endian:
//!
//! ```text
//! magic    8 bytes  "DSKPACK1"
//! count    u32      number of images
//! entry    count ×  u16 length + name     source stem, UTF-8
//!                   u16 length + arch     "sm_86", "sm_90a", "sm_120", "compute_80", UTF-8
//!                   u64 offset, u64 len   into the decompressed stream
//! deflate  rest     raw deflate (RFC 1951) of the images one after the other
//! ```
//!
//! Images of one source stand side by side: neighbouring architectures are nearly equal, and
//! deflate sees 32 KiB back. The library has its own reader of this layout.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

const MAGIC: &[u8; 8] = b"DSKPACK1";

/// One image of the pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// Stem of the source file.
    pub(crate) name: String,
    /// Architecture as the compiler spells it.
    pub(crate) arch: String,
    /// Cubin or PTX text.
    pub(crate) bytes: Vec<u8>,
}

/// Writes a pack. The same images always give the same bytes.
///
/// # Errors
/// When a name is longer than 65,535 bytes.
pub(crate) fn encode(images: &[Image]) -> Result<Vec<u8>> {
    let mut pack = MAGIC.to_vec();
    pack.extend(u32::try_from(images.len())?.to_le_bytes());
    let mut offset = 0u64;
    for image in images {
        for text in [&image.name, &image.arch] {
            pack.extend(u16::try_from(text.len())?.to_le_bytes());
            pack.extend(text.as_bytes());
        }
        let len = u64::try_from(image.bytes.len())?;
        pack.extend(offset.to_le_bytes());
        pack.extend(len.to_le_bytes());
        offset += len;
    }
    let mut encoder = DeflateEncoder::new(pack, Compression::best());
    for image in images {
        encoder.write_all(&image.bytes)?;
    }
    Ok(encoder.finish()?)
}

/// Reads a pack.
///
/// # Errors
/// When the bytes are no pack, end early, or an entry points outside of the stream.
pub(crate) fn decode(pack: &[u8]) -> Result<Vec<Image>> {
    let mut rest = pack.strip_prefix(MAGIC).context("not a kernel pack")?;
    let count = u32::from_le_bytes(take(&mut rest)?);
    let mut entries = Vec::new();
    for _ in 0..count {
        let name = text(&mut rest)?;
        let arch = text(&mut rest)?;
        let offset = usize::try_from(u64::from_le_bytes(take(&mut rest)?))?;
        let len = usize::try_from(u64::from_le_bytes(take(&mut rest)?))?;
        entries.push((name, arch, offset, len));
    }
    let mut stream = Vec::new();
    DeflateDecoder::new(rest).read_to_end(&mut stream).context("decompress the kernel pack")?;
    entries
        .into_iter()
        .map(|(name, arch, offset, len)| {
            let range = offset..offset.checked_add(len).context("entry length overflows")?;
            let bytes = stream.get(range).context("entry outside of the stream")?.to_vec();
            Ok(Image { name, arch, bytes })
        })
        .collect()
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let Some((head, tail)) = rest.split_first_chunk::<N>() else { bail!("pack ends early") };
    *rest = tail;
    Ok(*head)
}

fn text(rest: &mut &[u8]) -> Result<String> {
    let len = usize::from(u16::from_le_bytes(take(rest)?));
    let Some((head, tail)) = rest.split_at_checked(len) else { bail!("pack ends early") };
    *rest = tail;
    Ok(String::from_utf8(head.to_vec())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images() -> Vec<Image> {
        ["sm_86", "compute_80"]
            .iter()
            .map(|arch| Image {
                name: "norm".into(),
                arch: (*arch).into(),
                bytes: arch.repeat(500).into_bytes(),
            })
            .collect()
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let pack = encode(&images()).unwrap();
        assert_eq!(decode(&pack).unwrap(), images());
        assert!(pack.len() < 400, "{} bytes", pack.len());
    }

    #[test]
    fn a_pack_cut_anywhere_is_refused() {
        let pack = encode(&images()).unwrap();
        for length in 0..pack.len() - 1 {
            assert!(decode(&pack[..length]).is_err(), "cut at {length}");
        }
    }
}
