//! Engine rounds out of recorded STEPs: whose rows they are, and which of them the round itself brought.
//!
//! A recording holds what one rank 0 sent, faults and resyncs included. Replaying needs what its engine
//! did, so that another rank 0, with other faults, ends with the windows of an undisturbed run. A plain
//! entry is what the engine did. A RESYNC entry carries the whole window, of which the round's own rows
//! are those the recovered window does not hold yet, byte for byte; after rounds that the recording
//! lacks this also finds the rows they brought or replaced.

use std::ops::Range;

use super::{EngineRequest, EngineRound, Owner};
use crate::geometry::Geometry;
use crate::plan::RowBlock;
use crate::protocol::{AppHeader, ReqEntry, StepRequest};
use crate::ring::RowRing;
use crate::window::{Entry, Generation, Span, Window};

/// What is known of a slot of the recorded rank 0.
#[derive(Clone, Debug)]
struct Recovered {
    owner: Owner,
    /// Recorded generation, and the span of the recovered rows.
    window: Window,
    ring: RowRing,
    /// Session of the last entry: generations are compared within one.
    session: u32,
}

/// Turns the requests of a recording into engine rounds.
#[derive(Clone, Debug)]
pub struct Recovery {
    geometry: Geometry,
    slots: Vec<Recovered>,
    owners: u64,
    session: u32,
    last_seq: u64,
    requests: Vec<EngineRequest>,
    ignored: u64,
}

impl Recovery {
    /// Before the first frame of a recording.
    pub fn new(geometry: Geometry) -> Self {
        let slot = Recovered {
            owner: Owner(0),
            window: Window::default(),
            ring: RowRing::new(geometry.window, geometry.row_bytes()),
            session: 0,
        };
        Self {
            slots: vec![slot; geometry.max_slots as usize],
            owners: 0,
            session: 0,
            last_seq: 0,
            requests: Vec::with_capacity(geometry.max_slots as usize),
            ignored: 0,
            geometry,
        }
    }

    /// The engine round behind a recorded STEP whose layout holds for the geometry given before, in
    /// recorded order. `None` for a frame whose seq does not grow within its session: a late or repeated
    /// one, which the worker did not apply either. Entries that rank 0 never sends (stale generations, bad
    /// positions) are left out and counted.
    ///
    /// A round without its own rows is a re-draft. `k_window` is 0 where more rows were recovered than
    /// one verification makes, so that acceptance is not counted from them.
    pub fn step<'a>(
        &'a mut self,
        header: &AppHeader,
        step: &StepRequest<'a>,
    ) -> Option<EngineRound<'a>> {
        let (session, seq) = (header.session.get(), header.seq.get());
        if session == self.session && seq <= self.last_seq {
            return None;
        }
        (self.session, self.last_seq) = (session, seq);
        let block = RowBlock::new(step.rows, self.geometry.row_bytes());
        self.requests.clear();
        for (entry, rows) in step.entry_rows() {
            let rows = rows.filter(|r| r.len() <= self.geometry.window as usize);
            match rows.and_then(|rows| self.request(entry, rows, block)) {
                Some(request) => self.requests.push(request),
                None => self.ignored += 1,
            }
        }
        Some(EngineRound {
            step_id: step.header.step_id.get(),
            want_margin: step.want_margin(),
            requests: &self.requests,
            rows: block,
        })
    }

    /// Entries left out so far.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// One entry; `rows` are its rows in `block`, at most W.
    fn request(
        &mut self,
        entry: &ReqEntry,
        rows: Range<usize>,
        block: RowBlock<'_>,
    ) -> Option<EngineRequest> {
        let generation = Generation(entry.generation.get());
        let window = self.geometry.window;
        let slot = &mut self.slots[usize::from(entry.slot)];
        let known = slot.window.generation;
        let stale = known.is_some_and(|known| generation.is_older_than(known));
        if stale && slot.session == self.session {
            return None;
        }
        slot.session = self.session;
        let same_owner = known == Some(generation) && (entry.resync() || !entry.new_gen());
        let whole = claim(entry, rows.len(), entry.first_pos.get());
        let own = if same_owner && entry.resync() && !rows.is_empty() {
            let held = slot.rows_held(&whole, rows.clone(), block);
            let own = claim(
                entry,
                rows.len() - held,
                whole.first_pos.saturating_add_unsigned(held as u64),
            );
            // The recorded rank 0 held exactly the rows it re-sent. Where its own rows on top of ours do
            // not lead there, rounds are missing that only a new owner's window can stand for.
            let sent = Span { lo: whole.first_pos, hi: whole.anchor_pos.saturating_sub(1) };
            let mut after = slot.window;
            let leads = after.apply(&own, window).is_ok() && after.span == Some(sent);
            leads.then_some(own)
        } else {
            same_owner.then_some(whole)
        };
        let own = own.unwrap_or_else(|| {
            self.owners += 1;
            slot.owner = Owner(self.owners);
            slot.window = Window { generation: Some(generation), span: None };
            whole
        });
        slot.window.apply(&own, window).ok()?;
        let rows = rows.end - own.n_rows as usize..rows.end;
        slot.ring.store(own.first_pos, block.rows(rows.clone()));
        let verified = own.n_rows <= u32::from(entry.k_window) + 1;
        Some(EngineRequest {
            slot: entry.slot,
            owner: slot.owner,
            first_pos: own.first_pos,
            rows,
            anchor_token: entry.anchor_token.get(),
            anchor_pos: own.anchor_pos,
            k_window: if verified || !entry.resync() { entry.k_window } else { 0 },
            need_draft: entry.need_draft(),
            n_out: entry.n_out,
        })
    }
}

