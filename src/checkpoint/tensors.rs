//! Tensors of several safetensors files, found by name, sharing the memory the files lie in.
//!
//! Headers are read and checked here; what a tensor means is up to the drafter. The bytes of a tensor start
//! at any address: readers must not assume alignment.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use memmap2::Mmap;
use safetensors::tensor::Metadata;

use super::names::Layout;
use crate::buffer::SharedBytes;

/// Bytes of the header length that a safetensors file starts with.
const PREFIX: usize = 8;
/// Longest header, the limit of the safetensors format itself.
const HEADER_MAX: u64 = 100_000_000;

/// Type of a tensor's elements, as safetensors names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// Signed 16 bits: trellis words and packed signs.
    I16,
    /// Signed 32 bits: codebook markers.
    I32,
    /// Unsigned 8 bits.
    U8,
    /// 8-bit float, 4 exponent bits.
    F8E4M3,
    /// 8-bit scale, exponent only.
    F8E8M0,
    /// A type no drafter tensor has, by its safetensors name.
    Other(String),
}

impl From<safetensors::Dtype> for Dtype {
    fn from(dtype: safetensors::Dtype) -> Self {
        match dtype {
            safetensors::Dtype::BF16 => Self::Bf16,
            safetensors::Dtype::F16 => Self::F16,
            safetensors::Dtype::F32 => Self::F32,
            safetensors::Dtype::I16 => Self::I16,
            safetensors::Dtype::I32 => Self::I32,
            safetensors::Dtype::U8 => Self::U8,
            safetensors::Dtype::F8_E4M3 => Self::F8E4M3,
            safetensors::Dtype::F8_E8M0 => Self::F8E8M0,
            other => Self::Other(other.to_string()),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::F32 => "F32",
            Self::I16 => "I16",
            Self::I32 => "I32",
            Self::U8 => "U8",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E8M0 => "F8_E8M0",
            Self::Other(name) => name,
        })
    }
}

/// One tensor. The product of `shape` and the width of `dtype` equals the length of `data`.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name as the file spells it.
    pub name: String,
    /// Base name of the file.
    pub file: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Elements, little endian, row-major, at any alignment.
    pub data: SharedBytes,
}

/// Why a set of files holds no usable tensors. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// No room for the header length.
    #[error(
        "{file}: is {bytes} bytes long, a safetensors file starts with an 8-byte header length"
    )]
    Short {
        /// Base name.
        file: String,
        /// Bytes of the file.
        bytes: usize,
    },
    /// A header length that cannot be.
    #[error(
        "{file}: header length at byte 0 is {header}, the file has {room} bytes after it and the \
         format allows {HEADER_MAX}"
    )]
    HeaderLength {
        /// Base name.
        file: String,
        /// Bytes the header claims.
        header: u64,
        /// Bytes after the header length.
        room: usize,
    },
    /// A header that is not what the format asks for.
    #[error("{file}: header at byte {PREFIX}: {source}")]
    Header {
        /// Base name.
        file: String,
        /// Reason, with the column counted from the header's start.
        source: serde_json::Error,
    },
    /// Too few or too many bytes after the header.
    #[error("{file}: tensors end at byte {expected}, the file ends at byte {found}")]
    Length {
        /// Base name.
        file: String,
        /// Where the header says the last tensor ends.
        expected: u64,
        /// Where the file ends.
        found: u64,
    },
    /// Two tensors for one name, or for two spellings of one name.
    #[error("{first} in {first_file} and {second} in {second_file} are one tensor of the drafter")]
    Duplicate {
        /// Name of the earlier one.
        first: String,
        /// Its file.
        first_file: String,
        /// Name of the later one.
        second: String,
        /// Its file.
        second_file: String,
    },
}

/// All tensors of a checkpoint. No two have the same name or the same canonical name.
#[derive(Clone, Debug, Default)]
pub struct TensorStore {
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    by_canonical: HashMap<String, usize>,
    layout: Layout,
}

impl TensorStore {
    /// Indexes the tensors of `files`: base name and whole content of each. No tensor is copied.
    ///
    /// # Errors
    /// The first file that is cut, padded or malformed, or two tensors for one name.
    pub fn from_files(
        files: impl IntoIterator<Item = (String, SharedBytes)>,
    ) -> Result<Self, TensorError> {
        let mut tensors = Vec::new();
        for (file, bytes) in files {
            read_file(&file, &bytes, &mut tensors)?;
        }
        Self::from_tensors(tensors)
    }

