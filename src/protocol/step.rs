//! STEP, the per-round request (contract §6.3): layout, checks, and rank 0's writer.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use zerocopy::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Ref, Unaligned};

use super::header::{AppHeader, HEADER_BYTES, Op};
use super::status::FrameStatus;
use crate::geometry::ROW_ALIGN;

/// `step_flags` bit 0: return margins.
pub const WANT_MARGIN: u16 = 1 << 0;
/// `req_flags` bit 0: discard the slot's window before applying rows.
pub const NEW_GEN: u8 = 1 << 0;
/// `req_flags` bit 1: return drafts and confidences.
pub const NEED_DRAFT: u8 = 1 << 1;
/// `req_flags` bit 2: the rows are a re-send of rank 0's ring; informative.
pub const RESYNC: u8 = 1 << 2;

/// Bytes of [`StepHeader`] and of [`ReqEntry`].
pub const STEP_HEADER_BYTES: usize = 32;

/// §6.3 StepHeader, 32 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct StepHeader {
    /// Rank 0's engine step; echoed, need not grow.
    pub step_id: U64,
    /// Entries, 1 ..= max_slots.
    pub n_req: U16,
    /// [`WANT_MARGIN`]; other bits are ignored.
    pub step_flags: U16,
    /// Rows in the row block.
    pub n_rows: U32,
    /// Bytes of a row, as in HELLO.
    pub row_bytes: U32,
    /// Offset of the row block from the start of the body, a multiple of 64.
    pub rows_offset: U32,
    /// 0.
    pub reserved: [U32; 2],
}

const _: () = {
    assert!(size_of::<StepHeader>() == STEP_HEADER_BYTES);
    assert!(offset_of!(StepHeader, n_req) == 8 && offset_of!(StepHeader, step_flags) == 10);
    assert!(offset_of!(StepHeader, n_rows) == 12 && offset_of!(StepHeader, row_bytes) == 16);
    assert!(offset_of!(StepHeader, rows_offset) == 20 && offset_of!(StepHeader, reserved) == 24);
};

/// §6.3 ReqEntry, 32 bytes, one per request in batch order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ReqEntry {
    /// Request-state index, unique within a STEP.
    pub slot: u8,
    /// [`NEW_GEN`] | [`NEED_DRAFT`] | [`RESYNC`]; other bits are ignored.
    pub req_flags: u8,
    /// Drafts the target verified in the step that produced these rows; informative.
    pub k_window: u8,
    /// Draft positions the client consumes; 0 means all N.
    pub n_out: u8,
    /// Per-slot generation (§7.1).
    pub generation: U32,
    /// Position of the first row; ignored when `n_rows` is 0.
    pub first_pos: I64,
    /// Rows of this request in the row block.
    pub n_rows: U32,
    /// Token at `anchor_pos`.
    pub anchor_token: I32,
    /// Last valid context position + 1.
    pub anchor_pos: I64,
}

const _: () = {
    assert!(size_of::<ReqEntry>() == 32);
    assert!(offset_of!(ReqEntry, n_out) == 3 && offset_of!(ReqEntry, generation) == 4);
    assert!(offset_of!(ReqEntry, first_pos) == 8 && offset_of!(ReqEntry, n_rows) == 16);
    assert!(offset_of!(ReqEntry, anchor_token) == 20 && offset_of!(ReqEntry, anchor_pos) == 24);
};

impl ReqEntry {
    /// Whether the window is discarded before the rows are applied.
    pub fn new_gen(&self) -> bool {
        self.req_flags & NEW_GEN != 0
    }

    /// Whether drafts are wanted.
    pub fn need_draft(&self) -> bool {
        self.req_flags & NEED_DRAFT != 0
    }

    /// Whether the rows are a re-send of rank 0's ring.
    pub fn resync(&self) -> bool {
        self.req_flags & RESYNC != 0
    }

    /// Draft positions the client consumes of a block of `num_spec` (contract-notes D26).
    pub fn consumed(&self, num_spec: usize) -> usize {
        match usize::from(self.n_out) {
            0 => num_spec,
            n => n.min(num_spec),
        }
    }
}

/// What a worker enforces on a STEP's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries, and slot numbers below it.
    pub max_slots: u32,
    /// Rows of one STEP.
    pub max_rows_per_step: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
}

