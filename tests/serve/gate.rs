//! What happens while a STEP runs, with a backend that waits for the test (contract-notes D11, D39).

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use dspark::drafter::{BackendInfo, DraftBlocks, DraftError, Drafter};
use dspark::geometry::Geometry;
use dspark::plan::{RowBlock, StepPlan};
use dspark::protocol::step::{NEW_GEN, RESYNC};
use dspark::protocol::{EntryStatus, FrameStatus};
use dspark::transport::Endpoint;
use dspark::worker::serve::{Running, ServeError, ServeOptions, start};

use crate::client::{
    Client, TINY, any_port, backend_info, hello_message, link, rows, serve_options, step_message,
};
use crate::common::frames::{entry, new_owner};

const SESSION: u32 = 0x99;

/// What a held STEP does next.
#[derive(Clone, Copy)]
enum Then {
    Draft,
    Fail,
    Panic,
}

/// A backend whose every STEP reports to the test and waits for it. Its drafts are all zero.
struct Gate {
    entered: Sender<()>,
    then: Receiver<Then>,
}

impl Drafter for Gate {
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
        out.clear();
        self.entered.send(()).unwrap();
        match self.then.recv().unwrap() {
            Then::Draft => Ok(()),
            Then::Fail => Err(DraftError::Backend("the device is gone".into())),
            Then::Panic => panic!("a fault of the backend, wanted by this test"),
        }
    }
}

/// A worker in this process.
struct Held {
    running: Running,
    entered: Receiver<()>,
    then: Sender<Then>,
}

impl Held {
    fn start(drafting: usize) -> Self {
        let (entered_sender, entered) = channel();
        let (then, then_receiver) = channel();
        let listeners = (0..drafting).map(|_| any_port()).collect();
        let options = ServeOptions { listeners, ..serve_options() };
        let gate = Gate { entered: entered_sender, then: then_receiver };
        let running = start(options, move || Ok(Box::new(gate) as Box<dyn Drafter>)).unwrap();
        Self { running, entered, then }
    }

    fn drafting(&self) -> Endpoint {
        Endpoint::tcp(self.running.drafting[0])
    }

    fn stats(&self) -> serde_json::Value {
        Client::connect(&Endpoint::tcp(self.running.control.unwrap())).stats()
    }

    /// A client whose STEP, with sequence number 2 and three rows, has reached the backend.
    fn client_in_step(&self) -> Client {
        let mut client = Client::open(&self.drafting(), SESSION, 1);
        client.send(&step_message(2, SESSION, &[new_owner(0, 1, 0, 3)], &rows(0, 3)));
        self.entered.recv_timeout(Duration::from_secs(20)).unwrap();
        client
    }

    fn proceed(&self, then: Then) {
        self.then.send(then).unwrap();
    }
}

#[test]
fn a_step_in_hand_is_applied_and_its_reply_dropped_when_a_newer_client_waits() {
    let held = Held::start(1);
    let mut first = held.client_in_step();
    let mut second = Client::connect(&held.drafting());
    held.proceed(Then::Draft);
    first.assert_closed();
    assert_eq!(second.ask(&hello_message(2, SESSION)).status(), FrameStatus::StaleSeq);
    assert_eq!(second.ask(&hello_message(3, SESSION)).status(), FrameStatus::Ok);
    held.proceed(Then::Draft);
    let more = step_message(4, SESSION, &[entry(0, 1, 3, 1)], &rows(3, 1));
    assert_eq!(second.ask(&more).step().statuses[0].window_rows.get(), 4);
    let stats = second.stats();
    assert_eq!((&stats["steps"], &stats["rows"]), (&2.into(), &4.into()));
    assert_eq!((link(&stats, "dropped_replies"), link(&stats, "displaced")), (1, 1));
    held.running.stop().unwrap();
}

#[test]
fn of_several_pending_clients_the_newest_is_served_and_all_are_counted() {
    let held = Held::start(1);
    let mut first = held.client_in_step();
    let mut pending: Vec<_> = (0..3).map(|_| Client::connect(&held.drafting())).collect();
    held.proceed(Then::Draft);
    let mut newest = pending.pop().unwrap();
    assert_eq!(newest.ping(), FrameStatus::Ok);
    first.assert_closed();
    pending.iter_mut().for_each(Client::assert_closed);
    let stats = newest.stats();
    assert_eq!((link(&stats, "connections"), link(&stats, "displaced")), (4, 3));
    held.running.stop().unwrap();
}

#[test]
fn the_control_listener_answers_while_a_step_runs() {
    let held = Held::start(1);
    let mut client = held.client_in_step();
    let mut control = Client::connect(&Endpoint::tcp(held.running.control.unwrap()));
    assert_eq!(control.ping(), FrameStatus::Ok);
    assert_eq!(control.stats()["steps"], 0);
    held.proceed(Then::Draft);
    assert_eq!(client.recv().entries(), [EntryStatus::Ok]);
    assert_eq!(held.stats()["steps"], 1);
    held.running.stop().unwrap();
}

#[test]
fn a_worker_told_to_stop_answers_the_step_in_hand() {
    let held = Held::start(2);
    let mut client = held.client_in_step();
    let Held { running, then, .. } = held;
    let stopping = std::thread::spawn(move || running.stop());
    std::thread::sleep(Duration::from_millis(30));
    assert!(!stopping.is_finished(), "it waits for the STEP");
    then.send(Then::Draft).unwrap();
    assert_eq!(client.recv().entries(), [EntryStatus::Ok]);
    client.assert_closed();
    stopping.join().unwrap().unwrap();
}

#[test]
fn a_failed_backend_empties_the_slots_it_was_asked_for_until_they_are_resynced() {
    let held = Held::start(1);
    let mut client = held.client_in_step();
    held.proceed(Then::Fail);
    let reply = client.recv();
    assert_eq!(reply.entries(), [EntryStatus::Internal]);
    assert_eq!(reply.step().statuses[0].window_rows.get(), 0);
    assert_eq!(held.stats()["slots"][0].get("lo"), None);
    client.seq = 2;
    held.proceed(Then::Draft);
    let mut resync = entry(0, 1, 0, 4);
    resync.req_flags |= NEW_GEN | RESYNC;
    let reply = client.step(&[resync], &rows(0, 4));
    assert_eq!(reply.entries(), [EntryStatus::Ok]);
    assert_eq!(reply.step().statuses[0].window_rows.get(), 4);
    held.running.stop().unwrap();
}

#[test]
fn a_fault_of_the_drafting_thread_ends_the_whole_worker() {
    // With two listeners neither may go on alone: half a worker looks alive to its supervisor.
    let held = Held::start(2);
    let mut client = held.client_in_step();
    held.proceed(Then::Panic);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let ended = tokio::time::timeout(Duration::from_secs(20), held.running.ended());
        ended.await.expect("the worker says that it has ended");
    });
    client.assert_closed();
    assert!(matches!(held.running.stop(), Err(ServeError::Died)));
}
