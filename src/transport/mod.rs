//! Whole frames over a connection; nothing about their meaning beyond the length (contract §5).
//!
//! The wire of `tcp://` is a little-endian `u32` length and that many bytes, AppHeader first. The worker's
//! end is asynchronous and survives being cancelled ([`Connection`]); the client's end is blocking with
//! one deadline for a whole call ([`Caller`]).

pub mod caller;
pub mod connection;
pub mod endpoint;
pub mod listener;
pub mod peers;
pub mod repeats;
pub mod tcp_info;

pub use caller::{CallError, Caller};
pub use connection::{Connection, RecvError, SendError};
pub use endpoint::{Endpoint, EndpointError, Scheme};
pub use listener::{ListenError, Listener};
pub use peers::{Peer, PeerRule, Peers};
pub use repeats::Repeats;
pub use tcp_info::{TcpTimes, tcp_times};

/// Bytes of the length prefix.
pub const PREFIX_BYTES: usize = 4;
