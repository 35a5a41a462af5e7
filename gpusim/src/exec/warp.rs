//! A warp: registers, and which lanes stand where.
//!
//! Lanes that stand at the same instruction form a group. The group with the lowest position runs,
//! so that groups meet again behind a branch. Lanes at a barrier are set aside; the warp waits once
//! all its lanes are there.

use std::collections::VecDeque;

use super::block::BlockState;
use super::copies::PendingCopy;
use super::lanes::{LANES, Row, lanes_of};
use super::program::{Action, CarryKind, CarryOp, Kernel, PredOp, PredSource, RowIndex, Special};
use crate::fault::{Fault, Trouble};

/// Why a warp does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Running,
    Barrier { id: u32, threads: Option<u32> },
    Ended,
}

/// No other group: positions never reach this.
const NEVER: usize = usize::MAX;

pub(crate) struct Warp {
    pub(crate) index: u32,
    pub(crate) stop: Stop,
    pub(super) registers: Vec<Row>,
    pub(super) predicates: Vec<u32>,
    carry: u32,
    pub(super) local: Vec<u8>,
    pub(super) local_bytes: usize,
    /// Synchronisations of the warp, for the race check between lanes.
    pub(super) syncs: u32,
    pub(super) open_copies: Vec<PendingCopy>,
    pub(super) copy_groups: VecDeque<Vec<PendingCopy>>,
    /// Lanes that have not ended.
    pub(super) alive: u32,
    /// The running group.
    mask: u32,
    position: usize,
    /// The other groups, and the lowest position among them.
    others: Vec<(usize, u32)>,
    meets_at: usize,
    /// Lanes at a barrier, and where it stands.
    parked: u32,
    parked_at: usize,
    parked_for: (u32, Option<u32>),
    steps: u64,
}

impl Warp {
    pub(crate) fn new(kernel: &Kernel, index: usize) -> Self {
        Self {
            index: index as u32, // at most 32 warps
            stop: Stop::Ended,
            registers: vec![[0; LANES]; kernel.rows.max(1)],
            predicates: vec![0; kernel.predicates],
            carry: 0,
            local: vec![0; kernel.local_bytes * LANES],
            local_bytes: kernel.local_bytes,
            syncs: 0,
            open_copies: Vec::new(),
            copy_groups: VecDeque::new(),
            alive: 0,
            mask: 0,
            position: 0,
            others: Vec::new(),
            meets_at: NEVER,
            parked: 0,
            parked_at: 0,
            parked_for: (0, None),
            steps: 0,
        }
    }

    /// Begins a block.
    pub(crate) fn start(&mut self, block: &BlockState<'_>) {
        let threads = block.launch.threads() - self.index * LANES as u32;
        self.alive = if threads >= LANES as u32 { u32::MAX } else { (1 << threads) - 1 };
        self.mask = self.alive;
        self.stop = Stop::Running;
        self.position = 0;
        self.others.clear();
        self.meets_at = NEVER;
        self.parked = 0;
        self.steps = 0;
        self.syncs = 0;
        self.open_copies.clear();
        self.copy_groups.clear();
        self.registers.fill([0; LANES]);
        self.predicates.fill(0);
        self.local.fill(0xFF);
        let kernel = block.launch.kernel;
        for (row, value) in &kernel.constants {
            self.registers[usize::from(*row)] = [*value; LANES];
        }
        for (row, special) in &kernel.specials {
            for lane in 0..LANES {
                self.registers[usize::from(*row)][lane] = self.special(block, *special, lane);
            }
        }
    }

    fn special(&self, block: &BlockState<'_>, special: Special, lane: usize) -> u64 {
        let launch = block.launch;
        let bit = 1u32 << lane;
        u64::from(match special {
            Special::Tid(axis) => self.thread(block, lane)[axis],
            Special::Ntid(axis) => launch.block[axis],
            Special::Ctaid(axis) => block.index[axis],
            Special::Nctaid(axis) => launch.grid[axis],
            Special::LaneId => lane as u32,
            Special::WarpId => self.index,
            Special::NumWarps => launch.threads().div_ceil(LANES as u32),
            Special::SmId => 0,
            Special::NumSms => crate::driver::device::MULTIPROCESSORS,
            Special::GridId => u32::from(launch.id),
            Special::LaneMaskEq => bit,
            Special::LaneMaskLt => bit - 1,
            Special::LaneMaskLe => bit | (bit - 1),
            Special::LaneMaskGt => !(bit | (bit - 1)),
            Special::LaneMaskGe => !(bit - 1),
            Special::DynamicSharedBytes => launch.dynamic_shared as u32,
            Special::TotalSharedBytes => launch.shared_bytes() as u32,
        })
    }

