//! A drafter's files: receipt, identities, configuration, tensors and Markov cache (contract §6.7).
//!
//! Opening a checkpoint always verifies it: the bytes that were hashed are the bytes that are used, and a
//! file that is not what the receipt says stops the load. Quantized weights are not decoded here.
//!
//! | file | job |
//! |---|---|
//! | `receipt` | which files there must be, with which digests |
//! | `identity` | the digests HELLO carries |
//! | `verify` | map and hash the files |
//! | `config`, `keys` | shape and constants of the drafter |
//! | `tensors`, `names` | tensors by name, and their spellings |
//! | `markov` | tokens whose bias rows are kept ready |
//! | `demo` | the checkpoint inside the binary |

mod config;
mod identity;
mod json;
mod keys;
mod names;
mod receipt;
mod tensors;
mod verify;

pub use config::{CONFIG_NAME, ConfigError, DrafterConfig};
pub use identity::{Identities, drafter_identity, identity_lines, markov_identity};
pub use keys::KeysError;
pub use receipt::{RECEIPT_BYTES_MAX, RECEIPT_NAME, Receipt, ReceiptError, ReceiptFile};
pub use tensors::{Dtype, Tensor, TensorError, TensorStore};
pub use verify::{Difference, Progress, VerifiedFiles, VerifyError, verify_directory};
