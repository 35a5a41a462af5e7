//! The engine behind a [synthetic trace](super::synth()): it plays rank 0 (contract §4.3, §7).
//!
//! It admits requests, prefills, decodes with made-up acceptance, preempts, loses rounds and re-sends
//! windows; per round it says which positions of which slot are sent. It makes no bytes.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

use zerocopy::FromZeros;

use super::scenario::Scenario;
use super::synth::{SynthEvent, SynthOptions};
use crate::geometry::Geometry;
use crate::protocol::ReqEntry;
use crate::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC};
use crate::random::SplitMix64;
use crate::window::{Entry, Generation, Window};

/// Rounds after which the number of requests the engine wants changes.
const LOAD_ROUNDS: u64 = 24;
/// Decode rounds before the first event of a request, and between two.
const EVENT_FIRST: u32 = 10;
const EVENT_EVERY: u32 = 18;
/// Decode rounds of a request: this, and up to as many again less one.
const LIFE_ROUNDS: u32 = 26;
/// Rounds a preempted request is away.
const AWAY_ROUNDS: usize = 3;

/// An entry of the STEP under construction; the token at its anchor is still missing.
pub(super) struct Planned {
    /// The entry.
    pub(super) wire: ReqEntry,
    /// Number of the request, from 0: rows and tokens belong to it, not to its slot.
    pub(super) request: u64,
    /// Positions whose rows are sent; ends at the anchor.
    pub(super) rows: Range<i64>,
}

/// One request state per slot, as rank 0 sees them.
pub(super) struct Engine {
    geometry: Geometry,
    options: SynthOptions,
    rng: SplitMix64,
    slots: Vec<Slot>,
    started: u64,
    step_id: u64,
    time_us: u64,
    events: Vec<SynthEvent>,
}

/// Rank 0's bookkeeping of one slot (contract §7.1).
struct Slot {
    index: u8,
    generation: Generation,
    /// What rank 0's ring holds; rows of lost rounds are in it.
    ring: Window,
    owner: Option<Request>,
}

/// A request being served.
struct Request {
    id: u64,
    kind: Option<Scenario>,
    /// Positions below it are prompt.
    prompt: i64,
    /// The next position to compute; after a draft, its anchor.
    next: i64,
    /// Tokens of the next prefill chunk.
    chunk: i64,
    /// Drafts of the last block that the target verifies.
    k: u8,
    /// Decode rounds so far; at `life` the request finishes, at `event` something happens to it.
    decoded: u32,
    life: u32,
    event: u32,
    /// Nothing was sent for it yet.
    new: bool,
    /// Turns that take the place of plain decoding, the next one first.
    script: VecDeque<Turn>,
}

/// What a request does in a round once its prompt is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Sends the rows the target accepted; they follow a gap if the rows before were lost.
    Decode { after_loss: bool },
    /// Decodes, and the rows do not arrive.
    Lost,
    /// Decodes and sends the whole ring.
    Resync,
    /// Rolls back by so many positions and drafts again.
    Redraft(i64),
    /// Is preempted.
    Away,
    /// Comes back: prompt and output so far are a prompt with a cached prefix.
    Readd,
}

/// What an entry says besides slot, generation and anchor token.
struct Sent {
    flags: u8,
    k_window: u8,
    rows: Range<i64>,
}

impl Engine {
    /// An engine without requests.
    pub(super) fn new(geometry: Geometry, options: SynthOptions, rng: SplitMix64) -> Self {
        let slots = u8::try_from(geometry.max_slots).expect("at most 32");
        let slot =
            |index| Slot { index, generation: Generation(0), ring: Window::default(), owner: None };
        Self {
            slots: (0..slots).map(slot).collect(),
            geometry,
            options,
            rng,
            started: 0,
            step_id: 0,
            time_us: 0,
            events: Vec::new(),
        }
    }

    /// Number of the last round.
    pub(super) fn step_id(&self) -> u64 {
        self.step_id
    }

