//! A worker without a backend and a client without a socket: messages are built, handed to a [`Session`]
//! and answered, so that a test reads like a conversation.

use dspark::geometry::Geometry;
use dspark::plan::StepPlan;
use dspark::protocol::control::{empty_request, reset_request};
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, StepMeta};
use dspark::protocol::{
    AppHeader, EntryStatus, FrameStatus, HelloReply, HelloRequest, Limits, Op, ReqEntry, StepReply,
    StepReplyWriter, StepRequest, StepWriter,
};
use dspark::session::{Admitted, Outcome, Refused, Seat, Session};
use zerocopy::{FromZeros, IntoBytes};

/// Identities every worker and client of these tests agrees on.
pub(crate) const DRAFTER: [u8; 32] = [0xd5; 32];
/// See [`DRAFTER`].
pub(crate) const MARKOV: [u8; 32] = [0x3a; 32];

/// A session of `geometry` before its first HELLO, with the identities of these tests.
pub(crate) fn new_session(geometry: Geometry) -> Session {
    Session::new(geometry, HelloReply::new(&geometry, DRAFTER, MARKOV, "test worker"))
}

/// What a worker of `geometry` enforces.
pub(crate) fn limits(geometry: &Geometry) -> Limits {
    Limits {
        max_slots: geometry.max_slots,
        max_rows_per_step: geometry.max_rows_per_step,
        row_bytes: u32::try_from(geometry.row_bytes()).expect("a small row"),
    }
}

/// What became of one message.
pub(crate) struct Answer {
    /// Frame status of the reply.
    pub(crate) status: FrameStatus,
    /// The reason, where the frame was refused.
    pub(crate) refused: Option<Refused>,
    /// Whether an accepted HELLO opened a new session.
    pub(crate) new_session: bool,
    /// One per entry of an answered STEP.
    pub(crate) outcomes: Vec<Outcome>,
    /// What the STEP asked of the backend.
    pub(crate) plan: StepPlan,
}

/// Hands one message to the session, as a worker does whose backend succeeds or fails.
pub(crate) fn handle(
    session: &mut Session,
    seat: &mut Seat,
    message: &[u8],
    backend_fails: bool,
) -> Answer {
    let mut answer = Answer {
        status: FrameStatus::Ok,
        refused: None,
        new_session: false,
        outcomes: Vec::new(),
        plan: StepPlan::default(),
    };
    let (header, body) = AppHeader::split(message).expect("a message has a header");
    let refused = match session.admit(*seat, &header, body) {
        Err(refused) => Some(refused),
        Ok(Admitted::Hello(hello)) => match session.hello(seat, &header, hello) {
            Ok(new) => {
                answer.new_session = new;
                None
            }
            Err(refused) => Some(refused),
        },
        Ok(Admitted::Step(step)) => {
            session.plan_step(&step, &mut answer.plan, &mut answer.outcomes);
            if backend_fails {
                session.commit_failed(&header, &answer.plan, &mut answer.outcomes);
            } else {
                session.commit(&header);
            }
            None
        }
        Ok(Admitted::Reset(mask)) => {
            session.reset(&header, mask);
            None
        }
        Ok(Admitted::Stats | Admitted::Ping) => None,
    };
    answer.status = refused.as_ref().map_or(FrameStatus::Ok, Refused::status);
    answer.refused = refused;
    answer
}

/// A HELLO message this worker accepts.
pub(crate) fn hello(geometry: &Geometry, seq: u64, session: u32) -> Vec<u8> {
    let body = HelloRequest::new(geometry, DRAFTER, MARKOV, "test client");
    message(AppHeader::request(Op::Hello, seq, session, 192), body.as_bytes())
}

/// Header and body as one message.
pub(crate) fn message(header: AppHeader, body: &[u8]) -> Vec<u8> {
    [header.as_bytes(), body].concat()
}

/// An entry that appends `n_rows` rows and asks for a draft.
pub(crate) fn entry(slot: u8, generation: u32, first_pos: i64, n_rows: u32) -> ReqEntry {
    let mut entry = ReqEntry::new_zeroed();
    entry.slot = slot;
    entry.req_flags = NEED_DRAFT;
    entry.generation = generation.into();
    entry.first_pos = first_pos.into();
    entry.n_rows = n_rows.into();
    entry.anchor_pos = first_pos.saturating_add(i64::from(n_rows)).into();
    entry
}

/// The entry of a new owner.
pub(crate) fn new_owner(slot: u8, generation: u32, first_pos: i64, n_rows: u32) -> ReqEntry {
    let mut entry = entry(slot, generation, first_pos, n_rows);
    entry.req_flags |= NEW_GEN;
    entry
}

/// A STEP message with as many rows as its entries claim. Row r of the block is filled with byte r.
pub(crate) fn step(
    geometry: &Geometry,
    seq: u64,
    session: u32,
    entries: &[ReqEntry],
    want_margin: bool,
) -> Vec<u8> {
    let row_bytes = geometry.row_bytes();
    let meta = StepMeta { seq, session, step_id: seq.wrapping_add(1000), want_margin, row_bytes };
    let mut message = Vec::new();
    let mut writer = StepWriter::begin(&mut message, meta, entries);
    let n_rows: u32 = entries.iter().map(|e| e.n_rows.get()).sum();
    for row in 0..n_rows {
        writer.rows(&vec![row.to_le_bytes()[0]; row_bytes]);
    }
    writer.finish();
    message
}

/// A RESET message.
pub(crate) fn reset(seq: u64, session: u32, mask: u32) -> Vec<u8> {
    reset_request(seq, session, mask)
}

/// A PING or STATS message.
pub(crate) fn empty(op: Op, seq: u64, session: u32) -> Vec<u8> {
    empty_request(op, seq, session).to_vec()
}

/// The reply a correct worker writes: consumed positions get plausible values, the rest stays zero.
pub(crate) fn reply(
    geometry: &Geometry,
    header: &AppHeader,
    step: &StepRequest<'_>,
    outcomes: &[Outcome],
) -> Vec<u8> {
    let num_spec = u16::try_from(geometry.num_spec).expect("a small block");
    let mut message = Vec::new();
    let mut writer = StepReplyWriter::begin(
        &mut message,
        header,
        step.header.step_id.get(),
        step.header.n_req.get(),
        num_spec,
        step.want_margin(),
    );
    for (i, (outcome, entry)) in outcomes.iter().zip(step.entries).enumerate() {
        writer.status(i, outcome.status, outcome.window_rows, outcome.generation);
        if outcome.draft.is_some() {
            let n = entry.consumed(usize::from(num_spec));
            let last = i32::try_from(geometry.vocab_size).expect("a small vocabulary") - 1;
            let ids: Vec<i32> = (0..n).map(|j| if j % 2 == 0 { last } else { 0 }).collect();
            let confidence: Vec<f32> = (0..n).map(|j| if j % 2 == 0 { 1.0 } else { 0.0 }).collect();
            let margin: Vec<f32> = (0..n).map(|j| if j % 2 == 0 { 0.0 } else { 9.5 }).collect();
            writer.block(i, &ids, &confidence, &margin);
        }
    }
    message
}

/// Statuses of a reply body, by entry.
pub(crate) fn statuses(reply: &StepReply<'_>) -> Vec<Option<EntryStatus>> {
    (0..reply.statuses.len()).map(|i| reply.status(i)).collect()
}