impl Recovered {
    /// How many rows of a re-sent window, from its first one on, are held already.
    fn rows_held(&self, whole: &Entry, rows: Range<usize>, block: RowBlock<'_>) -> usize {
        let Some(span) = self.window.span else { return 0 };
        (whole.first_pos..whole.anchor_pos)
            .zip(rows)
            .take_while(|(pos, row)| {
                (span.lo..=span.hi).contains(pos) && self.ring.row(*pos) == block.row(*row)
            })
            .count()
    }
}

/// The last `n_rows` rows of an entry as the window rule sees them, without its flags.
fn claim(entry: &ReqEntry, n_rows: usize, first_pos: i64) -> Entry {
    Entry {
        generation: Generation(entry.generation.get()),
        new_gen: false,
        need_draft: entry.need_draft(),
        first_pos,
        n_rows: u32::try_from(n_rows).expect("at most W rows"),
        rows_fit: true,
        anchor_pos: entry.anchor_pos.get(),
        anchor_token_valid: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC, StepMeta};
    use crate::protocol::{HEADER_BYTES, Limits, StepWriter};

    const LIVE: Geometry = crate::geometry::LIVE;
    const GEOMETRY: Geometry = Geometry { window: 8, hidden: 2, n_taps: 1, ..LIVE };
    const RESENT: u8 = NEW_GEN | RESYNC;

    /// A recording of slot 0 in the making; rows are `version` and position.
    struct Recording {
        recovery: Recovery,
        session: u32,
        seq: u64,
    }

    /// Owner, first position, rows and `k_window` of the recovered request.
    type Found = Option<(u64, i64, usize, u8)>;

    impl Recording {
        fn new() -> Self {
            Self { recovery: Recovery::new(GEOMETRY), session: 1, seq: 1 }
        }

        fn entry(&mut self, generation: u32, flags: u8, first: i64, n: u32, version: u8) -> Found {
            self.seq += 1;
            let entry = ReqEntry {
                slot: 0,
                req_flags: flags | NEED_DRAFT,
                k_window: 2,
                n_out: 0,
                generation: generation.into(),
                first_pos: first.into(),
                n_rows: n.into(),
                anchor_token: 5.into(),
                anchor_pos: (first + i64::from(n)).into(),
            };
            let meta = StepMeta {
                seq: self.seq,
                session: self.session,
                step_id: 9,
                want_margin: false,
                row_bytes: GEOMETRY.row_bytes(),
            };
            let mut message = Vec::new();
            let mut writer = StepWriter::begin(&mut message, meta, &[entry]);
            for pos in first..first + i64::from(n) {
                writer.rows(&[version, pos.to_le_bytes()[0], 0, 0]);
            }
            writer.finish();
            let (header, _) = AppHeader::split(&message).unwrap();
            let limits = Limits { max_slots: 4, max_rows_per_step: 32, row_bytes: 4 };
            let step = StepRequest::parse(&message[HEADER_BYTES..], &limits).unwrap();
            let round = self.recovery.step(&header, &step)?;
            let request = round.requests.first()?;
            Some((request.owner.0, request.first_pos, request.rows.len(), request.k_window))
        }
    }

    #[test]
    fn a_newer_generation_or_a_plain_new_gen_is_a_new_owner() {
        let mut r = Recording::new();
        assert_eq!(r.entry(1, NEW_GEN, 0, 4, 0), Some((1, 0, 4, 2)));
        assert_eq!(r.entry(1, 0, 4, 2, 0), Some((1, 4, 2, 2)));
        assert_eq!(r.entry(1, NEW_GEN, 0, 3, 1), Some((2, 0, 3, 2)));
        assert_eq!(r.entry(2, 0, 0, 3, 2), Some((3, 0, 3, 2)));
        assert_eq!(r.entry(9, RESENT, 0, 3, 3), Some((4, 0, 3, 2)));
    }

    #[test]
    fn roll_backs_and_redrafts_keep_the_owner() {
        let mut r = Recording::new();
        assert_eq!(r.entry(1, NEW_GEN, 0, 6, 0), Some((1, 0, 6, 2)));
        assert_eq!(r.entry(1, 0, 3, 2, 1), Some((1, 3, 2, 2)));
        assert_eq!(r.entry(1, 0, 5, 0, 0), Some((1, 5, 0, 2)));
        assert_eq!(r.entry(1, 0, 4, 0, 0), Some((1, 4, 0, 2)));
    }

    #[test]
    fn of_a_resync_only_the_rounds_own_rows_are_recovered() {
        let mut r = Recording::new();
        r.entry(1, NEW_GEN, 0, 6, 0);
        assert_eq!(r.entry(1, RESENT, 0, 8, 0), Some((1, 6, 2, 2)));
        assert_eq!(r.entry(1, RESENT, 1, 8, 0), Some((1, 8, 1, 2)));
        // A re-draft of a dirty slot.
        assert_eq!(r.entry(1, RESENT, 1, 8, 0), Some((1, 9, 0, 2)));
    }

    #[test]
    fn a_resync_after_missing_rounds_brings_their_rows_too() {
        let mut r = Recording::new();
        r.entry(1, NEW_GEN, 0, 6, 0);
        // Six rows cannot come from one verification of two drafts, so they count for no acceptance.
        assert_eq!(r.entry(1, RESENT, 4, 8, 0), Some((1, 6, 6, 0)));
        // So many that nothing held is left.
        assert_eq!(r.entry(1, RESENT, 40, 8, 0), Some((1, 40, 8, 0)));
        // Among them a roll-back that replaced rows.
        let mut r = Recording::new();
        r.entry(1, NEW_GEN, 0, 3, 0);
        r.entry(1, 0, 3, 1, 7);
        assert_eq!(r.entry(1, RESENT, 0, 6, 0), Some((1, 3, 3, 2)));
    }

    #[test]
    fn a_window_that_cannot_follow_from_what_is_held_belongs_to_a_new_owner() {
        // The missing rounds left a gap and rolled back behind it: rank 0 holds less than recovered.
        let mut r = Recording::new();
        r.entry(1, NEW_GEN, 0, 6, 0);
        assert_eq!(r.entry(1, RESENT, 3, 3, 0), Some((2, 3, 3, 2)));
    }

    #[test]
    fn late_frames_and_stale_entries_are_left_out() {
        let mut r = Recording::new();
        r.entry(5, NEW_GEN, 0, 6, 0);
        r.seq -= 1;
        assert_eq!(r.entry(5, 0, 6, 1, 0), None);
        assert_eq!(r.entry(4, NEW_GEN, 0, 1, 0), None);
        assert_eq!(r.entry(5, 0, -3, 2, 0), None);
        assert_eq!(r.recovery.ignored(), 2);
        assert_eq!(r.entry(5, 0, 6, 1, 0), Some((1, 6, 1, 2)));
    }

    #[test]
    fn in_a_new_session_generations_start_again() {
        let mut r = Recording::new();
        r.entry(5, NEW_GEN, 0, 6, 0);
        // The same rank 0 under a new id.
        (r.session, r.seq) = (2, 0);
        assert_eq!(r.entry(5, RESENT, 0, 7, 0), Some((1, 6, 1, 2)));
        // Another start of the engine.
        (r.session, r.seq) = (3, 0);
        assert_eq!(r.entry(1, NEW_GEN, 0, 2, 1), Some((2, 0, 2, 2)));
    }
}
