//! Counters of a worker and the STATS document (contract §6.5, contract-notes D43).
//!
//! Plain integers, written by the drafting thread under one uncontended lock per STEP and copied out by
//! whoever answers STATS. What is not known yet is absent, never zero by accident and never NaN.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::latency::Latency;
use super::seats::Seats;
use crate::drafter::MarkovCounters;
use crate::geometry::Geometry;
use crate::plan::Append;
use crate::protocol::step::ReqEntry;
use crate::protocol::{AppHeader, EntryStatus, FrameStatus, Op};
use crate::session::{Outcome, Session};

/// What never changes while a worker runs: the constant keys of STATS.
#[derive(Clone, Debug)]
pub struct WorkerFacts {
    /// Name sent in HELLO replies.
    pub name: String,
    /// Where the checkpoint came from, in words.
    pub checkpoint: String,
    /// The geometry served.
    pub geometry: Geometry,
    /// Drafter and Markov identity, hex.
    pub identities: [String; 2],
    /// The backend.
    pub backend: crate::drafter::BackendInfo,
}

/// Acceptance as rank 0 reports it: `n_rows − 1` drafts accepted of `k_window` verified.
#[derive(Clone, Debug, Default)]
struct Acceptance {
    /// `hist[a]`: counted entries with `a` accepted drafts.
    hist: Vec<u64>,
    /// `verified[j]`, `accepted[j]`: entries whose draft position j was verified, and accepted.
    verified: Vec<u64>,
    accepted: Vec<u64>,
}

impl Acceptance {
    fn new(num_spec: usize) -> Self {
        Self {
            hist: vec![0; num_spec + 1],
            verified: vec![0; num_spec],
            accepted: vec![0; num_spec],
        }
    }

    /// Counts an applied entry and returns its accepted and verified drafts. Left out are prefill
    /// (k_window 0), resyncs, and re-drafts without rows.
    fn count(&mut self, entry: &ReqEntry) -> Option<(u64, u64)> {
        let k = usize::from(entry.k_window).min(self.verified.len());
        if k == 0 || entry.resync() || entry.n_rows.get() == 0 {
            return None;
        }
        let accepted = (entry.n_rows.get() as usize - 1).min(k);
        self.hist[accepted] += 1;
        self.verified[..k].iter_mut().for_each(|n| *n += 1);
        self.accepted[..accepted].iter_mut().for_each(|n| *n += 1);
        Some((accepted as u64, k as u64))
    }

    fn json(&self) -> Value {
        json!({ "accepted_hist": self.hist, "verified": self.verified, "accepted": self.accepted })
    }
}

/// What a slot did last.
#[derive(Clone, Debug, Default)]
struct SlotStats {
    window: crate::window::Window,
    last_status: Option<EntryStatus>,
    last_at: Option<Instant>,
    drafts: u64,
    accepted: u64,
    verified: u64,
}

/// The counters. Every field only grows, except the slots' state.
#[derive(Clone, Debug)]
pub struct WorkerStats {
    facts: Arc<WorkerFacts>,
    started: Instant,
    session: u32,
    client: String,
    session_at: Option<Instant>,
    last_step: Option<Instant>,
    /// When the drafting thread was last in its loop.
    looped: Instant,
    /// When a STEP last came, and since when none of them gave drafts.
    last_request: Option<Instant>,
    failing_since: Option<Instant>,
    steps: u64,
    rows: u64,
    row_bytes: u64,
    drafted_requests: u64,
    entries: [u64; EntryStatus::ALL.len()],
    frames: [u64; FrameStatus::ALL.len()],
    requests: [u64; 5],
    acceptance: Acceptance,
    slots: Vec<SlotStats>,
    worker_us: Latency,
    recv_to_send_us: Latency,
    receive_us: Latency,
    markov: Option<MarkovCounters>,
    link: LinkStats,
    seats: Seats,
}

