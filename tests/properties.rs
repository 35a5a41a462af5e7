//! Laws of the window at W = 128, and round trips of the wire, on random input.
#![allow(clippy::unwrap_used)]

mod common;

use common::MINI;
use common::frames::{self, handle};
use dspark::protocol::refusal::CheckedReply;
use dspark::protocol::reply::ReplyTimes;
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, StepMeta};
use dspark::protocol::{
    AppHeader, EntryStatus, FrameStatus, HelloRequest, ReplyRefusal, ReqEntry, StepReply,
    StepReplyWriter, StepRequest, StepWriter, check_reply,
};
use dspark::session::Seat;
use dspark::window::{Entry, Generation, Rejection, Span, Window};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

const W: u32 = 128;

fn rows(first_pos: i64, n_rows: u32) -> Entry {
    Entry {
        generation: Generation(1),
        new_gen: false,
        need_draft: true,
        first_pos,
        n_rows,
        rows_fit: true,
        anchor_pos: first_pos + i64::from(n_rows),
        anchor_token_valid: true,
    }
}

fn back_to(anchor_pos: i64) -> Entry {
    Entry { anchor_pos, ..rows(0, 0) }
}

/// Entries around the interesting places: near 0, near each other, short and whole windows.
fn any_entry() -> impl Strategy<Value = Entry> {
    let first = prop_oneof![4 => 0..400i64, 1 => -2..3i64, 1 => i64::MAX - 200..i64::MAX];
    let n_rows = prop_oneof![3 => 0..8u32, 1 => 100..130u32];
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.95));
    (first, n_rows, -1..2i64, 0..3u32, flags).prop_map(|(first, n_rows, off, generation, flags)| {
        let anchor = first.saturating_add(i64::from(n_rows));
        let off = if n_rows == 0 || off == -1 { off } else { 0 };
        Entry {
            generation: Generation(u32::MAX.wrapping_add(generation)),
            new_gen: flags.0 && flags.1,
            need_draft: flags.1,
            anchor_pos: anchor.saturating_add(off),
            rows_fit: flags.2,
            ..Entry { first_pos: first, n_rows, anchor_token_valid: true, ..rows(0, 0) }
        }
    })
}

/// A slot after some rounds of one request.
fn any_window() -> impl Strategy<Value = Window> {
    prop::collection::vec(any_entry(), 0..6).prop_map(|entries| {
        let mut window = Window::default();
        for entry in &entries {
            let _ = window.apply(entry, W);
        }
        window
    })
}

