//! The numbers both ends of the wire must agree on, and the sizes derived from them (contract §6.2).
//!
//! Nothing here parses or computes; a [`Geometry`] is carried by value through every module.

/// Alignment of the row block inside a STEP body and of the body in memory (contract §6.3).
pub const ROW_ALIGN: usize = 64;
/// Slots of tap layer ids in HELLO; only the first `n_taps` are compared (contract-notes D19).
pub const TAP_ID_SLOTS: usize = 4;
/// Largest number of request slots a worker can be started with: RESET names slots in a `u32` mask.
pub const SLOTS_MAX: u32 = 32;
/// Largest request message, header included, that either side accepts (contract §5).
pub const REQUEST_BYTES_MAX: usize = 16 << 20;
/// Largest reply message, header included (contract §5).
pub const REPLY_BYTES_MAX: usize = 64 << 10;

/// Shape of one drafter and of the session that serves it (contract §6.2).
///
/// Invariants, kept by [`Geometry::validate`]: every count is nonzero, `n_taps ≤ 4`, `max_slots ≤ 32`,
/// and a full STEP and a full reply fit the frame limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Draft positions of one block, N.
    pub num_spec: u32,
    /// Context rows kept per slot, W.
    pub window: u32,
    /// Hidden size of the target, in elements.
    pub hidden: u32,
    /// Tap layers concatenated in one row.
    pub n_taps: u32,
    /// Layer ids of the taps, in row order; entries from `n_taps` on are unused.
    pub tap_layer_ids: [u32; TAP_ID_SLOTS],
    /// Token id of the block's query rows after the anchor.
    pub noise_token_id: u32,
    /// Vocabulary size; draft ids are below it.
    pub vocab_size: u32,
    /// Query positions are clamped to `max_model_len − 1` (contract §7.2 step 5).
    pub max_model_len: u32,
    /// Request slots kept resident.
    pub max_slots: u32,
    /// Rows one STEP may carry.
    pub max_rows_per_step: u32,
}

/// The live build's values (contract §6.2).
pub const LIVE: Geometry = Geometry {
    num_spec: 5,
    window: 128,
    hidden: 5120,
    n_taps: 3,
    tap_layer_ids: [37, 38, 39, 0],
    noise_token_id: 128_799,
    vocab_size: 129_280,
    max_model_len: 327_680,
    max_slots: 4,
    max_rows_per_step: 512,
};

/// A geometry no worker can serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("geometry: {field} is {value}, allowed is {allowed}")]
pub struct GeometryError {
    /// Field name as HELLO spells it.
    pub field: &'static str,
    /// The refused value.
    pub value: u64,
    /// The range in words.
    pub allowed: &'static str,
}

impl Geometry {
    /// Elements of one row: `n_taps × hidden` bf16 values.
    pub const fn row_elems(&self) -> usize {
        self.n_taps as usize * self.hidden as usize
    }

    /// Bytes of one row (§3: the taps concatenated, little-endian bf16).
    pub const fn row_bytes(&self) -> usize {
        self.row_elems() * 2
    }

    /// Rows a STEP may carry when `slots` windows are resident: all of them, or what one request holds.
    pub fn rows_max_for(&self, slots: u32) -> u32 {
        let room = REQUEST_BYTES_MAX - 32 - 32 - 32 * slots as usize - ROW_ALIGN;
        let rows = (slots as usize * self.window as usize).min(room / self.row_bytes().max(1));
        u32::try_from(rows).unwrap_or(u32::MAX)
    }

    /// The same geometry with another number of resident slots and the row limit that follows.
    pub fn with_slots(mut self, slots: u32) -> Self {
        self.max_slots = slots;
        self.max_rows_per_step = self.rows_max_for(slots);
        self
    }

    /// Checks the invariants of the type.
    ///
    /// # Errors
    /// The first field out of range.
    pub fn validate(&self) -> Result<(), GeometryError> {
        let check = |ok: bool, field, value: u32, allowed| {
            if ok { Ok(()) } else { Err(GeometryError { field, value: u64::from(value), allowed }) }
        };
        check((1..=64).contains(&self.num_spec), "num_spec", self.num_spec, "1..=64")?;
        check((1..=4096).contains(&self.window), "window", self.window, "1..=4096")?;
        check((1..=1 << 16).contains(&self.hidden), "hidden", self.hidden, "1..=65536")?;
        check((1..=4).contains(&self.n_taps), "n_taps", self.n_taps, "1..=4")?;
        check(
            (1..=1 << 24).contains(&self.vocab_size),
            "vocab_size",
            self.vocab_size,
            "1..=16777216",
        )?;
        check(
            self.noise_token_id < self.vocab_size,
            "noise_token_id",
            self.noise_token_id,
            "below vocab_size",
        )?;
        check(self.max_model_len >= 1, "max_model_len", self.max_model_len, "1 or more")?;
        check((1..=SLOTS_MAX).contains(&self.max_slots), "max_slots", self.max_slots, "1..=32")?;
        let rows = self.max_rows_per_step;
        check(
            (1..=self.rows_max_for(self.max_slots)).contains(&rows),
            "max_rows_per_step",
            rows,
            "what one request holds",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_sizes_are_the_contracts() {
        LIVE.validate().unwrap();
        assert_eq!(LIVE.row_bytes(), 30_720);
        assert_eq!(LIVE.rows_max_for(4), 512);
        // Eight live windows exceed one 16 MiB request, so the row limit gives way.
        assert_eq!(LIVE.rows_max_for(8), 546);
        LIVE.with_slots(8).validate().unwrap();
    }

    #[test]
    fn a_noise_token_outside_the_vocabulary_is_refused() {
        let bad = Geometry { noise_token_id: LIVE.vocab_size, ..LIVE };
        assert_eq!(bad.validate().unwrap_err().field, "noise_token_id");
    }
}
