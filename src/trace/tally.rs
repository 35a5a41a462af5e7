//! Counts the records of a trace for [`TraceInfo`] and follows what the worker's slots hold.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use zerocopy::FromBytes;

use super::info::{Acceptance, ROUNDS_LISTED, Rounds, SlotInfo, TraceInfo};
use super::{Record, RecordKind};
use crate::geometry::SLOTS_MAX;
use crate::protocol::control::reset_mask;
use crate::protocol::{
    AppHeader, EntryStatus, FrameStatus, HelloRequest, Limits, Op, ReqEntry, StepReply, StepRequest,
};
use crate::window::{Entry, Generation, Rejection, Window};

/// A count in progress: the info so far, and what the worker's slots hold.
pub(super) struct Tally {
    info: TraceInfo,
    limits: Limits,
    window: u32,
    vocab_size: u32,
    session: Option<u32>,
    slots: Vec<Window>,
    /// Session and slots before the last request: what a worker that refused it still holds.
    before: (Option<u32>, Vec<Window>),
    /// Slots of the last STEP's entries.
    named: Vec<u8>,
    /// Times of the first and the last STEP, µs.
    steps: Option<(u64, u64)>,
}

impl Tally {
    /// A count that starts with the info of a trace without records.
    pub(super) fn new(info: TraceInfo) -> Self {
        // HELLO's limits are the engine's and bind no worker: the layout is checked without them.
        let row_bytes = info.header.row_bytes;
        let limits = Limits { max_slots: SLOTS_MAX, max_rows_per_step: u32::MAX, row_bytes };
        let slots = vec![Window::default(); SLOTS_MAX as usize];
        Self {
            limits,
            window: info.header.window,
            vocab_size: info.header.vocab_size,
            session: None,
            before: (None, slots.clone()),
            slots,
            named: Vec::new(),
            steps: None,
            info,
        }
    }

    /// Counts one record.
    pub(super) fn record(&mut self, record: &Record<'_>) {
        let round = self.info.rounds;
        if record.time_us < self.info.duration_us {
            self.info.anomalies.clock_back.add(round);
        }
        self.info.duration_us = self.info.duration_us.max(record.time_us);
        let records = &mut self.info.records;
        match record.kind {
            RecordKind::Request => {
                records.requests += 1;
                self.before.0 = self.session;
                self.before.1.copy_from_slice(&self.slots);
                self.named.clear();
                if self.request(record).is_none() {
                    self.info.anomalies.malformed.add(self.info.rounds);
                }
            }
            RecordKind::Reply => {
                records.replies += 1;
                if self.reply(record.payload).is_none() {
                    self.info.replies.malformed += 1;
                }
            }
            RecordKind::LocalDraft => records.local_drafts += 1,
            RecordKind::Note => records.notes += 1,
        }
    }

    /// The info, with what follows from all records.
    pub(super) fn finish(self) -> TraceInfo {
        let mut info = self.info;
        info.rounds_per_s = self.steps.and_then(|(first, last)| {
            let us = last.saturating_sub(first);
            (us > 0).then(|| (info.rounds - 1) as f64 * 1e6 / us as f64)
        });
        info
    }

    /// Counts and applies a request; `None` if its bytes do not hold.
    fn request(&mut self, record: &Record<'_>) -> Option<()> {
        let (header, body) = AppHeader::split(record.payload)?;
        match Op::from_code(header.op.get())? {
            Op::Hello => {
                HelloRequest::ref_from_bytes(body).ok()?;
                if self.session.replace(header.session.get()) != Some(header.session.get()) {
                    self.slots.fill(Window::default());
                }
            }
            Op::Step => {
                self.info.rounds += 1;
                let first = self.steps.map_or(record.time_us, |(first, _)| first);
                self.steps = Some((first, record.time_us));
                let step = StepRequest::parse(body, &self.limits).ok()?;
                self.info.rows += u64::from(step.header.n_rows.get());
                for (entry, rows) in step.entry_rows() {
                    self.entry(entry, rows.is_some());
                }
            }
            Op::Reset => {
                let mask = reset_mask(body)?;
                for (slot, window) in self.slots.iter_mut().enumerate() {
                    if mask >> slot & 1 == 1 {
                        window.empty();
                    }
                }
            }
            Op::Stats | Op::Ping => {}
        }
        Some(())
    }

