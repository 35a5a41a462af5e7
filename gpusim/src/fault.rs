//! What stops a kernel: one message that says where and what.

use std::fmt;

/// A failed check, before the executing warp adds where it happened.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    /// Lane concerned, where it is one.
    pub(crate) lane: Option<usize>,
    pub(crate) what: String,
}

impl Trouble {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { lane: None, what: what.into() }
    }

    pub(crate) fn at(lane: usize, what: impl Into<String>) -> Self {
        Self { lane: Some(lane), what: what.into() }
    }
}

/// A failed check with its place.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kernel: String,
    pub(crate) block: [u32; 3],
    /// Thread, or the first thread of a warp when the whole warp is concerned.
    pub(crate) thread: [u32; 3],
    pub(crate) line: u32,
    /// The instruction as it stands in the module.
    pub(crate) text: String,
    pub(crate) what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(
            f,
            "kernel {}, block ({bx},{by},{bz}), thread ({tx},{ty},{tz}), PTX line {}: {}\n    {}",
            self.kernel, self.line, self.what, self.text
        )
    }
}
