//! The worker as a process behind sockets: what a peer, well-behaved or not, sees of it.
//!
//! Clients here are plain sockets, so that they can break every rule of the transport. Workers serve the
//! built-in demo checkpoint on loopback ports of their own.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod client;
mod control;
mod framing;
mod gate;
mod hostile;
mod malformed;
mod newest;
mod record;
mod sessions;
mod shutdown;
mod slow;
mod stall;
mod stats;
mod tools;