/// Counters of the sockets.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkStats {
    /// Connections accepted on drafting listeners.
    pub connections: u64,
    /// Of these, replaced by a newer one, served or not.
    pub displaced: u64,
    /// Connections closed for a length outside 32 ..= 16 MiB.
    pub bad_lengths: u64,
    /// Frames cut by the end of their connection or too slow.
    pub cut_frames: u64,
    /// Replies dropped because a newer connection was waiting (contract-notes D11).
    pub dropped_replies: u64,
    /// Replies a client did not take.
    pub unsent_replies: u64,
    /// Frames that are not in the recording because its writer was behind or at its limit.
    pub unrecorded_frames: u64,
    /// Connections closed because their address is not on the allow-list.
    pub strangers: u64,
}

/// One STEP answered with frame status OK.
pub struct StepRecord<'a> {
    /// Entries of the STEP.
    pub entries: &'a [ReqEntry],
    /// What became of them.
    pub outcomes: &'a [Outcome],
    /// Rows stored.
    pub appends: &'a [Append],
    /// Apply and draft time, µs.
    pub worker_us: u32,
    /// Received to handed over, µs.
    pub recv_to_send_us: u32,
    /// How the backend's Markov steps were computed so far, if it counts them.
    pub markov: Option<MarkovCounters>,
}

impl WorkerStats {
    /// Zero counters.
    pub fn new(facts: WorkerFacts) -> Self {
        let geometry = facts.geometry;
        let started = Instant::now();
        Self {
            started,
            looped: started,
            last_request: None,
            failing_since: None,
            session_at: None,
            session: 0,
            client: String::new(),
            last_step: None,
            steps: 0,
            rows: 0,
            row_bytes: geometry.row_bytes() as u64,
            drafted_requests: 0,
            entries: [0; EntryStatus::ALL.len()],
            frames: [0; FrameStatus::ALL.len()],
            requests: [0; 5],
            acceptance: Acceptance::new(geometry.num_spec as usize),
            slots: vec![SlotStats::default(); geometry.max_slots as usize],
            worker_us: Latency::default(),
            recv_to_send_us: Latency::default(),
            receive_us: Latency::default(),
            markov: None,
            link: LinkStats::default(),
            seats: Seats::default(),
            facts: Arc::new(facts),
        }
    }

    /// Counts one answered frame.
    pub fn frame(&mut self, op: Option<Op>, status: FrameStatus) {
        if let Some(op) = op {
            self.requests[usize::from(op.code()) - 1] += 1;
        }
        self.frames[status as usize] += 1;
        if op == Some(Op::Step) {
            let now = Instant::now();
            self.last_request = Some(now);
            if status != FrameStatus::Ok {
                self.failing_since.get_or_insert(now);
            }
        }
    }

    /// Counts how long the bytes of a STEP took to come in.
    pub fn received(&mut self, frame: &[u8], receiving: Duration) {
        let step = AppHeader::split(frame).is_some_and(|(header, _)| header.op == Op::Step.code());
        if step {
            self.receive_us.record(u32::try_from(receiving.as_micros()).unwrap_or(u32::MAX));
        }
    }

    /// Notes that the drafting thread is in its loop.
    pub fn pulse(&mut self) {
        self.looped = Instant::now();
    }

    /// Time since the drafting thread was last in its loop.
    pub fn loop_age(&self) -> Duration {
        self.looped.elapsed()
    }

    /// Session id, 0 without one.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// Notes an accepted HELLO.
    pub fn hello(&mut self, session: &Session, client: String) {
        self.session = session.id().map_or(0, Into::into);
        self.client = client;
        self.session_at = Some(Instant::now());
        self.windows(session);
    }

    /// Copies the session's windows.
    pub fn windows(&mut self, session: &Session) {
        for (slot, window) in self.slots.iter_mut().zip(session.windows()) {
            slot.window = *window;
        }
    }

