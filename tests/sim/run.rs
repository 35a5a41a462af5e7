//! One seed: a workload played over a faulty link and, beside it, over a perfect one.

use std::fmt;
use std::time::Duration;

use dspark::client::faults::{FaultCounts, FaultKind, FaultSchedule, FaultSpec};
use dspark::client::rank0::{Counters, Recovery, RequestResult};
use dspark::protocol::{AppHeader, Limits, StepRequest};

use crate::planted::Bug;
use crate::worker::{ROW, geometry};
use crate::workload::{Engine, Rng};
use crate::world::{Check, DEADLINE, World};

/// W of the simulation: small, so that windows fill and roll over all the time.
const WINDOW: u32 = 8;
const SLOTS: u32 = 4;

/// Picks one counter.
type Counter = fn(&Counters) -> u64;

/// What many seeds came to.
#[derive(Default)]
pub(crate) struct Played {
    rounds: u64,
    faults: FaultCounts,
    counters: Vec<Counters>,
    compared: u64,
    recovered: u64,
}

impl Played {
    pub(crate) fn add(&mut self, other: &Self) {
        self.rounds += other.rounds;
        for (kind, n) in other.faults.iter() {
            (0..n).for_each(|_| self.faults.record(kind));
        }
        self.counters.extend(&other.counters);
        self.compared += other.compared;
        self.recovered += other.recovered;
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.counters.iter().map(counter).sum()
    }

    /// A simulation in which something never happens shows nothing about it.
    pub(crate) fn assert_nothing_was_missed(&self, rounds: u64) {
        assert_eq!(self.rounds, rounds);
        for (kind, n) in self.faults.iter() {
            assert!(n > rounds / 1000, "{kind} occurred {n} times");
        }
        let counters: [(&str, Counter); 12] = [
            ("resyncs", |c| c.resyncs),
            ("new sessions", |c| c.sessions - 1),
            ("partial windows", |c| c.partial_windows),
            ("stale generations", |c| c.stale_generations),
            ("bad entries", |c| c.bad_entries),
            ("no connection", |c| c.fallback_no_connection),
            ("cooldown", |c| c.fallback_cooldown),
            ("outdated", |c| c.fallback_outdated),
            ("timeout", |c| c.fallback_timeout),
            ("transport", |c| c.fallback_transport),
            ("bad reply", |c| c.fallback_bad_reply),
            ("frame errors", |c| c.fallback_frame_error),
        ];
        for (name, counter) in counters {
            assert!(self.sum(counter) > rounds / 10_000, "{name}: {}", self.sum(counter));
        }
        assert!(self.compared > rounds / 2, "{} drafts compared", self.compared);
        assert!(self.recovered > 0, "no recording was recovered");
    }
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds, {} requests compared;", self.rounds, self.compared)?;
        for (kind, n) in self.faults.iter() {
            write!(f, " {kind} {n}")?;
        }
        write!(f, "; {} steps, {} resyncs", self.sum(|c| c.steps), self.sum(|c| c.resyncs))?;
        write!(f, ", {} cooldown rounds", self.sum(|c| c.fallback_cooldown))?;
        write!(f, ", {} sessions", self.sum(|c| c.sessions))
    }
}

/// The faults of a seed: none in some, one kind in some, all in most.
fn schedule(seed: u64, rng: &mut Rng) -> FaultSchedule {
    let probability = [0.0, 0.01, 0.05, 0.2][rng.below(4) as usize];
    let only = rng.one_in(4).then(|| FaultKind::ALL[rng.below(8) as usize]);
    let late = if rng.one_in(3) { DEADLINE / 2 } else { DEADLINE + Duration::from_millis(10) };
    let specs: Vec<FaultSpec> = FaultKind::ALL
        .into_iter()
        .filter(|kind| only.is_none_or(|only| only == *kind))
        .map(|kind| {
            let delay = if kind == FaultKind::Delay { late } else { Duration::ZERO };
            FaultSpec { kind, probability, delay }
        })
        .collect();
    FaultSchedule::new(seed, &specs).expect("every kind once")
}