    /// Time of the last round, µs since the start.
    pub(super) fn time_us(&self) -> u64 {
        self.time_us
    }

    /// Everything that happened.
    pub(super) fn into_events(self) -> Vec<SynthEvent> {
        self.events
    }

    /// One engine step: the entries it sends, in batch order. Empty when every request is away.
    pub(super) fn round(&mut self) -> Vec<Planned> {
        self.step_id += 1;
        let tenth = i64::try_from(self.options.round_us / 10).unwrap_or(i64::MAX);
        let jitter = u64::try_from(self.rng.below(tenth)).expect("not negative");
        let period = self.options.round_us - self.options.round_us / 20;
        self.time_us = self.time_us.saturating_add(period.saturating_add(jitter));

        let mut slots = std::mem::take(&mut self.slots);
        for slot in &mut slots {
            self.look_ahead(slot);
        }
        self.admit(&mut slots);
        let runs =
            |s: &&Slot| s.owner.as_ref().is_some_and(|r| r.script.front() != Some(&Turn::Away));
        let batch = slots.iter().filter(runs).count();
        let mut room = i64::from(self.geometry.max_rows_per_step);
        let mut entries = Vec::with_capacity(batch);
        for slot in &mut slots {
            // Without room for a whole window a request waits for the next round.
            if room < i64::from(self.geometry.window) {
                break;
            }
            if let Some(planned) = self.serve(slot, batch) {
                room -= planned.rows.end - planned.rows.start;
                entries.push(planned);
            }
        }
        self.slots = slots;
        self.shuffle(&mut entries);
        entries
    }

    /// Finishes a request, or writes the script of the next thing that happens to it.
    fn look_ahead(&mut self, slot: &mut Slot) {
        let Some(request) = &mut slot.owner else { return };
        if request.next < request.prompt {
            return;
        }
        let reuse = self.options.scenarios.contains(Scenario::Reuse);
        let idle = request.script.is_empty();
        if request.next >= self.anchor_max() || idle && reuse && request.decoded >= request.life {
            slot.owner = None;
            return;
        }
        if !idle || request.decoded < request.event {
            return;
        }
        let nth = request.id + u64::from((request.event - EVENT_FIRST) / EVENT_EVERY);
        request.event += EVENT_EVERY;
        let events =
            [Scenario::Preemption, Scenario::Rollback, Scenario::Partial, Scenario::Resync];
        let events = events.into_iter().filter(|e| self.options.scenarios.contains(*e));
        match pick(&events.collect::<Vec<_>>(), nth) {
            Some(Scenario::Preemption) => {
                request.script.extend([Turn::Away; AWAY_ROUNDS]);
                request.script.push_back(Turn::Readd);
            }
            Some(Scenario::Rollback) => {
                // Of a window that was trimmed, rows before the roll-back are gone: only one that reaches
                // back to position 0 stays whole (contract-notes D35).
                let whole = slot.ring.span.is_some_and(|s| s.lo == 0) && request.next > 8;
                let back = if whole { 1 + self.rng.below(3) } else { 0 };
                request.script.push_back(Turn::Redraft(back));
            }
            Some(Scenario::Partial) => {
                let gap = Turn::Decode { after_loss: true };
                request.script.extend([Turn::Lost, gap, Turn::Resync]);
            }
            Some(_) => request.script.push_back(Turn::Resync),
            None => {}
        }
    }

    /// At most one new request a round, into the lowest free slot, while the load is below its target.
    fn admit(&mut self, slots: &mut [Slot]) {
        let target = 1 + (self.step_id / LOAD_ROUNDS) % u64::from(self.options.requests);
        let active = slots.iter().filter(|s| s.owner.is_some()).count() as u64;
        let Some(slot) = slots.iter_mut().find(|s| s.owner.is_none()) else { return };
        if active >= target {
            return;
        }
        if slot.ring.generation.is_some() {
            self.note(slot.index, Scenario::Reuse);
        }
        slot.generation = slot.generation.next();
        slot.owner = Some(self.new_request());
    }

