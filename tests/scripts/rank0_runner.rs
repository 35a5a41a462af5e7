//! Runs `rank0` scripts: rank 0 and a worker's session in one process, real frames between them.
//!
//! ```text
//! rank0 [window=8] [slots=4] [generation=0] [offline]   a new rank 0 and a new worker, connected and greeted
//! connect | disconnect | restart                        restart: the worker starts again with nothing
//! hello [frame=CODE]                                    says HELLO, if one is due; frame: another answer
//! request OWNER slot= [first= rows=] [anchor=] [token=7] [k=0] [n_out=0] [append] [seed=]
//!                                                       one request of the round in the making
//! begin                                                 hands the round to rank 0 without sending
//! send [lost=request|reply] [broken] [frame=CODE] [entry=I status=CODE] [flip=BYTE]
//!                                                       sends it; lost or broken: no reply arrives; frame and
//!                                                       status: another answer; flip: a byte of it is inverted
//! skip                                                  ends it as the breaker does
//! foreign slot= generation=                             three rows with NEW_GEN that are not rank 0's
//! redraft                                               the round that drafts every live slot again
//! slots | counters                                      both ends; what was counted
//! ```

use std::error::Error;
use std::fmt::Write;
use std::num::NonZeroU32;

use dspark::client::rank0::{
    Counters, EngineRequest, EngineRound, Failure, NotSent, Outcome, Owner, Rank0, Rank0Config,
    RoundReport,
};
use dspark::plan::RowBlock;
use dspark::protocol::step::{NEED_DRAFT, NEW_GEN, RESYNC};
use dspark::protocol::{
    AppHeader, EntryStatus, FrameStatus, HEADER_BYTES, Limits, Op, StepRequest,
};
use dspark::session::Seat;
use dspark::window::Window;
use goldenscript::{ArgumentConsumer, Command, Context, Runner};
use zerocopy::IntoBytes;

#[path = "../sim/worker.rs"]
#[allow(dead_code)]
mod worker;

use worker::{ROW, Worker, mix};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Both ends and the round in the making.
pub(crate) struct Rank0Runner {
    rank0: Rank0,
    worker: Worker,
    seat: Seat,
    requests: Vec<EngineRequest>,
    rows: Vec<u8>,
    step_id: u64,
    begun: bool,
    sessions: u32,
}

impl Default for Rank0Runner {
    fn default() -> Self {
        let geometry = worker::geometry(8, 4);
        Self {
            rank0: rank0(8, 4, 0),
            worker: Worker::new(geometry),
            seat: Seat::default(),
            requests: Vec::new(),
            rows: Vec::new(),
            step_id: 0,
            begun: false,
            sessions: 0,
        }
    }
}

fn rank0(window: u32, slots: u32, generation: u32) -> Rank0 {
    Rank0::new(&Rank0Config {
        geometry: worker::geometry(window, slots),
        drafter_identity: [1; 32],
        markov_identity: [2; 32],
        client_name: "script".into(),
        session: NonZeroU32::new(0x51).unwrap(),
        generation,
    })
    .unwrap()
}

/// Named numbers of a command.
struct Args<'a>(ArgumentConsumer<'a>);

impl Args<'_> {
    fn number<T: TryFrom<i128>>(&mut self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.0.take_key(key) else { return Ok(None) };
        let number: i128 = value.parse()?;
        Ok(Some(T::try_from(number).map_err(|_| format!("{key}={value} is out of range"))?))
    }

    fn word(&mut self, key: &str) -> Option<String> {
        self.0.take_key(key).map(str::to_owned)
    }

    fn flags(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.0.next_pos().map(str::to_owned)).collect()
    }
}

impl Rank0Runner {
    fn start(&mut self, args: &mut Args<'_>) -> Result<String> {
        let window = args.number("window")?.unwrap_or(8);
        let slots = args.number("slots")?.unwrap_or(4);
        let generation = args.number("generation")?.unwrap_or(0);
        *self = Self {
            rank0: rank0(window, slots, generation),
            worker: Worker::new(worker::geometry(window, slots)),
            ..Self::default()
        };
        if args.flags().contains(&"offline".to_owned()) {
            return Ok("offline".into());
        }
        self.rank0.connected();
        self.hello(args)
    }

