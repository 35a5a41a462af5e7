//! Compare files with the digests a receipt records for them (contract §6.7).
//!
//! The bytes that are hashed are the bytes that are handed on: a file replaced after the check is a file
//! nobody reads. All differences are reported, not only the first.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Instant;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::pass::{Outcome, Source};
use super::receipt::{Receipt, ReceiptFile};
use super::tensors::map_file;
use super::{CheckpointError, on_all_cores};
use crate::buffer::SharedBytes;
use crate::digest::Sha256Digest;

/// Bytes hashed between two calls of [`Progress::advance`].
const PIECE: usize = 4 << 20;

/// Told how far a verification has come. Files are hashed in parallel, so calls come from several threads.
pub trait Progress: Sync {
    /// Called once, before the first byte: how many files and bytes will be hashed.
    fn start(&self, files: usize, bytes: u64);
    /// A file's hashing begins.
    fn file(&self, name: &str);
    /// `bytes` more have been hashed.
    fn advance(&self, bytes: u64);
}

/// Nobody watches.
impl Progress for () {
    fn start(&self, _files: usize, _bytes: u64) {}
    fn file(&self, _name: &str) {}
    fn advance(&self, _bytes: u64) {}
}

/// One file that is not what the receipt says.
#[derive(Debug, thiserror::Error)]
pub enum Difference {
    /// There is no such file.
    #[error("{name}: missing")]
    Missing {
        /// Base name.
        name: String,
    },
    /// It exists but cannot be read.
    #[error("{name}: cannot be read: {source}")]
    Unreadable {
        /// Base name.
        name: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Other content of another length.
    #[error(
        "{name}: has {found_bytes} bytes with sha256 {found}, the receipt says {expected_bytes} bytes \
         with {expected}"
    )]
    Size {
        /// Base name.
        name: String,
        /// Bytes by the receipt.
        expected_bytes: u64,
        /// Bytes found.
        found_bytes: u64,
        /// Digest by the receipt.
        expected: Sha256Digest,
        /// Digest found.
        found: Sha256Digest,
    },
    /// Other content.
    #[error("{name}: has sha256 {found}, the receipt says {expected}")]
    Hash {
        /// Base name.
        name: String,
        /// Digest by the receipt.
        expected: Sha256Digest,
        /// Digest found.
        found: Sha256Digest,
    },
}

impl Difference {
    /// Base name of the file.
    pub fn name(&self) -> &str {
        match self {
            Self::Missing { name }
            | Self::Unreadable { name, .. }
            | Self::Size { name, .. }
            | Self::Hash { name, .. } => name,
        }
    }

    /// What is wrong, in one word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing",
            Self::Unreadable { .. } => "unreadable",
            Self::Size { .. } | Self::Hash { .. } => "differs",
        }
    }

    /// The digest of what was found, where it could be read.
    pub fn found(&self) -> Option<Sha256Digest> {
        match self {
            Self::Missing { .. } | Self::Unreadable { .. } => None,
            Self::Size { found, .. } | Self::Hash { found, .. } => Some(*found),
        }
    }
}

/// Files that are not what the receipt says.
#[derive(Debug)]
pub struct VerifyError {
    /// Where the files were looked for.
    pub origin: String,
    /// Every difference, in the receipt's order; never empty.
    pub differences: Vec<Difference>,
    /// How many files were compared.
    pub files: usize,
}

impl std::error::Error for VerifyError {}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (differing, all) = (self.differences.len(), self.files);
        write!(f, "{}: {differing} of {all} files differ from the receipt", self.origin)?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n  {difference}"))
    }
}

/// Files that are what the receipt says, with their bytes.
#[derive(Clone, Debug)]
pub struct VerifiedFiles {
    files: Vec<(String, SharedBytes)>,
}

impl VerifiedFiles {
    pub(super) fn into_inner(self) -> Vec<(String, SharedBytes)> {
        self.files
    }

