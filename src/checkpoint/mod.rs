//! A drafter's files: receipt, identities, configuration, tensors and Markov cache (contract §6.7).
//!
//! A checkpoint is always verified, when it is opened or while it is loaded: the bytes that were hashed are the
//! bytes that are used, and a file that is not what the receipt says stops the load. Quantized weights are not decoded here.
//!
//! | file | job |
//! |---|---|
//! | `receipt` | which files there must be, with which digests |
//! | `identity` | the digests HELLO carries |
//! | `verify` | map and hash the files |
//! | `pass` | read all bytes once, hash them and hand them on |
//! | `config`, `keys` | shape and constants of the drafter |
//! | `tensors`, `names` | tensors by name, and their spellings |
//! | `markov` | tokens whose bias rows are kept ready |
//! | `demo` | the checkpoint inside the binary |
//! | `synthetic` | random checkpoints from a seed |

mod config;
mod demo;
mod identity;
mod json;
mod keys;
mod markov;
mod names;
pub(crate) mod pass;
mod receipt;
mod synthetic;
mod tensors;
mod verify;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use config::{CONFIG_NAME, ConfigError, DrafterConfig};
pub use identity::{Identities, drafter_identity, identity_lines, markov_identity};
pub use keys::KeysError;
pub use markov::{MARKOV_NAME, MarkovCache, MarkovError};
pub use receipt::{RECEIPT_BYTES_MAX, RECEIPT_NAME, Receipt, ReceiptError, ReceiptFile};
pub use synthetic::{Synthetic, SyntheticSize, UnknownSynthetic};
pub use tensors::{Dtype, Tensor, TensorError, TensorStore};
pub use verify::{
    Difference, Progress, Unverified, Verdict, VerifiedFiles, VerifyError, verify_directory,
};

use crate::buffer::SharedBytes;
use verify::Opened;

/// Largest Markov cache that is read: a few bytes for each token of the vocabulary.
pub const MARKOV_BYTES_MAX: u64 = 64 << 20;

/// Where a checkpoint lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPaths {
    /// Directory of the extracted files.
    pub dir: PathBuf,
    /// The receipt; `dir/DSPARK_COPY_DONE` where none is given.
    pub receipt: Option<PathBuf>,
    /// The Markov cache. Where none is given, `dir/markov_top_tokens.json` is used if it exists: a client
    /// of a build with a cache refuses a worker without one.
    pub markov: Option<PathBuf>,
}

impl CheckpointPaths {
    /// The receipt that will be read.
    pub fn receipt_path(&self) -> PathBuf {
        self.receipt.clone().unwrap_or_else(|| self.dir.join(RECEIPT_NAME))
    }

    /// The Markov cache that will be read: the given one whether or not it exists, else the directory's if
    /// it exists.
    pub fn markov_path(&self) -> Option<PathBuf> {
        // A directory that cannot be searched counts as having one: reading it then says what is wrong.
        let exists = |path: &PathBuf| path.try_exists().unwrap_or(true);
        let beside = || Some(self.dir.join(MARKOV_NAME)).filter(exists);
        self.markov.clone().or_else(beside)
    }

    /// The receipt, and the bytes of the Markov cache if there is one.
    fn read(&self) -> Result<(Receipt, Option<Vec<u8>>), CheckpointError> {
        let receipt = Receipt::read(&self.receipt_path())?;
        let markov = self.markov_path();
        if let Some(path) = &markov {
            tracing::info!(file = %path.display(), given = self.markov.is_some(), "Markov cache");
        }
        Ok((receipt, markov.as_deref().map(read_markov).transpose()?))
    }
}

