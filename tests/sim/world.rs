//! Rank 0, a link with faults, and a worker, driven round by round over a virtual clock.
//!
//! The driver does what a client with sockets does: reconnect when the backoff allows, say HELLO when one
//! is due, ask the breaker, send, wait for the reply until the deadline.

use std::num::NonZeroU32;
use std::time::Duration;

use dspark::client::breaker::{Attempt, Backoff, Breaker};
use dspark::client::faults::{Fault, FaultCounts, FaultKind};
use dspark::client::rank0::{
    EngineRound, Failure, NotSent, Outcome, Rank0, Rank0Config, RoundReport,
};
use dspark::geometry::Geometry;
use dspark::protocol::{EntryStatus, HEADER_BYTES, Limits};
use dspark::session::Seat;

use crate::model::BreakerModel;
use crate::planted::{Bug, without_resync};
use crate::worker::{ROW, Worker};
use crate::workload::Rng;

/// Deadline of a round.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);

/// What the simulation found wrong.
pub(crate) type Check = Result<(), String>;

/// Why a slot is dirty, for the bugs that forget one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Clean,
    Failure,
    Skip,
    Hello,
}

/// One rank 0 with its link and its worker.
pub(crate) struct World {
    pub(crate) rank0: Rank0,
    pub(crate) worker: Worker,
    pub(crate) counts: FaultCounts,
    /// STEPs the worker answered with OK, in order, when recording.
    pub(crate) recording: Option<Vec<Vec<u8>>>,
    breaker: Breaker,
    backoff: Backoff,
    model: BreakerModel,
    limits: Limits,
    pub(crate) now: Duration,
    pub(crate) rng: Rng,
    /// The standing connection, as the worker knows it.
    pub(crate) seat: Option<Seat>,
    /// The worker started again and rank 0 has not noticed.
    restarted: bool,
    /// The connection is dead and rank 0 has not noticed.
    pub(crate) dead: bool,
    /// Frames of dead connections still under way.
    pub(crate) late: Vec<(Seat, Vec<u8>)>,
    pub(crate) last_step: Vec<u8>,
    refusals_injected: u64,
    pub(crate) bug: Option<Bug>,
    why: Vec<Why>,
}

/// What happened to one round, for the checks.
pub(crate) struct Played {
    pub(crate) report: RoundReport,
}

impl World {
    pub(crate) fn new(
        geometry: Geometry,
        seed: u64,
        trip: u32,
        cooldown: u64,
        bug: Option<Bug>,
    ) -> Self {
        let rank0 = Rank0::new(&Rank0Config {
            geometry,
            drafter_identity: [1; 32],
            markov_identity: [2; 32],
            client_name: "sim".into(),
            session: NonZeroU32::new(7).expect("nonzero"),
            // Generations wrap early in every run.
            generation: u32::MAX - 2,
        });
        let mut worker = Worker::new(geometry);
        if let Some(rule) = bug.and_then(Bug::rule) {
            worker.plant(rule);
        }
        Self {
            rank0: rank0.expect("a valid geometry"),
            worker,
            counts: FaultCounts::default(),
            recording: None,
            breaker: Breaker::new(trip, cooldown),
            backoff: Backoff::default(),
            model: BreakerModel::new(trip, cooldown),
            limits: Limits {
                max_slots: geometry.max_slots,
                max_rows_per_step: geometry.max_rows_per_step,
                row_bytes: ROW as u32,
            },
            now: Duration::ZERO,
            rng: Rng(seed),
            seat: None,
            restarted: false,
            dead: false,
            late: Vec::new(),
            last_step: Vec::new(),
            refusals_injected: 0,
            bug,
            why: vec![Why::Clean; geometry.max_slots as usize],
        }
    }

    /// Lets time pass between rounds.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The worker's process starts again: sessions and windows are gone. Rank 0 learns it from its next
    /// exchange: the connection is dead, or something in between kept it and the worker knows no session.
    pub(crate) fn restart_worker(&mut self) {
        self.worker = Worker::new(self.worker.geometry);
        if let Some(rule) = self.bug.and_then(Bug::rule) {
            self.worker.plant(rule);
        }
        self.late.clear();
        self.restarted = true;
        if let Some(seat) = &mut self.seat {
            *seat = Seat::default();
            self.dead = self.rng.one_in(2);
        }
    }

    /// Connects and greets as far as backoff and faults allow.
    fn maintain(&mut self, faulty: bool) -> Check {
        if self.rank0.disabled().is_some() {
            return Err(format!("disabled by {:?}", self.rank0.disabled()));
        }
        if self.seat.is_none() && self.backoff.may_connect(self.now) {
            if faulty && self.rng.one_in(4) {
                self.backoff.failed(self.now);
                return Ok(());
            }
            // Frames of the dead connection that arrive before the new one is accepted are applied.
            self.deliver_late(false)?;
            self.seat = Some(Seat::default());
            self.dead = false;
            self.rank0.connected();
        }
        if self.rank0.needs_hello() {
            self.greet(faulty)?;
        }
        Ok(())
    }

