//! The copy receipt, `DSPARK_COPY_DONE`: which source files a drafter was extracted from, and which files
//! the extraction left (contract §6.7).
//!
//! The contract fixes `files[].sha256` and `extracted_files[].sha256`; how an entry spells its name is not
//! fixed, so several keys are accepted. Nothing is read from the directory here.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::json::{describe, quote, without_bom};
use crate::digest::{DigestError, Sha256Digest};

/// Name of the receipt inside a checkpoint directory.
pub const RECEIPT_NAME: &str = "DSPARK_COPY_DONE";
/// Largest receipt that is read. One entry takes about 150 bytes.
pub const RECEIPT_BYTES_MAX: u64 = 16 << 20;

/// Keys that may hold the name of a source file, first match wins.
const SOURCE_NAME_KEYS: [&str; 6] = ["name", "basename", "file", "path", "src", "dst"];
/// The same for an extracted file: where it was put comes before where it came from.
const EXTRACTED_NAME_KEYS: [&str; 6] = ["name", "basename", "file", "path", "dst", "src"];

/// One file a receipt names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptFile {
    /// Base name: no separators, no control characters, not `.` or `..`.
    pub name: String,
    /// Digest of the file's bytes.
    pub sha256: Sha256Digest,
    /// Bytes, where the entry says so in `size`, `bytes` or `size_bytes`. Informative: the digest decides.
    pub size: Option<u64>,
}

/// A parsed receipt. Both lists are non-empty and name no file twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Source files with the digests of the sources; the drafter identity is computed from these.
    pub files: Vec<ReceiptFile>,
    /// Files in the checkpoint directory with the digests they must have.
    pub extracted_files: Vec<ReceiptFile>,
}

/// Why a receipt cannot be used. Every message starts with the receipt's name.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// Opening or reading failed.
    #[error("{receipt}: cannot be read")]
    Read {
        /// The receipt as the operator named it.
        receipt: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// More bytes than any receipt has.
    #[error("{receipt}: exceeds {RECEIPT_BYTES_MAX} bytes, no copy receipt is that large")]
    TooLarge {
        /// The receipt as the operator named it.
        receipt: String,
    },
    /// Not a JSON object.
    #[error("{receipt}: is not a JSON object: {source}")]
    Json {
        /// The receipt as the operator named it.
        receipt: String,
        /// Position and reason.
        source: serde_json::Error,
    },
    /// A key is absent.
    #[error("{receipt}: {path} is missing")]
    Missing {
        /// The receipt as the operator named it.
        receipt: String,
        /// Path of the key, or the keys of which one is needed.
        path: String,
    },
    /// A value of another type.
    #[error("{receipt}: {path} is {found}, expected {expected}")]
    Type {
        /// The receipt as the operator named it.
        receipt: String,
        /// Path of the key.
        path: String,
        /// The value in words.
        found: String,
        /// The type in words.
        expected: &'static str,
    },
    /// A text that is no digest.
    #[error("{receipt}: {path} {source}")]
    Digest {
        /// The receipt as the operator named it.
        receipt: String,
        /// Path of the key.
        path: String,
        /// What is wrong with the text.
        source: DigestError,
    },
    /// A name that is not a plain file name.
    #[error("{receipt}: {path} is {found}, which does not end in a plain file name")]
    Name {
        /// The receipt as the operator named it.
        receipt: String,
        /// Path of the key.
        path: String,
        /// The name, quoted.
        found: String,
    },
    /// Two entries with one base name: the digest would depend on their order.
    #[error("{receipt}: {list}[{first}] and {list}[{second}] both name {name}")]
    Duplicate {
        /// The receipt as the operator named it.
        receipt: String,
        /// `files` or `extracted_files`.
        list: &'static str,
        /// The base name.
        name: String,
        /// Index of the earlier entry.
        first: usize,
        /// Index of the later entry.
        second: usize,
    },
}