    /// Thread index of a lane.
    fn thread(&self, block: &BlockState<'_>, lane: usize) -> [u32; 3] {
        let [x, y, _] = block.launch.block;
        let linear = self.index * LANES as u32 + lane as u32;
        [linear % x, linear / x % y, linear / x / y]
    }

    /// Adds place and text to a failed check.
    pub(crate) fn fault(&self, block: &BlockState<'_>, trouble: Trouble) -> Fault {
        let kernel = block.launch.kernel;
        let position = if self.stop == Stop::Running { self.position } else { self.parked_at };
        let line = kernel.code.get(position).map_or(0, |instruction| instruction.line);
        let first = if self.mask != 0 { self.mask } else { self.parked };
        let lane = trouble.lane().unwrap_or(first.trailing_zeros() as usize % LANES);
        let text = kernel.source.lines().nth((line as usize).saturating_sub(1)).unwrap_or("");
        Fault {
            kernel: kernel.name.clone(),
            block: block.index,
            thread: self.thread(block, lane),
            line,
            text: text.trim().to_string(),
            what: trouble.what().to_string(),
        }
    }

    /// Lanes that wait at a barrier.
    pub(crate) fn threads_waiting(&self) -> u32 {
        if matches!(self.stop, Stop::Barrier { .. }) { self.parked.count_ones() } else { 0 }
    }

    /// Goes on behind the barrier.
    pub(crate) fn resume(&mut self) {
        self.stop = Stop::Running;
        self.mask = self.parked;
        self.position = self.parked_at + 1;
        self.parked = 0;
        self.syncs += 1;
    }

    /// Runs until the warp waits or ends.
    pub(crate) fn run(&mut self, block: &mut BlockState<'_>) -> Result<(), Trouble> {
        let launch = block.launch;
        let code = launch.kernel.code.as_slice();
        while self.stop == Stop::Running {
            let instruction = &code[self.position];
            let active = match instruction.guard {
                None => self.mask,
                Some((pred, false)) => self.mask & self.predicates[usize::from(pred)],
                Some((pred, true)) => self.mask & !self.predicates[usize::from(pred)],
            };
            self.steps += 1;
            if self.steps > launch.steps_max {
                return Err(Trouble::new(format!(
                    "no end after {} instructions",
                    launch.steps_max
                )));
            }
            if active == 0 {
                self.advance();
                continue;
            }
            if self.control(block, &instruction.action, active)? {
                continue;
            }
            self.execute(block, &instruction.action, active)?;
            self.advance();
        }
        block.counters.warp_instructions += std::mem::take(&mut self.steps);
        Ok(())
    }

    fn advance(&mut self) {
        self.position += 1;
        if self.position >= self.meets_at {
            self.settle();
        }
    }

    /// Picks the group with the lowest position and joins those that stand there.
    fn settle(&mut self) {
        if self.mask != 0 {
            self.others.push((self.position, self.mask));
        }
        let Some(lowest) = self.others.iter().map(|(position, _)| *position).min() else {
            self.mask = 0;
            self.meets_at = NEVER;
            return;
        };
        self.position = lowest;
        self.mask = 0;
        let mask = &mut self.mask;
        self.others.retain(|(position, lanes)| {
            let joins = *position == lowest;
            if joins {
                *mask |= lanes;
            }
            !joins
        });
        self.meets_at = self.others.iter().map(|(position, _)| *position).min().unwrap_or(NEVER);
    }

