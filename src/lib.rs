//! dspark: the remote drafter of DSpark speculative decoding.
//!
//! Modules in dependency order; each may use only those above it.
//!
//! - [`geometry`]: the numbers both ends of the wire agree on.
//! - [`digest`]: SHA-256 of bytes and files.
//! - [`random`]: numbers that a seed repeats.
//! - [`buffer`]: memory one frame is received into.
//! - [`plan`]: what one STEP asks of a backend.
//! - [`protocol`]: bytes to messages and back.
//! - [`window`]: which positions a slot holds.
//! - [`ring`]: row bytes where the window says they are.
//! - [`session`]: admits frames, keeps seq and slots, turns a STEP into statuses and a plan.
//! - [`exl3`]: quantised weights, decoded and multiplied on the CPU.
//! - [`checkpoint`]: a drafter's files: receipt, identities, configuration, tensors.
//! - [`drafter`]: backends that execute plans.
//! - [`transport`]: whole frames over a connection.
//! - [`trace`]: a file of timed frames.
//! - [`client`]: rank 0 emulated: what it sends and how it judges replies.
//! - [`shadow`]: comparing two sets of drafts.
//! - [`worker`]: one frame in, one reply out; listeners, threads, counters.

pub mod buffer;
pub mod checkpoint;
pub mod client;
pub mod digest;
pub mod drafter;
pub mod exl3;
pub mod geometry;
pub mod plan;
pub mod protocol;
pub mod random;
pub mod ring;
pub mod session;
pub mod shadow;
pub mod trace;
pub mod transport;
pub mod window;
pub mod worker;

/// Version of the wire and state contract this program implements.
pub const CONTRACT_VERSION: &str = "1.8";