/// A verified drafter.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Shape and constants.
    pub config: DrafterConfig,
    /// All tensors of the extracted safetensors files.
    pub tensors: TensorStore,
    /// What HELLO compares.
    pub identities: Identities,
    /// Tokens whose bias rows are worth keeping, if there is a usable list.
    pub markov: Option<MarkovCache>,
    /// The directory, `demo`, or what is synthetic.
    pub origin: String,
    /// Bytes of the verified files, or of the synthetic tensors.
    pub bytes: u64,
    /// What an operator should know though the checkpoint is usable.
    pub warnings: Vec<String>,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The receipt.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    /// Files that are not what the receipt says.
    #[error("{0}\n  copy the files again, or use the receipt that was written with them")]
    Verify(#[from] VerifyError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tensor files.
    #[error(transparent)]
    Tensors(#[from] TensorError),
    /// A file outside the receipt.
    #[error("{file}: cannot be read: {source}")]
    Read {
        /// Path of the file.
        file: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file every checkpoint has.
    #[error("{origin}: the receipt lists no {name}")]
    Unlisted {
        /// The directory, or `demo`.
        origin: String,
        /// The file in words.
        name: &'static str,
    },
}

impl CheckpointError {
    fn read(file: impl ToString, source: io::Error) -> Self {
        Self::Read { file: file.to_string(), source }
    }
}

impl Checkpoint {
    /// Maps, verifies and indexes the checkpoint at `paths`. Takes as long as hashing all its bytes;
    /// `progress` is told how far that is.
    ///
    /// # Errors
    /// Anything wrong with the receipt, any file that differs from it, or a configuration or tensor file
    /// that cannot be used. A Markov cache that cannot be parsed is a warning; one that cannot be read is an
    /// error, because its identity would be wrong.
    pub fn open(paths: &CheckpointPaths, progress: &dyn Progress) -> Result<Self, CheckpointError> {
        let (receipt, markov) = paths.read()?;
        let files = verify_directory(&paths.dir, &receipt, progress)?.into_inner();
        Self::assemble(&paths.dir.display().to_string(), &receipt, files, markov.as_deref())
    }

    /// As [`open`](Self::open), but hashes nothing: that is left to whoever reads the weights, so that files
    /// are read once. Nothing may be drafted, and no other fault of the files be believed, before the
    /// [`Unverified`] files are verified.
    ///
    /// # Errors
    /// As [`open`](Self::open); a file that differs from the receipt is told here only if the rest cannot be
    /// used either.
    pub fn open_unverified(
        paths: &CheckpointPaths,
        progress: Box<dyn Progress + Send>,
    ) -> Result<(Self, Unverified), CheckpointError> {
        let (receipt, markov) = paths.read()?;
        let opened = Opened::in_directory(&paths.dir, &receipt);
        let files = opened.unverified();
        let unverified = Unverified::new(opened, progress);
        let origin = paths.dir.display().to_string();
        match Self::assemble(&origin, &receipt, files, markov.as_deref()) {
            Ok(checkpoint) => Ok((checkpoint, unverified)),
            Err(error) => {
                unverified.verify()?;
                Err(error)
            }
        }
    }

    /// Builds a checkpoint of its files and of the bytes of a Markov cache.
    fn assemble(
        origin: &str,
        receipt: &Receipt,
        files: Vec<(String, SharedBytes)>,
        markov: Option<&[u8]>,
    ) -> Result<Self, CheckpointError> {
        let unlisted = |name| CheckpointError::Unlisted { origin: origin.into(), name };
        let config = files.iter().find(|(name, _)| name == CONFIG_NAME);
        let config = DrafterConfig::parse(&config.ok_or_else(|| unlisted(CONFIG_NAME))?.1)?;
        let bytes = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let is_tensors =
            |name: &str| Path::new(name).extension().is_some_and(|e| e == "safetensors");
        let tensor_files = files.into_iter().filter(|(name, _)| is_tensors(name));
        let tensors = TensorStore::from_files(tensor_files)?;
        if tensors.is_empty() {
            return Err(unlisted("safetensors file with tensors"));
        }
        let mut warnings = Vec::new();
        let identities = Identities::of(receipt, markov);
        let markov = markov.and_then(|bytes| match MarkovCache::parse(bytes, config.vocab_size) {
            Ok(cache) => Some(cache),
            Err(error) => {
                warnings.push(format!(
                    "Markov cache {error}; its identity stands, bias rows are computed instead"
                ));
                None
            }
        });
        let origin = origin.to_owned();
        Ok(Self { config, tensors, identities, markov, origin, bytes, warnings })
    }
}

/// Reads a Markov cache file, at most [`MARKOV_BYTES_MAX`] bytes of it.
///
/// # Errors
/// Any I/O error, or a file that is larger.
pub fn read_markov(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let failed = |source| CheckpointError::read(path.display(), source);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MARKOV_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MARKOV_BYTES_MAX {
        let reason = format!("exceeds {MARKOV_BYTES_MAX} bytes, no Markov cache is that large");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, reason)));
    }
    Ok(bytes)
}

/// Runs `work` in a pool of its own with a thread for each core: the program's own pool is left to be set
/// up by whoever drafts.
fn on_all_cores<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match rayon::ThreadPoolBuilder::new().build() {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}
