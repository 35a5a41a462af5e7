//! A random engine: prefill in chunks, decoding, roll-backs, preemption, prefix hits, gaps, slot reuse.
//!
//! It keeps the rows every live window must hold in the plainest form there is, a list, so that the ring
//! and the worker are compared with something that shares no code with them.

use dspark::client::rank0::{EngineRequest, EngineRound, Owner};
use dspark::plan::RowBlock;

use crate::worker::{ROW, Row, mix};

/// Random numbers of one seed.
#[derive(Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in 0 .. n.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The rows a window must hold, from `lo` on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) lo: i64,
    pub(crate) rows: Vec<Row>,
}

impl Held {
    pub(crate) fn end(&self) -> i64 {
        self.lo + self.rows.len() as i64
    }

    /// Contract §7.2 step 3 on a list of rows.
    fn put(&mut self, first: i64, new: &[Row], window: usize) {
        if self.rows.is_empty() || first > self.end() || first < self.lo {
            self.rows.clear();
            self.lo = first;
        }
        self.rows.truncate((first - self.lo) as usize);
        self.rows.extend_from_slice(new);
        let extra = self.rows.len().saturating_sub(window);
        self.rows.drain(..extra);
        self.lo += extra as i64;
    }
}

/// A request in a slot.
#[derive(Clone, Debug)]
struct Running {
    owner: Owner,
    /// Changes with every roll-back: the tokens from there on are others, and so are their rows.
    version: u64,
    /// Positions of the prompt still to be computed.
    prefill: i64,
    held: Held,
}

/// The engine.
pub(crate) struct Engine {
    window: usize,
    rng: Rng,
    slots: Vec<Option<Running>>,
    owners: u64,
    step_id: u64,
    requests: Vec<EngineRequest>,
    rows: Vec<u8>,
    fresh: Vec<Row>,
}

impl Engine {
    pub(crate) fn new(seed: u64, window: u32, slots: u32) -> Self {
        Self {
            window: window as usize,
            rng: Rng(seed),
            slots: vec![None; slots as usize],
            owners: 0,
            step_id: 0,
            requests: Vec::new(),
            rows: Vec::new(),
            fresh: Vec::new(),
        }
    }

    /// What the window of a slot must hold, if a request ever sat in it.
    pub(crate) fn held(&self, slot: usize) -> Option<(Owner, &Held)> {
        self.slots[slot].as_ref().map(|r| (r.owner, &r.held))
    }

    /// Moves on by one round.
    pub(crate) fn step(&mut self) {
        self.step_id += 1;
        self.requests.clear();
        self.rows.clear();
        let slots = self.slots.len() as u64;
        let (from, busy) = (self.rng.below(slots), 1 + self.rng.below(slots));
        for slot in (0..busy).map(|i| ((from + i) % slots) as usize) {
            self.request(slot);
        }
    }

    /// The round moved to last.
    pub(crate) fn round(&self) -> EngineRound<'_> {
        EngineRound {
            step_id: self.step_id,
            want_margin: self.step_id.is_multiple_of(2),
            requests: &self.requests,
            rows: RowBlock::new(&self.rows, ROW),
        }
    }

    fn request(&mut self, slot: usize) {
        // Finish, abort and preemption look the same: somebody else sits in the slot next time.
        if self.slots[slot].is_none() || self.rng.one_in(25) {
            let start = if self.rng.one_in(3) { self.rng.below(60) as i64 } else { 0 };
            self.owners += 1;
            self.slots[slot] = Some(Running {
                owner: Owner(self.owners),
                version: 0,
                prefill: 1 + self.rng.below(30) as i64,
                // A prefix hit replays the rows before it: the window starts in the middle.
                held: Held { lo: start, rows: Vec::new() },
            });
        }
        let mut running = self.slots[slot].take().expect("filled above");
        let (first, n, k_window) = self.advance(&mut running);
        self.fresh.clear();
        for pos in first..first + n {
            let row = mix(running.owner.0 << 40 ^ running.version << 20 ^ pos as u64);
            self.fresh.push(row.to_le_bytes()[..ROW].try_into().expect("a row"));
        }
        let start = self.rows.len() / ROW;
        self.rows.extend(self.fresh.iter().flatten());
        if n > 0 {
            running.held.put(first, &self.fresh, self.window);
        }
        self.requests.push(EngineRequest {
            slot: slot as u8,
            owner: running.owner,
            first_pos: first,
            rows: start..start + n as usize,
            anchor_token: self.rng.below(1000) as i32,
            anchor_pos: first + n,
            k_window,
            need_draft: running.prefill == 0,
            n_out: self.rng.below(4) as u8,
        });
        self.slots[slot] = Some(running);
    }

    /// First position and number of the rows of a request's next round, and its verified drafts.
    fn advance(&mut self, running: &mut Running) -> (i64, i64, u8) {
        let end = running.held.end();
        if running.prefill > 0 {
            let chunk = 1 + self.rng.below(running.prefill as u64) as i64;
            running.prefill -= chunk;
            // Of a chunk only the last W rows are candidates.
            let n = chunk.min(self.window as i64);
            return (end + chunk - n, n, 0);
        }
        let k = self.rng.below(6);
        let n = 1 + self.rng.below(k + 1) as i64;
        match self.rng.below(40) {
            0 | 1 => {
                // Added again after preemption, or a streaming update: a replay from a lower position.
                running.version += 1;
                let first = (end - 1 - self.rng.below(12) as i64).max(0);
                (first, 1 + self.rng.below(8) as i64, 0)
            }
            2 if running.held.rows.len() > 1 => {
                // A re-draft without rows, at the last anchor or below it.
                let back = self.rng.below(2.min(running.held.rows.len() as u64)) as i64;
                running.held.rows.truncate(running.held.rows.len() - back as usize);
                running.version += 1;
                (end - back, 0, 0)
            }
            3 => (end + 1 + self.rng.below(12) as i64, n, 0),
            _ => (end, n, k as u8),
        }
    }
}
