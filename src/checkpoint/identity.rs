//! The two identities HELLO exchanges: of the drafter's sources and of the Markov cache (contract §6.7).
//!
//! Both are digests of what other tools recorded, so they can be computed without any tensor at hand.

use super::receipt::{Receipt, ReceiptFile};
use crate::digest::Sha256Digest;

/// What a worker and its client must have in common besides the geometry (contract §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identities {
    /// Digest over the source files of the receipt.
    pub drafter: Sha256Digest,
    /// Digest of the Markov cache file; zero without one.
    pub markov: Sha256Digest,
}

impl Identities {
    /// Identities of a receipt and of the bytes of the Markov cache file, if there is one.
    pub fn of(receipt: &Receipt, markov: Option<&[u8]>) -> Self {
        Self { drafter: drafter_identity(&receipt.files), markov: markov_identity(markov) }
    }
}

/// The lines the drafter identity hashes, without their line ends: `<basename> <lower-case hex>`, in byte
/// order of the base name (contract §6.7).
pub fn identity_lines<'a>(files: impl IntoIterator<Item = &'a ReceiptFile>) -> Vec<String> {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    files.iter().map(|file| format!("{} {}", file.name, file.sha256)).collect()
}

/// SHA-256 of [`identity_lines`], each ended by one line feed (contract §6.7).
pub fn drafter_identity<'a>(files: impl IntoIterator<Item = &'a ReceiptFile>) -> Sha256Digest {
    let mut text = identity_lines(files).join("\n");
    text.push('\n');
    Sha256Digest::of(text.as_bytes())
}

/// SHA-256 of the bytes of a Markov cache file, whatever they mean; zero without one (contract §6.2).
pub fn markov_identity(file: Option<&[u8]>) -> Sha256Digest {
    file.map_or(Sha256Digest::ZERO, Sha256Digest::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sorted_by_bytes_and_hashed_with_a_final_line_feed() {
        let file = |name: &str| ReceiptFile {
            name: name.into(),
            sha256: Sha256Digest([0xab; 32]),
            size: None,
        };
        let files = [file("b"), file("a.x"), file("a-x"), file("Z")];
        let hex = "ab".repeat(32);
        let lines = identity_lines(&files);
        assert_eq!(lines, ["Z", "a-x", "a.x", "b"].map(|name| format!("{name} {hex}")));
        let text = format!("Z {hex}\na-x {hex}\na.x {hex}\nb {hex}\n");
        assert_eq!(drafter_identity(&files), Sha256Digest::of(text.as_bytes()));
    }

    #[test]
    fn no_markov_cache_is_all_zeros_and_an_empty_one_is_not() {
        assert_eq!(markov_identity(None), Sha256Digest::ZERO);
        assert_ne!(markov_identity(Some(b"")), Sha256Digest::ZERO);
    }
}
