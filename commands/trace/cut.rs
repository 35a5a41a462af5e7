//! `dspark trace cut`: a range of rounds, made self-contained.
//!
//! Rank 0's ring is filled from everything before the range. The first round of each slot then carries its
//! whole window, as a resync does, so that the cut replays against any worker.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use dspark::client::rank0::{EngineRound, NotSent, Rank0, Recovery};
use dspark::plan::StepPlan;
use dspark::protocol::{
    AppHeader, FrameStatus, HelloReply, HelloRequest, Op, StepReplyWriter, StepRequest,
};
use dspark::session::{Admitted, Outcome as EntryOutcome, Seat, Session};
use dspark::trace::{RecordKind, RecordedRound, RoundReader, TraceHeader, TraceWriter};
use zerocopy::IntoBytes;

use super::{create, open, written};
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::Output;
use crate::replay;

const EXAMPLES: &str = "\
Examples:
  dspark trace cut round.trace 100..200 --output part.trace
  zstd -dc round.trace.zst | dspark trace cut - 1..50 -o start.trace";

/// Arguments of `dspark trace cut`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CutArgs {
    /// Trace file; '-' reads stdin
    trace: PathBuf,
    /// Rounds to keep, 1 is the first: FROM..TO, both included
    #[arg(value_parser = range)]
    rounds: RangeInclusive<u64>,
    /// Trace file to write; it must not exist
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

fn range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("not FROM..TO")?;
    let number = |t: &str| t.parse::<u64>().map_err(|_| format!("'{t}' is not a round number"));
    match (number(from)?, number(to)?) {
        (0, _) => Err("rounds are counted from 1".into()),
        (from, to) if from > to => Err("FROM is behind TO".into()),
        (from, to) => Ok(from..=to),
    }
}

/// Cuts.
pub(super) fn run(args: &CutArgs, output: &Output) -> Outcome {
    let mut rounds = RoundReader::new(open(&args.trace)?);
    let hello = rounds.header().hello;
    let geometry = hello.geometry();
    let limits = hello.limits();
    let mut recovery = Recovery::new(geometry);
    let mut cutter = Cutter::new(&hello, args)?;
    let mut number = 0;
    while let Some(recorded) = rounds.next_round().or_exit(Code::BadInput)? {
        let step = StepRequest::parse(recorded.body, &limits).or_exit(Code::BadInput)?;
        let Some(round) = recovery.step(&recorded.header, &step) else { continue };
        number += 1;
        if number > *args.rounds.end() {
            break;
        }
        cutter.round(&recorded, &round, number >= *args.rounds.start())?;
    }
    let (rounds_written, bytes) = cutter.finish()?;
    if rounds_written == 0 {
        return Err(Failure::new(Code::BadInput, format!("the trace has only {number} rounds")));
    }
    written(&args.output, ("rounds", rounds_written), bytes, output)
}

/// A rank 0 whose STEPs go to a file, and the session of a worker that always drafts, which tells which of
/// its slots are clean.
struct Cutter {
    rank0: Rank0,
    session: Session,
    seat: Seat,
    plan: StepPlan,
    outcomes: Vec<EntryOutcome>,
    reply: Vec<u8>,
    writer: TraceWriter<std::io::BufWriter<std::fs::File>>,
    first_us: Option<u64>,
    written: u64,
}

impl Cutter {
    fn new(hello: &HelloRequest, args: &CutArgs) -> Result<Self, Failure> {
        let geometry = hello.geometry();
        let answer = HelloReply::new(&geometry, hello.drafter_identity, hello.markov_identity, "");
        let header = TraceHeader::now(*hello, "");
        let mut cutter = Self {
            rank0: replay::rank0(hello)?,
            session: Session::new(geometry, answer),
            seat: Seat::default(),
            plan: StepPlan::with_slots(geometry.max_slots as usize),
            outcomes: Vec::new(),
            reply: Vec::new(),
            writer: TraceWriter::create(create(&args.output)?, &header).or_exit(Code::BadInput)?,
            first_us: None,
            written: 0,
        };
        cutter.greet()?;
        Ok(cutter)
    }