proptest! {
    #[test]
    fn a_window_holds_at_most_w_rows_up_to_its_anchor(
        mut window in any_window(), entry in any_entry()
    ) {
        let applied = window.apply(&entry, W);
        if let Some(span) = window.span {
            prop_assert!(0 <= span.lo && span.lo <= span.hi && span.rows() <= i64::from(W));
            prop_assert!(window.generation.is_some());
        }
        if let Ok(applied) = applied {
            prop_assert_eq!(applied.context.end, entry.anchor_pos);
            prop_assert_eq!(applied.expected, entry.anchor_pos.min(i64::from(W)));
            prop_assert!((0..=applied.expected).contains(&applied.window_rows()));
            let held = window.span.map(|s| s.lo..s.hi + 1);
            prop_assert_eq!(held.unwrap_or(applied.context.end..applied.context.end), applied.context);
        }
    }

    #[test]
    fn an_older_generation_changes_nothing(
        mut window in any_window(), entry in any_entry(), back in 1..=1u32 << 31
    ) {
        let Some(slot) = window.generation else { return Ok(()) };
        let before = window;
        let older = Generation(slot.0.wrapping_sub(back));
        let stale = window.apply(&Entry { generation: older, ..entry }, W);
        let refused = matches!(stale, Err(Rejection::Stale { .. }));
        prop_assert!(refused);
        prop_assert_eq!(window, before);
    }

    #[test]
    fn of_two_generations_exactly_one_is_older_unless_half_the_circle_apart(
        a in any::<u32>(), distance in 1..u32::MAX
    ) {
        let (a, b) = (Generation(a), Generation(a.wrapping_add(distance)));
        prop_assert!(!a.is_older_than(a) && !a.next().is_older_than(a));
        prop_assert_eq!(a.is_older_than(b) != b.is_older_than(a), distance != 1 << 31);
    }

    #[test]
    fn a_bad_entry_of_the_slots_generation_changes_nothing(
        mut window in any_window(), entry in any_entry()
    ) {
        let Some(slot) = window.generation else { return Ok(()) };
        let before = window;
        let entry = Entry { generation: slot, new_gen: false, ..entry };
        if window.apply(&entry, W).is_err() {
            prop_assert_eq!(window, before);
        }
    }

    #[test]
    fn rows_in_chunks_leave_the_window_of_one_append(
        first in 0..1000i64, chunks in prop::collection::vec(1..=W, 1..8)
    ) {
        let mut chunked = Window::default();
        let mut next = first;
        for n in chunks {
            chunked.apply(&rows(next, n), W).unwrap();
            next += i64::from(n);
        }
        let lo = first.max(next - i64::from(W));
        let mut at_once = Window::default();
        at_once.apply(&rows(lo, u32::try_from(next - lo).unwrap()), W).unwrap();
        prop_assert_eq!(chunked, at_once);
    }

    #[test]
    fn sending_rows_twice_is_sending_them_once(mut window in any_window(), entry in any_entry()) {
        prop_assume!(entry.n_rows > 0);
        let once = window.apply(&entry, W);
        let after = window;
        prop_assert_eq!(window.apply(&entry, W), once);
        prop_assert_eq!(window, after);
    }

    #[test]
    fn a_roll_back_before_an_append_is_part_of_the_append(
        mut window in any_window(), back in 0..140i64, n in 1..=W
    ) {
        let Some(span) = window.span else { return Ok(()) };
        let generation = window.generation.unwrap();
        let pos = (span.hi + 1).saturating_sub(back).max(0);
        prop_assume!(pos.checked_add(i64::from(n)).is_some());
        let append = Entry { generation, ..rows(pos, n) };
        let mut direct = window;
        let direct_applied = direct.apply(&append, W).unwrap();
        window.apply(&Entry { generation, ..back_to(pos) }, W).unwrap();
        prop_assert_eq!(window.apply(&append, W).unwrap(), direct_applied);
        prop_assert_eq!(window, direct);
    }

    #[test]
    fn new_gen_forgets_whatever_was_there(window in any_window(), entry in any_entry()) {
        let generation = window.generation.unwrap_or(Generation(5));
        let entry = Entry { generation, new_gen: true, ..entry };
        let (mut used, mut fresh) = (window, Window::default());
        prop_assert_eq!(used.apply(&entry, W), fresh.apply(&entry, W));
        prop_assert_eq!(used, fresh);
    }

    #[test]
    fn a_resync_restores_the_window_that_no_failure_would_have_left(
        worker in any_window(), rounds in prop::collection::vec((0..4i64, 1..20u32), 1..20)
    ) {
        // Rank 0's ring saw every round; the worker missed them all and gets [lo, hi] again (§7.4).
        let mut ring = Window::default();
        let generation = worker.generation.unwrap_or(Generation(1));
        for (back, n) in rounds {
            let next = ring.span.map_or(100, |s| s.hi + 1);
            ring.apply(&Entry { generation, ..rows((next - back).max(0), n) }, W).unwrap();
        }
        let Span { lo, hi } = ring.span.unwrap();
        let n = u32::try_from(hi + 1 - lo).unwrap();
        let mut worker = worker;
        worker.apply(&Entry { generation, new_gen: true, ..rows(lo, n) }, W).unwrap();
        prop_assert_eq!(worker, ring);
    }
}

fn any_wire_entry() -> impl Strategy<Value = ReqEntry> {
    let numbers = (any::<u32>(), any::<i64>(), 0..6u32, any::<i32>(), any::<i64>());
    (any::<[u8; 3]>(), numbers).prop_map(|([flags, k_window, n_out], numbers)| {
        let (generation, first_pos, n_rows, anchor_token, anchor_pos) = numbers;
        ReqEntry {
            slot: 0,
            req_flags: flags,
            k_window,
            n_out,
            generation: generation.into(),
            first_pos: first_pos.into(),
            n_rows: n_rows.into(),
            anchor_token: anchor_token.into(),
            anchor_pos: anchor_pos.into(),
        }
    })
}

/// One to four entries on distinct slots in any order.
fn any_wire_entries() -> impl Strategy<Value = Vec<ReqEntry>> {
    let slots = Just([0u8, 1, 2, 3]).prop_shuffle();
    (slots, prop::collection::vec(any_wire_entry(), 1..=4)).prop_map(|(slots, mut entries)| {
        for (entry, slot) in entries.iter_mut().zip(slots) {
            entry.slot = slot;
        }
        entries
    })
}