    fn hello(&mut self, args: &mut Args<'_>) -> Result<String> {
        let answer = args.number("frame")?;
        let Self { rank0, worker, seat, sessions, .. } = self;
        if !rank0.needs_hello() {
            return Ok("no hello due".into());
        }
        let hello = rank0.hello(|| {
            *sessions += 1;
            NonZeroU32::new(0x51 + *sessions).unwrap()
        });
        let (header, _) = AppHeader::split(hello).unwrap();
        let reply = match answer {
            Some(code) => {
                let status = FrameStatus::from_code(code).ok_or("no such frame status")?;
                header.reply(status, 0).as_bytes().to_vec()
            }
            None => worker.handle(seat, hello).to_vec(),
        };
        let verdict = match rank0.judge_hello(&reply) {
            Ok(_) => "accepted".into(),
            Err(error) => error.to_string(),
        };
        Ok(format!("HELLO seq={} session={:#x}: {verdict}", header.seq, header.session))
    }

    fn request(&mut self, args: &mut Args<'_>) -> Result<String> {
        let mut words = args.flags().into_iter();
        let owner = words.next().ok_or("whose request?")?;
        let append = words.next().is_some_and(|w| w == "append");
        let id = owner.bytes().fold(0, |id, b| id << 8 | u64::from(b));
        let n: usize = args.number("rows")?.unwrap_or(0);
        let first_pos: i64 = args.number("first")?.unwrap_or(0);
        // Rows are a function of request, seed and position, so that the same row can come again.
        let seed = args.number::<u64>("seed")?.unwrap_or(0);
        let start = self.rows.len() / ROW;
        for pos in first_pos..first_pos.saturating_add(n as i64) {
            let row = mix(id ^ seed << 48 ^ (pos as u64) << 20).to_le_bytes();
            self.rows.extend_from_slice(&row[..ROW]);
        }
        let anchor_pos = args.number("anchor")?.unwrap_or(first_pos.saturating_add(n as i64));
        self.requests.push(EngineRequest {
            slot: args.number("slot")?.ok_or("which slot?")?,
            owner: Owner(id),
            first_pos,
            rows: start..start + n,
            anchor_token: args.number("token")?.unwrap_or(7),
            anchor_pos,
            k_window: args.number("k")?.unwrap_or(0),
            need_draft: !append,
            n_out: args.number("n_out")?.unwrap_or(0),
        });
        Ok(String::new())
    }

    fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        self.step_id += 1;
        let (requests, rows) = (std::mem::take(&mut self.requests), std::mem::take(&mut self.rows));
        let rows = RowBlock::new(&rows, ROW);
        let round =
            EngineRound { step_id: self.step_id, want_margin: true, requests: &requests, rows };
        self.rank0.begin(&round).inspect_err(|_| self.begun = false)?;
        Ok(())
    }

    fn send(&mut self, args: &mut Args<'_>) -> Result<String> {
        self.begin()?;
        self.begun = false;
        let Self { rank0, worker, seat, .. } = self;
        let message = match rank0.send() {
            Ok(message) => message.to_vec(),
            Err(report) => return Ok(self.report("", report)),
        };
        let sent = show_step(&worker.geometry, &message);
        let broken = args.flags().contains(&"broken".to_owned());
        let lost = args.word("lost");
        if lost.as_deref() == Some("request") || broken {
            let failure = if broken { Failure::Transport } else { Failure::Timeout };
            let report = rank0.fail(failure);
            return Ok(self.report(&sent, report));
        }
        let mut reply = worker.handle(seat, &message).to_vec();
        if lost.is_some() {
            let report = rank0.fail(Failure::Timeout);
            return Ok(self.report(&sent, report));
        }
        if let Some(code) = args.number::<u32>("frame")? {
            let status = FrameStatus::from_code(code).ok_or("no such frame status")?;
            let (header, _) = AppHeader::split(&message).unwrap();
            reply = header.reply(status, 0).as_bytes().to_vec();
        }
        if let Some(entry) = args.number::<usize>("entry")? {
            let status = args.number::<u32>("status")?.ok_or("which status?")?;
            let status = EntryStatus::from_code(status).ok_or("no such status")?;
            put_status(&worker.geometry, &mut reply, entry, status);
        }
        if let Some(at) = args.number::<usize>("flip")? {
            reply[at] ^= 0xff;
        }
        let report = rank0.judge(&reply);
        Ok(self.report(&sent, report))
    }

    fn report(&self, sent: &str, report: RoundReport) -> String {
        let mut text = sent.to_owned();
        let outcome = match report.outcome {
            Outcome::Answered => "answered".into(),
            Outcome::NotSent(why) => format!("not sent: {why:?}"),
            Outcome::Failed(failure) => format!("failed: {failure:?}"),
            Outcome::BadReply => format!("refused: {}", self.rank0.last_bad_reply().unwrap()),
            Outcome::Frame(status) => format!("frame error {status}"),
        };
        let attempt = report.facts().attempt();
        write!(text, "{outcome}; {} of {} drafted", report.drafted, report.needed).unwrap();
        write!(text, " ({attempt:?})").unwrap();
        if report.drops_connection() {
            text += ", connection dropped";
        }
        text.push('\n');
        for (index, result) in self.rank0.results().iter().enumerate() {
            let status = result.status.map_or("no status", EntryStatus::name);
            let drafts = self.rank0.drafts(index);
            let zeros =
                drafts.ids.iter().all(|id| *id == 0) && drafts.confidence.iter().all(|c| *c == 0.0);
            let drafts = match (result.usable, zeros) {
                (true, false) => format!("drafts {:?}", drafts.ids),
                (false, true) => "zero drafts".into(),
                _ => "drafts and status differ".into(),
            };
            let slot = result.slot;
            writeln!(text, "  slot {slot}: {status} rows={}, {drafts}", result.window_rows)
                .unwrap();
        }
        text
    }

    fn slots(&self) -> String {
        let mut text = String::new();
        for (index, slot) in self.rank0.slots().iter().enumerate() {
            let Some(owner) = slot.owner() else { continue };
            let owner: String =
                owner.0.to_be_bytes().iter().filter(|b| **b != 0).map(|b| char::from(*b)).collect();
            let held = self.worker.windows()[index];
            let equal = slot.window() == held
                && slot.window().span.is_none_or(|span| {
                    (span.lo..=span.hi).all(|p| self.worker.row(index, p) == slot.ring().row(p))
                });
            writeln!(
                text,
                "slot {index} of {owner}: {} {}; worker {}, {}",
                show_window(&slot.window()),
                if slot.is_dirty() { "dirty" } else { "clean" },
                show_window(&held),
                if equal { "equal" } else { "different" },
            )
            .unwrap();
        }
        text
    }

    /// A frame of somebody else under this session, answered by a copy of the worker, so that rank 0's own
    /// sequence numbers stay valid.
    fn foreign_step(&mut self, args: &mut Args<'_>) -> Result<String> {
        let slot = args.number("slot")?.ok_or("which slot?")?;
        let generation = args.number("generation")?.ok_or("which generation?")?;
        let mut worker = self.worker.clone();
        let frame = worker::foreign_step(&worker, slot, generation);
        let reply = worker.handle(&mut self.seat, &frame);
        let code = u16::from_le_bytes(reply[64..66].try_into().unwrap());
        let status = EntryStatus::from_code(code.into()).unwrap();
        let kept = worker.windows() == self.worker.windows();
        Ok(format!("{status}, windows {}", if kept { "kept" } else { "changed" }))
    }
}

fn show_window(window: &Window) -> String {
    let generation = window.generation.map_or("-".into(), |g| g.0.to_string());
    match window.span {
        Some(span) => format!("generation {generation} [{},{}]", span.lo, span.hi),
        None => format!("generation {generation} empty"),
    }
}