    /// The next request; the kinds of prompt take turns.
    fn new_request(&mut self) -> Request {
        let id = self.started;
        self.started += 1;
        let set = self.options.scenarios;
        let kinds = [Scenario::Prefill, Scenario::PrefixHit, Scenario::NearMaxLen];
        let kinds = kinds.into_iter().filter(|s| set.contains(*s)).map(Some);
        let mut kinds: Vec<_> = kinds.collect();
        kinds.insert(kinds.len().min(1), None); // a prompt of less than a window
        let kind = pick(&kinds, id).flatten();
        let (w, max) = (self.window(), i64::from(self.geometry.max_model_len));
        let (prompt, next, chunk) = match kind {
            Some(Scenario::Prefill) => (4 * w + 1 + self.rng.below(2 * w), 0, 2 * w),
            // The replayed window of a prefix hit takes a round of its own.
            Some(Scenario::PrefixHit) => {
                let hit = w * (2 + self.rng.below((max / (2 * w) - 4).min(30)));
                (hit + 1 + self.rng.below(3 * w), hit - w, w)
            }
            Some(_) => {
                let prompt = max - w / 4 - self.rng.below(w / 4);
                (prompt, self.replay_start(prompt - 1), w)
            }
            None => (w / 4 + self.rng.below(w / 4), 0, 2 * w),
        };
        let life = LIFE_ROUNDS
            + u32::try_from(self.rng.below(i64::from(LIFE_ROUNDS))).expect("below LIFE_ROUNDS");
        Request {
            id,
            kind,
            prompt,
            next,
            chunk,
            k: 0,
            decoded: 0,
            life,
            event: EVENT_FIRST,
            new: true,
            script: VecDeque::new(),
        }
    }

    /// What `slot` sends in a round of `batch` requests, if anything.
    fn serve(&mut self, slot: &mut Slot, batch: usize) -> Option<Planned> {
        let mut request = slot.owner.take()?;
        let sent = if request.next < request.prompt {
            Some(self.chunk(slot, &mut request))
        } else {
            let turn = request.script.pop_front().unwrap_or(Turn::Decode { after_loss: false });
            self.turn(slot, &mut request, turn)
        };
        let planned = sent.map(|sent| {
            let mut wire = ReqEntry::new_zeroed();
            wire.slot = slot.index;
            wire.req_flags = sent.flags;
            wire.k_window = sent.k_window;
            wire.generation = slot.generation.0.into();
            wire.first_pos = sent.rows.start.into();
            let n_rows = u32::try_from(sent.rows.end - sent.rows.start).expect("at most W");
            wire.n_rows = n_rows.into();
            wire.anchor_pos = sent.rows.end.into();
            if wire.need_draft() {
                request.k = self.k(batch);
                wire.n_out = if batch > 2 { request.k } else { 0 };
            }
            Planned { wire, request: request.id, rows: sent.rows }
        });
        slot.owner = Some(request);
        planned
    }

    /// Prefill: of a chunk's rows the last W are sent; the chunk that ends the prompt drafts.
    fn chunk(&mut self, slot: &mut Slot, request: &mut Request) -> Sent {
        let (from, w) = (request.next, self.window());
        let to = request.prompt.min(from + request.chunk);
        request.next = to;
        request.chunk = 2 * w;
        let mut flags = if to == request.prompt { NEED_DRAFT } else { 0 };
        if request.new {
            request.new = false;
            flags |= NEW_GEN;
            if let Some(kind) = request.kind {
                self.note(slot.index, kind);
            }
        }
        let rows = from.max(to - w)..to;
        self.apply(slot, flags & NEW_GEN != 0, &rows);
        Sent { flags, k_window: 0, rows }
    }

