//! A thread block: shared memory, the warps in turn, and barriers.
//!
//! Warps run one after the other, each until it waits or ends. A barrier opens when all threads it
//! is for have arrived; when every warp stands still and none opens, the threads diverged.

use super::lanes::LANES;
use super::launch::Launch;
use super::warp::{Stop, Warp};
use crate::counters::KernelCounters;
use crate::fault::{Fault, Trouble};
use crate::race::{Acquired, Party, SharedShadow};

/// What the warps of a block share.
pub(crate) struct BlockState<'l> {
    pub(crate) launch: &'l Launch<'l>,
    pub(crate) index: [u32; 3],
    /// Index in launch order.
    pub(crate) linear: u32,
    pub(crate) shared: Vec<u8>,
    pub(crate) shared_shadow: SharedShadow,
    /// Distinguishes the runs of blocks that use the same shared memory one after the other.
    pub(crate) run: u16,
    /// Barriers passed.
    pub(crate) epoch: u16,
    pub(crate) counters: KernelCounters,
    pub(crate) acquired: Acquired,
    /// Epoch of the last device-wide fence.
    pub(crate) fenced: Option<u16>,
    /// Allocation of the last global access, by position in the launch's list.
    pub(crate) last_allocation: usize,
    arrivals: Vec<Arrivals>,
}

/// Threads that arrived at a barrier without waiting (`bar.arrive`).
#[derive(Clone, Copy, Default)]
struct Arrivals {
    threads: u32,
}

/// Barriers of a block.
const BARRIERS: usize = 16;

/// A block's state and warps, reused for all blocks that one host thread executes.
pub(crate) struct Block<'l> {
    pub(crate) state: BlockState<'l>,
    warps: Vec<Warp>,
}

impl<'l> Block<'l> {
    pub(crate) fn new(launch: &'l Launch<'l>) -> Self {
        let threads = launch.threads() as usize;
        let kernel = launch.kernel;
        let shared_bytes = launch.shared_bytes();
        let warps = (0..threads.div_ceil(LANES)).map(|index| Warp::new(kernel, index)).collect();
        let state = BlockState {
            launch,
            index: [0; 3],
            linear: 0,
            shared: vec![0; shared_bytes],
            shared_shadow: SharedShadow::new(shared_bytes),
            run: 0,
            epoch: 0,
            counters: KernelCounters::default(),
            acquired: Acquired::default(),
            fenced: None,
            last_allocation: 0,
            arrivals: vec![Arrivals::default(); BARRIERS],
        };
        Self { state, warps }
    }

    /// Runs the block with this linear index.
    pub(crate) fn run(&mut self, linear: u32) -> Result<(), Fault> {
        let Self { state, warps } = self;
        state.start(linear);
        for warp in warps.iter_mut() {
            warp.start(state);
        }
        loop {
            let mut running = false;
            for position in 0..warps.len() {
                let position = state.launch.order(position, warps.len());
                let warp = &mut warps[position];
                if matches!(warp.stop, Stop::Running) {
                    running = true;
                    warp.run(state).map_err(|trouble| warp.fault(state, trouble))?;
                }
            }
            if !running {
                return Ok(());
            }
            open_barriers(state, warps)?;
        }
    }
}

impl BlockState<'_> {
    fn start(&mut self, linear: u32) {
        let [x, y, _] = self.launch.grid;
        self.linear = linear;
        self.index = [linear % x, linear / x % y, linear / x / y];
        self.run = self.run.wrapping_add(1).max(1);
        if self.run == 1 {
            // The run numbers begin again: records of old runs must not be taken for new ones.
            self.shared_shadow = SharedShadow::new(self.shared.len());
        }
        // NaN in every format: what is read before it is written shows in the result.
        self.shared.fill(0xFF);
        self.epoch = 0;
        self.acquired = Acquired::default();
        self.fenced = None;
        self.counters.blocks += 1;
        self.arrivals.fill(Arrivals::default());
    }

    /// This block's warp as a party of the global race check.
    pub(crate) fn party(&self, warp: u32) -> Party {
        Party { launch: self.launch.id, block: self.linear, warp, epoch: self.epoch }
    }

    /// This block's warp as a party of the shared race check.
    pub(crate) fn shared_party(&self, warp: u32) -> Party {
        Party { launch: self.run, block: 0, warp, epoch: self.epoch }
    }

    /// Threads that pass a barrier without waiting.
    pub(crate) fn arrive(&mut self, id: u32, threads: u32) -> Result<(), Trouble> {
        let slot = self.arrivals.get_mut(id as usize);
        slot.ok_or_else(|| Trouble::new(format!("barrier {id}; a block has 16")))?.threads +=
            threads;
        Ok(())
    }
}

/// Lets the warps go on whose barrier is complete.
fn open_barriers(state: &mut BlockState<'_>, warps: &mut [Warp]) -> Result<(), Fault> {
    let mut first_waiting = None;
    let mut opened = false;
    for id in 0..BARRIERS {
        let waits_here =
            |warp: &Warp| matches!(warp.stop, Stop::Barrier { id: at, .. } if at as usize == id);
        let Some(position) = warps.iter().position(waits_here) else { continue };
        first_waiting = first_waiting.or(Some((position, id)));
        let wanted = match warps[position].stop {
            Stop::Barrier { threads: Some(threads), .. } => threads,
            _ => state.launch.threads(),
        };
        let waiting: u32 =
            warps.iter().filter(|warp| waits_here(warp)).map(Warp::threads_waiting).sum();
        if waiting + state.arrivals[id].threads < wanted {
            continue;
        }
        for warp in warps.iter_mut().filter(|warp| waits_here(warp)) {
            warp.resume();
        }
        state.arrivals[id].threads = 0;
        state.epoch = state.epoch.wrapping_add(1);
        state.counters.barriers += 1;
        opened = true;
    }
    match first_waiting {
        Some((position, id)) if !opened => {
            let arrived: u32 = warps.iter().map(Warp::threads_waiting).sum();
            let total = state.launch.threads();
            let what = format!(
                "barrier {id} is not reached by all threads: {arrived} of {total} wait, the others ended or wait elsewhere"
            );
            Err(warps[position].fault(state, Trouble::new(what)))
        }
        _ => Ok(()),
    }
}
