//! Execution: kernels decoded to programs, warps in lockstep, every access checked.

mod access;
mod alu;
mod atomics;
mod block;
mod copies;
mod decode;
mod lanes;
pub(crate) mod launch;
mod matrix;
pub(crate) mod program;
mod traffic;
mod warp;
mod wide;

pub(crate) use decode::decode;
