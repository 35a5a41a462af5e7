//! The worked cases of `fixtures/cases` as wire entries and rows.

use std::io::Read;

use dspark::geometry::Geometry;
use dspark::protocol::ReqEntry;
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC};
use serde_json::Value;

use super::fixture;

/// Geometry of `fixtures/tiny`.
pub(crate) const TINY: Geometry = Geometry {
    num_spec: 5,
    window: 128,
    hidden: 256,
    n_taps: 3,
    tap_layer_ids: [37, 38, 39, 0],
    noise_token_id: 499,
    vocab_size: 512,
    max_model_len: 327_680,
    max_slots: 4,
    max_rows_per_step: 512,
};

/// The pool of tap rows that entries refer to, modulo its length.
pub(crate) struct Pool(Vec<u8>);

impl Pool {
    /// Reads the pool.
    pub(crate) fn open() -> Self {
        let mut bytes = Vec::new();
        let path = fixture("cases/taps.safetensors");
        std::fs::File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let taps = tensors.tensor("taps").unwrap();
        assert_eq!(taps.shape(), [512, 768]);
        Self(taps.data().to_vec())
    }

    /// Bytes of row `index`.
    pub(crate) fn row(&self, index: usize) -> &[u8] {
        let row_bytes = TINY.row_bytes();
        &self.0[index % 512 * row_bytes..][..row_bytes]
    }
}

/// A worked example's entry as it goes over the wire.
pub(crate) fn entry(json: &Value) -> ReqEntry {
    let flag = |name: &str, bit: u8| if json[name].as_bool().unwrap() { bit } else { 0 };
    let int = |name: &str| json[name].as_i64().unwrap();
    ReqEntry {
        slot: int("slot") as u8,
        req_flags: flag("new_gen", NEW_GEN)
            | flag("need_draft", NEED_DRAFT)
            | flag("resync", RESYNC),
        k_window: int("k_window") as u8,
        n_out: int("n_out") as u8,
        generation: (json["generation"].as_u64().unwrap() as u32).into(),
        first_pos: int("first_pos").into(),
        n_rows: (int("n_rows") as u32).into(),
        anchor_token: (int("anchor_token") as i32).into(),
        anchor_pos: int("anchor_pos").into(),
    }
}
