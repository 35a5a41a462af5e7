//! Stories that random runs tell too rarely or too indirectly.

use std::num::NonZeroU32;
use std::time::Duration;

use dspark::client::faults::{Fault, FaultKind};
use dspark::client::rank0::{
    EngineRequest, EngineRound, Failure, NotSent, Outcome, Owner, Rank0, Rank0Config,
};
use dspark::geometry::Geometry;
use dspark::plan::RowBlock;
use dspark::session::Seat;

use crate::worker::{ROW, Worker, geometry};
use crate::workload::Engine;
use crate::world::World;

/// B54, with the contract's numbers.
#[test]
fn a_silent_worker_costs_one_deadline_per_cooldown_and_the_probe_resyncs_everything() {
    let mut world = World::new(geometry(8, 4), 1, 3, 256, None);
    let mut engine = Engine::new(1, 8, 4);
    let silence = Fault { kind: FaultKind::Drop, delay: Duration::ZERO, entropy: 0 };
    let mut play = |world: &mut World, fault| {
        world.pass(Duration::from_secs(2));
        loop {
            engine.step();
            if engine.round().requests.iter().any(|r| r.need_draft) {
                return world.round(&engine.round(), fault, true).unwrap().report.outcome;
            }
        }
    };
    for _ in 0..100 {
        assert_eq!(play(&mut world, None), Outcome::Answered);
    }
    let timeout = Outcome::Failed(Failure::Timeout);
    let skipped = Outcome::NotSent(NotSent::Cooldown);
    for _ in 0..3 {
        assert_eq!(play(&mut world, Some(silence)), timeout);
    }
    for _ in 0..2 {
        for _ in 0..256 {
            assert_eq!(play(&mut world, Some(silence)), skipped);
        }
        assert_eq!(play(&mut world, Some(silence)), timeout, "one probe");
    }
    for _ in 0..256 {
        assert_eq!(play(&mut world, None), skipped);
    }
    let counters = *world.rank0.counters();
    assert_eq!((counters.fallback_cooldown, counters.fallback_timeout), (768, 5));
    // The probe that succeeds: every live slot whole, under its old generation.
    let mut requests = Vec::new();
    world.rank0.redraft(&mut requests);
    assert_eq!(requests.len(), 4);
    let rows = RowBlock::new(&[], ROW);
    let round = EngineRound { step_id: 1, want_margin: false, requests: &requests, rows };
    world.pass(Duration::from_secs(2));
    let report = world.round(&round, None, true).unwrap().report;
    assert_eq!(report.outcome, Outcome::Answered);
    assert!(world.rank0.results().iter().all(|r| r.resync && r.usable));
    assert_eq!(play(&mut world, None), Outcome::Answered);
    world.check_windows().unwrap();
}

fn request(slot: u8, first_pos: i64, rows: std::ops::Range<usize>) -> EngineRequest {
    EngineRequest {
        slot,
        owner: Owner(1 + u64::from(slot)),
        first_pos,
        anchor_pos: first_pos + rows.len() as i64,
        rows,
        anchor_token: 7,
        k_window: 0,
        need_draft: true,
        n_out: 0,
    }
}

/// A geometry whose live windows do not fit one STEP: nothing is sent that the worker would refuse, and
/// every slot is whole again after as many rounds as it takes.
#[test]
fn windows_that_do_not_fit_one_step_are_sent_in_turn() {
    let geometry = Geometry { max_rows_per_step: 20, ..geometry(8, 4) };
    let mut rank0 = Rank0::new(&Rank0Config {
        geometry,
        drafter_identity: [1; 32],
        markov_identity: [2; 32],
        client_name: String::new(),
        session: NonZeroU32::MIN,
        generation: 0,
    })
    .unwrap();
    let mut worker = Worker::new(geometry);
    let mut seat = Seat::default();
    rank0.connected();
    let hello = rank0.hello(|| NonZeroU32::MIN).to_vec();
    rank0.judge_hello(worker.handle(&mut seat, &hello)).unwrap();
    let mut play = |rank0: &mut Rank0, requests: &[EngineRequest]| {
        let bytes: Vec<u8> = (0..32 * ROW as u8).collect();
        let rows = RowBlock::new(&bytes, ROW);
        rank0.begin(&EngineRound { step_id: 1, want_margin: false, requests, rows }).unwrap();
        let message = rank0.send().unwrap().to_vec();
        let report = rank0.judge(worker.handle(&mut seat, &message));
        assert_eq!(report.outcome, Outcome::Answered);
        (report.needed, report.drafted)
    };
    for slot in 0..4 {
        assert_eq!(play(&mut rank0, &[request(slot, 0, 0..8)]), (1, 1));
    }
    rank0.resync_all();
    let batch = |pos: i64| [0, 1, 2, 3].map(|slot| request(slot, pos, 0..1));
    // Two windows of 8 rows fit; in the next round two single rows leave room for the other two.
    assert_eq!(play(&mut rank0, &batch(8)), (2, 2));
    let usable: Vec<bool> = rank0.results().iter().map(|r| r.usable).collect();
    assert_eq!(usable, [true, true, false, false]);
    assert_eq!(play(&mut rank0, &batch(9)), (4, 4));
    assert!(rank0.slots().iter().all(|slot| !slot.is_dirty()));
    assert_eq!(rank0.counters().left_out, 2);
    for (slot, window) in worker.windows().iter().enumerate() {
        assert_eq!(*window, rank0.slots()[slot].window());
    }
}