/// Plays one seed.
///
/// # Errors
/// The first thing that is wrong, with its round.
pub(crate) fn play(seed: u64, rounds: u64, bug: Option<Bug>) -> Result<Played, String> {
    let mut rng = Rng(seed ^ 0x5eed);
    let geometry = geometry(WINDOW, SLOTS);
    let trip = [0, 1, 3, 3][rng.below(4) as usize];
    let cooldown = [0, 1, 7, 40][rng.below(4) as usize];
    let schedule = schedule(seed, &mut rng);
    let round_time = Duration::from_millis([35, 400, 2000][rng.below(3) as usize]);
    let mut engine = Engine::new(rng.next(), WINDOW, SLOTS);
    let mut faulty = World::new(geometry, rng.next(), trip, cooldown, bug);
    let mut calm = World::new(geometry, rng.next(), 3, 256, None);
    faulty.recording = seed.is_multiple_of(16).then(Vec::new);
    let mut compared = 0;
    for index in 0..rounds {
        engine.step();
        faulty.pass(round_time);
        if rng.one_in(300) {
            faulty.restart_worker();
        }
        let fault = schedule.at(index);
        let result = faulty.round(&engine.round(), fault, false).and_then(|_| {
            calm.round(&engine.round(), None, true)?;
            check_rings(&faulty, &engine, bug)?;
            faulty.check_windows()?;
            compared += check_drafts(&faulty, &calm)?;
            if rng.one_in(16) {
                faulty.check_older_generation(rng.below(4) as usize)?;
            }
            Ok(())
        });
        result.map_err(|e| format!("round {index} ({:?}): {e}", fault.map(|f| f.kind)))?;
    }
    finish(&mut faulty, &mut calm).map_err(|e| format!("final round: {e}"))?;
    let mut recovered = 0;
    if let Some(frames) = faulty.recording.take() {
        recovered = frames.len() as u64;
        check_recovery(&frames, &faulty).map_err(|e| format!("recovery: {e}"))?;
    }
    Ok(Played {
        rounds,
        faults: faulty.counts,
        counters: vec![*faulty.rank0.counters()],
        compared,
        recovered,
    })
}

/// The ring is exact, whatever was sent.
fn check_rings(world: &World, engine: &Engine, bug: Option<Bug>) -> Check {
    if bug == Some(Bug::RingMissesSkippedRounds) {
        return Ok(()); // to be found by its consequences
    }
    for (index, slot) in world.rank0.slots().iter().enumerate() {
        let Some((owner, held)) = engine.held(index) else { continue };
        let span = slot.window().span.map_or(0..0, |s| s.lo..s.hi + 1);
        let same = slot.owner() == Some(owner)
            && span == (held.lo..held.end())
            && span.zip(&held.rows).all(|(pos, row)| slot.ring().row(pos) == row);
        if !same {
            return Err(format!("slot {index}: ring {:?}, engine {held:?}", slot.window()));
        }
    }
    Ok(())
}

/// Drafts that rank 0 would use are those of the undisturbed run. Returns how many were compared.
fn check_drafts(faulty: &World, calm: &World) -> Result<u64, String> {
    let mut compared = 0;
    let pairs = faulty.rank0.results().iter().zip(calm.rank0.results());
    for (request, (ours, theirs)) in pairs.enumerate() {
        let (a, b) = (faulty.rank0.drafts(request), calm.rank0.drafts(request));
        if !ours.usable {
            if a.ids.iter().any(|id| *id != 0) || a.confidence.iter().any(|c| *c != 0.0) {
                return Err(format!("request {request}: drafts without a usable reply"));
            }
            continue;
        }
        let same = |r: &RequestResult| (r.slot, r.owner, r.status, r.window_rows);
        if same(ours) != same(theirs) || a != b {
            return Err(format!("request {request}: {ours:?} {a:?}, undisturbed {theirs:?} {b:?}"));
        }
        compared += 1;
    }
    Ok(compared)
}

/// After one full undisturbed round both workers draft the same from the same windows.
fn finish(faulty: &mut World, calm: &mut World) -> Check {
    faulty.final_round()?;
    calm.final_round()?;
    if faulty.rank0.results().len() != calm.rank0.results().len() {
        return Err("another number of live slots".into());
    }
    if faulty.rank0.results().iter().any(|r| !r.usable) {
        return Err(format!("not everything was drafted: {:?}", faulty.rank0.results()));
    }
    check_drafts(faulty, calm)?;
    faulty.check_windows()
}

/// The recorded STEPs, faults and resyncs and holes included, recovered into engine rounds and played
/// without faults, lead to the same windows.
fn check_recovery(frames: &[Vec<u8>], faulty: &World) -> Check {
    let geometry = geometry(WINDOW, SLOTS);
    let limits = Limits {
        max_slots: SLOTS,
        max_rows_per_step: geometry.max_rows_per_step,
        row_bytes: ROW as u32,
    };
    let mut recovery = Recovery::new(geometry);
    let mut again = World::new(geometry, 0, 3, 256, None);
    for frame in frames {
        let (header, body) = AppHeader::split(frame).expect("a STEP");
        let step = StepRequest::parse(body, &limits).expect("answered with OK");
        if let Some(round) = recovery.step(&header, &step) {
            again.round(&round, None, true)?;
        }
    }
    if recovery.ignored() > 0 {
        return Err(format!("{} entries ignored", recovery.ignored()));
    }
    for (slot, (ours, theirs)) in
        again.worker.windows().iter().zip(faulty.worker.windows()).enumerate()
    {
        let rows = |world: &World| -> Vec<_> {
            let span = theirs.span.into_iter().flat_map(|s| s.lo..=s.hi);
            span.map(|pos| world.worker.row(slot, pos)).collect()
        };
        if ours.span != theirs.span || rows(&again) != rows(faulty) {
            return Err(format!("slot {slot}: {ours:?} recovered from {theirs:?}"));
        }
    }
    Ok(())
}