impl Receipt {
    /// Reads and parses the receipt at `path`.
    ///
    /// # Errors
    /// As [`Receipt::from_reader`].
    pub fn read(path: &Path) -> Result<Self, ReceiptError> {
        let receipt = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::from_reader(&receipt, file),
            Err(source) => Err(ReceiptError::Read { receipt, source }),
        }
    }

    /// Reads at most [`RECEIPT_BYTES_MAX`] bytes from `reader` and parses them; `receipt` names it in errors.
    ///
    /// # Errors
    /// A failed read, too many bytes, or what [`Receipt::parse`] refuses.
    pub fn from_reader(receipt: &str, reader: impl Read) -> Result<Self, ReceiptError> {
        let mut bytes = Vec::new();
        reader
            .take(RECEIPT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| ReceiptError::Read { receipt: receipt.into(), source })?;
        if bytes.len() as u64 > RECEIPT_BYTES_MAX {
            return Err(ReceiptError::TooLarge { receipt: receipt.into() });
        }
        Self::parse(receipt, &bytes)
    }

    /// Parses a receipt. Line ends, a byte-order mark, the case of the hex digits, a `sha256:` prefix and
    /// directories before a name make no difference. `receipt` names it in errors.
    ///
    /// # Errors
    /// The first entry that cannot be used, with its path, such as `files[3].sha256 has 62 hex digits,
    /// expected 64`.
    pub fn parse(receipt: &str, bytes: &[u8]) -> Result<Self, ReceiptError> {
        let object: Map<String, Value> = serde_json::from_slice(without_bom(bytes))
            .map_err(|source| ReceiptError::Json { receipt: receipt.into(), source })?;
        let list = |list, keys| List { receipt, list, keys }.parse(object.get(list));
        Ok(Self {
            files: list("files", &SOURCE_NAME_KEYS)?,
            extracted_files: list("extracted_files", &EXTRACTED_NAME_KEYS)?,
        })
    }

    /// The files that must be found in the checkpoint directory: all of `extracted_files`, and
    /// `config.json` by its source digest where the extraction left it out because it is a plain copy.
    pub fn expected_files(&self) -> Vec<&ReceiptFile> {
        let mut expected: Vec<_> = self.extracted_files.iter().collect();
        if !expected.iter().any(|file| file.name == super::CONFIG_NAME) {
            expected.extend(self.files.iter().find(|file| file.name == super::CONFIG_NAME));
        }
        expected
    }
}

/// One of the two lists while it is parsed.
#[derive(Clone, Copy)]
struct List<'a> {
    receipt: &'a str,
    list: &'static str,
    keys: &'a [&'static str; 6],
}

impl List<'_> {
    fn parse(self, value: Option<&Value>) -> Result<Vec<ReceiptFile>, ReceiptError> {
        let path = self.list.to_owned();
        let entries = match value {
            None | Some(Value::Null) => return Err(self.missing(path)),
            Some(Value::Array(entries)) if !entries.is_empty() => entries,
            Some(other) => return Err(self.wrong(path, other, "an array of files")),
        };
        let mut seen = HashMap::new();
        let mut files = Vec::with_capacity(entries.len());
        for (second, entry) in entries.iter().enumerate() {
            let file = self.entry(second, entry)?;
            if let Some(first) = seen.insert(file.name.clone(), second) {
                let (receipt, list, name) = (self.receipt.into(), self.list, file.name);
                return Err(ReceiptError::Duplicate { receipt, list, name, first, second });
            }
            files.push(file);
        }
        Ok(files)
    }

    fn entry(self, index: usize, entry: &Value) -> Result<ReceiptFile, ReceiptError> {
        let path = format!("{}[{index}]", self.list);
        let Value::Object(entry) = entry else {
            return Err(self.wrong(path, entry, "an object"));
        };
        let size = ["size", "bytes", "size_bytes"].iter().find_map(|key| entry.get(*key)?.as_u64());
        Ok(ReceiptFile {
            name: self.name(&path, entry)?,
            sha256: self.sha256(format!("{path}.sha256"), entry)?,
            size,
        })
    }

    fn name(self, path: &str, entry: &Map<String, Value>) -> Result<String, ReceiptError> {
        let found = self.keys.iter().find_map(|key| Some((*key, present(entry, key)?)));
        let Some((key, value)) = found else {
            return Err(self.missing(format!("{path}.name (or {})", self.keys[1..].join(", "))));
        };
        let path = format!("{path}.{key}");
        let Value::String(text) = value else {
            return Err(self.wrong(path, value, "a file name"));
        };
        let base = text.rsplit('/').next().unwrap_or(text);
        // A backslash would be a separator on another system, a control character a second line of the
        // text that the identity hashes.
        let plain =
            !matches!(base, "" | "." | "..") && !base.chars().any(|c| c == '\\' || c.is_control());
        if plain {
            Ok(base.to_owned())
        } else {
            Err(ReceiptError::Name { receipt: self.receipt.into(), path, found: quote(text) })
        }
    }

    fn sha256(
        self,
        path: String,
        entry: &Map<String, Value>,
    ) -> Result<Sha256Digest, ReceiptError> {
        match present(entry, "sha256") {
            None => Err(self.missing(path)),
            Some(Value::String(text)) => text.parse().map_err(|source| ReceiptError::Digest {
                receipt: self.receipt.into(),
                path,
                source,
            }),
            Some(other) => Err(self.wrong(path, other, "64 hex digits")),
        }
    }

    fn missing(self, path: String) -> ReceiptError {
        ReceiptError::Missing { receipt: self.receipt.into(), path }
    }

    fn wrong(self, path: String, value: &Value, expected: &'static str) -> ReceiptError {
        ReceiptError::Type { receipt: self.receipt.into(), path, found: describe(value), expected }
    }
}

