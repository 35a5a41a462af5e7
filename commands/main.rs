//! The dspark command.

fn main() {}
