//! Rank 0, the only client a worker has (contract §4.1).
//!
//! Its state is pure: time, connections and random numbers enter as arguments, so that every fault can be
//! played in a test. Only the driver owns a socket.
//!
//! - [`breaker`]: when rank 0 may try, and how long it waits to reconnect (contract §10).
//! - [`faults`]: a seeded schedule of link faults.
//! - [`rank0`]: slots, ring, entries, sequence numbers, and what a reply changes (contract §7.1 to §7.5).
//! - [`driver`]: rank 0 on a real connection.
//! - [`report`]: what a replay counted and measured.

pub mod breaker;
pub mod driver;
pub mod faults;
pub mod rank0;
pub mod report;

pub use driver::{ClientOptions, ConnectError, Round, RoundTimes, SparkClient};
pub use report::ReplayReport;