/// The broken rule of a STEP's layout. The whole frame is refused and nothing of it applied (D13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The body ends before a structure does.
    #[error("STEP body has {body} bytes, {needed} are needed for {what}")]
    Short {
        /// Structure that does not fit.
        what: &'static str,
        /// Bytes of the body.
        body: usize,
        /// Bytes it needs.
        needed: u64,
    },
    /// `n_req` is 0.
    #[error("STEP without entries")]
    NoEntries,
    /// More entries than slots.
    #[error("STEP has {n_req} entries, the worker keeps {max_slots} slots")]
    TooManyEntries {
        /// Entries of the STEP.
        n_req: u16,
        /// Slots of the worker.
        max_slots: u32,
    },
    /// Another row size than HELLO's.
    #[error("row_bytes is {row_bytes}, HELLO said {expected}")]
    RowBytes {
        /// Value of the STEP.
        row_bytes: u32,
        /// Value of HELLO.
        expected: u32,
    },
    /// More rows than a STEP may carry.
    #[error("STEP has {n_rows} rows, at most {max} are accepted")]
    TooManyRows {
        /// Rows of the STEP.
        n_rows: u32,
        /// Limit of the worker.
        max: u32,
    },
    /// The row block does not lie where it must.
    #[error("rows_offset is {rows_offset}: not a multiple of 64 behind the entries")]
    RowsOffset {
        /// Offset of the STEP.
        rows_offset: u32,
    },
    /// The row block does not end with the body.
    #[error("the row block ends at byte {end}, the body at {body}")]
    RowsEnd {
        /// End of the row block.
        end: u64,
        /// Bytes of the body.
        body: usize,
    },
    /// A slot the worker does not have.
    #[error("entry {entry} names slot {slot}, the worker keeps {max_slots}")]
    NoSuchSlot {
        /// Index of the entry.
        entry: usize,
        /// Its slot.
        slot: u8,
        /// Slots of the worker.
        max_slots: u32,
    },
    /// A slot named twice.
    #[error("slot {slot} occurs twice")]
    DuplicateSlot {
        /// The slot.
        slot: u8,
    },
    /// Rows that belong to no entry.
    #[error("the entries claim {claimed} of {n_rows} rows")]
    UnclaimedRows {
        /// Sum over the entries.
        claimed: u64,
        /// Rows of the STEP.
        n_rows: u32,
    },
}

impl LayoutError {
    /// Frame status that answers it.
    pub fn status(&self) -> FrameStatus {
        match self {
            Self::TooManyEntries { .. } | Self::TooManyRows { .. } => FrameStatus::Capacity,
            _ => FrameStatus::Malformed,
        }
    }
}

/// A STEP whose layout holds, viewed in the received bytes.
#[derive(Clone, Copy, Debug)]
pub struct StepRequest<'a> {
    /// The header.
    pub header: &'a StepHeader,
    /// The entries, each with a slot below `max_slots` and no slot twice.
    pub entries: &'a [ReqEntry],
    /// The row block: `header.n_rows × row_bytes` bytes.
    pub rows: &'a [u8],
}

impl<'a> StepRequest<'a> {
    /// Checks the layout of a STEP body in the order of contract-notes §5, in 64-bit arithmetic.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn parse(body: &'a [u8], limits: &Limits) -> Result<Self, LayoutError> {
        let short = |what, needed| LayoutError::Short { what, body: body.len(), needed };
        let (header, rest) = Ref::<_, StepHeader>::from_prefix(body)
            .map_err(|_| short("its header", STEP_HEADER_BYTES as u64))?;
        let header = Ref::into_ref(header);
        let n_req = header.n_req.get();
        if n_req == 0 {
            return Err(LayoutError::NoEntries);
        }
        if u32::from(n_req) > limits.max_slots {
            return Err(LayoutError::TooManyEntries { n_req, max_slots: limits.max_slots });
        }
        let entries_end = STEP_HEADER_BYTES as u64 + 32 * u64::from(n_req);
        let (entries, _) = Ref::<_, [ReqEntry]>::from_prefix_with_elems(rest, usize::from(n_req))
            .map_err(|_| short("its entries", entries_end))?;
        let entries = Ref::into_ref(entries);
        let rows = row_block(body, header, entries_end, limits)?;
        check_slots(entries, limits.max_slots)?;
        let claimed: u64 = entries.iter().map(|e| u64::from(e.n_rows.get())).sum();
        if claimed < u64::from(header.n_rows.get()) {
            return Err(LayoutError::UnclaimedRows { claimed, n_rows: header.n_rows.get() });
        }
        Ok(Self { header, entries, rows })
    }

    /// Whether margins are asked for.
    pub fn want_margin(&self) -> bool {
        self.header.step_flags.get() & WANT_MARGIN != 0
    }

    /// Entries with the rows that are theirs, as indices into the row block; `None` where they do not
    /// fit. Rows belong to entries in order, whatever becomes of an entry (contract-notes D25).
    pub fn entry_rows(
        &self,
    ) -> impl Iterator<Item = (&'a ReqEntry, Option<Range<usize>>)> + use<'a> {
        let total = u64::from(self.header.n_rows.get());
        let mut next = 0u64;
        self.entries.iter().map(move |entry| {
            let start = next;
            next += u64::from(entry.n_rows.get());
            let fits = next <= total || entry.n_rows.get() == 0;
            let range = fits.then(|| {
                let index = |row: u64| usize::try_from(row.min(total)).expect("rows are in memory");
                index(start)..index(next)
            });
            (entry, range)
        })
    }
}