    /// Name and bytes of every file, in the receipt's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SharedBytes)> {
        self.files.iter().map(|(name, bytes)| (&**name, bytes))
    }

    /// The bytes of one file.
    pub fn get(&self, name: &str) -> Option<&SharedBytes> {
        self.iter().find(|(other, _)| *other == name).map(|(_, bytes)| bytes)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// Maps and hashes every file `receipt` expects in `dir`; see [`Receipt::expected_files`].
///
/// # Errors
/// Every missing, unreadable or differing file.
pub fn verify_directory(
    dir: &Path,
    receipt: &Receipt,
    progress: &dyn Progress,
) -> Result<VerifiedFiles, VerifyError> {
    Opened::in_directory(dir, receipt).verify(progress)
}

/// Files that should be those of a receipt.
pub(super) struct Opened {
    /// Where they were looked for, in words.
    origin: String,
    files: Vec<(ReceiptFile, io::Result<OpenFile>)>,
}

/// A file's bytes, and the file where they are not part of the program.
struct OpenFile {
    bytes: SharedBytes,
    file: Option<File>,
}

impl Opened {
    /// Opens and maps the files `receipt` expects in `dir`.
    pub(super) fn in_directory(dir: &Path, receipt: &Receipt) -> Self {
        let open = |name: &str| {
            map_file(&dir.join(name)).map(|(file, bytes)| OpenFile { bytes, file: Some(file) })
        };
        Self::by(&dir.display().to_string(), receipt.expected_files(), open)
    }

    /// Opens each of `expected` with `open`.
    pub(super) fn with(
        origin: &str,
        expected: Vec<&ReceiptFile>,
        open: impl Fn(&str) -> io::Result<SharedBytes>,
    ) -> Self {
        Self::by(origin, expected, |name| Ok(OpenFile { bytes: open(name)?, file: None }))
    }

    fn by(
        origin: &str,
        expected: Vec<&ReceiptFile>,
        open: impl Fn(&str) -> io::Result<OpenFile>,
    ) -> Self {
        let files = expected.into_iter().map(|file| (file.clone(), open(&file.name)));
        Self { origin: origin.into(), files: files.collect() }
    }

    /// The files that could be opened.
    fn readable(&self) -> impl Iterator<Item = (&str, &OpenFile)> {
        self.files.iter().filter_map(|(file, open)| Some((&*file.name, open.as_ref().ok()?)))
    }

    /// Name and bytes of the files that could be opened, whatever is in them.
    pub(super) fn unverified(&self) -> Vec<(String, SharedBytes)> {
        self.readable().map(|(name, open)| (name.to_owned(), open.bytes.clone())).collect()
    }

    /// Compares the digests of all files where they are mapped, in parallel.
    ///
    /// # Errors
    /// As [`verify_directory`].
    pub(super) fn verify(&self, progress: &dyn Progress) -> Result<VerifiedFiles, VerifyError> {
        let total = self.readable().map(|(_, open)| open.bytes.len() as u64).sum();
        progress.start(self.files.len(), total);
        let found: Vec<Outcome> = on_all_cores(|| {
            let files: Vec<_> = self.readable().collect();
            let files = files.into_par_iter().with_max_len(1);
            let digest = |(name, open): (&str, &OpenFile)| {
                progress.file(name);
                Ok(Some(digest_of(&open.bytes, progress)))
            };
            files.map(digest).collect()
        });
        self.judge(found)?;
        Ok(VerifiedFiles { files: self.unverified() })
    }

    /// Compares what was found of the files that could be opened, in their order, with the receipt.
    ///
    /// # Errors
    /// As [`verify_directory`].
    fn judge(&self, found: Vec<Outcome>) -> Result<(), VerifyError> {
        let mut found = found.into_iter();
        let mut differences = Vec::new();
        for (file, open) in &self.files {
            let outcome = match open {
                Ok(open) => found.next().map(|outcome| (open.bytes.len() as u64, outcome)),
                Err(error) => Some((0, Err(again(error)))),
            };
            let (bytes, outcome) = outcome.expect("an outcome for each file that could be opened");
            differences.extend(compare(file, bytes, outcome));
        }
        if differences.is_empty() {
            return Ok(());
        }
        let (origin, files) = (self.origin.clone(), self.files.len());
        Err(VerifyError { origin, differences, files })
    }
}

/// Files of a checkpoint that nobody has hashed yet. Somebody has to before anything is drafted: here, or in the
/// one pass of a load that reads them anyway.
pub struct Unverified {
    opened: Opened,
    progress: Box<dyn Progress + Send>,
}

impl Unverified {
    pub(super) fn new(opened: Opened, progress: Box<dyn Progress + Send>) -> Self {
        Self { opened, progress }
    }

    /// Hashes the files where they are mapped, on all cores, and waits for it.
    ///
    /// # Errors
    /// As [`verify_directory`].
    pub fn verify(&self) -> Result<(), CheckpointError> {
        let started = Instant::now();
        let gb = self.opened.verify(&*self.progress)?.bytes() as f64 / 1e9;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!("verified {gb:.2} GB in {seconds:.2} s ({:.2} GB/s)", gb / seconds);
        Ok(())
    }

    /// Begins to [`verify`](Self::verify) on other threads, beside a load that uses the mapped bytes.
    pub fn verify_beside(self) -> Verdict {
        Verdict(std::thread::spawn(move || self.verify()))
    }

    /// Bytes of the files that could be opened, where they are mapped: one slice a [`source`](Self::sources).
    pub(crate) fn mapped(&self) -> impl Iterator<Item = &[u8]> {
        self.opened.readable().map(|(_, open)| &*open.bytes)
    }

    /// The files that could be opened, as sources of a pass.
    pub(crate) fn sources(&self) -> Vec<Source<'_>> {
        let files = self.opened.readable();
        let sources = files.map(|(name, OpenFile { bytes, file })| match file {
            Some(file) => Source::file(name, file, bytes.len() as u64),
            None => Source::embedded(name, bytes),
        });
        sources.collect()
    }

    /// Who is told how far the hashing has come.
    pub(crate) fn progress(&self) -> &dyn Progress {
        &*self.progress
    }

    /// Compares what a pass over all [`sources`](Self::sources) found with the receipt.
    ///
    /// # Errors
    /// As [`verify_directory`].
    pub(crate) fn judge(&self, found: Vec<Outcome>) -> Result<(), CheckpointError> {
        Ok(self.opened.judge(found)?)
    }
}

