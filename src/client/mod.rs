//! The Spark's side of the wire, emulated: what rank 0 sends and how it judges replies (contract §4, §10).

pub mod driver;
pub mod report;

pub use driver::{ClientError, Round, RoundTimes, SparkClient};
pub use report::ReplayReport;