fn row_block<'a>(
    body: &'a [u8],
    header: &StepHeader,
    entries_end: u64,
    limits: &Limits,
) -> Result<&'a [u8], LayoutError> {
    let (row_bytes, n_rows) = (header.row_bytes.get(), header.n_rows.get());
    if row_bytes != limits.row_bytes {
        return Err(LayoutError::RowBytes { row_bytes, expected: limits.row_bytes });
    }
    if n_rows > limits.max_rows_per_step {
        return Err(LayoutError::TooManyRows { n_rows, max: limits.max_rows_per_step });
    }
    if n_rows == 0 {
        return Ok(&[]); // rows_offset is not used then (contract-notes D22)
    }
    let rows_offset = header.rows_offset.get();
    let start = u64::from(rows_offset);
    if !start.is_multiple_of(ROW_ALIGN as u64) || start < entries_end {
        return Err(LayoutError::RowsOffset { rows_offset });
    }
    let end = start + u64::from(n_rows) * u64::from(row_bytes);
    if end != body.len() as u64 {
        return Err(LayoutError::RowsEnd { end, body: body.len() });
    }
    Ok(&body[rows_offset as usize..])
}

fn check_slots(entries: &[ReqEntry], max_slots: u32) -> Result<(), LayoutError> {
    let mut seen = 0u32;
    for (entry, e) in entries.iter().enumerate() {
        if u32::from(e.slot) >= max_slots {
            return Err(LayoutError::NoSuchSlot { entry, slot: e.slot, max_slots });
        }
        let bit = 1u32 << e.slot;
        if seen & bit != 0 {
            return Err(LayoutError::DuplicateSlot { slot: e.slot });
        }
        seen |= bit;
    }
    Ok(())
}

/// Writes one STEP message into a reused buffer, as rank 0 does: header, entries, padding, then rows.
pub struct StepWriter<'a> {
    message: &'a mut Vec<u8>,
    len: usize,
}

/// What a STEP says besides its entries and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMeta {
    /// Sequence number.
    pub seq: u64,
    /// Session id.
    pub session: u32,
    /// Engine step.
    pub step_id: u64,
    /// Whether to ask for margins.
    pub want_margin: bool,
    /// Bytes of a row.
    pub row_bytes: usize,
}

impl<'a> StepWriter<'a> {
    /// Starts a message that will carry the rows its entries claim.
    ///
    /// # Panics
    /// If the message would not fit its own length fields: rank 0 stays within HELLO's limits.
    pub fn begin(message: &'a mut Vec<u8>, meta: StepMeta, entries: &[ReqEntry]) -> Self {
        let fit = "rank 0 sends at most max_slots entries and max_rows_per_step rows";
        let rows_offset = (STEP_HEADER_BYTES + 32 * entries.len()).next_multiple_of(ROW_ALIGN);
        let n_rows: u32 = entries.iter().map(|e| e.n_rows.get()).sum();
        let body_len = rows_offset + n_rows as usize * meta.row_bytes;
        let mut header = StepHeader::new_zeroed();
        header.step_id = meta.step_id.into();
        header.n_req = u16::try_from(entries.len()).expect(fit).into();
        header.step_flags = if meta.want_margin { WANT_MARGIN } else { 0 }.into();
        header.n_rows = n_rows.into();
        header.row_bytes = u32::try_from(meta.row_bytes).expect(fit).into();
        header.rows_offset = u32::try_from(rows_offset).expect(fit).into();
        let body_len32 = u32::try_from(body_len).expect(fit);
        let app = AppHeader::request(Op::Step, meta.seq, meta.session, body_len32);
        message.clear();
        message.extend_from_slice(app.as_bytes());
        message.extend_from_slice(header.as_bytes());
        message.extend_from_slice(entries.as_bytes());
        message.resize(HEADER_BYTES + rows_offset, 0);
        Self { message, len: HEADER_BYTES + body_len }
    }

    /// Appends whole rows, in entry order.
    pub fn rows(&mut self, rows: &[u8]) -> &mut Self {
        self.message.extend_from_slice(rows);
        self
    }

    /// Ends the message.
    ///
    /// # Panics
    /// If the rows written are not those the entries claim.
    pub fn finish(self) {
        assert_eq!(self.message.len(), self.len, "the rows written are not those claimed");
    }
}
