//! What stops a kernel: one message that says where and what.

use std::fmt;

/// A failed check, before the executing warp adds where it happened. Boxed, because nearly every
/// check passes and its result is handed up through every access.
#[derive(Clone, Debug)]
pub(crate) struct Trouble(Box<Finding>);

#[derive(Clone, Debug)]
struct Finding {
    lane: Option<usize>,
    what: String,
}

impl Trouble {
    #[cold]
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(Box::new(Finding { lane: None, what: what.into() }))
    }

    #[cold]
    pub(crate) fn at(lane: usize, what: impl Into<String>) -> Self {
        Self(Box::new(Finding { lane: Some(lane), what: what.into() }))
    }

    /// Lane concerned, where it is one.
    pub(crate) fn lane(&self) -> Option<usize> {
        self.0.lane
    }

    /// What is wrong.
    pub(crate) fn what(&self) -> &str {
        &self.0.what
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