fn show_step(geometry: &dspark::geometry::Geometry, message: &[u8]) -> String {
    let (header, body) = AppHeader::split(message).unwrap();
    assert_eq!(header.op.get(), Op::Step.code());
    let limits = Limits {
        max_slots: geometry.max_slots,
        max_rows_per_step: geometry.max_rows_per_step,
        row_bytes: ROW as u32,
    };
    let step = StepRequest::parse(body, &limits).unwrap();
    let mut text = format!("STEP seq={} session={:#x}\n", header.seq, header.session);
    for e in step.entries {
        let flags = [(NEW_GEN, "NEW_GEN"), (NEED_DRAFT, "NEED_DRAFT"), (RESYNC, "RESYNC")];
        let flags: Vec<&str> =
            flags.iter().filter(|(bit, _)| e.req_flags & bit != 0).map(|(_, name)| *name).collect();
        let (first, n, anchor) = (e.first_pos.get(), e.n_rows.get(), e.anchor_pos.get());
        let rows = match n {
            0 => "no rows".into(),
            n => format!("rows {first}..{}", first + i64::from(n) - 1),
        };
        write!(text, "  slot {} generation {} ", e.slot, e.generation).unwrap();
        let flags = if flags.is_empty() { "no flags".into() } else { flags.join("|") };
        write!(text, "{flags} {rows} anchor {anchor}").unwrap();
        if e.k_window != 0 || e.n_out != 0 {
            write!(text, " k_window={} n_out={}", e.k_window, e.n_out).unwrap();
        }
        text.push('\n');
    }
    text
}

/// Gives entry `entry` another status, with everything an error status goes with.
fn put_status(
    geometry: &dspark::geometry::Geometry,
    reply: &mut [u8],
    entry: usize,
    status: EntryStatus,
) {
    let body = &mut reply[HEADER_BYTES..];
    let n_req = usize::from(u16::from_le_bytes(body[8..10].try_into().unwrap()));
    let n = geometry.num_spec as usize;
    body[32 + 8 * entry] = status.code() as u8;
    body[32 + 8 * entry + 2..32 + 8 * entry + 4].fill(0);
    if !status.has_drafts() {
        for array in 0..3 {
            let at = 32 + 8 * n_req + 4 * n * (array * n_req + entry);
            body[at..at + 4 * n].fill(0);
        }
    }
}

fn show_counters(counters: &Counters) -> String {
    // The Debug form names every counter; those at zero say nothing.
    let text = format!("{counters:#?}");
    let lines = text.lines().filter(|l| l.contains(':') && !l.ends_with(" 0,"));
    let lines: Vec<&str> = lines.filter(|l| !l.contains("frame_errors")).map(str::trim).collect();
    lines.join("\n")
}

impl Runner for Rank0Runner {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String> {
        let mut args = Args(command.consume_args());
        let text = match command.name.as_str() {
            "rank0" => self.start(&mut args)?,
            "connect" => {
                self.rank0.connected();
                self.seat = Seat::default();
                String::new()
            }
            "disconnect" => {
                self.rank0.disconnected();
                String::new()
            }
            "restart" => {
                self.worker = Worker::new(self.worker.geometry);
                self.seat = Seat::default();
                String::new()
            }
            "hello" => self.hello(&mut args)?,
            "request" => self.request(&mut args)?,
            "begin" => self.begin().map(|()| String::new())?,
            "send" => self.send(&mut args)?,
            "skip" => {
                self.begin()?;
                self.begun = false;
                let report = self.rank0.skip(NotSent::Cooldown);
                self.report("", report)
            }
            "redraft" => {
                let mut requests = Vec::new();
                self.rank0.redraft(&mut requests);
                self.requests = requests;
                self.send(&mut args)?
            }
            "foreign" => self.foreign_step(&mut args)?,
            "slots" => self.slots(),
            "counters" => show_counters(self.rank0.counters()),
            other => return Err(format!("no command {other:?}").into()),
        };
        args.0.reject_next()?;
        Ok(text)
    }
}
