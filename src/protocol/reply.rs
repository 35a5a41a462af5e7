//! The reply to a STEP (contract §6.3): the worker's writer and rank 0's view.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{F32, I32, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Ref, Unaligned};

use super::header::{AppHeader, HEADER_BYTES};
use super::status::{EntryStatus, FrameStatus};

/// `reply_flags` bit 0: the margin array is present.
pub const HAS_MARGIN: u32 = 1 << 0;

/// §6.3 ReplyHeader, 32 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ReplyHeader {
    /// Echo.
    pub step_id: U64,
    /// Echo.
    pub n_req: U16,
    /// Draft positions of a block, N.
    pub num_spec: U16,
    /// [`HAS_MARGIN`].
    pub reply_flags: U32,
    /// Apply and draft time, µs.
    pub worker_us: U32,
    /// From the request fully received to the reply handed to the transport, µs.
    pub recv_to_send_us: U32,
    /// 0.
    pub reserved: [U32; 2],
}

const _: () = {
    assert!(size_of::<ReplyHeader>() == 32);
    assert!(offset_of!(ReplyHeader, num_spec) == 10 && offset_of!(ReplyHeader, worker_us) == 16);
    assert!(offset_of!(ReplyHeader, recv_to_send_us) == 20);
};

/// §6.3 ReqStatus, 8 bytes, one per entry.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ReqStatus {
    /// An [`EntryStatus`] code.
    pub status: U16,
    /// Rows the block could attend to; 0 for entries with an error (contract-notes D34).
    pub window_rows: U16,
    /// Echo of the entry's generation, also when stale.
    pub generation: U32,
}

const _: () = assert!(size_of::<ReqStatus>() == 8);

/// Bytes of a STEP reply, header included.
pub const fn reply_len(n_req: usize, num_spec: usize, margins: bool) -> usize {
    let arrays = if margins { 3 } else { 2 };
    HEADER_BYTES + size_of::<ReplyHeader>() + n_req * (8 + 4 * num_spec * arrays)
}

/// Writes one STEP reply into the reply buffer; everything not set explicitly is zero, as the contract
/// wants it for entries without drafts and positions that nobody consumes.
pub struct StepReplyWriter<'a> {
    message: &'a mut Vec<u8>,
    n_req: usize,
    num_spec: usize,
    margins: bool,
}

/// The two durations of a reply, µs. `worker_us ≤ recv_to_send_us` always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyTimes {
    /// Apply and draft time.
    pub worker_us: u32,
    /// From the request fully received to the reply handed over.
    pub recv_to_send_us: u32,
}

impl<'a> StepReplyWriter<'a> {
    /// Starts the reply to a STEP of `n_req` entries: all statuses OK with no rows, all drafts zero.
    pub fn begin(
        message: &'a mut Vec<u8>,
        request: &AppHeader,
        step_id: u64,
        n_req: u16,
        num_spec: u16,
        margins: bool,
    ) -> Self {
        let len = reply_len(usize::from(n_req), usize::from(num_spec), margins);
        let body = u32::try_from(len - HEADER_BYTES).expect("a reply is at most 64 KiB");
        let mut header = ReplyHeader::new_zeroed();
        header.step_id = step_id.into();
        header.n_req = n_req.into();
        header.num_spec = num_spec.into();
        header.reply_flags = if margins { HAS_MARGIN } else { 0 }.into();
        message.clear();
        message.extend_from_slice(request.reply(FrameStatus::Ok, body).as_bytes());
        message.extend_from_slice(header.as_bytes());
        message.resize(len, 0);
        Self { message, n_req: n_req.into(), num_spec: num_spec.into(), margins }
    }

    /// Sets status, `window_rows` and generation of entry `entry`.
    pub fn status(&mut self, entry: usize, status: EntryStatus, window_rows: u16, generation: u32) {
        let code = u16::try_from(status.code()).expect("entry statuses are below 5");
        let row = ReqStatus {
            status: code.into(),
            window_rows: window_rows.into(),
            generation: generation.into(),
        };
        self.put(64 + 8 * entry, row.as_bytes());
    }

