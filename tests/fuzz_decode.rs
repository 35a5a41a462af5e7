//! Hostile bytes (contract-notes §10): no decoder panics, what parses encodes to the same bytes, and
//! whatever a session admits keeps its invariants.
//!
//! Seeded, so a failure repeats; the seed and the frame are printed.
#![allow(clippy::unwrap_used)]

mod common;

use common::MINI;
use common::frames::{self, Answer, handle};
use dspark::geometry::Geometry;
use dspark::protocol::control::reset_mask;
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC};
use dspark::protocol::{
    AppHeader, FrameStatus, HelloRequest, Op, ReqEntry, StepReply, StepRequest, check_reply,
};
use dspark::session::{Seat, Session};
use dspark::window::Window;
use zerocopy::{FromBytes, IntoBytes};

/// A geometry so small that random numbers often fit it.
const TINY: Geometry = Geometry {
    window: 4,
    hidden: 1,
    n_taps: 1,
    vocab_size: 300,
    noise_token_id: 299,
    max_slots: 3,
    max_rows_per_step: 12,
    ..MINI
};

/// Marsaglia's xorshift64: random enough to wander, and the same on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// Everything that reads bytes from a peer, on these bytes as message and as body.
fn decode_everything(geometry: &Geometry, bytes: &[u8]) {
    check_header(bytes);
    check_step(geometry, bytes);
    check_step_reply(bytes);
    if let Ok(hello) = HelloRequest::ref_from_bytes(bytes) {
        assert_eq!(hello.as_bytes(), bytes);
        let _ = (hello.config_mismatch(geometry), hello.client_name(), hello.geometry());
    }
    let _ = reset_mask(bytes);
    let sent = sent_step(geometry);
    let (header, body) = AppHeader::split(&sent).unwrap();
    let step = StepRequest::parse(body, &frames::limits(geometry)).unwrap();
    let _ = check_reply(&header, &step, geometry, bytes);
}

/// The STEP whose reply is fuzzed.
fn sent_step(geometry: &Geometry) -> Vec<u8> {
    let mut second = frames::entry(1, 4, 2, 2);
    second.req_flags = 0;
    let entries = [frames::new_owner(0, 3, 0, 3), second, frames::entry(2, 4, 0, 0)];
    frames::step(geometry, 5, 7, &entries, true)
}

fn check_header(bytes: &[u8]) {
    match AppHeader::split(bytes) {
        None => assert!(bytes.len() < 32),
        Some((header, body)) => {
            assert_eq!([header.as_bytes(), body].concat(), bytes);
            let _ = (Op::from_code(header.op.get()), header.frame_status());
        }
    }
}

/// A STEP that parses is made of its parts: header, entries, padding, rows.
fn check_step(geometry: &Geometry, body: &[u8]) {
    let Ok(step) = StepRequest::parse(body, &frames::limits(geometry)) else { return };
    let entries_end = 32 + 32 * step.entries.len();
    let padding = &body[entries_end..body.len() - step.rows.len()];
    let parts = [step.header.as_bytes(), step.entries.as_bytes(), padding, step.rows];
    assert_eq!(parts.concat(), body);
    let rows = u64::from(step.header.n_rows.get()) * geometry.row_bytes() as u64;
    assert_eq!(step.rows.len() as u64, rows);
    let mut next = 0;
    for (entry, range) in step.entry_rows() {
        assert!(u32::from(entry.slot) < geometry.max_slots);
        if let Some(range) = range {
            assert!(
                range.start <= range.end && range.end * geometry.row_bytes() <= step.rows.len()
            );
            assert_eq!(range.len() as u64, u64::from(entry.n_rows.get()));
            assert!(range.is_empty() || range.start == next);
            next = range.end;
        }
    }
}

/// A reply that parses is made of its parts: header, statuses, ids, confidences, margins.
fn check_step_reply(body: &[u8]) {
    let Some(reply) = StepReply::parse(body) else { return };
    let n = usize::from(reply.header.n_req.get());
    let mut again = [reply.header.as_bytes(), reply.statuses.as_bytes()].concat();
    for i in 0..n {
        let _ = reply.status(i);
        again.extend(reply.ids(i).flat_map(i32::to_le_bytes));
    }
    again.extend((0..n).flat_map(|i| reply.confidence(i)).flat_map(|v| v.to_bits().to_le_bytes()));
    again.extend((0..n).flat_map(|i| reply.margin(i)).flat_map(|v| v.to_bits().to_le_bytes()));
    assert_eq!(again, body);
}

