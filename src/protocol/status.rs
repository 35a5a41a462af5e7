//! Frame and entry statuses: number, name, meaning, client action, once each (contract §9).

/// Row of a status table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRow {
    /// Number on the wire.
    pub code: u32,
    /// Name as the contract writes it.
    pub name: &'static str,
    /// What it says.
    pub meaning: &'static str,
    /// What rank 0 does on it.
    pub action: &'static str,
}

macro_rules! statuses {
    ($(#[$doc:meta])* $type:ident { $($variant:ident = $code:literal $name:literal, $meaning:literal, $action:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type { $(#[doc = concat!("`", $name, "`: ", $meaning, ".")] $variant = $code,)* }

        impl $type {
            /// Every status, in code order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The status with this number.
            pub fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// Its row of the table.
            pub fn row(self) -> StatusRow {
                match self {
                    $(Self::$variant => StatusRow { code: $code, name: $name, meaning: $meaning, action: $action },)*
                }
            }

            /// Number on the wire.
            pub fn code(self) -> u32 { self.row().code }

            /// Name as the contract writes it.
            pub fn name(self) -> &'static str { self.row().name }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.pad(self.name()) }
        }
    };
}

statuses! {
    /// Status of a whole reply frame, `AppHeader.status` (contract §9.1).
    FrameStatus {
        Ok = 0 "OK", "the frame was applied or answered", "use the reply";
        BadVersion = 1 "BAD_VERSION", "no common protocol version", "fatal: log, disable the remote drafter";
        IdentityMismatch = 2 "IDENTITY_MISMATCH", "the worker serves another checkpoint or Markov cache", "fatal: log both digests, disable the remote drafter";
        ConfigMismatch = 3 "CONFIG_MISMATCH", "geometry, payload kind or sample mode differ", "fatal: log, disable the remote drafter";
        NoSession = 4 "NO_SESSION", "no accepted HELLO of this session on this connection", "HELLO, then resync all live slots";
        StaleSeq = 5 "STALE_SEQ", "seq is not above the last applied one; the frame was not applied", "HELLO, then resync";
        Malformed = 6 "MALFORMED", "the frame breaks the layout rules; nothing was applied", "resync the slots of that STEP; count it";
        Capacity = 7 "CAPACITY", "more rows or entries than the worker holds", "resync; count it";
        Internal = 8 "INTERNAL", "the worker failed", "resync; count it";
        UnsupportedOp = 9 "UNSUPPORTED_OP", "the worker does not know this operation here", "fatal: disable the remote drafter";
    }
}

statuses! {
    /// Status of one request in a STEP reply (contract §9.2).
    EntryStatus {
        Ok = 0 "OK", "drafts valid", "use them";
        PartialWindow = 1 "PARTIAL_WINDOW", "drafts valid, but the window had fewer rows than the anchor reads", "use them; count it; resync the slot next round";
        StaleGeneration = 2 "STALE_GENERATION", "the generation is older than the slot's; entry ignored", "zero drafts; new session, resync every live slot";
        BadEntry = 3 "BAD_ENTRY", "positions or sizes rejected", "zero drafts; dirty; log the entry";
        Internal = 4 "INTERNAL", "the worker failed on this entry", "zero drafts; dirty";
    }
}

impl FrameStatus {
    /// Whether rank 0 turns the remote drafter off for good: never an answer to a passing condition.
    pub fn is_fatal(self) -> bool {
        matches!(
            self,
            Self::BadVersion | Self::IdentityMismatch | Self::ConfigMismatch | Self::UnsupportedOp
        )
    }
}

impl EntryStatus {
    /// Whether the entry's drafts may be consumed.
    pub fn has_drafts(self) -> bool {
        matches!(self, Self::Ok | Self::PartialWindow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_dense_and_round_trip() {
        for (code, status) in (0u32..).zip(FrameStatus::ALL) {
            assert_eq!((status.code(), FrameStatus::from_code(code)), (code, Some(*status)));
        }
        for (code, status) in (0u32..).zip(EntryStatus::ALL) {
            assert_eq!((status.code(), EntryStatus::from_code(code)), (code, Some(*status)));
        }
        assert_eq!((FrameStatus::from_code(10), EntryStatus::from_code(5)), (None, None));
    }
}
