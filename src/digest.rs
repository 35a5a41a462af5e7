//! SHA-256 of bytes and files, printed and parsed as hex.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// A SHA-256 digest. Displays as 64 lower-case hex digits; parses either case and an optional
/// `sha256:` prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sha256Digest(pub [u8; 32]);

/// Why a text is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// Wrong length.
    #[error("has {0} hex digits, expected 64")]
    Length(usize),
    /// A character that is no hex digit.
    #[error("has a character that is not a hex digit")]
    NotHex,
}

impl Sha256Digest {
    /// All zero bytes: how HELLO says "no Markov cache" (contract §6.2).
    pub const ZERO: Self = Self([0; 32]);

    /// Digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Digest of a file, read in 1 MiB pieces; `progress` is told the bytes of each piece.
    ///
    /// # Errors
    /// Any I/O error of opening or reading.
    pub fn of_file(path: &Path, mut progress: impl FnMut(u64)) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut hasher = Sha256::new();
        let mut piece = vec![0u8; 1 << 20];
        loop {
            let n = match file.read(&mut piece) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if n == 0 {
                return Ok(Self(hasher.finalize().into()));
            }
            hasher.update(&piece[..n]);
            progress(n as u64);
        }
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Sha256Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let mut bytes = [0; 32];
        match hex::decode_to_slice(digits, &mut bytes) {
            Ok(()) => Ok(Self(bytes)),
            Err(hex::FromHexError::InvalidHexCharacter { .. }) => Err(DigestError::NotHex),
            Err(_) => Err(DigestError::Length(digits.chars().count())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_print_lower_case_and_parse_any_case_and_prefix() {
        let d = Sha256Digest::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(d.to_string(), text);
        assert_eq!(text.to_uppercase().parse(), Ok(d));
        assert_eq!(format!("sha256:{text}").parse(), Ok(d));
    }

    #[test]
    fn a_short_or_foreign_digest_says_why() {
        assert_eq!("ab".parse::<Sha256Digest>(), Err(DigestError::Length(2)));
        assert_eq!("z".repeat(64).parse::<Sha256Digest>(), Err(DigestError::NotHex));
    }

    #[test]
    fn a_file_hashes_like_its_bytes_and_reports_every_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let bytes = vec![7u8; (1 << 20) + 3];
        std::fs::write(&path, &bytes).unwrap();
        let mut seen = 0;
        let digest = Sha256Digest::of_file(&path, |n| seen += n).unwrap();
        assert_eq!((digest, seen), (Sha256Digest::of(&bytes), bytes.len() as u64));
    }
}