#[test]
fn random_bytes_never_panic_a_decoder() {
    let mut rng = Rng(0x5eed_0001);
    for _ in 0..40_000 {
        let len = rng.below(260);
        let mut bytes = rng.bytes(len);
        // Half of them are nearly right: small numbers where counts and sizes are.
        if rng.below(2) == 0 {
            for byte in &mut bytes {
                if rng.below(4) != 0 {
                    *byte = 0;
                }
            }
        }
        decode_everything(&TINY, &bytes);
        decode_everything(&MINI, &bytes);
    }
}

/// One valid message of each kind, for the session of [`greeted`].
fn valid_messages(geometry: &Geometry) -> Vec<Vec<u8>> {
    let one = frames::step(geometry, 5, 7, &[frames::new_owner(0, 3, 0, 3)], false);
    let three = sent_step(geometry);
    let (header, body) = AppHeader::split(&three).unwrap();
    let step = StepRequest::parse(body, &frames::limits(geometry)).unwrap();
    let (mut session, mut seat) = greeted(geometry);
    let answer = handle(&mut session, &mut seat, &three, false);
    let reply = frames::reply(geometry, &header, &step, &answer.outcomes);
    assert!(check_reply(&header, &step, geometry, &reply).is_ok());
    let ping = frames::empty(Op::Ping, 5, 7);
    vec![frames::hello(geometry, 5, 7), frames::reset(5, 7, 1), ping, one, three, reply]
}

/// A session with something in two slots, and the connection that speaks for it.
fn greeted(geometry: &Geometry) -> (Session, Seat) {
    let (mut session, mut seat) = (frames::new_session(*geometry), Seat::default());
    let hello = frames::hello(geometry, 1, 7);
    assert_eq!(handle(&mut session, &mut seat, &hello, false).status, FrameStatus::Ok);
    let entries = [frames::new_owner(1, 4, 0, 2), frames::new_owner(2, 4, 7, 3)];
    let step = frames::step(geometry, 2, 7, &entries, false);
    assert_eq!(handle(&mut session, &mut seat, &step, false).status, FrameStatus::Ok);
    (session, seat)
}

/// What a session shows of itself.
fn state(session: &Session) -> (Option<u32>, u64, Vec<Window>) {
    (session.id().map(u32::from), session.last_seq(), session.windows().to_vec())
}

/// Hands the message over and checks what must hold whatever it is.
fn handle_and_check(
    geometry: &Geometry,
    session: &mut Session,
    seat: &mut Seat,
    message: &[u8],
) -> Answer {
    let before = state(session);
    let answer = handle(session, seat, message, false);
    if answer.status != FrameStatus::Ok {
        assert_eq!(state(session), before, "a refused frame changed something");
        assert!(answer.outcomes.is_empty() && answer.plan == Default::default());
    }
    assert_eq!(session.windows().len(), geometry.max_slots as usize);
    for window in session.windows() {
        let Some(span) = window.span else { continue };
        assert!(window.generation.is_some());
        assert!(0 <= span.lo && span.lo <= span.hi && span.hi < i64::MAX);
        assert!(span.rows() <= i64::from(geometry.window));
    }
    if before.0 == session.id().map(u32::from) {
        assert!(session.last_seq() >= before.1);
    }
    for append in &answer.plan.appends {
        assert!(append.first_pos >= 0 && !append.rows.is_empty());
        assert!(append.rows.len() <= geometry.window as usize);
    }
    for draft in &answer.plan.drafts {
        let span = session.windows()[usize::from(draft.slot)].span;
        let held = span.map_or(0..0, |s| s.lo..s.hi + 1);
        assert!(draft.context.is_empty() || draft.context == held, "drafts over what is held");
        assert!(draft.context.end == draft.anchor_pos && draft.anchor_token < geometry.vocab_size);
        assert!((1..=geometry.num_spec as usize).contains(&draft.n_out));
    }
    answer
}

/// Every place of a message set to an extreme, and the message cut at every place.
fn mutations(message: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let changed = (0..message.len()).flat_map(move |at| {
        [0x00, 0xff, 0x80, 0x7f].into_iter().map(move |value| {
            let mut message = message.to_vec();
            message[at] = value;
            message
        })
    });
    let cut = (0..message.len()).map(|len| message[..len].to_vec());
    // Cut with a length that admits it, so that the layout checks see it too.
    let cut_honestly = (32..message.len()).map(|len| {
        let mut message = message[..len].to_vec();
        let body_len = u32::try_from(len - 32).unwrap();
        message[20..24].copy_from_slice(&body_len.to_le_bytes());
        message
    });
    changed.chain(cut).chain(cut_honestly)
}