proptest! {
    #[test]
    fn a_step_reads_back_as_written(
        entries in any_wire_entries(), seq in any::<u64>(), session in any::<u32>(),
        step_id in any::<u64>(), want_margin in any::<bool>(), fill in any::<u8>()
    ) {
        let row_bytes = MINI.row_bytes();
        let n_rows: usize = entries.iter().map(|e| e.n_rows.get() as usize).sum();
        let rows: Vec<u8> =
            (0..n_rows * row_bytes).map(|i| fill.wrapping_add(i.to_le_bytes()[0])).collect();
        let meta = StepMeta { seq, session, step_id, want_margin, row_bytes };
        let mut message = vec![0xee; 7];
        let mut writer = StepWriter::begin(&mut message, meta, &entries);
        writer.rows(&rows);
        writer.finish();

        let (header, body) = AppHeader::split(&message).unwrap();
        prop_assert_eq!((header.seq.get(), header.session.get()), (seq, session));
        prop_assert_eq!(header.body_len.get() as usize, body.len());
        let step = StepRequest::parse(body, &frames::limits(&MINI)).unwrap();
        prop_assert_eq!((step.header.step_id.get(), step.want_margin()), (step_id, want_margin));
        prop_assert_eq!(step.entries, entries.as_slice());
        prop_assert_eq!(step.rows, rows.as_slice());
        let mut next = 0;
        for (entry, range) in step.entry_rows() {
            let range = range.unwrap();
            prop_assert_eq!((range.start, range.len()), (next, entry.n_rows.get() as usize));
            next = range.end;
        }
        prop_assert_eq!(next, n_rows);
    }

    #[test]
    fn a_step_reply_reads_back_as_written(
        statuses in prop::collection::vec((0..5u32, any::<u16>(), any::<u32>()), 1..=4),
        cells in prop::collection::vec((any::<i32>(), any::<u32>(), any::<u32>()), 20),
        n_out in 0..=5usize, margins in any::<bool>(), step_id in any::<u64>(),
        worker_us in any::<u32>(), recv_to_send_us in any::<u32>()
    ) {
        let request = AppHeader::request(dspark::protocol::Op::Step, 9, 7, 64);
        let n_req = u16::try_from(statuses.len()).unwrap();
        let mut message = vec![0xee; 999];
        let mut writer =
            StepReplyWriter::begin(&mut message, &request, step_id, n_req, 5, margins);
        let block = |i: usize| &cells[5 * i..5 * i + n_out];
        for (i, (status, window_rows, generation)) in statuses.iter().enumerate() {
            let status = EntryStatus::from_code(*status).unwrap();
            writer.status(i, status, *window_rows, *generation);
            let ids: Vec<i32> = block(i).iter().map(|c| c.0).collect();
            let confidence: Vec<f32> = block(i).iter().map(|c| f32::from_bits(c.1)).collect();
            let margin: Vec<f32> = block(i).iter().map(|c| f32::from_bits(c.2)).collect();
            writer.block(i, &ids, &confidence, &margin);
        }
        writer.times(ReplyTimes { worker_us, recv_to_send_us });

        let (header, body) = AppHeader::split(&message).unwrap();
        prop_assert_eq!(header.frame_status(), Some(FrameStatus::Ok));
        prop_assert_eq!(header.body_len.get() as usize, body.len());
        let reply = StepReply::parse(body).unwrap();
        prop_assert_eq!(reply.header.step_id.get(), step_id);
        prop_assert_eq!(reply.header.recv_to_send_us.get(), recv_to_send_us);
        prop_assert_eq!(reply.header.worker_us.get(), worker_us.min(recv_to_send_us));
        prop_assert_eq!(reply.has_margin(), margins);
        for (i, status) in statuses.iter().enumerate() {
            let row = &reply.statuses[i];
            let got = (reply.status(i).unwrap().code(), row.window_rows.get(), row.generation.get());
            prop_assert_eq!(got, *status);
            let padded = |bits: Vec<u32>| -> Vec<u32> {
                bits.into_iter().chain(std::iter::repeat(0)).take(5).collect()
            };
            let ids: Vec<u32> = reply.ids(i).map(i32::cast_unsigned).collect();
            prop_assert_eq!(ids, padded(block(i).iter().map(|c| c.0.cast_unsigned()).collect()));
            let confidence: Vec<u32> = reply.confidence(i).map(f32::to_bits).collect();
            prop_assert_eq!(confidence, padded(block(i).iter().map(|c| c.1).collect()));
            let margin: Vec<u32> = reply.margin(i).map(f32::to_bits).collect();
            let expected = padded(block(i).iter().map(|c| c.2).collect());
            prop_assert_eq!(margin, if margins { expected } else { vec![] });
        }
    }

    #[test]
    fn a_hello_is_its_bytes(bytes in prop::collection::vec(any::<u8>(), 192)) {
        let hello = HelloRequest::ref_from_bytes(&bytes).unwrap();
        prop_assert_eq!(hello.as_bytes(), bytes.as_slice());
        let geometry = hello.geometry();
        let name = hello.client_name();
        prop_assert!(name.bytes().all(|b| (b' '..=b'~').contains(&b)), "{:?} {:?}", name, geometry);
    }
}

