//! The emulated engine: one recorded round after another, through rank 0, the local drafter, the
//! comparisons and the logs.

use std::fs::File;
use std::io::BufWriter;
use std::process::Command;

use dspark::client::rank0::{EngineRound, NotSent, Outcome as RoundOutcome, Recovery};
use dspark::client::{ReplayReport, Round, SparkClient};
use dspark::protocol::{
    AppHeader, EntryStatus, HelloRequest, Limits, StepReply, StepReplyWriter, StepRequest,
};
use dspark::shadow::{BlockAt, ShadowReport};
use dspark::trace::{RecordKind, RecordedRound, TraceHeader, TraceWriter};

use super::local::Local;
use super::options::{OnFail, Policy, ReplayArgs, Side};
use super::pace::{Due, Pacer};
use super::rounds_log::RoundLog;
use super::verify::Verdict;
use crate::drafts::{Rounds, consumed, expected, pair, recorded_drafts, remote_drafts};
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::trace;

/// Requests by whose drafts the engine was given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) remote: u64,
    pub(crate) local: u64,
    pub(crate) zeros: u64,
}

/// A replay in progress and what it has found.
pub(crate) struct Engine<'a> {
    pub(crate) client: SparkClient,
    pub(crate) report: ReplayReport,
    /// Recorded drafts against the worker's.
    pub(crate) recorded: ShadowReport,
    /// The local drafter's against the worker's.
    pub(crate) local_side: ShadowReport,
    pub(crate) used: Used,
    args: &'a ReplayArgs,
    local: Option<Local>,
    expect: Option<Rounds>,
    limits: Limits,
    pacer: Pacer,
    output: Option<TraceWriter<BufWriter<File>>>,
    log: Option<RoundLog>,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(
        client: SparkClient,
        local: Option<Local>,
        hello: HelloRequest,
        args: &'a ReplayArgs,
    ) -> Result<Self, Failure> {
        let geometry = hello.geometry();
        let num_spec = geometry.num_spec as usize;
        let output = match &args.output {
            Some(path) => {
                let header = TraceHeader::now(hello, "");
                Some(TraceWriter::create(trace::create(path)?, &header).or_exit(Code::BadInput)?)
            }
            None => None,
        };
        let expect = match &args.expect {
            Some(path) => Some(Rounds::new(trace::open(path)?)),
            None => None,
        };
        Ok(Self {
            report: ReplayReport::with_warmup(args.warmup),
            recorded: ShadowReport::new(num_spec, args.near_tie),
            local_side: ShadowReport::new(num_spec, args.near_tie),
            used: Used::default(),
            limits: Limits {
                max_slots: geometry.max_slots,
                max_rows_per_step: geometry.max_rows_per_step,
                row_bytes: hello.row_bytes.get(),
            },
            pacer: Pacer::new(args.pace, args.asynchronous),
            log: args.round_log.as_deref().map(RoundLog::create).transpose()?,
            client,
            local,
            expect,
            output,
            args,
        })
    }

    /// Replays every round.
    pub(crate) fn run(&mut self, mut rounds: Rounds) -> Outcome {
        let limits = self.limits;
        let mut recovery = Recovery::new(*self.client.rank0().geometry());
        while self.args.rounds.is_none_or(|n| self.report.rounds < n) {
            let Some(recorded) = rounds.next_round().or_exit(Code::BadInput)? else { break };
            let step = StepRequest::parse(recorded.body, &limits).map_err(|e| {
                Failure::new(Code::BadInput, e).hint("a recorded STEP of the trace is malformed")
            })?;
            let Some(round) = recovery.step(&recorded.header, &step) else { continue };
            self.round(&recorded, &step, &round)?;
            if let Some(status) = self.client.rank0().disabled() {
                return Err(Failure::new(Code::Refused, format!("the worker answered {status}"))
                    .hint("rank 0 turns the remote drafter off for good on this status"));
            }
        }
        self.finish()
    }

    fn round(
        &mut self,
        recorded: &RecordedRound<'_>,
        step: &StepRequest<'_>,
        round: &EngineRound<'_>,
    ) -> Outcome {
        let number = self.report.rounds + 1;
        self.disturb(number)?;
        let due = self.pacer.wait(number - 1, recorded.time_us);
        self.report.late += u64::from(due.late);
        let round = EngineRound { want_margin: self.wants_margins(), ..*round };
        let done = self.client.round(&round, number, due.now).or_exit(Code::BadInput)?;
        if let Some(local) = &mut self.local {
            local.round(&round, self.client.rank0().slots(), number, due.now)?;
        }
        self.count(&round, step, &done, &due);
        self.compare(recorded, &round)?;
        self.write(&done)?;
        let failed = !matches!(
            done.report.outcome,
            RoundOutcome::Answered | RoundOutcome::NotSent(NotSent::Nothing)
        );
        if failed && self.args.policy == Policy::Capacity && self.args.on_fail == OnFail::Raise {
            let why = format!("round {number} failed: {:?}", done.report.outcome);
            return Err(Failure::new(Code::CheckFailed, why));
        }
        Ok(())
    }

    fn wants_margins(&self) -> bool {
        self.args.margins || self.args.near_tie > 0.0 || self.args.policy == Policy::Shadow
    }

    /// What `--resync-at`, `--reconnect-at` and `--restart-at` ask for before this round.
    fn disturb(&mut self, number: u64) -> Outcome {
        if self.args.resync_at.contains(&number) {
            self.client.rank0_mut().resync_all();
        }
        if self.args.reconnect_at.contains(&number) {
            self.client.disconnect();
        }
        if let Some(command) = self.args.worker_restart.as_ref()
            && self.args.restart_at.contains(&number)
        {
            let status = Command::new("sh").args(["-c", command]).status().or_exit(Code::Usage)?;
            if !status.success() {
                let failed = format!("--worker-restart ended with {status}");
                return Err(Failure::new(Code::CheckFailed, failed));
            }
        }
        Ok(())
    }

    fn count(
        &mut self,
        round: &EngineRound<'_>,
        recorded: &StepRequest<'_>,
        done: &Round,
        due: &Due,
    ) {
        let sent = !matches!(done.report.outcome, RoundOutcome::NotSent(_));
        let body = AppHeader::split(self.client.sent()).map(|(_, body)| body);
        let step = body.filter(|_| sent).and_then(|b| StepRequest::parse(b, &self.limits).ok());
        let num_spec = self.client.rank0().geometry().num_spec;
        self.report.round(done, step.as_ref(), num_spec, due.clock);
        for (request, result) in round.requests.iter().zip(self.client.rank0().results()) {
            let consumed = result.usable.then(|| consumed(request.n_out, num_spec));
            if let Some(status) = result.status {
                self.report.entry(status, consumed);
            }
            self.report.acceptance(request.rows.len() as u64, request.k_window);
        }
        if let Some(log) = &mut self.log {
            log.round(
                self.report.rounds,
                round,
                recorded,
                done,
                &due.clock,
                self.client.rank0().results(),
            );
        }
    }

    /// Remote drafts against the recorded and the local ones, and whose the engine is given.
    fn compare(&mut self, recorded: &RecordedRound<'_>, round: &EngineRound<'_>) -> Outcome {
        let theirs = match &mut self.expect {
            Some(expect) => expected(expect, round.step_id)?,
            None => recorded.reply.map(|reply| (recorded.body.to_vec(), reply.to_vec())),
        };
        let num_spec = self.client.rank0().geometry().num_spec;
        for (index, request) in round.requests.iter().enumerate().filter(|(_, r)| r.need_draft) {
            let n = consumed(request.n_out, num_spec);
            let remote = remote_drafts(&self.client, index, n);
            let result = &self.client.rank0().results()[index];
            let at = BlockAt { step_id: round.step_id, slot: request.slot, resync: result.resync };
            let theirs = theirs.as_ref().and_then(|(step, reply)| {
                recorded_drafts(step, reply, &self.limits, request.slot, n)
            });
            pair(&mut self.recorded, at, theirs.as_ref(), remote.as_ref());
            let local = self.local.as_ref().and_then(|local| local.drafted(index, n));
            if self.local.is_some() {
                pair(&mut self.local_side, at, local.as_ref(), remote.as_ref());
            }
            let prefer_local =
                self.args.policy == Policy::Shadow && self.args.shadow_use == Side::Local;
            // A failed round runs the local drafter; a refused entry of an answered one gets zeros.
            let takes_over = self.args.policy == Policy::Resilience && result.status.is_none();
            if local.is_some() && (prefer_local || takes_over) {
                self.used.local += 1;
            } else if remote.is_some() {
                self.used.remote += 1;
            } else {
                self.used.zeros += 1;
            }
        }
        Ok(())
    }

    /// Records the round just finished as it went over the wire.
    fn write(&mut self, done: &Round) -> Outcome {
        let Some(output) = &mut self.output else { return Ok(()) };
        if done.report.outcome != RoundOutcome::Answered {
            return Ok(());
        }
        let now = self.pacer.elapsed_us();
        output.record(RecordKind::Request, now, self.client.sent()).or_exit(Code::BadInput)?;
        output.record(RecordKind::Reply, now, self.client.reply()).or_exit(Code::BadInput)?;
        if let Some(local) = &self.local {
            let message = local_reply(self.client.reply(), &self.client, local);
            output.record(RecordKind::LocalDraft, now, &message).or_exit(Code::BadInput)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        if let Some(log) = self.log.take() {
            log.finish()?;
        }
        match self.output.take() {
            Some(output) => output.finish().map(drop).or_exit(Code::BadInput),
            None => Ok(()),
        }
    }

    /// The exit code that the findings deserve.
    pub(crate) fn judge(&self, args: &ReplayArgs, verdict: Option<&Verdict>) -> Outcome {
        if verdict.is_some_and(|v| !v.windows_equal()) {
            return Err(Failure::new(
                Code::CheckFailed,
                "the worker's windows differ from those of an undisturbed run",
            ));
        }
        if self.report.unexplained > 0 && !args.allow_failures {
            let (n, all) = (self.report.unexplained, self.report.rounds);
            return Err(Failure::new(Code::CheckFailed, format!("{n} of {all} rounds failed")));
        }
        let side = if args.policy == Policy::Shadow && self.recorded.blocks() == 0 {
            &self.local_side
        } else {
            &self.recorded
        };
        match args.min_agreement {
            Some(least) if side.agreement().is_none_or(|a| a < least) => {
                let found = side.agreement().map_or("n/a".into(), |a| format!("{a:.4}"));
                Err(Failure::new(Code::CheckFailed, format!("agreement {found} is below {least}")))
            }
            _ => Ok(()),
        }
    }
}

/// The worker's reply with the local drafts in place of its own.
fn local_reply(reply: &[u8], client: &SparkClient, local: &Local) -> Vec<u8> {
    let (Some((header, _)), Some(theirs)) =
        (AppHeader::split(reply), AppHeader::split(reply).and_then(|(_, b)| StepReply::parse(b)))
    else {
        return reply.to_vec();
    };
    let mut message = Vec::new();
    let h = theirs.header;
    let mut writer = StepReplyWriter::begin(
        &mut message,
        &header,
        h.step_id.get(),
        h.n_req.get(),
        h.num_spec.get(),
        theirs.has_margin(),
    );
    let sent = client.rank0().results().iter().enumerate().filter(|(_, r)| r.status.is_some());
    for (entry, (request, result)) in sent.enumerate() {
        let row = &theirs.statuses[entry];
        let status = result.status.unwrap_or(EntryStatus::Internal);
        writer.status(entry, status, row.window_rows.get(), row.generation.get());
        let drafted = local.drafted(request, usize::from(h.num_spec.get()));
        if let Some(d) = drafted.filter(|_| result.usable) {
            writer.block(entry, &d.ids, &d.confidence, &d.margin);
        }
    }
    message
}