    /// Counts one STEP. Allocates nothing.
    pub fn step(&mut self, session: &Session, step: &StepRecord<'_>) {
        let now = Instant::now();
        self.steps += 1;
        self.last_step = Some(now);
        self.worker_us.record(step.worker_us);
        self.recv_to_send_us.record(step.recv_to_send_us);
        self.markov = step.markov;
        let failed = |outcome: &Outcome| outcome.status == EntryStatus::Internal;
        if !step.outcomes.is_empty() && step.outcomes.iter().all(failed) {
            self.failing_since.get_or_insert(now);
        } else {
            self.failing_since = None;
        }
        for (entry, outcome) in step.entries.iter().zip(step.outcomes) {
            self.entries[outcome.status as usize] += 1;
            self.rows += u64::from(outcome.rows);
            let slot = &mut self.slots[usize::from(outcome.slot)];
            slot.last_status = Some(outcome.status);
            slot.last_at = Some(now);
            if !outcome.status.has_drafts() {
                continue;
            }
            if let Some((accepted, verified)) = self.acceptance.count(entry) {
                slot.accepted += accepted;
                slot.verified += verified;
            }
            if entry.need_draft() {
                self.drafted_requests += 1;
                slot.drafts += 1;
            }
        }
        self.windows(session);
    }

    /// The socket counters, to be incremented.
    pub fn link(&mut self) -> &mut LinkStats {
        &mut self.link
    }

    /// Who is connected where, to be noted.
    pub fn seats(&mut self) -> &mut Seats {
        &mut self.seats
    }

    /// These counters with the round trips of the drafting connections, for which the kernel is asked: not
    /// for the drafting thread.
    pub fn measured(mut self) -> Self {
        self.seats.measure();
        self
    }

    /// What never changes.
    pub fn facts(&self) -> &WorkerFacts {
        &self.facts
    }

    /// STEPs answered OK.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The STATS document: strict JSON, durations in the unit their name ends in.
    pub fn to_json(&self) -> Value {
        let mut doc = Map::new();
        self.put_facts(&mut doc);
        self.put_counters(&mut doc);
        self.worker_us.put(&mut doc, "worker_us");
        self.recv_to_send_us.put(&mut doc, "recv_to_send_us");
        self.receive_us.put(&mut doc, "receive_us");
        doc.insert("listeners".into(), self.seats.json());
        doc.insert("slots".into(), self.slots_json());
        Value::Object(doc)
    }

    fn put_facts(&self, doc: &mut Map<String, Value>) {
        let facts = &*self.facts;
        let backend = &facts.backend;
        let g = &facts.geometry;
        let constant = json!({
            "schema": 1,
            "worker": facts.name,
            "version": env!("CARGO_PKG_VERSION"),
            "contract": crate::CONTRACT_VERSION,
            "wire": crate::protocol::VERSION,
            "checkpoint": facts.checkpoint,
            "drafter_identity": facts.identities[0],
            "markov_identity": facts.identities[1],
            "backend": backend.backend,
            "device": backend.device,
            "precision": backend.precision,
            "logits": backend.logits,
            "kv": backend.kv,
            "gpu_mem_bytes": backend.gpu_mem_bytes,
            "num_spec": g.num_spec,
            "window": g.window,
            "hidden": g.hidden,
            "vocab_size": g.vocab_size,
            "max_slots": g.max_slots,
            "max_rows_per_step": g.max_rows_per_step,
        });
        if let Value::Object(map) = constant {
            doc.extend(map);
        }
    }