/// Files being hashed on other threads while they are used here.
pub struct Verdict(JoinHandle<Result<(), CheckpointError>>);

impl Verdict {
    /// Waits until all bytes are hashed.
    ///
    /// # Errors
    /// As [`verify_directory`].
    pub fn wait(self) -> Result<(), CheckpointError> {
        self.0.join().unwrap_or_else(|fault| std::panic::resume_unwind(fault))
    }
}

/// What is wrong with a file of `bytes` bytes, if anything is.
fn compare(file: &ReceiptFile, bytes: u64, outcome: Outcome) -> Option<Difference> {
    let ReceiptFile { name, sha256: expected, size } = file;
    let (name, expected) = (name.clone(), *expected);
    let found = match outcome {
        Ok(found) => found.expect("files are hashed"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(Difference::Missing { name });
        }
        Err(source) => return Some(Difference::Unreadable { name, source }),
    };
    if found == expected {
        return None;
    }
    Some(match *size {
        Some(expected_bytes) if expected_bytes != bytes => {
            Difference::Size { name, expected_bytes, found_bytes: bytes, expected, found }
        }
        _ => Difference::Hash { name, expected, found },
    })
}

/// The same error once more.
fn again(error: &io::Error) -> io::Error {
    let code = error.raw_os_error().map(io::Error::from_raw_os_error);
    code.unwrap_or_else(|| io::Error::new(error.kind(), error.to_string()))
}

fn digest_of(bytes: &[u8], progress: &dyn Progress) -> Sha256Digest {
    let mut hasher = Sha256::new();
    for piece in bytes.chunks(PIECE) {
        hasher.update(piece);
        progress.advance(piece.len() as u64);
    }
    Sha256Digest(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count {
        total: AtomicU64,
        hashed: AtomicU64,
        files: AtomicU64,
    }

    impl Progress for Count {
        fn start(&self, _files: usize, bytes: u64) {
            assert_eq!(self.hashed.load(Ordering::Relaxed), 0, "the total comes first");
            self.total.store(bytes, Ordering::Relaxed);
        }
        fn file(&self, _name: &str) {
            self.files.fetch_add(1, Ordering::Relaxed);
        }
        fn advance(&self, bytes: u64) {
            self.hashed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn file(name: &str, content: &[u8], size: Option<u64>) -> ReceiptFile {
        ReceiptFile { name: name.into(), sha256: Sha256Digest::of(content), size }
    }

    #[test]
    fn every_difference_is_reported_with_both_digests() {
        let expected = [
            file("good", b"good", Some(4)),
            file("flipped", b"aaaa", Some(4)),
            file("longer", b"bbbb", Some(4)),
            file("gone", b"cccc", None),
            file("locked", b"dddd", None),
        ];
        let open = |name: &str| match name {
            "gone" => Err(io::ErrorKind::NotFound.into()),
            "locked" => Err(io::ErrorKind::PermissionDenied.into()),
            "flipped" => Ok(SharedBytes::new(b"aaab".to_vec())),
            "longer" => Ok(SharedBytes::new(b"bbbbb".to_vec())),
            _ => Ok(SharedBytes::new(b"good".to_vec())),
        };
        let progress = Count::default();
        let opened = Opened::with("D", expected.iter().collect(), open);
        assert_eq!(opened.unverified().len(), 3);
        let error = opened.verify(&progress).unwrap_err();
        let text = error.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "D: 4 of 5 files differ from the receipt");
        let (found, wanted) = (Sha256Digest::of(b"aaab"), Sha256Digest::of(b"aaaa"));
        assert_eq!(lines[1], format!("  flipped: has sha256 {found}, the receipt says {wanted}"));
        assert!(lines[2].starts_with("  longer: has 5 bytes with sha256 "), "{text}");
        assert_eq!(lines[3], "  gone: missing");
        assert!(lines[4].starts_with("  locked: cannot be read: "), "{text}");
        let counted = [&progress.total, &progress.hashed, &progress.files];
        assert_eq!(counted.map(|n| n.load(Ordering::Relaxed)), [13, 13, 3]);
    }

    #[test]
    fn a_wrong_size_with_the_right_digest_is_no_difference() {
        let expected = file("a", b"abc", Some(99));
        let open = |_: &str| Ok(SharedBytes::new(b"abc".to_vec()));
        let files = Opened::with("D", vec![&expected], open).verify(&()).unwrap();
        assert_eq!((files.len(), files.bytes()), (1, 3));
    }
}