    /// Counts one entry and applies it to its slot.
    fn entry(&mut self, wire: &ReqEntry, rows_fit: bool) {
        let round = self.info.rounds;
        let (need_draft, resync) = (wire.need_draft(), wire.resync());
        let (k_window, n_rows) = (u32::from(wire.k_window), wire.n_rows.get());
        let counts = &mut self.info.entries;
        counts.total += 1;
        counts.need_draft += u64::from(need_draft);
        counts.prefill += u64::from(k_window == 0 && n_rows > 0 && !resync);
        counts.resync += u64::from(resync);
        counts.new_gen += u64::from(wire.new_gen());
        self.named.push(wire.slot);

        let token = u32::try_from(wire.anchor_token.get());
        let entry = Entry {
            generation: Generation(wire.generation.get()),
            new_gen: wire.new_gen(),
            need_draft,
            first_pos: wire.first_pos.get(),
            n_rows,
            rows_fit,
            anchor_pos: wire.anchor_pos.get(),
            anchor_token_valid: token.is_ok_and(|t| t < self.vocab_size),
        };
        let slot = &mut self.slots[usize::from(wire.slot)];
        let old = *slot;
        let applied = slot.apply(&entry, self.window);
        let owned = old.generation == slot.generation;
        count_slot(&mut self.info.slots, wire, !owned);
        let anomalies = &mut self.info.anomalies;
        let partial = match applied {
            Ok(applied) => applied.is_partial(),
            Err(Rejection::Stale { .. }) => return anomalies.stale.add(round),
            Err(Rejection::Bad(_)) => return anomalies.bad.add(round),
        };
        if let Some(old) = old.span.filter(|_| owned && !entry.new_gen) {
            let first = if n_rows == 0 { entry.anchor_pos } else { entry.first_pos };
            if first <= old.hi {
                anomalies.roll_backs.add(round);
            } else if first > old.hi + 1 && partial {
                anomalies.gaps.add(round);
            }
        }
        if need_draft && partial {
            anomalies.partial.add(round);
        } else if k_window > 0 && n_rows > 0 && !resync {
            self.info.acceptance.add(k_window, n_rows);
        }
    }

    /// Counts a reply and undoes what the worker says it did not do; `None` if its bytes do not hold.
    fn reply(&mut self, payload: &[u8]) -> Option<()> {
        let (header, body) = AppHeader::split(payload)?;
        let status = header.frame_status()?;
        bump(&mut self.info.replies.frames, status.name());
        if status != FrameStatus::Ok {
            self.session = self.before.0;
            self.slots.copy_from_slice(&self.before.1);
            return Some(());
        }
        if Op::from_code(header.op.get())? != Op::Step {
            return Some(());
        }
        let reply = StepReply::parse(body)?;
        for (entry, row) in reply.statuses.iter().enumerate() {
            let status = reply.status(entry)?;
            bump(&mut self.info.replies.entries, status.name());
            *self.info.replies.window_rows.entry(row.window_rows.get()).or_default() += 1;
            if let (EntryStatus::Internal, Some(slot)) = (status, self.named.get(entry)) {
                self.slots[usize::from(*slot)].empty();
            }
        }
        Some(())
    }
}

impl Rounds {
    fn add(&mut self, round: u64) {
        self.count += 1;
        if self.rounds.len() < ROUNDS_LISTED && self.rounds.last() != Some(&round) {
            self.rounds.push(round);
        }
    }
}

impl Acceptance {
    fn add(&mut self, k_window: u32, n_rows: u32) {
        let accepted = (n_rows - 1).min(k_window);
        self.entries += 1;
        self.verified += u64::from(k_window);
        self.accepted += u64::from(accepted);
        *self.histogram.entry(accepted).or_default() += 1;
    }
}

fn count_slot(slots: &mut Vec<SlotInfo>, wire: &ReqEntry, adopted: bool) {
    let at = slots.binary_search_by_key(&wire.slot, |s| s.slot).unwrap_or_else(|at| {
        let new = SlotInfo {
            slot: wire.slot,
            entries: 0,
            generations: 0,
            generation: 0,
            anchor_max: i64::MIN,
        };
        slots.insert(at, new);
        at
    });
    let slot = &mut slots[at];
    slot.entries += 1;
    slot.anchor_max = slot.anchor_max.max(wire.anchor_pos.get());
    if adopted {
        slot.generations += 1;
        slot.generation = wire.generation.get();
    }
}

fn bump(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(counts.insert(name.to_owned(), 1)),
    }
}