    fn greet(&mut self, faulty: bool) -> Check {
        let rng = &mut self.rng;
        let hello = self.rank0.hello(|| NonZeroU32::new(rng.next() as u32 | 1).expect("odd"));
        let lost = self.dead || faulty && self.rng.one_in(8);
        if lost && (self.dead || self.rng.one_in(2)) {
            self.lose_connection();
            return Ok(());
        }
        let mut seat = self.seat.expect("connected");
        let reply = self.worker.handle(&mut seat, hello).to_vec();
        self.seat = Some(seat);
        if lost {
            self.lose_connection();
            return Ok(());
        }
        if let Err(error) = self.rank0.judge_hello(&reply) {
            return Err(format!("HELLO: {error}"));
        }
        self.backoff.succeeded();
        self.restarted = false;
        for (why, slot) in self.why.iter_mut().zip(self.rank0.slots()) {
            if *why == Why::Clean && slot.owner().is_some() {
                *why = Why::Hello;
            }
        }
        // What is still under way on old connections comes too late: its seq is behind the HELLO's.
        self.deliver_late(true)
    }

    fn lose_connection(&mut self) {
        self.seat = None;
        self.dead = false;
        self.rank0.disconnected();
        self.backoff.failed(self.now);
    }

    /// Plays one engine round with at most one fault of the schedule. `calm`: nothing else happens either.
    pub(crate) fn round(
        &mut self,
        round: &EngineRound<'_>,
        fault: Option<Fault>,
        calm: bool,
    ) -> Result<Played, String> {
        // An engine may build its round before or after the proxy has reconnected.
        let early = !calm && self.rng.one_in(2);
        if !early {
            self.maintain(!calm)?;
        }
        let allowed = self.model.may_send();
        let connected = self.seat.is_some();
        let admitted = if self.bug == Some(Bug::CooldownNeedsConnection) && !connected {
            allowed
        } else {
            self.breaker.admit()
        };
        if admitted != allowed {
            return Err(format!("the breaker says {admitted}, §10 says {allowed}"));
        }
        if !admitted && self.bug == Some(Bug::RingMissesSkippedRounds) {
            self.model.record(Attempt::Neutral);
            let report =
                RoundReport { outcome: Outcome::NotSent(NotSent::Cooldown), needed: 0, drafted: 0 };
            return Ok(Played { report });
        }
        self.rank0.begin(round).map_err(|e| format!("begin: {e}"))?;
        self.new_owners_are_clean(round);
        if early {
            self.maintain(!calm)?;
        }
        let played = if admitted {
            self.exchange(round, fault, calm)?
        } else {
            let report = self.rank0.skip(NotSent::Cooldown);
            self.mark(round, Why::Skip);
            Played { report }
        };
        let attempt = played.report.facts().attempt();
        let taken = match (self.bug, attempt) {
            (Some(Bug::NeutralResetsBreaker), Attempt::Neutral) if admitted => Attempt::Succeeded,
            _ => attempt,
        };
        self.breaker.record(taken);
        Ok(played)
    }

    fn new_owners_are_clean(&mut self, round: &EngineRound<'_>) {
        for request in round.requests {
            let slot = usize::from(request.slot);
            if !self.rank0.slots()[slot].is_dirty() {
                self.why[slot] = Why::Clean;
            }
        }
    }

    fn mark(&mut self, round: &EngineRound<'_>, why: Why) {
        for request in round.requests {
            self.why[usize::from(request.slot)] = why;
        }
    }

    /// Slots this bug forgets to mark.
    fn unmarked(&self) -> Option<Vec<bool>> {
        let forgotten = match self.bug? {
            Bug::NoDirtyMarkAfterFailure => Why::Failure,
            Bug::NoDirtyMarkAfterSkip => Why::Skip,
            Bug::NoDirtyMarkAfterHello => Why::Hello,
            _ => return None,
        };
        Some(self.why.iter().map(|why| *why == forgotten).collect())
    }

    fn exchange(
        &mut self,
        round: &EngineRound<'_>,
        fault: Option<Fault>,
        calm: bool,
    ) -> Result<Played, String> {
        let unmarked = self.unmarked();
        let message = match self.rank0.send() {
            Ok(message) => match &unmarked {
                Some(unmarked) => without_resync(message, round, &self.limits, unmarked),
                None => message.to_vec(),
            },
            Err(report) => {
                self.mark(round, Why::Skip);
                self.model.record(Attempt::Neutral);
                return Ok(Played { report });
            }
        };
        if let Some(fault) = fault {
            self.counts.record(fault.kind);
        }
        let needed = round.requests.iter().filter(|r| r.need_draft).count();
        let reply = self.carry(&message, fault, calm)?;
        self.last_step = message;
        let Some((reply, refuse)) = reply else {
            let failure = match fault.map(|f| f.kind) {
                Some(FaultKind::Drop | FaultKind::Delay) => Failure::Timeout,
                _ => Failure::Transport,
            };
            let report = self.rank0.fail(failure);
            self.mark(round, Why::Failure);
            self.lose_connection();
            self.model.record(Attempt::Failed);
            return Ok(Played { report });
        };
        let report = self.rank0.judge(&reply);
        self.refusals_injected += u64::from(refuse);
        self.judged(round, &report, &reply, needed)?;
        if report.drops_connection() || fault.is_some_and(|f| f.kind == FaultKind::HalfClose) {
            self.lose_connection();
        }
        Ok(Played { report })
    }

