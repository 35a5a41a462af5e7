//! dspark: the remote drafter of DSpark speculative decoding.
//!
//! Modules in dependency order; each may use only those above it.
//!
//! - [`geometry`]: the numbers both ends of the wire agree on.
//! - [`digest`]: SHA-256 of bytes and files.
//! - [`buffer`]: memory one frame is received into.
//! - [`plan`]: what one STEP asks of a backend.
//! - [`protocol`]: bytes to messages and back.
//! - [`window`]: which positions a slot holds.
//! - [`ring`]: row bytes where the window says they are.
//! - [`session`]: admits frames, keeps seq and slots, turns a STEP into statuses and a plan.
//! - [`checkpoint`]: a drafter's files: receipt, identities, configuration, tensors.
//! - [`exl3`]: quantised weights, decoded and multiplied on the CPU.
//! - [`drafter`]: backends that execute plans.
//! - [`client`]: rank 0, the only client of a worker.

pub mod buffer;
pub mod checkpoint;
pub mod client;
pub mod digest;
pub mod drafter;
pub mod exl3;
pub mod geometry;
pub mod plan;
pub mod protocol;
pub mod ring;
pub mod session;
pub mod window;