    /// Indexes tensors that are there already.
    ///
    /// # Errors
    /// Two tensors for one name.
    pub(super) fn from_tensors(tensors: Vec<Tensor>) -> Result<Self, TensorError> {
        let layout = Layout::of(tensors.iter().map(|tensor| &*tensor.name));
        let mut store = Self { tensors, layout, ..Self::default() };
        for (index, tensor) in store.tensors.iter().enumerate() {
            let canonical = layout.canonical(&tensor.name);
            let names = [Some(&tensor.name), canonical.as_ref()];
            for (map, name) in [&mut store.by_name, &mut store.by_canonical].into_iter().zip(names)
            {
                let Some(name) = name else { continue };
                match map.entry(name.clone()) {
                    Entry::Vacant(entry) => _ = entry.insert(index),
                    Entry::Occupied(entry) => {
                        return Err(duplicate(&store.tensors[*entry.get()], tensor));
                    }
                }
            }
        }
        Ok(store)
    }

    /// The tensor a file calls `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The tensor with this canonical name, such as `mtp.0.attn.wq_a.trellis`, `head.trellis` or
    /// `embed.weight`, however its file spells it.
    pub fn find(&self, canonical: &str) -> Option<&Tensor> {
        self.by_canonical.get(canonical).map(|&index| &self.tensors[index])
    }

    /// The canonical spelling of a name a file uses: the name under which [`find`](Self::find) has that
    /// tensor. `None` for tensors that cannot be the drafter's. A name alone does not make a tensor known:
    /// any `mtp.{i}.` name is its own canonical spelling.
    pub fn canonical(&self, name: &str) -> Option<String> {
        self.layout.canonical(name)
    }

    /// Whether the drafter has no use for a tensor of this name and no reader needs to be told: the
    /// selection bias of image tokens (`bias_vl`), the vision tower, the target's layers and its norm.
    pub fn is_ignored(&self, name: &str) -> bool {
        self.layout.is_ignored(name)
    }

    /// All tensors, file by file, in the order of their bytes.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

/// Opens a regular file and maps it into memory, read-only. File and mapping stay those of the same bytes when
/// another file takes the path.
///
/// # Errors
/// Any I/O error, or a path that is no regular file: opening a pipe would wait for a writer.
pub(super) fn map_file(path: &Path) -> io::Result<(File, SharedBytes)> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
    }
    let file = File::open(path)?;
    // SAFETY: the bytes are only ever read. Nothing here can stop another process from writing to the file
    // or cutting it: the operator keeps a checkpoint's files unchanged while a worker uses them, and
    // replaces them by renaming, which leaves this mapping on the old content.
    let map = unsafe { Mmap::map(&file) }?;
    Ok((file, SharedBytes::new(map)))
}

/// Appends the tensors of one file, in the order of their bytes.
fn read_file(
    file: &str,
    bytes: &SharedBytes,
    tensors: &mut Vec<Tensor>,
) -> Result<(), TensorError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(TensorError::Short { file: file.into(), bytes: bytes.len() });
    };
    let header = u64::from_le_bytes(*prefix);
    let end = usize::try_from(header).ok().filter(|&end| header <= HEADER_MAX && end <= rest.len());
    let Some(end) = end else {
        return Err(TensorError::HeaderLength { file: file.into(), header, room: rest.len() });
    };
    // Deserializing checks that the tensors lie end to end from offset 0 and that shapes fit their bytes.
    let metadata: Metadata = serde_json::from_slice(&rest[..end])
        .map_err(|source| TensorError::Header { file: file.into(), source })?;
    let (start, data) = (PREFIX + end, rest.len() - end);
    if metadata.data_len() != data {
        let expected = (start as u64).saturating_add(metadata.data_len() as u64);
        return Err(TensorError::Length { file: file.into(), expected, found: bytes.len() as u64 });
    }
    for name in metadata.offset_keys() {
        let info = metadata.info(&name).expect("the name comes from the same header");
        let (from, to) = info.data_offsets;
        tensors.push(Tensor {
            name,
            file: file.into(),
            dtype: info.dtype.into(),
            shape: info.shape.clone(),
            data: bytes.slice(start + from..start + to),
        });
    }
    Ok(())
}