    /// Sets the consumed positions of entry `entry`: up to N ids, confidences and margins. Margins are
    /// dropped unless the reply carries them.
    pub fn block(&mut self, entry: usize, ids: &[i32], confidence: &[f32], margin: &[f32]) {
        assert!(entry < self.n_req && ids.len() <= self.num_spec, "block outside the reply");
        let array = 4 * self.n_req * self.num_spec;
        let base = 64 + 8 * self.n_req + 4 * entry * self.num_spec;
        for (j, ((id, confidence), margin)) in ids.iter().zip(confidence).zip(margin).enumerate() {
            self.put(base + 4 * j, &id.to_le_bytes());
            self.put(base + array + 4 * j, &confidence.to_le_bytes());
            if self.margins {
                self.put(base + 2 * array + 4 * j, &margin.to_le_bytes());
            }
        }
    }

    /// Sets the durations.
    pub fn times(&mut self, times: ReplyTimes) {
        set_times(self.message, times);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.message[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Sets the durations of a finished reply, so that the last moment before sending can be measured.
pub fn set_times(message: &mut [u8], times: ReplyTimes) {
    let worker = times.worker_us.min(times.recv_to_send_us);
    message[HEADER_BYTES + 16..HEADER_BYTES + 20].copy_from_slice(&worker.to_le_bytes());
    message[HEADER_BYTES + 20..HEADER_BYTES + 24]
        .copy_from_slice(&times.recv_to_send_us.to_le_bytes());
}

/// A STEP reply body viewed in the received bytes. The sizes hold; the values are not judged: see
/// [`check_reply`](super::check_reply).
#[derive(Clone, Copy, Debug)]
pub struct StepReply<'a> {
    /// The header.
    pub header: &'a ReplyHeader,
    /// Statuses, one per entry.
    pub statuses: &'a [ReqStatus],
    ids: &'a [I32],
    confidence: &'a [F32],
    margin: &'a [F32],
}

impl<'a> StepReply<'a> {
    /// Views a reply body; `None` unless its length is exactly what its own header announces.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let (header, rest) = Ref::<_, ReplyHeader>::from_prefix(body).ok()?;
        let header = Ref::into_ref(header);
        let n_req = usize::from(header.n_req.get());
        let cells = n_req * usize::from(header.num_spec.get());
        let has_margin = header.reply_flags.get() & HAS_MARGIN != 0;
        let (statuses, rest) = Ref::<_, [ReqStatus]>::from_prefix_with_elems(rest, n_req).ok()?;
        let (ids, rest) = Ref::<_, [I32]>::from_prefix_with_elems(rest, cells).ok()?;
        let (confidence, rest) = Ref::<_, [F32]>::from_prefix_with_elems(rest, cells).ok()?;
        let margins = if has_margin { cells } else { 0 };
        let (margin, rest) = Ref::<_, [F32]>::from_prefix_with_elems(rest, margins).ok()?;
        rest.is_empty().then_some(Self {
            header,
            statuses: Ref::into_ref(statuses),
            ids: Ref::into_ref(ids),
            confidence: Ref::into_ref(confidence),
            margin: Ref::into_ref(margin),
        })
    }

    /// Whether margins are present.
    pub fn has_margin(&self) -> bool {
        self.header.reply_flags.get() & HAS_MARGIN != 0
    }

    /// Status of entry `entry`, if its number is one of contract §9.2.
    pub fn status(&self, entry: usize) -> Option<EntryStatus> {
        EntryStatus::from_code(self.statuses[entry].status.get().into())
    }

    /// Draft ids of entry `entry`, N of them.
    pub fn ids(&self, entry: usize) -> impl ExactSizeIterator<Item = i32> + 'a {
        self.row(self.ids, entry).iter().map(|v| v.get())
    }

    /// Confidences of entry `entry`, N of them.
    pub fn confidence(&self, entry: usize) -> impl ExactSizeIterator<Item = f32> + 'a {
        self.row(self.confidence, entry).iter().map(|v| v.get())
    }

    /// Margins of entry `entry`: N of them, or none.
    pub fn margin(&self, entry: usize) -> impl ExactSizeIterator<Item = f32> + 'a {
        let row = if self.has_margin() { self.row(self.margin, entry) } else { &[] };
        row.iter().map(|v| v.get())
    }

    fn row<T>(&self, array: &'a [T], entry: usize) -> &'a [T] {
        let n = usize::from(self.header.num_spec.get());
        &array[entry * n..(entry + 1) * n]
    }
}