#[test]
fn every_byte_at_its_extremes_and_every_cut_leave_a_session_whole() {
    for geometry in [TINY, MINI] {
        let (session, seat) = greeted(&geometry);
        let mut tried = 0;
        for message in valid_messages(&geometry) {
            for bytes in mutations(&message) {
                decode_everything(&geometry, &bytes);
                decode_everything(&geometry, &bytes[bytes.len().min(32)..]);
                tried += 1;
                if bytes.len() < 32 {
                    continue;
                }
                let (mut session, mut seat) = (session.clone(), seat);
                handle_and_check(&geometry, &mut session, &mut seat, &bytes);
                // Whatever it was, the client can start over and is served.
                let hello = frames::hello(&geometry, 1, 77);
                handle_and_check(&geometry, &mut session, &mut seat, &hello);
                let step = frames::step(&geometry, 2, 77, &[frames::entry(1, 4, 0, 2)], false);
                let answer = handle(&mut session, &mut seat, &step, false);
                assert_eq!(answer.outcomes[0].window_rows, 2, "after {}", hex::encode(&bytes));
            }
        }
        assert!(tried > 3000, "{tried} mutations");
    }
}

/// A STEP entry that mostly continues what the slot holds, and sometimes is anything.
fn random_entry(rng: &mut Rng, slot: u8, window: &Window) -> ReqEntry {
    let small = |rng: &mut Rng, n: usize| i64::try_from(rng.below(n)).unwrap();
    let n_rows = u32::try_from(rng.below(6)).unwrap();
    let next = window.span.map_or(0, |s| s.hi + 1);
    let first = if rng.below(4) == 0 { small(rng, 12) - 1 } else { next - small(rng, 3) };
    let generation = match (window.generation, rng.below(8)) {
        (Some(slot), 0) => slot.0.wrapping_add(1),
        (Some(slot), 1) => slot.0.wrapping_sub(1),
        (Some(slot), _) => slot.0,
        (None, n) => u32::MAX.wrapping_add(u32::try_from(n).unwrap()),
    };
    let mut entry = frames::entry(slot, generation, first, n_rows);
    entry.req_flags = NEED_DRAFT | if rng.below(6) == 0 { NEW_GEN | RESYNC } else { 0 };
    entry.n_out = u8::try_from(rng.below(8)).unwrap();
    match rng.below(12) {
        0 => entry.anchor_pos = (small(rng, 20) - 2).into(),
        1 => entry.anchor_token = 300.into(),
        2 => entry.first_pos = i64::MAX.into(),
        3 => entry.anchor_pos = i64::MIN.into(),
        4 => entry.req_flags = 0,
        _ if n_rows == 0 => entry.anchor_pos = (next - small(rng, 3)).into(),
        _ => {}
    }
    entry
}

#[test]
fn random_conversations_keep_the_sessions_invariants() {
    let (mut steps, mut entries_ok, mut refused) = (0, 0, 0);
    for seed in 1..=400u64 {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut session, mut seat) = greeted(&TINY);
        let (mut seq, mut lost) = (2, false);
        for _ in 0..60 {
            if rng.below(10) != 0 {
                seq += 1 + rng.next() % 3;
            }
            let id = if rng.below(30) == 0 { 8 } else { session.id().map_or(7, u32::from) };
            // A client that lost its session says HELLO, as rank 0 does.
            let kind = if lost { 0 } else { rng.below(12) };
            let mut message = match kind {
                0 => frames::hello(&TINY, seq, id),
                1 => frames::reset(seq, id, u32::try_from(rng.below(9)).unwrap()),
                2 => frames::empty(if rng.below(2) == 0 { Op::Ping } else { Op::Stats }, seq, id),
                _ => {
                    let n = 1 + rng.below(3);
                    let first = u8::try_from(rng.below(3)).unwrap();
                    let slots = (0..3u8).map(|i| (first + i) % 3).take(n);
                    let entries = slots
                        .map(|s| random_entry(&mut rng, s, &session.windows()[usize::from(s)]));
                    let entries: Vec<_> = entries.collect();
                    frames::step(&TINY, seq, id, &entries, rng.below(2) == 0)
                }
            };
            if rng.below(15) == 0 {
                let at = rng.below(message.len());
                message[at] ^= 1 << rng.below(8);
            }
            if rng.below(40) == 0 {
                seat = Seat::default();
            }
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                handle_and_check(&TINY, &mut session, &mut seat, &message)
            }));
            let Ok(answer) = told else { panic!("seed {seed}, frame {}", hex::encode(&message)) };
            lost = answer.status == FrameStatus::NoSession;
            steps += usize::from(!answer.outcomes.is_empty());
            entries_ok += answer.outcomes.iter().filter(|o| o.status.has_drafts()).count();
            refused += usize::from(answer.status != FrameStatus::Ok);
        }
    }
    // Most of it must get through, or nothing is tried; some of it must not.
    assert!(
        steps > 10_000 && entries_ok > 5000 && refused > 1000,
        "{steps} {entries_ok} {refused}"
    );
}
