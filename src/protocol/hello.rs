//! HELLO and its reply (contract §6.2).

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::VERSION;
use super::step::Limits;
use crate::geometry::Geometry;

/// Bytes of [`HelloRequest`].
pub const HELLO_BYTES: usize = 192;
/// Bytes of [`HelloReply`].
pub const HELLO_REPLY_BYTES: usize = 128;
/// `payload_kind` of raw taps, the only one served (contract §3).
pub const TAPS_BF16: u32 = 1;
/// `sample_mode` of greedy drafts, the only one served.
pub const GREEDY: u32 = 1;
/// Capability bit: rows of raw taps.
pub const CAP_TAPS_BF16: u32 = 1 << 0;
/// Capability bit: margins on request.
pub const CAP_HAS_MARGIN: u32 = 1 << 2;

/// §6.2 HELLO request body, 192 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct HelloRequest {
    /// Lowest protocol version the client speaks.
    pub proto_min: U32,
    /// Highest protocol version the client speaks.
    pub proto_max: U32,
    /// Draft positions of a block, N.
    pub num_spec: U32,
    /// Context rows of a slot, W.
    pub window: U32,
    /// Hidden size.
    pub hidden: U32,
    /// Taps of a row.
    pub n_taps: U32,
    /// Layer ids of the taps; entries from `n_taps` on are not compared.
    pub tap_layer_ids: [U32; 4],
    /// [`TAPS_BF16`].
    pub payload_kind: U32,
    /// Bytes of a row.
    pub row_bytes: U32,
    /// Token of the block's query rows after the anchor.
    pub noise_token_id: U32,
    /// Vocabulary size.
    pub vocab_size: U32,
    /// Clamp of query positions; 0 means the worker's own (contract-notes D20).
    pub max_model_len: U32,
    /// The engine's `max_num_seqs`; informative.
    pub max_slots: U32,
    /// Rows the client may send in one STEP; informative.
    pub max_rows_per_step: U32,
    /// [`GREEDY`].
    pub sample_mode: U32,
    /// Informative.
    pub tp_size: U32,
    /// 0.
    pub reserved: U32,
    /// Drafter identity the client expects (§6.7).
    pub drafter_identity: [u8; 32],
    /// Markov identity the client expects; zeros without a cache.
    pub markov_identity: [u8; 32],
    /// ASCII, NUL-padded.
    pub client_name: [u8; 48],
}

const _: () = {
    assert!(size_of::<HelloRequest>() == HELLO_BYTES);
    assert!(offset_of!(HelloRequest, tap_layer_ids) == 24);
    assert!(offset_of!(HelloRequest, payload_kind) == 40);
    assert!(offset_of!(HelloRequest, noise_token_id) == 48);
    assert!(offset_of!(HelloRequest, max_slots) == 60);
    assert!(offset_of!(HelloRequest, sample_mode) == 68);
    assert!(offset_of!(HelloRequest, drafter_identity) == 80);
    assert!(offset_of!(HelloRequest, markov_identity) == 112);
    assert!(offset_of!(HelloRequest, client_name) == 144);
};

/// §6.2 HELLO reply body, 128 bytes; always the worker's own values (contract-notes D17).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct HelloReply {
    /// Protocol version chosen.
    pub proto: U32,
    /// Slots the worker keeps: entries and slot numbers are bounded by it.
    pub max_slots: U32,
    /// Rows the worker accepts in one STEP.
    pub max_rows_per_step: U32,
    /// [`CAP_TAPS_BF16`] | [`CAP_HAS_MARGIN`].
    pub capabilities: U32,
    /// Context rows of a slot, W.
    pub window: U32,
    /// Draft positions of a block, N.
    pub num_spec: U32,
    /// The worker's drafter identity.
    pub drafter_identity: [u8; 32],
    /// The worker's Markov identity; zeros without a cache.
    pub markov_identity: [u8; 32],
    /// ASCII, NUL-padded.
    pub worker_name: [u8; 40],
}

const _: () = {
    assert!(size_of::<HelloReply>() == HELLO_REPLY_BYTES);
    assert!(offset_of!(HelloReply, capabilities) == 12 && offset_of!(HelloReply, num_spec) == 20);
    assert!(offset_of!(HelloReply, drafter_identity) == 24);
    assert!(offset_of!(HelloReply, markov_identity) == 56);
    assert!(offset_of!(HelloReply, worker_name) == 88);
};

