//! Which rows an action reads and writes.

use crate::exec::program::{Action, RowIndex};

/// How an action uses a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Read,
    Write,
}

impl Action {
    /// Calls `f` for every row of the action, reads first.
    pub(super) fn visit_rows(&mut self, f: &mut dyn FnMut(&mut RowIndex, Role)) {
        use Role::{Read, Write};
        let mut read = |rows: &mut [&mut RowIndex]| rows.iter_mut().for_each(|row| f(row, Read));
        match self {
            Self::Compute { sources, count, .. } => {
                sources[..*count].iter_mut().for_each(|row| f(row, Read));
            }
            Self::Carry { sources, .. } => sources.iter_mut().for_each(|row| f(row, Read)),
            Self::Select { a, b, .. } | Self::SetPred { a, b, .. } => read(&mut [a, b]),
            Self::Unpack { source, .. }
            | Self::Window { source, .. }
            | Self::IsSpace { source, .. } => read(&mut [source]),
            Self::Pack { parts, .. } => parts.iter_mut().for_each(|row| f(row, Read)),
            Self::Load(access) => read(&mut [&mut access.address]),
            Self::Store(access) => {
                f(&mut access.address, Read);
                access.registers.iter_mut().for_each(|row| f(row, Read));
            }
            Self::Atomic(atomic) => read(&mut [&mut atomic.address, &mut atomic.a, &mut atomic.b]),
            Self::CopyAsync { to, from, source_bytes, .. } => {
                read(&mut [to, from]);
                source_bytes.iter_mut().for_each(|row| f(row, Read));
            }
            Self::LoadMatrix { address, .. } => read(&mut [address]),
            Self::Mma { a, b, c, .. } => {
                a.iter_mut().chain(b).chain(c).for_each(|row| f(row, Read));
            }
            Self::Shuffle { value, lane, clamp, members, .. } => {
                read(&mut [value, lane, clamp, members]);
            }
            Self::Vote { members, .. }
            | Self::Ballot { members, .. }
            | Self::WarpBarrier { members } => read(&mut [members]),
            Self::Match { value, members, .. } | Self::Redux { value, members, .. } => {
                read(&mut [value, members]);
            }
            Self::Barrier { id, threads } => {
                read(&mut [id]);
                threads.iter_mut().for_each(|row| f(row, Read));
            }
            Self::BarrierArrive { id } => read(&mut [id]),
            Self::BranchIndexed { index, .. } => read(&mut [index]),
            Self::Return { return_row } => read(&mut [return_row]),
            _ => {}
        }
        match self {
            Self::Compute { destination, .. }
            | Self::Carry { destination, .. }
            | Self::Select { destination, .. }
            | Self::Pack { destination, .. }
            | Self::Window { destination, .. }
            | Self::Clock { destination }
            | Self::Shuffle { destination, .. }
            | Self::Ballot { destination, .. }
            | Self::Match { destination, .. }
            | Self::Redux { destination, .. }
            | Self::ActiveMask { destination } => f(destination, Write),
            Self::Unpack { parts, .. } => parts.iter_mut().flatten().for_each(|row| f(row, Write)),
            Self::Load(access) => access.registers.iter_mut().for_each(|row| f(row, Write)),
            Self::Atomic(atomic) => atomic.destination.iter_mut().for_each(|row| f(row, Write)),
            Self::LoadMatrix { registers, .. } => {
                registers.iter_mut().for_each(|row| f(row, Write));
            }
            Self::Mma { d, .. } => d.iter_mut().for_each(|row| f(row, Write)),
            Self::Call { return_row, .. } => f(return_row, Write),
            _ => {}
        }
    }
}