fn duplicate(first: &Tensor, second: &Tensor) -> TensorError {
    TensorError::Duplicate {
        first: first.name.clone(),
        first_file: first.file.clone(),
        second: second.name.clone(),
        second_file: second.file.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u64).to_le_bytes();
        [&length[..], header.as_bytes(), data].concat()
    }

    fn two_tensors() -> Vec<u8> {
        file(
            r#"{"__metadata__":{"a":"b"},"x":{"dtype":"F16","shape":[2,1],"data_offsets":[3,7]},
            "c":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}"#,
            &[1, 2, 3, 4, 5, 6, 7],
        )
    }

    fn store(files: &[(&str, Vec<u8>)]) -> Result<TensorStore, TensorError> {
        let files = files.iter().map(|(name, bytes)| {
            let bytes = SharedBytes::new(bytes.clone());
            ((*name).to_owned(), bytes)
        });
        TensorStore::from_files(files)
    }

    #[test]
    fn tensors_come_in_the_order_of_their_bytes_at_any_alignment() {
        let store = store(&[("f", two_tensors())]).unwrap();
        let all: Vec<_> = store.iter().map(|t| (&*t.name, t.dtype.to_string())).collect();
        assert_eq!(all, [("c", "I8".into()), ("x", "F16".into())]);
        let x = store.get("x").unwrap();
        assert_eq!((&x.shape[..], &x.data[..]), (&[2, 1][..], &[4, 5, 6, 7][..]));
        assert!(store.find("x").is_none(), "not a name of the drafter");
    }

    #[test]
    fn a_file_cut_anywhere_is_refused_by_name() {
        let whole = two_tensors();
        for end in 0..whole.len() {
            let message = store(&[("f", whole[..end].to_vec())]).unwrap_err().to_string();
            assert!(message.starts_with("f: "), "{end}: {message}");
        }
        let error = store(&[("f", whole[..whole.len() - 1].to_vec())]).unwrap_err();
        let (end, cut) = (whole.len(), whole.len() - 1);
        assert_eq!(
            error.to_string(),
            format!("f: tensors end at byte {end}, the file ends at byte {cut}")
        );
    }

    #[test]
    fn seven_bytes_too_many_are_refused() {
        let mut bytes = two_tensors();
        bytes.extend([0; 7]);
        let error = store(&[("f", bytes)]).unwrap_err();
        assert!(matches!(error, TensorError::Length { .. }), "{error}");
    }

    #[test]
    fn no_header_byte_can_cause_a_panic() {
        let whole = two_tensors();
        for at in 0..whole.len() - 7 {
            for value in [0, b'0', b'9', b'"', b'{', b'}', b',', 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                _ = store(&[("f", bytes)]);
            }
        }
    }

    #[test]
    fn a_header_longer_than_the_file_or_the_format_is_refused() {
        for header in [8, 1 << 30, u64::MAX] {
            let mut bytes = header.to_le_bytes().to_vec();
            bytes.extend(b"{}");
            let error = store(&[("f", bytes)]).unwrap_err().to_string();
            let start = format!("f: header length at byte 0 is {header}, the file has 2 bytes");
            assert!(error.starts_with(&start), "{error}");
        }
    }

    #[test]
    fn offsets_and_shapes_that_do_not_fit_are_refused() {
        let huge = u64::MAX / 8;
        let eight = (0..8u64).map(|i| {
            let from = i.saturating_mul(huge);
            let to = from.saturating_add(huge);
            format!(r#""{i}":{{"dtype":"U8","shape":[{huge}],"data_offsets":[{from},{to}]}}"#)
        });
        for header in [
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}"#.to_owned(),
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#.to_owned(),
            r#"{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}}"#
                .to_owned(),
            r#"{"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,1]}}"#.to_owned(),
            r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#.to_owned(),
            "[]".to_owned(),
            "\u{feff}{}".to_owned(),
            format!("{{{}}}", eight.collect::<Vec<_>>().join(",")),
        ] {
            let error = store(&[("f", file(&header, &[0; 2]))]).unwrap_err().to_string();
            assert!(error.starts_with("f: "), "{header}: {error}");
        }
    }

    #[test]
    fn one_tensor_in_two_files_or_two_spellings_is_refused() {
        let one = |name: &str| {
            file(
                &format!(r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#),
                &[0],
            )
        };
        for (a, b) in [("x", "x"), ("head.weight", "lm_head.weight"), ("mtp.0.a", "model.mtp.0.a")]
        {
            let error = store(&[("f", one(a)), ("g", one(b))]).unwrap_err().to_string();
            assert_eq!(error, format!("{a} in f and {b} in g are one tensor of the drafter"));
        }
        let both = store(&[("f", one("head.weight")), ("g", one("head.trellis"))]).unwrap();
        assert_eq!(both.find("head.trellis").unwrap().file, "g");
    }
}