impl HelloRequest {
    /// The HELLO a client of this geometry and these identities sends.
    pub fn new(geometry: &Geometry, drafter: [u8; 32], markov: [u8; 32], name: &str) -> Self {
        let mut hello = Self::new_zeroed();
        hello.proto_min = u32::from(VERSION).into();
        hello.proto_max = u32::from(VERSION).into();
        hello.num_spec = geometry.num_spec.into();
        hello.window = geometry.window.into();
        hello.hidden = geometry.hidden.into();
        hello.n_taps = geometry.n_taps.into();
        hello.tap_layer_ids = geometry.tap_layer_ids.map(Into::into);
        hello.payload_kind = TAPS_BF16.into();
        hello.row_bytes = row_bytes(geometry).into();
        hello.noise_token_id = geometry.noise_token_id.into();
        hello.vocab_size = geometry.vocab_size.into();
        hello.max_model_len = geometry.max_model_len.into();
        hello.max_slots = geometry.max_slots.into();
        hello.max_rows_per_step = geometry.max_rows_per_step.into();
        hello.sample_mode = GREEDY.into();
        hello.tp_size = 2.into();
        hello.drafter_identity = drafter;
        hello.markov_identity = markov;
        pad(&mut hello.client_name, name);
        hello
    }

    /// What bounds the STEPs of this session.
    pub fn limits(&self) -> Limits {
        Limits {
            max_slots: self.max_slots.get(),
            max_rows_per_step: self.max_rows_per_step.get(),
            row_bytes: self.row_bytes.get(),
        }
    }

    /// The geometry these fields describe, not validated.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            num_spec: self.num_spec.get(),
            window: self.window.get(),
            hidden: self.hidden.get(),
            n_taps: self.n_taps.get(),
            tap_layer_ids: self.tap_layer_ids.map(U32::get),
            noise_token_id: self.noise_token_id.get(),
            vocab_size: self.vocab_size.get(),
            max_model_len: self.max_model_len.get(),
            max_slots: self.max_slots.get(),
            max_rows_per_step: self.max_rows_per_step.get(),
        }
    }

    /// The first field in which this HELLO asks for something else than `geometry` (contract-notes D19).
    /// Limits, `max_model_len`, `tp_size`, the name and unused tap ids are never a reason.
    pub fn config_mismatch(&self, geometry: &Geometry) -> Option<ConfigMismatch> {
        let differs = |field, asked: U32, served: u32| {
            (asked.get() != served).then_some(ConfigMismatch { field, asked: asked.get(), served })
        };
        differs("num_spec", self.num_spec, geometry.num_spec)
            .or_else(|| differs("window", self.window, geometry.window))
            .or_else(|| differs("hidden", self.hidden, geometry.hidden))
            .or_else(|| differs("n_taps", self.n_taps, geometry.n_taps))
            .or_else(|| {
                let served = geometry.tap_layer_ids.iter().take(geometry.n_taps as usize);
                self.tap_layer_ids
                    .iter()
                    .zip(served)
                    .find_map(|(asked, served)| differs("tap_layer_ids", *asked, *served))
            })
            .or_else(|| differs("row_bytes", self.row_bytes, row_bytes(geometry)))
            .or_else(|| differs("noise_token_id", self.noise_token_id, geometry.noise_token_id))
            .or_else(|| differs("vocab_size", self.vocab_size, geometry.vocab_size))
            .or_else(|| differs("sample_mode", self.sample_mode, GREEDY))
            .or_else(|| differs("payload_kind", self.payload_kind, TAPS_BF16))
    }

    /// `client_name` up to its first NUL, control and non-ASCII bytes as `\xNN`.
    pub fn client_name(&self) -> String {
        printable(&self.client_name)
    }
}

impl HelloReply {
    /// The reply of a worker that serves `geometry`.
    pub fn new(geometry: &Geometry, drafter: [u8; 32], markov: [u8; 32], name: &str) -> Self {
        let mut reply = Self::new_zeroed();
        reply.proto = u32::from(VERSION).into();
        reply.max_slots = geometry.max_slots.into();
        reply.max_rows_per_step = geometry.max_rows_per_step.into();
        reply.capabilities = (CAP_TAPS_BF16 | CAP_HAS_MARGIN).into();
        reply.window = geometry.window.into();
        reply.num_spec = geometry.num_spec.into();
        reply.drafter_identity = drafter;
        reply.markov_identity = markov;
        pad(&mut reply.worker_name, name);
        reply
    }

    /// `worker_name` up to its first NUL, control and non-ASCII bytes as `\xNN`.
    pub fn worker_name(&self) -> String {
        printable(&self.worker_name)
    }
}

/// The HELLO field that differs from what is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: the client asks for {asked}, this worker serves {served}")]
pub struct ConfigMismatch {
    /// Field name of contract §6.2.
    pub field: &'static str,
    /// Value in the HELLO.
    pub asked: u32,
    /// Value of the worker.
    pub served: u32,
}

fn row_bytes(geometry: &Geometry) -> u32 {
    u32::try_from(geometry.row_bytes()).expect("a valid geometry's row is at most 512 KiB")
}

fn pad(field: &mut [u8], name: &str) {
    field.fill(0);
    let len = name.len().min(field.len());
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
}

fn printable(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    let mut name = String::with_capacity(end);
    for byte in &field[..end] {
        match byte {
            b' '..=b'~' => name.push(char::from(*byte)),
            other => name.push_str(&format!("\\x{other:02x}")),
        }
    }
    name
}