    fn greet(&mut self) -> Result<(), Failure> {
        self.rank0.connected();
        let message = self.rank0.hello(|| NonZeroU32::MIN).to_vec();
        self.writer.record(RecordKind::Request, 0, &message).or_exit(Code::BadInput)?;
        let (header, body) = AppHeader::split(&message).expect("rank 0 writes whole messages");
        if let Ok(Admitted::Hello(hello)) = self.session.admit(self.seat, &header, body) {
            self.session.hello(&mut self.seat, &header, hello).or_exit(Code::BadInput)?;
        }
        let answer = *self.session.hello_reply();
        let len = u32::try_from(answer.as_bytes().len()).expect("128");
        let reply = [header.reply(FrameStatus::Ok, len).as_bytes(), answer.as_bytes()].concat();
        self.rank0.judge_hello(&reply).or_exit(Code::BadInput)?;
        Ok(())
    }

    /// Takes a round into the ring; writes it if it is in the range.
    fn round(
        &mut self,
        recorded: &RecordedRound<'_>,
        round: &EngineRound<'_>,
        keep: bool,
    ) -> Result<(), Failure> {
        self.rank0.begin(round).or_exit(Code::BadInput)?;
        if !keep {
            self.rank0.skip(NotSent::NoConnection);
            return Ok(());
        }
        let Ok(message) = self.rank0.send() else { return Ok(()) };
        let message = message.to_vec();
        self.answer(&message);
        self.rank0.judge(&self.reply);
        let first = *self.first_us.get_or_insert(recorded.time_us);
        let time_us = recorded.time_us.saturating_sub(first);
        self.writer.record(RecordKind::Request, time_us, &message).or_exit(Code::BadInput)?;
        if let Some(reply) = recorded.reply {
            let reply = readdressed(&message, reply);
            self.writer.record(RecordKind::Reply, time_us, &reply).or_exit(Code::BadInput)?;
        }
        self.written += 1;
        Ok(())
    }

    /// The reply of a worker that holds what it was sent and drafts zeros.
    fn answer(&mut self, message: &[u8]) {
        let (header, body) = AppHeader::split(message).expect("rank 0 writes whole messages");
        let Ok(Admitted::Step(step)) = self.session.admit(self.seat, &header, body) else { return };
        self.session.plan_step(&step, &mut self.plan, &mut self.outcomes);
        self.session.commit(&header);
        let num_spec = u16::try_from(self.rank0.geometry().num_spec).expect("N is at most 64");
        let mut writer = StepReplyWriter::begin(
            &mut self.reply,
            &header,
            step.header.step_id.get(),
            step.header.n_req.get(),
            num_spec,
            step.want_margin(),
        );
        for (entry, o) in self.outcomes.iter().enumerate() {
            writer.status(entry, o.status, o.window_rows, o.generation);
        }
    }

    fn finish(self) -> Result<(u64, u64), Failure> {
        let bytes = self.writer.bytes();
        self.writer.finish().or_exit(Code::BadInput)?;
        Ok((self.written, bytes))
    }
}

/// A recorded reply body under the header that answers `request`, generations echoed anew.
fn readdressed(request: &[u8], reply: &[u8]) -> Vec<u8> {
    let (header, body) = AppHeader::split(request).expect("rank 0 writes whole messages");
    debug_assert_eq!(header.op.get(), Op::Step.code());
    let len = u32::try_from(reply.len()).expect("a recorded message");
    let mut message = [header.reply(FrameStatus::Ok, len).as_bytes(), reply].concat();
    // ReqStatus: 32 bytes of AppHeader and 32 of ReplyHeader in front, generation at byte 4 of 8. The
    // generation of a ReqEntry is at byte 4 of 32, behind the StepHeader.
    let n_req = usize::from(u16::from_le_bytes([body[8], body[9]]));
    for entry in 0..n_req {
        let (to, from) = (64 + 8 * entry + 4, 32 + 32 * entry + 4);
        if let Some(slot) = message.get_mut(to..to + 4) {
            slot.copy_from_slice(&body[from..from + 4]);
        }
    }
    message
}