    fn put_counters(&self, doc: &mut Map<String, Value>) {
        let count = |status: EntryStatus| self.entries[status as usize];
        let by_name = |pairs: Vec<(&str, u64)>| {
            pairs.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect::<Map<_, Value>>()
        };
        let frames =
            FrameStatus::ALL.iter().map(|s| (s.name(), self.frames[*s as usize])).collect();
        let entries = EntryStatus::ALL.iter().map(|s| (s.name(), count(*s))).collect();
        let ops = ["hello", "step", "reset", "stats", "ping"].into_iter().zip(self.requests);
        let counters = json!({
            "session": self.session,
            "uptime_s": self.started.elapsed().as_secs_f64(),
            "steps": self.steps,
            "rows": self.rows,
            "rows_bytes": self.rows * self.row_bytes,
            "drafted_requests": self.drafted_requests,
            "partial_windows": count(EntryStatus::PartialWindow),
            "stale_generation": count(EntryStatus::StaleGeneration),
            "bad_entries": count(EntryStatus::BadEntry),
            "internal_entries": count(EntryStatus::Internal),
            "accepted_hist": self.acceptance.hist,
            "acceptance": self.acceptance.json(),
            "frames": by_name(frames),
            "entries": by_name(entries),
            "requests": by_name(ops.collect()),
            "link": {
                "connections": self.link.connections,
                "displaced": self.link.displaced,
                "bad_lengths": self.link.bad_lengths,
                "cut_frames": self.link.cut_frames,
                "dropped_replies": self.link.dropped_replies,
                "unsent_replies": self.link.unsent_replies,
                "unrecorded_frames": self.link.unrecorded_frames,
                "strangers": self.link.strangers,
            },
        });
        if let Value::Object(map) = counters {
            doc.extend(map);
        }
        if let Some(markov) = self.markov {
            let counters = json!({ "resident": markov.resident, "pruned": markov.pruned,
                "dense": markov.dense, "rows": markov.rows, "rows_full": markov.rows_full });
            doc.insert("markov".into(), counters);
        }
        if !self.client.is_empty() {
            doc.insert("client".into(), self.client.clone().into());
        }
        let ages = [
            ("loop_age_s", Some(self.looped)),
            ("session_age_s", self.session_at),
            ("last_step_age_s", self.last_step),
            ("last_request_age_s", self.last_request),
            ("failing_s", self.failing_since),
        ];
        for (key, since) in ages {
            if let Some(since) = since {
                doc.insert(key.into(), since.elapsed().as_secs_f64().into());
            }
        }
    }

    fn slots_json(&self) -> Value {
        let slot_json = |(index, slot): (usize, &SlotStats)| {
            let mut doc = Map::new();
            doc.insert("slot".into(), index.into());
            doc.insert("drafts".into(), slot.drafts.into());
            doc.insert("rows".into(), slot.window.span.map_or(0, |s| s.rows()).into());
            doc.insert("verified".into(), slot.verified.into());
            doc.insert("accepted".into(), slot.accepted.into());
            if let Some(generation) = slot.window.generation {
                doc.insert("generation".into(), generation.0.into());
            }
            if let Some(span) = slot.window.span {
                doc.insert("lo".into(), span.lo.into());
                doc.insert("hi".into(), span.hi.into());
            }
            if let Some(status) = slot.last_status {
                doc.insert("last_status".into(), status.name().into());
            }
            if let Some(at) = slot.last_at {
                doc.insert("last_age_s".into(), at.elapsed().as_secs_f64().into());
            }
            Value::Object(doc)
        };
        self.slots.iter().enumerate().map(slot_json).collect()
    }
}

/// Counters shared between the drafting thread and whoever answers STATS.
#[derive(Clone, Debug)]
pub struct SharedStats(Arc<Mutex<WorkerStats>>);

impl SharedStats {
    /// Zero counters.
    pub fn new(facts: WorkerFacts) -> Self {
        Self(Arc::new(Mutex::new(WorkerStats::new(facts))))
    }

    /// The counters, for as short as possible.
    pub fn lock(&self) -> MutexGuard<'_, WorkerStats> {
        // Counters stay meaningful after a panic elsewhere.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A copy, so that formatting happens outside the lock.
    pub fn snapshot(&self) -> WorkerStats {
        self.lock().clone()
    }
}