    /// Executes what moves lanes; false when the action is of another kind.
    fn control(
        &mut self,
        block: &mut BlockState<'_>,
        action: &Action,
        active: u32,
    ) -> Result<bool, Trouble> {
        match action {
            Action::Branch { target } => self.jump(active, |_| *target),
            Action::BranchIndexed { index, targets } => {
                let row = *self.row(*index);
                if let Some(lane) =
                    lanes_of(active).find(|lane| row[*lane] as usize >= targets.len())
                {
                    return Err(Trouble::at(lane, "branch index beyond the table"));
                }
                self.jump(active, |lane| targets[row[lane] as usize]);
            }
            Action::Call { target, return_row } => {
                let back = self.position as u64 + 1;
                self.write(*return_row, active, &[back; LANES]);
                self.jump(active, |_| *target);
            }
            Action::Return { return_row } => {
                let row = *self.row(*return_row);
                self.jump(active, |lane| row[lane] as usize);
            }
            Action::Exit => self.end(active),
            Action::Barrier { id, threads } => {
                let lane = active.trailing_zeros() as usize;
                let id = self.row(*id)[lane] as u32;
                if id >= 16 {
                    return Err(Trouble::new(format!("barrier {id}; a block has 16")));
                }
                let threads = threads.map(|row| self.row(row)[lane] as u32);
                self.park(active, id, threads)?;
            }
            Action::BarrierArrive { id } => {
                let id = self.row(*id)[active.trailing_zeros() as usize] as u32;
                block.arrive(id, active.count_ones())?;
                self.advance();
            }
            Action::Trap => return Err(Trouble::new("the kernel stopped itself with trap")),
            Action::Unknown => {
                return Err(Trouble::new("the emulator does not know this instruction"));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sends active lanes to their targets, the others to the next instruction.
    fn jump(&mut self, active: u32, target: impl Fn(usize) -> usize) {
        let first = target(active.trailing_zeros() as usize);
        let stay = self.mask & !active;
        let mut rest = 0;
        for lane in lanes_of(active) {
            let to = target(lane);
            if to != first {
                rest |= 1 << lane;
                self.others.push((to, 1 << lane));
            }
        }
        if stay != 0 {
            self.others.push((self.position + 1, stay));
        }
        self.mask = active & !rest;
        self.position = first;
        if !self.others.is_empty() {
            self.settle();
        }
    }

    fn end(&mut self, active: u32) {
        self.alive &= !active;
        self.mask &= !active;
        if self.mask != 0 {
            self.advance();
            return;
        }
        self.settle();
        self.stop_if_nothing_runs();
    }

    /// Sets lanes aside at a barrier.
    fn park(&mut self, active: u32, id: u32, threads: Option<u32>) -> Result<(), Trouble> {
        if self.parked != 0 && self.parked_at != self.position {
            return Err(Trouble::new("lanes of one warp wait at different barriers"));
        }
        self.parked |= active;
        self.parked_at = self.position;
        self.parked_for = (id, threads);
        self.mask &= !active;
        if self.mask != 0 {
            self.advance();
            return Ok(());
        }
        self.settle();
        self.stop_if_nothing_runs();
        Ok(())
    }

    fn stop_if_nothing_runs(&mut self) {
        if self.mask != 0 {
            return;
        }
        let (id, threads) = self.parked_for;
        self.stop = if self.parked == 0 { Stop::Ended } else { Stop::Barrier { id, threads } };
    }

    /// Executes an action that leaves the lanes where they are.
    fn execute(
        &mut self,
        block: &mut BlockState<'_>,
        action: &Action,
        active: u32,
    ) -> Result<(), Trouble> {
        match action {
            Action::Compute { f, destination, sources, .. } => {
                let mut out = [0; LANES];
                let [a, b, c, d] = sources.map(|row| &self.registers[usize::from(row)]);
                f(&mut out, a, b, c, d);
                self.write(*destination, active, &out);
            }
            Action::Select { destination, a, b, pred } => {
                let choice = self.pred(*pred);
                let (a, b) = (self.row(*a), self.row(*b));
                let out =
                    std::array::from_fn(
                        |lane| {
                            if choice >> lane & 1 == 1 { a[lane] } else { b[lane] }
                        },
                    );
                self.write(*destination, active, &out);
            }
            Action::SetPred { f, high, a, b, combine, destination, opposite } => {
                let (a, b) = (self.row(*a), self.row(*b));
                let holds = f(a, b);
                let (mut p, mut q) = (holds, high.as_ref().map_or(!holds, |high| high(a, b)));
                if let Some((op, source)) = combine {
                    let source = self.pred(*source);
                    (p, q) = (logic(*op, p, source), logic(*op, q, source));
                }
                for (index, value) in [(destination, p), (opposite, q)] {
                    if let Some(index) = index {
                        self.write_pred(*index, active, value);
                    }
                }
            }
            Action::PredLogic { op, destination, a, b } => {
                let value = logic(*op, self.pred(*a), self.pred(*b));
                self.write_pred(*destination, active, value);
            }
            Action::Carry { op, destination, sources } => {
                self.with_carry(*op, *destination, *sources, active);
            }
            Action::Unpack { parts, bits, source } => {
                let source = *self.row(*source);
                let mask = u64::MAX >> (64 - bits);
                for (index, part) in parts.iter().enumerate() {
                    if let Some(row) = part {
                        let out = source.map(|value| value >> (bits * index as u32) & mask);
                        self.write(*row, active, &out);
                    }
                }
            }
            Action::Pack { destination, parts, bits } => {
                let mask = u64::MAX >> (64 - bits);
                let mut out = [0; LANES];
                for (index, part) in parts.iter().enumerate() {
                    let row = self.row(*part);
                    for lane in 0..LANES {
                        out[lane] |= (row[lane] & mask) << (bits * index as u32);
                    }
                }
                self.write(*destination, active, &out);
            }
            Action::Window { destination, source, add, remove } => {
                let row = self.row(*source);
                let out = row.map(|value| {
                    if *remove { value.wrapping_sub(*add) } else { value.wrapping_add(*add) }
                });
                self.write(*destination, active, &out);
            }
            Action::IsSpace { destination, source, space } => {
                let row = self.row(*source);
                let is = |lane: &usize| super::access::space_of_generic(row[*lane]).0 == *space;
                let mask = lanes_of(active).filter(is).fold(0, |mask, lane| mask | 1 << lane);
                self.write_pred(*destination, active, mask);
            }
            Action::Clock { destination } => {
                let now = self.steps + block.counters.warp_instructions;
                self.write(*destination, active, &[now; LANES]);
            }
            Action::Load(access) => self.load(block, access, active)?,
            Action::Store(access) => self.store(block, access, active)?,
            Action::Atomic(atomic) => self.atomic(block, atomic, active)?,
            Action::CopyAsync { .. } => self.copy_async(block, action, active)?,
            Action::CopyCommit => self.commit_copies(active)?,
            Action::CopyWait(pending) => self.wait_copies(block, *pending, active)?,
            Action::LoadMatrix { registers, address, offset, transposed } => {
                self.load_matrix(block, registers, (*address, *offset), *transposed, active)?;
            }
            Action::Mma { .. } => self.mma(block, action, active)?,
            Action::Fence { device } => {
                if *device {
                    block.fenced = Some(block.epoch);
                }
            }
            Action::Nothing => {}
            _ => self.warp_wide(action, active)?,
        }
        Ok(())
    }

    fn with_carry(
        &mut self,
        op: CarryOp,
        destination: RowIndex,
        sources: [RowIndex; 3],
        active: u32,
    ) {
        let [a, b, c] = sources.map(|row| *self.row(row));
        let mask = u128::MAX >> (128 - op.bits);
        let mut out = [0; LANES];
        let mut carry = 0;
        for lane in 0..LANES {
            let flag = u128::from(op.uses && self.carry >> lane & 1 == 1);
            let (x, y, z) = (u128::from(a[lane]), u128::from(b[lane]), u128::from(c[lane]));
            // The borrow of a subtraction is kept as carry; wrapping below zero sets all high bits.
            let value = match op.kind {
                CarryKind::Add => x + y + flag,
                CarryKind::Sub => x.wrapping_sub(y).wrapping_sub(flag),
                CarryKind::MadLow => ((x * y) & mask) + z + flag,
                CarryKind::MadHigh { signed } => high_product(x, y, op.bits, signed) + z + flag,
            };
            out[lane] = (value & mask) as u64; // at most 64 bits are left
            carry |= u32::from(value >> op.bits & 1 == 1) << lane;
        }
        if op.sets {
            self.carry = self.carry & !active | carry & active;
        }
        self.write(destination, active, &out);
    }

    pub(super) fn row(&self, row: RowIndex) -> &Row {
        &self.registers[usize::from(row)]
    }

    /// Writes the active lanes of a register.
    pub(super) fn write(&mut self, row: RowIndex, active: u32, values: &Row) {
        let register = &mut self.registers[usize::from(row)];
        if active == u32::MAX {
            *register = *values;
            return;
        }
        for lane in lanes_of(active) {
            register[lane] = values[lane];
        }
    }

    pub(super) fn pred(&self, (index, negated): PredSource) -> u32 {
        let value = index.map_or(u32::MAX, |index| self.predicates[usize::from(index)]);
        if negated { !value } else { value }
    }

    pub(super) fn write_pred(&mut self, index: u16, active: u32, value: u32) {
        let pred = &mut self.predicates[usize::from(index)];
        *pred = *pred & !active | value & active;
    }
}

fn logic(op: PredOp, a: u32, b: u32) -> u32 {
    match op {
        PredOp::And => a & b,
        PredOp::Or => a | b,
        PredOp::Xor => a ^ b,
    }
}

/// The upper half of a product, as an unsigned number of `bits`.
fn high_product(x: u128, y: u128, bits: u32, signed: bool) -> u128 {
    let product = x * y;
    if !signed {
        return product >> bits;
    }
    // Signed: correct the unsigned product for each negative factor.
    let mask = u128::MAX >> (128 - bits);
    let mut high = product >> bits;
    for (factor, other) in [(x, y), (y, x)] {
        if factor >> (bits - 1) & 1 == 1 {
            high = high.wrapping_sub(other);
        }
    }
    high & mask
}
