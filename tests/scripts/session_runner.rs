//! Sends frames to one worker's session over named connections.
//!
//! The prefix of a line names its connection: `a: hello session=7 seq=1`. `connect` gives the name a new
//! connection. STEP entries are quoted: `a: step seq=2 "slot=0 first=0 rows=4 draft"`. A number left out
//! is the sensible one: the session of the last HELLO, an anchor behind the rows, lengths that agree.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;

use dspark::protocol::control::reset_request;
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC};
use dspark::protocol::{AppHeader, HEADER_BYTES, HelloRequest, Op, ReqEntry, StepHeader};
use dspark::session::{Seat, Session};
use goldenscript::{Command, Context, Runner};
use zerocopy::FromBytes;

use super::common::MINI;
use super::frames::{self, Answer};
use super::{Words, generation, held};

/// One connection of the script.
#[derive(Clone, Copy, Default)]
struct Connection {
    seat: Seat,
    session: u32,
}

/// One worker and its connections; the geometry is the wire fixtures' small one.
pub(super) struct SessionRunner {
    session: Session,
    connections: HashMap<String, Connection>,
    backend_fails: bool,
}

impl Default for SessionRunner {
    fn default() -> Self {
        Self {
            session: frames::new_session(MINI),
            connections: HashMap::new(),
            backend_fails: false,
        }
    }
}

impl Runner for SessionRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Result<String, Box<dyn Error>> {
        let mut words = Words::of(command);
        let name = context.prefix.clone();
        let output = match (command.name.as_str(), name) {
            ("windows", None) => self.windows(),
            ("state", None) => self.state(),
            ("backend_fails", None) => {
                self.backend_fails = true;
                "at the next STEP".to_owned()
            }
            ("connect", Some(name)) => {
                self.connections.insert(name, Connection::default());
                "connected".to_owned()
            }
            (op, Some(name)) => {
                let connection = self.connections.get(&name).copied();
                let mut connection = connection.ok_or(format!("{name} is not connected"))?;
                let message = build(op, &mut words, &mut connection)?;
                let fails = op == "step" && std::mem::take(&mut self.backend_fails);
                let answer =
                    frames::handle(&mut self.session, &mut connection.seat, &message, fails);
                self.connections.insert(name, connection);
                show(&answer)
            }
            (other, None) => return Err(format!("{other} on which connection?").into()),
        };
        words.end()?;
        Ok(output)
    }
}

impl SessionRunner {
    fn windows(&self) -> String {
        let slots = self.session.windows().iter().enumerate();
        slots.fold(String::new(), |mut text, (slot, window)| {
            let (generation, held) = (generation(window), held(window));
            writeln!(text, "slot {slot}: generation={generation} window={held}").unwrap();
            text
        })
    }

    fn state(&self) -> String {
        let id = self.session.id().map_or_else(|| "none".to_owned(), |id| id.to_string());
        format!("session={id} last_seq={}", self.session.last_seq())
    }
}

/// The answer: frame status and reason, then the entries, then what the backend was asked for.
fn show(answer: &Answer) -> String {
    let mut text = answer.status.to_string();
    if let Some(refused) = &answer.refused {
        let reason = match refused {
            dspark::session::Refused::Identity { .. } => "identities differ".to_owned(),
            other => other.to_string(),
        };
        write!(text, " ({reason})").unwrap();
        if refused.answers_hello_body() {
            text.push_str(" with the HELLO body");
        }
        if refused.closes() {
            text.push_str(" and the connection is closed");
        }
    }
    if answer.new_session {
        text.push_str(" new session");
    }
    for outcome in &answer.outcomes {
        write!(
            text,
            "\n  slot {}: {} generation={} window_rows={}",
            outcome.slot, outcome.status, outcome.generation, outcome.window_rows
        )
        .unwrap();
        if let Some(bad) = outcome.bad {
            write!(text, " ({bad})").unwrap();
        }
    }
    for append in &answer.plan.appends {
        let (rows, first) = (&append.rows, append.first_pos);
        let range = format!("{}..{}", rows.start, rows.end);
        write!(text, "\n  store: slot {} rows {range} of the block at {first}", append.slot)
            .unwrap();
    }
    for draft in &answer.plan.drafts {
        let (start, end) = (draft.context.start, draft.context.end);
        write!(
            text,
            "\n  draft: slot {} token {} at {}, context {start}..{end}, n_out {}, positions below {}",
            draft.slot,
            draft.anchor_token,
            draft.anchor_pos,
            draft.n_out,
            answer.plan.max_model_len
        )
        .unwrap();
    }
    text
}

/// Builds the message of one line.
fn build(
    op: &str,
    words: &mut Words,
    connection: &mut Connection,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let seq: u64 = words.number("seq")?.ok_or("seq= is missing")?;
    let session = words.number("session")?.unwrap_or(connection.session);
    let message = match op {
        "hello" => {
            connection.session = session;
            hello(words, seq, session)?
        }
        "step" => step(words, seq, session)?,
        "reset" => reset_request(seq, session, words.number("mask")?.ok_or("mask= is missing")?),
        "ping" => frames::empty(Op::Ping, seq, session),
        "stats" => frames::empty(Op::Stats, seq, session),
        other => return Err(format!("unknown command {other}").into()),
    };
    override_header(message, words)
}