    fn turn(&mut self, slot: &mut Slot, request: &mut Request, turn: Turn) -> Option<Sent> {
        match turn {
            Turn::Away => None,
            Turn::Readd => {
                self.note(slot.index, Scenario::Preemption);
                request.prompt = request.next + 1;
                request.next = self.replay_start(request.next);
                Some(self.chunk(slot, request))
            }
            Turn::Redraft(back) => {
                self.note(slot.index, Scenario::Rollback);
                request.next -= back;
                let rows = request.next..request.next;
                self.apply(slot, false, &rows);
                Some(Sent { flags: NEED_DRAFT, k_window: 0, rows })
            }
            Turn::Decode { after_loss } => {
                if after_loss {
                    self.note(slot.index, Scenario::Partial);
                }
                Some(self.decode(slot, request))
            }
            Turn::Lost => {
                self.decode(slot, request);
                None
            }
            Turn::Resync => {
                self.note(slot.index, Scenario::Resync);
                let sent = self.decode(slot, request);
                let ring = slot.ring.span.expect("rows were just stored");
                let rows = ring.lo..sent.rows.end;
                Some(Sent { flags: NEED_DRAFT | NEW_GEN | RESYNC, rows, ..sent })
            }
        }
    }

    /// Decode: the anchor's row and one per accepted draft; each draft is accepted with probability 3/4
    /// as long as those before it are.
    fn decode(&mut self, slot: &mut Slot, request: &mut Request) -> Sent {
        let mut n = 1;
        while n <= i64::from(request.k) && self.rng.below(4) > 0 {
            n += 1;
        }
        let rows = request.next..self.anchor_max().min(request.next + n);
        request.next = rows.end;
        request.decoded += 1;
        self.apply(slot, false, &rows);
        Sent { flags: NEED_DRAFT, k_window: request.k, rows }
    }

    /// Stores rows in rank 0's ring.
    fn apply(&self, slot: &mut Slot, new_gen: bool, rows: &Range<i64>) {
        let entry = Entry {
            generation: slot.generation,
            new_gen,
            need_draft: false,
            first_pos: rows.start,
            n_rows: u32::try_from(rows.end - rows.start).expect("at most W"),
            rows_fit: true,
            anchor_pos: rows.end,
            anchor_token_valid: true,
        };
        let applied = slot.ring.apply(&entry, self.geometry.window);
        applied.expect("the engine computes positions in order");
    }

    fn note(&mut self, slot: u8, scenario: Scenario) {
        self.events.push(SynthEvent { step_id: self.step_id, slot, scenario });
    }

    fn shuffle(&mut self, entries: &mut [Planned]) {
        for end in 1..entries.len() {
            let bound = i64::try_from(end + 1).expect("at most 32");
            entries.swap(end, usize::try_from(self.rng.below(bound)).expect("an index"));
        }
    }

    /// W.
    fn window(&self) -> i64 {
        i64::from(self.geometry.window)
    }

    /// The last position an anchor may have.
    fn anchor_max(&self) -> i64 {
        i64::from(self.geometry.max_model_len) - 1
    }

    /// Drafts verified of a block: the live schedule [[1, 2, 5], [3, 4, 4]] (contract §2).
    fn k(&self, batch: usize) -> u8 {
        let k = if batch > 2 { 4 } else { 5 };
        u8::try_from(self.geometry.num_spec).map_or(k, |n| n.min(k))
    }

    /// Where the target begins to compute a prompt whose first `cached` tokens are cached in blocks of
    /// half a window: W before the hit, or at 0 when the hit is no longer than W (contract §2).
    fn replay_start(&self, cached: i64) -> i64 {
        let w = self.window();
        let block = w / 2;
        (cached / block * block - w).max(0)
    }
}

/// Element `n mod len`.
fn pick<T: Copy>(of: &[T], n: u64) -> Option<T> {
    let len = u64::try_from(of.len()).ok().filter(|len| *len > 0)?;
    of.get(usize::try_from(n % len).expect("an index")).copied()
}
