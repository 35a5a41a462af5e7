//! Bugs the simulation must find: each a small change to one rule, applied from outside the code under
//! test, by a worker with a rule of its own or by a driver that breaks one.

use dspark::client::rank0::EngineRound;
use dspark::plan::{Append, Draft};
use dspark::protocol::step::{NEW_GEN, RESYNC, StepMeta};
use dspark::protocol::{AppHeader, EntryStatus, HEADER_BYTES, Limits, StepRequest, StepWriter};
use dspark::session::Outcome;
use dspark::window::{Applied, Entry, Generation, Rejection, Window};

use crate::worker::{ROW, StepRule, Worker};

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Rank 0 does not mark the slots of a STEP that got no usable reply.
    NoDirtyMarkAfterFailure,
    /// Rank 0 does not mark the slots of a round the breaker skipped.
    NoDirtyMarkAfterSkip,
    /// Rank 0 does not mark the live slots after a HELLO.
    NoDirtyMarkAfterHello,
    /// Rank 0's ring misses the rounds that are not sent.
    RingMissesSkippedRounds,
    /// Rank 0's breaker takes a neutral round for a success.
    NeutralResetsBreaker,
    /// Rank 0's breaker counts the cooldown only while connected.
    CooldownNeedsConnection,
    /// The worker takes any generation.
    OlderGenerationAccepted,
    /// The worker keeps rows at and after first_pos.
    RollbackKeepsRows,
    /// The worker keeps the old rows over a gap.
    GapKeepsRows,
    /// The worker keeps the previous owner's rows.
    NewGenKeepsRows,
    /// The worker applies frames whose seq does not grow.
    StaleSeqApplied,
}

impl Bug {
    pub(crate) const ALL: [Self; 11] = [
        Self::NoDirtyMarkAfterFailure,
        Self::NoDirtyMarkAfterSkip,
        Self::NoDirtyMarkAfterHello,
        Self::RingMissesSkippedRounds,
        Self::NeutralResetsBreaker,
        Self::CooldownNeedsConnection,
        Self::OlderGenerationAccepted,
        Self::RollbackKeepsRows,
        Self::GapKeepsRows,
        Self::NewGenKeepsRows,
        Self::StaleSeqApplied,
    ];

    /// The worker's rule under this bug, if it is a bug of the worker's window.
    pub(crate) fn rule(self) -> Option<StepRule> {
        match self {
            Self::OlderGenerationAccepted => Some(|w, s| plan(w, s, older_generation_accepted)),
            Self::RollbackKeepsRows => Some(|w, s| plan(w, s, rollback_keeps_rows)),
            Self::GapKeepsRows => Some(|w, s| plan(w, s, gap_keeps_rows)),
            Self::NewGenKeepsRows => Some(|w, s| plan(w, s, new_gen_keeps_rows)),
            _ => None,
        }
    }
}

type Apply = fn(&mut Window, &Entry, u32) -> Result<Applied, Rejection>;

fn older_generation_accepted(
    window: &mut Window,
    entry: &Entry,
    w: u32,
) -> Result<Applied, Rejection> {
    if window.generation.is_some_and(|slot| entry.generation.is_older_than(slot)) {
        *window = Window { generation: Some(entry.generation), span: None };
    }
    window.apply(entry, w)
}

fn rollback_keeps_rows(window: &mut Window, entry: &Entry, w: u32) -> Result<Applied, Rejection> {
    let before = *window;
    let applied = window.apply(entry, w)?;
    if let (Some(old), Some(new)) = (before.span, &mut window.span) {
        let same = before.generation == window.generation && !entry.new_gen;
        if same && entry.first_pos <= old.hi {
            new.hi = new.hi.max(old.hi);
        }
    }
    Ok(applied)
}

fn gap_keeps_rows(window: &mut Window, entry: &Entry, w: u32) -> Result<Applied, Rejection> {
    let before = *window;
    let mut applied = window.apply(entry, w)?;
    if let (Some(old), Some(new)) = (before.span, &mut window.span) {
        let same = before.generation == window.generation && !entry.new_gen;
        if same && entry.first_pos > old.hi + 1 {
            new.lo = old.lo.max(entry.anchor_pos - i64::from(w));
            applied.context.start = new.lo;
        }
    }
    Ok(applied)
}

