//! A worker that answers and does not draft: who notices, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dspark::drafter::{BackendInfo, DraftBlocks, DraftError, Drafter};
use dspark::geometry::Geometry;
use dspark::plan::{RowBlock, StepPlan};
use dspark::protocol::EntryStatus;
use dspark::transport::Endpoint;
use dspark::worker::serve::{Running, ServeOptions, start};

use crate::client::{Client, TINY, any_port, backend_info, eventually, rows, serve_options};
use crate::common::frames::new_owner;
use crate::common::http::get;
use crate::common::process::run;

/// Drafts zeros; hangs inside a STEP, or fails, while it is told to.
#[derive(Clone, Default)]
struct Faulty {
    hangs: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
}

impl Drafter for Faulty {
    fn geometry(&self) -> &Geometry {
        &TINY
    }

    fn info(&self) -> BackendInfo {
        backend_info()
    }

    fn step(
        &mut self,
        _: &StepPlan,
        _: RowBlock<'_>,
        out: &mut DraftBlocks,
    ) -> Result<(), DraftError> {
        while self.hangs.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        out.clear();
        if self.fails.load(Ordering::Relaxed) {
            return Err(DraftError::Backend("the device is gone".into()));
        }
        Ok(())
    }
}

/// A worker in this process, with its drafting and control URLs and its metrics address.
fn worker(drafter: &Faulty) -> (Running, Endpoint, String, String) {
    let options = ServeOptions { metrics: Some(any_port()), ..serve_options() };
    let drafter = drafter.clone();
    let running = start(options, move || Ok(Box::new(drafter) as Box<dyn Drafter>)).unwrap();
    let drafting = Endpoint::tcp(running.drafting[0]);
    let control = Endpoint::tcp(running.control.unwrap()).to_string();
    let metrics = running.metrics.unwrap().to_string();
    (running, drafting, control, metrics)
}

#[test]
fn a_step_that_hangs_is_a_stall_although_ping_and_metrics_answer() {
    let faulty = Faulty::default();
    let (running, drafting, control, metrics) = worker(&faulty);
    let check = || run(&["ping", "-q", "-c", "1", "--check", "--stall", "600ms", &control]);
    let mut client = Client::open(&drafting, 7, 1);
    let healthy = check();
    assert_eq!(healthy.code, Some(0), "{}", healthy.err);
    assert_eq!(get(&metrics, "/readyz").status, 200);

    faulty.hangs.store(true, Ordering::Relaxed);
    let hung = Instant::now();
    client.seq += 1;
    let message = crate::client::step_message(2, 7, &[new_owner(0, 1, 0, 4)], &rows(0, 4));
    client.send(&message);
    eventually("ping --check notices", || check().code == Some(1));
    let said = check();
    assert!(said.err.contains("answers, but does not draft: the drafting thread has been stuck"));
    assert!(said.out.starts_with("1 sent, 1 received, 0 lost"), "{}", said.out);
    assert!(running.stats.lock().loop_age() >= Duration::from_millis(600));
    assert_eq!(get(&metrics, "/healthz").status, 200);
    eventually("/readyz notices", || get(&metrics, "/readyz").status == 503);
    assert!(hung.elapsed() >= Duration::from_secs(4), "{:?}", hung.elapsed());
    assert!(get(&metrics, "/readyz").body.contains("the drafting thread has been stuck"));
    assert!(get(&metrics, "/metrics").body.contains("\ndspark_ready 0.0\n"));

    faulty.hangs.store(false, Ordering::Relaxed);
    assert_eq!(client.recv().entries(), [EntryStatus::Ok]);
    eventually("it is ready again", || get(&metrics, "/readyz").status == 200);
    assert_eq!(check().code, Some(0));
}

#[test]
fn steps_that_all_fail_are_a_stall_while_they_come_and_an_idle_session_is_none() {
    let faulty = Faulty::default();
    let (_running, drafting, control, _) = worker(&faulty);
    let check = |more: &[&str]| {
        let mut arguments = vec!["ping", "-q", "-c", "1", "--check", "--stall", "300ms"];
        arguments.extend(more);
        arguments.push(&control);
        run(&arguments)
    };
    let mut client = Client::open(&drafting, 7, 1);
    let mut generation = 0;
    let mut step = |client: &mut Client| {
        generation += 1;
        client.step(&[new_owner(0, generation, 0, 4)], &rows(0, 4)).entries()
    };
    assert_eq!(step(&mut client), [EntryStatus::Ok]);
    faulty.fails.store(true, Ordering::Relaxed);
    eventually("ping --check notices", || {
        assert_eq!(step(&mut client), [EntryStatus::Internal]);
        let said = check(&[]);
        said.code == Some(1) && said.err.contains("every STEP of the last")
    });
    faulty.fails.store(false, Ordering::Relaxed);
    assert_eq!(step(&mut client), [EntryStatus::Ok]);
    assert_eq!(check(&[]).code, Some(0));
    // Nothing more comes: idle, unless the engine is known to be busy.
    std::thread::sleep(Duration::from_millis(350));
    assert_eq!(check(&[]).code, Some(0));
    let said = check(&["--busy"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("although a session is open"), "{}", said.err);
}