/// A key's value; null counts as absent.
fn present<'a>(entry: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    entry.get(key).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn refusal(entry: &str) -> String {
        let text = format!(r#"{{"files":[{entry}],"extracted_files":[{entry}]}}"#);
        Receipt::parse("R", text.as_bytes()).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn every_name_key_is_accepted_and_directories_are_dropped() {
        for key in SOURCE_NAME_KEYS {
            let entry = format!(r#"{{"{key}":"/a/b/c.safetensors","sha256":"{HEX}"}}"#);
            let text = format!(r#"{{"files":[{entry}],"extracted_files":[{entry}]}}"#);
            let receipt = Receipt::parse("R", text.as_bytes()).unwrap();
            assert_eq!(receipt.files[0].name, "c.safetensors", "{key}");
        }
    }

    #[test]
    fn a_source_is_named_by_src_and_an_extracted_file_by_dst() {
        let entry = format!(r#"{{"src":"/a/whole","dst":"/b/part","sha256":"{HEX}"}}"#);
        let text = format!(r#"{{"files":[{entry}],"extracted_files":[{entry}]}}"#);
        let receipt = Receipt::parse("R", text.as_bytes()).unwrap();
        assert_eq!((&*receipt.files[0].name, &*receipt.extracted_files[0].name), ("whole", "part"));
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for name in ["", ".", "..", "a/..", "a/", r"..\\x", r"a\nb", r"a\u0000"] {
            let message = refusal(&format!(r#"{{"name":"{name}","sha256":"{HEX}"}}"#));
            assert!(message.contains("files[0].name is"), "{name}: {message}");
        }
    }

    #[test]
    fn refusals_name_the_entry_and_the_fault() {
        let short = format!(r#"{{"name":"a","sha256":"{}"}}"#, &HEX[..62]);
        assert_eq!(refusal(&short), "R: files[0].sha256 has 62 hex digits, expected 64");
        let not_hex = format!(r#"{{"name":"a","sha256":"{}"}}"#, "z".repeat(64));
        assert_eq!(refusal(&not_hex), "R: files[0].sha256 has a character that is not a hex digit");
        assert_eq!(refusal(r#"{"name":"a"}"#), "R: files[0].sha256 is missing");
        assert_eq!(
            refusal(r#"{"name":"a","sha256":5}"#),
            "R: files[0].sha256 is the number 5, expected 64 hex digits"
        );
        assert_eq!(
            refusal(&format!(r#"{{"sha256":"{HEX}"}}"#)),
            "R: files[0].name (or basename, file, path, src, dst) is missing"
        );
        assert_eq!(refusal(r#""a""#), r#"R: files[0] is the string "a", expected an object"#);
        assert_eq!(
            refusal(&format!(
                r#"{{"file":"x/a","sha256":"{HEX}"}},{{"path":"a","sha256":"{HEX}"}}"#
            )),
            "R: files[0] and files[1] both name a"
        );
        assert_eq!(refusal(""), "R: files is an array of 0, expected an array of files");
    }

    #[test]
    fn a_receipt_without_a_list_or_that_is_no_object_is_refused() {
        for (text, message) in [
            ("{}", "R: files is missing"),
            (r#"{"files":{}}"#, "R: files is an object, expected an array of files"),
            (
                r#"{"files":[{"name":"a","sha256":"SHA"}]}"#,
                "R: files[0].sha256 has 3 hex digits, expected 64",
            ),
        ] {
            assert_eq!(Receipt::parse("R", text.as_bytes()).unwrap_err().to_string(), message);
        }
        let valid = format!(r#"{{"files":[{{"name":"a","sha256":"{HEX}"}}]}}"#);
        let error = Receipt::parse("R", valid.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "R: extracted_files is missing");
        for text in ["", "[]", "{", "nul", "\u{feff}"] {
            let error = Receipt::parse("R", text.as_bytes()).unwrap_err();
            assert!(matches!(error, ReceiptError::Json { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn an_endless_receipt_is_refused_at_the_limit() {
        let error = Receipt::from_reader("R", io::repeat(b' ')).unwrap_err();
        assert!(matches!(error, ReceiptError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn config_json_is_expected_by_its_source_digest_when_it_was_not_extracted() {
        let text = format!(
            r#"{{"files":[{{"name":"config.json","sha256":"{HEX}"}}],
                "extracted_files":[{{"name":"a","sha256":"{HEX}"}}]}}"#
        );
        let receipt = Receipt::parse("R", text.as_bytes()).unwrap();
        let names: Vec<_> = receipt.expected_files().iter().map(|file| &*file.name).collect();
        assert_eq!(names, ["a", "config.json"]);
    }
}