fn new_gen_keeps_rows(window: &mut Window, entry: &Entry, w: u32) -> Result<Applied, Rejection> {
    let newer = window.generation.is_some_and(|slot| !entry.generation.is_older_than(slot));
    if newer {
        window.generation = Some(entry.generation);
    }
    window.apply(&Entry { new_gen: false, ..*entry }, w)
}

/// Plans a STEP with another rule, otherwise as the session does.
fn plan(worker: &mut Worker, step: &StepRequest<'_>, apply: Apply) {
    let geometry = worker.geometry;
    let windows = worker.planted.as_mut().expect("planted with the rule");
    worker.plan.clear();
    worker.outcomes.clear();
    for (index, (wire, rows)) in step.entry_rows().enumerate() {
        let entry = Entry {
            generation: Generation(wire.generation.get()),
            new_gen: wire.new_gen(),
            need_draft: wire.need_draft(),
            first_pos: wire.first_pos.get(),
            n_rows: wire.n_rows.get(),
            rows_fit: rows.is_some(),
            anchor_pos: wire.anchor_pos.get(),
            anchor_token_valid: true,
        };
        let mut outcome = Outcome {
            slot: wire.slot,
            status: EntryStatus::Ok,
            window_rows: 0,
            generation: entry.generation.0,
            draft: None,
            rows: 0,
            bad: None,
        };
        match apply(&mut windows[usize::from(wire.slot)], &entry, geometry.window) {
            Err(Rejection::Stale { .. }) => outcome.status = EntryStatus::StaleGeneration,
            Err(Rejection::Bad(_)) => outcome.status = EntryStatus::BadEntry,
            Ok(applied) => {
                outcome.window_rows = applied.window_rows() as u16;
                let rows = rows.expect("checked by the rule");
                if !rows.is_empty() {
                    let first_pos = entry.first_pos;
                    worker.plan.appends.push(Append { slot: wire.slot, first_pos, rows });
                }
                if entry.need_draft {
                    if applied.is_partial() {
                        outcome.status = EntryStatus::PartialWindow;
                    }
                    outcome.draft = Some(worker.plan.drafts.len());
                    worker.plan.drafts.push(Draft {
                        entry: index,
                        slot: wire.slot,
                        context: applied.context,
                        anchor_token: wire.anchor_token.get() as u32,
                        anchor_pos: entry.anchor_pos,
                        n_out: wire.consumed(geometry.num_spec as usize),
                    });
                }
            }
        }
        worker.outcomes.push(outcome);
    }
}

/// The STEP rank 0 would have sent had the slots in `unmarked` not been dirty.
pub(crate) fn without_resync(
    message: &[u8],
    round: &EngineRound<'_>,
    limits: &Limits,
    unmarked: &[bool],
) -> Vec<u8> {
    let (header, body) = AppHeader::split(message).expect("a STEP");
    let step = StepRequest::parse(body, limits).expect("a STEP");
    let mut entries = step.entries.to_vec();
    let mut rows = Vec::new();
    for ((entry, request), (_, sent)) in
        entries.iter_mut().zip(round.requests).zip(step.entry_rows())
    {
        if entry.resync() && unmarked[usize::from(entry.slot)] {
            entry.req_flags &= !(NEW_GEN | RESYNC);
            entry.first_pos = request.first_pos.into();
            entry.n_rows = (request.rows.len() as u32).into();
            rows.extend_from_slice(round.rows.rows(request.rows.clone()));
        } else {
            let sent = sent.expect("rows of our own");
            rows.extend_from_slice(&step.rows[sent.start * ROW..sent.end * ROW]);
        }
    }
    let meta = StepMeta {
        seq: header.seq.get(),
        session: header.session.get(),
        step_id: step.header.step_id.get(),
        want_margin: step.want_margin(),
        row_bytes: ROW,
    };
    let mut changed = Vec::with_capacity(HEADER_BYTES + body.len());
    let mut writer = StepWriter::begin(&mut changed, meta, &entries);
    writer.rows(&rows);
    writer.finish();
    changed
}