/// Applies what a line says about the header itself: `body=` cuts or pads the body, the others lie.
fn override_header(mut message: Vec<u8>, words: &mut Words) -> Result<Vec<u8>, Box<dyn Error>> {
    if let Some(body) = words.number::<u32>("body")? {
        message.resize(HEADER_BYTES + body as usize, 0);
    }
    let carried = u32::try_from(message.len() - HEADER_BYTES)?;
    let (header, _) = AppHeader::mut_from_prefix(&mut message).map_err(|_| "no header")?;
    header.body_len = words.number("body_len")?.unwrap_or(carried).into();
    if let Some(magic) = words.number::<u32>("magic")? {
        header.magic = magic.into();
    }
    if let Some(version) = words.number::<u16>("version")? {
        header.version = version.into();
    }
    if let Some(op) = words.number::<u16>("op")? {
        header.op = op.into();
    }
    if let Some(status) = words.number::<i32>("status")? {
        header.status = status.into();
    }
    if let Some(flags) = words.number::<u32>("flags")? {
        header.flags = flags.into();
    }
    Ok(message)
}

fn hello(words: &mut Words, seq: u64, session: u32) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut message = frames::hello(&MINI, seq, session);
    let hello = HelloRequest::mut_from_bytes(&mut message[HEADER_BYTES..]).map_err(|_| "length")?;
    let fields = [
        ("proto_min", &mut hello.proto_min),
        ("proto_max", &mut hello.proto_max),
        ("num_spec", &mut hello.num_spec),
        ("window", &mut hello.window),
        ("hidden", &mut hello.hidden),
        ("n_taps", &mut hello.n_taps),
        ("payload_kind", &mut hello.payload_kind),
        ("row_bytes", &mut hello.row_bytes),
        ("noise_token_id", &mut hello.noise_token_id),
        ("vocab_size", &mut hello.vocab_size),
        ("max_model_len", &mut hello.max_model_len),
        ("max_slots", &mut hello.max_slots),
        ("max_rows_per_step", &mut hello.max_rows_per_step),
        ("sample_mode", &mut hello.sample_mode),
        ("tp_size", &mut hello.tp_size),
        ("reserved", &mut hello.reserved),
    ];
    for (name, field) in fields {
        if let Some(value) = words.number::<u32>(name)? {
            *field = value.into();
        }
    }
    for (tap, id) in hello.tap_layer_ids.iter_mut().enumerate() {
        if let Some(value) = words.number::<u32>(&format!("tap{tap}"))? {
            *id = value.into();
        }
    }
    // The last byte: a comparison that stops early does not see it.
    if let Some(byte) = words.number::<u8>("drafter_identity_byte31")? {
        hello.drafter_identity[31] = byte;
    }
    if let Some(byte) = words.number::<u8>("markov_identity_byte31")? {
        hello.markov_identity[31] = byte;
    }
    if words.flag("markov_zeros") {
        hello.markov_identity = [0; 32];
    }
    Ok(message)
}

fn step(words: &mut Words, seq: u64, session: u32) -> Result<Vec<u8>, Box<dyn Error>> {
    let want_margin = words.flag("margin");
    let mut claims = Vec::new();
    let mut entries = Vec::new();
    for text in words.rest() {
        let mut words = Words::split(&text);
        let (entry, claim) = entry(&mut words)?;
        words.end().map_err(|e| format!("{e} in entry {text:?}"))?;
        entries.push(entry);
        claims.push(claim);
    }
    let mut message = frames::step(&MINI, seq, session, &entries, want_margin);
    let (header, body) =
        StepHeader::mut_from_prefix(&mut message[HEADER_BYTES..]).map_err(|_| "length")?;
    for (index, claim) in claims.iter().enumerate() {
        let at = 32 * index;
        let entry = ReqEntry::mut_from_bytes(&mut body[at..at + 32]).map_err(|_| "length")?;
        entry.n_rows = (*claim).into();
    }
    if let Some(n_req) = words.number::<u16>("n_req")? {
        header.n_req = n_req.into();
    }
    for (name, field) in [
        ("n_rows", &mut header.n_rows),
        ("row_bytes", &mut header.row_bytes),
        ("rows_offset", &mut header.rows_offset),
        ("reserved0", &mut header.reserved[0]),
    ] {
        if let Some(value) = words.number::<u32>(name)? {
            *field = value.into();
        }
    }
    if let Some(flags) = words.number::<u16>("step_flags")? {
        header.step_flags = flags.into();
    }
    Ok(message)
}

/// An entry with the rows that are written for it, and the row count it will claim (`claims=`).
fn entry(words: &mut Words) -> Result<(ReqEntry, u32), Box<dyn Error>> {
    let slot = words.number("slot")?.ok_or("slot= is missing")?;
    let generation = words.number("generation")?.unwrap_or(1);
    let first = words.number("first")?.unwrap_or(0);
    let rows = words.number("rows")?.unwrap_or(0);
    let claims = words.number("claims")?.unwrap_or(rows);
    let mut wire = frames::entry(slot, generation, first, rows);
    let end = first.saturating_add(i64::from(claims));
    wire.anchor_pos = words.number::<i64>("anchor")?.unwrap_or(end).into();
    wire.anchor_token = words.number::<i32>("token")?.unwrap_or(100).into();
    wire.n_out = words.number("n_out")?.unwrap_or(0);
    wire.k_window = words.number("k_window")?.unwrap_or(0);
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    wire.req_flags = flag(words.flag("draft"), NEED_DRAFT)
        | flag(words.flag("new_gen"), NEW_GEN)
        | flag(words.flag("resync"), RESYNC)
        | words.number("more_flags")?.unwrap_or(0u8);
    Ok((wire, claims))
}
