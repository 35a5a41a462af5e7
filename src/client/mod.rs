//! Rank 0, the only client a worker has (contract §4.1), as pure state: no socket, no clock, no random
//! numbers. Time and connections enter as arguments, so that every fault can be played in a test.
//!
//! - [`breaker`]: when rank 0 may try, and how long it waits to reconnect (contract §10).
//! - [`faults`]: a seeded schedule of link faults.
//! - [`rank0`]: slots, ring, entries, sequence numbers, and what a reply changes (contract §7.1 to §7.5).

pub mod breaker;
pub mod faults;
pub mod rank0;