/// Rounds a client may send: some entries continue, some start, some are stale or bad.
fn any_round() -> impl Strategy<Value = Vec<ReqEntry>> {
    let kinds = prop::collection::vec((0..6u8, 0..9u32, 0..8u8, any::<bool>()), 1..=4);
    (Just([0u8, 1, 2, 3]).prop_shuffle(), kinds).prop_map(|(slots, kinds)| {
        let entry = |(slot, (kind, n, n_out, draft)): (u8, (u8, u32, u8, bool))| {
            let mut entry = match kind {
                0 => frames::new_owner(slot, 2, 0, n.max(1)),
                1 => frames::entry(slot, 2, 20, n),
                2 => frames::entry(slot, 2, 0, n),
                3 => frames::entry(slot, 1, 0, n),
                4 => frames::new_owner(slot, 3, 500, n),
                _ => frames::new_owner(slot, 3, 0, 128),
            };
            entry.n_out = n_out;
            if !draft {
                entry.req_flags &= !NEED_DRAFT;
            }
            if n == 8 {
                entry.anchor_token = (-1).into();
                entry.req_flags |= NEW_GEN;
            }
            entry
        };
        slots.into_iter().zip(kinds).map(entry).collect()
    })
}

/// Where the parts of a reply to `n_req` entries lie in the message.
struct ReplyLayout {
    n_req: usize,
}

impl ReplyLayout {
    fn status(&self, entry: usize) -> usize {
        64 + 8 * entry
    }

    /// Cell `position` of `entry` in array 0 (ids), 1 (confidence) or 2 (margin).
    fn cell(&self, array: usize, entry: usize, position: usize) -> usize {
        64 + 8 * self.n_req + 4 * (array * self.n_req * 5 + entry * 5 + position)
    }
}

/// A changed copy of a reply, and the rule it breaks.
struct Corruption {
    what: String,
    message: Vec<u8>,
    breaks: fn(&ReplyRefusal) -> bool,
}