    /// Takes what the worker said, read without rank 0's help, to the breaker's model and the reasons.
    fn judged(
        &mut self,
        round: &EngineRound<'_>,
        report: &RoundReport,
        reply: &[u8],
        needed: usize,
    ) -> Check {
        let refused = self.rank0.counters().fallback_bad_reply;
        if refused != self.refusals_injected {
            let text = self.rank0.last_bad_reply().unwrap_or("nothing");
            return Err(format!("{refused} replies refused, last for {text}"));
        }
        if matches!(report.outcome, Outcome::BadReply | Outcome::Frame(_)) {
            self.mark(round, Why::Failure);
            self.model.record(Attempt::Failed);
            return Ok(());
        }
        let status = |entry: usize| u16::from(reply[HEADER_BYTES + 32 + 8 * entry]);
        let mut drafted = 0;
        for (entry, request) in round.requests.iter().enumerate() {
            let ok = status(entry) == 0;
            self.why[usize::from(request.slot)] = if ok { Why::Clean } else { Why::Failure };
            drafted += usize::from(request.need_draft && status(entry) <= 1);
        }
        self.model.record(match (needed, drafted) {
            (0, _) => Attempt::Neutral,
            (_, 0) => Attempt::Failed,
            _ => Attempt::Succeeded,
        });
        Ok(())
    }

    /// Every slot that is not dirty holds in the worker exactly the rows of the ring.
    pub(crate) fn check_windows(&self) -> Check {
        if !self.rank0.is_ready() || self.restarted || self.dead {
            return Ok(());
        }
        for (index, slot) in self.rank0.slots().iter().enumerate() {
            if slot.owner().is_none() || slot.is_dirty() {
                continue;
            }
            let (ours, theirs) = (slot.window(), self.worker.windows()[index]);
            if ours != theirs {
                return Err(format!("slot {index} is clean: rank 0 {ours:?}, worker {theirs:?}"));
            }
            let span = ours.span.into_iter().flat_map(|s| s.lo..=s.hi);
            for pos in span {
                if slot.ring().row(pos) != self.worker.row(index, pos) {
                    return Err(format!("slot {index} is clean, but row {pos} differs"));
                }
            }
        }
        Ok(())
    }

    /// Ends every trouble: the backoff is waited for, HELLO is said, and every live slot drafts again.
    pub(crate) fn final_round(&mut self) -> Check {
        self.pass(Duration::from_secs(31));
        self.maintain(false)?;
        if !self.rank0.is_ready() {
            // The connection was dead without rank 0 knowing.
            self.pass(Duration::from_secs(31));
            self.maintain(false)?;
        }
        let mut requests = Vec::new();
        self.rank0.redraft(&mut requests);
        let rows = dspark::plan::RowBlock::new(&[], ROW);
        let round = EngineRound { step_id: u64::MAX, want_margin: true, requests: &requests, rows };
        for _ in 0..2 {
            self.rank0.begin(&round).map_err(|e| e.to_string())?;
            let played = self.exchange(&round, None, true)?;
            if played.report.outcome == Outcome::Answered {
                return Ok(());
            }
            // A worker that restarted unnoticed answers NO_SESSION, or not at all.
            self.pass(Duration::from_secs(31));
            self.maintain(false)?;
        }
        Err("the final round was not answered".into())
    }

    /// The worker refuses an older generation, whatever the flags, and keeps its window. Asked on a copy.
    pub(crate) fn check_older_generation(&mut self, slot: usize) -> Check {
        let (Some(seat), Some(window)) = (self.seat, self.worker.windows().get(slot)) else {
            return Ok(());
        };
        let (Some(generation), true) = (window.generation, self.rank0.is_ready()) else {
            return Ok(());
        };
        if self.restarted || self.worker.session.id() != Some(self.rank0.session()) {
            return Ok(());
        }
        let older = generation.0.wrapping_sub(1 + self.rng.below(3) as u32);
        let frame = crate::worker::foreign_step(&self.worker, slot as u8, older);
        let mut copy = self.worker.clone();
        let mut seat = seat;
        let reply = copy.handle(&mut seat, &frame);
        let stale = EntryStatus::StaleGeneration.code() as u8;
        if reply.get(HEADER_BYTES + 32) != Some(&stale) || copy.windows() != self.worker.windows() {
            return Err(format!("slot {slot}: generation {older} accepted after {}", generation.0));
        }
        Ok(())
    }
}