/// Every single-field corruption of contract §6.3 that applies to this reply.
fn corruptions(reply: &[u8], step: &StepRequest<'_>) -> Vec<Corruption> {
    use ReplyRefusal as R;
    let n_req = step.entries.len();
    let mut all = Vec::new();
    let mut add = |what: String, at: usize, bytes: &[u8], breaks: fn(&R) -> bool| {
        let mut message = reply.to_vec();
        message[at..at + bytes.len()].copy_from_slice(bytes);
        all.push(Corruption { what, message, breaks });
    };
    let flipped = |at: usize| [reply[at] ^ 1];
    for (name, at) in [("magic", 0), ("version", 4)] {
        add(name.into(), at, &flipped(at), |r| matches!(r, R::Header));
    }
    for (name, at) in [("op", 6), ("seq", 8), ("seq", 15), ("session", 16), ("session", 19)] {
        add(name.into(), at, &flipped(at), |r| matches!(r, R::Echo { .. }));
    }
    for (name, at) in [("step_id", 32), ("step_id", 39)] {
        add(name.into(), at, &flipped(at), |r| matches!(r, R::Echo { .. }));
    }
    add("body_len".into(), 20, &flipped(20), |r| matches!(r, R::Length(_)));
    add("frame status".into(), 24, &[10], |r| matches!(r, R::UnknownFrameStatus(10)));
    add("frame error with a body".into(), 24, &[6], |r| matches!(r, R::Length(_)));
    add("n_req".into(), 40, &flipped(40), |r| matches!(r, R::Length(_)));
    add("num_spec".into(), 42, &flipped(42), |r| matches!(r, R::Length(_)));
    add("margin flag".into(), 44, &flipped(44), |r| matches!(r, R::Length(_)));

    let parsed = StepReply::parse(&reply[32..]).unwrap();
    let layout = ReplyLayout { n_req };
    for (i, entry) in step.entries.iter().enumerate() {
        let at = layout.status(i);
        let name = |what: &str| format!("{what} of entry {i}");
        add(name("status"), at, &[5], |r| matches!(r, R::UnknownStatus { code: 5, .. }));
        add(name("generation"), at + 4, &flipped(at + 4), |r| matches!(r, R::Generation { .. }));
        let status = parsed.status(i).unwrap();
        let expected = entry.anchor_pos.get().clamp(0, 128);
        let over = u16::try_from(expected + 1).unwrap().to_le_bytes();
        add(name("window_rows over"), at + 2, &over, |r| matches!(r, R::WindowRows { .. }));
        let drafted = entry.need_draft() && status.has_drafts();
        if drafted {
            let other = if status == EntryStatus::Ok { 1 } else { 0 };
            add(name("other status"), at, &[other], |r| matches!(r, R::WindowRows { .. }));
        }
        let consumed = if drafted { entry.consumed(5) } else { 0 };
        let one = 1f32.to_le_bytes();
        for position in 0..5 {
            let cell = |array| layout.cell(array, i, position);
            let name = |what: &str| format!("{what} of entry {i} position {position}");
            if position >= consumed {
                add(name("unused id"), cell(0), &[1], |r| matches!(r, R::NotZero { .. }));
                add(name("unused confidence"), cell(1), &one, |r| matches!(r, R::NotZero { .. }));
                let nan = f32::NAN.to_le_bytes();
                add(name("unused NaN"), cell(1), &nan, |r| matches!(r, R::NotZero { .. }));
                if parsed.has_margin() {
                    add(name("unused margin"), cell(2), &one, |r| matches!(r, R::NotZero { .. }));
                }
                continue;
            }
            for id in [-1, i32::MIN, 5000, i32::MAX] {
                let bytes = id.to_le_bytes();
                add(name("id"), cell(0), &bytes, |r| matches!(r, R::DraftId { .. }));
            }
            let past = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e-9, 1.0 + f32::EPSILON];
            for value in past {
                let bytes = value.to_le_bytes();
                add(name("confidence"), cell(1), &bytes, |r| matches!(r, R::Confidence { .. }));
            }
            if parsed.has_margin() {
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e-9] {
                    let bytes = value.to_le_bytes();
                    add(name("margin"), cell(2), &bytes, |r| matches!(r, R::Margin { .. }));
                }
            }
        }
    }
    for len in [0, 31, 32, 63, reply.len() - 1] {
        let breaks: fn(&R) -> bool = |r| matches!(r, R::Header | R::Length(_));
        let what = format!("cut to {len} bytes");
        all.push(Corruption { what, message: reply[..len].to_vec(), breaks });
    }
    let message = [reply, &[0]].concat();
    let breaks: fn(&R) -> bool = |r| matches!(r, R::Length(_));
    all.push(Corruption { what: "one byte more".into(), message, breaks });
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rank_0_accepts_what_a_correct_worker_writes_and_no_single_changed_field(
        rounds in prop::collection::vec(any_round(), 1..6), want_margin in any::<bool>()
    ) {
        let mut session = frames::new_session(MINI);
        let mut seat = Seat::default();
        handle(&mut session, &mut seat, &frames::hello(&MINI, 1, 7), false);
        for (seq, entries) in (2..).zip(rounds) {
            let message = frames::step(&MINI, seq, 7, &entries, want_margin);
            let answer = handle(&mut session, &mut seat, &message, seq % 5 == 0);
            prop_assert_eq!(answer.status, FrameStatus::Ok);
            let (sent, body) = AppHeader::split(&message).unwrap();
            let step = StepRequest::parse(body, &frames::limits(&MINI)).unwrap();
            let reply = frames::reply(&MINI, &sent, &step, &answer.outcomes);
            let verdict = check_reply(&sent, &step, &MINI, &reply);
            prop_assert!(matches!(verdict, Ok(CheckedReply::Step(_))), "{:?}", verdict);
            for Corruption { what, message, breaks } in corruptions(&reply, &step) {
                match check_reply(&sent, &step, &MINI, &message) {
                    Ok(_) => prop_assert!(false, "accepted with a changed {}", what),
                    Err(rule) => prop_assert!(breaks(&rule), "{}: refused for {:?}", what, rule),
                }
            }
        }
    }

    #[test]
    fn rank_0_accepts_every_frame_error_with_an_empty_body(code in 1..10u32, seq in any::<u64>()) {
        let status = FrameStatus::from_code(code).unwrap();
        let message = frames::step(&MINI, seq, 7, &[frames::new_owner(0, 1, 0, 2)], false);
        let (sent, body) = AppHeader::split(&message).unwrap();
        let step = StepRequest::parse(body, &frames::limits(&MINI)).unwrap();
        let reply = frames::message(sent.reply(status, 0), &[]);
        let verdict = check_reply(&sent, &step, &MINI, &reply);
        prop_assert!(matches!(verdict, Ok(CheckedReply::Frame(got)) if got == status));
    }
}
