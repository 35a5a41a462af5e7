//! Which parameters a kernel may write through.
//!
//! The race check of global memory keeps a record per word, which is too much for weights of
//! hundreds of megabytes that are only read. So it is kept for the memory behind those parameters
//! from which a stored-to address can have been computed: every register carries the set of
//! parameters that flow into it, whatever the order of instructions.

use std::collections::HashMap;

use crate::exec::program::{Access, Action, Instruction, MemorySpace, Param, RowIndex, Writes};

/// Parameters that may flow into a row, one bit each; the top bit stands for "loaded from memory".
type Origin = u64;

const LOADED: Origin = 1 << 63;

/// Analyses a kernel's code.
pub(super) fn written_params(
    code: &[Instruction],
    constants: &[(RowIndex, u64)],
    params: &[Param],
) -> Writes {
    if params.len() > 63 {
        return Writes::Anywhere;
    }
    let constants: HashMap<RowIndex, u64> = constants.iter().copied().collect();
    let mut origins: HashMap<RowIndex, Origin> = HashMap::new();
    loop {
        let before: u64 = origins.values().map(|origin| u64::from(origin.count_ones())).sum();
        for instruction in code {
            flow(&instruction.action, &constants, params, &mut origins);
        }
        let after: u64 = origins.values().map(|origin| u64::from(origin.count_ones())).sum();
        if before == after {
            break;
        }
    }
    let mut written = 0;
    for instruction in code {
        let address = match &instruction.action {
            Action::Store(access) if may_be_global(access) => access.address,
            Action::Atomic(atomic) if atomic.may_be_global() => atomic.address,
            _ => continue,
        };
        written |= origins.get(&address).copied().unwrap_or(LOADED);
    }
    if written & LOADED != 0 {
        return Writes::Anywhere;
    }
    Writes::Params((0..params.len()).filter(|index| written >> index & 1 == 1).collect())
}

fn may_be_global(access: &Access) -> bool {
    matches!(access.space, MemorySpace::Global | MemorySpace::Generic)
}

fn flow(
    action: &Action,
    constants: &HashMap<RowIndex, u64>,
    params: &[Param],
    origins: &mut HashMap<RowIndex, Origin>,
) {
    let mut join = |destination: RowIndex, sources: &[RowIndex]| {
        let origin = sources.iter().filter_map(|row| origins.get(row)).fold(0, |all, o| all | o);
        *origins.entry(destination).or_default() |= origin;
    };
    match action {
        Action::Compute { destination, sources, count, .. } => {
            join(*destination, &sources[..*count]);
        }
        Action::Carry { destination, sources, .. } => join(*destination, sources),
        Action::Select { destination, a, b, .. } => join(*destination, &[*a, *b]),
        Action::Pack { destination, parts, .. } => join(*destination, parts),
        Action::Window { destination, source, .. } => join(*destination, &[*source]),
        Action::Shuffle { destination, value, .. } => join(*destination, &[*value]),
        Action::Unpack { parts, source, .. } => {
            parts.iter().flatten().for_each(|part| join(*part, &[*source]));
        }
        Action::Load(access) => {
            let origin = loaded_from(access, constants, params);
            for row in &access.registers {
                *origins.entry(*row).or_default() |= origin;
            }
        }
        Action::Atomic(atomic) => {
            if let Some(row) = atomic.destination.filter(|_| atomic.ty.bits == 64) {
                *origins.entry(row).or_default() |= LOADED;
            }
        }
        _ => {}
    }
}

/// A parameter load is that parameter; any other 64-bit load may be a pointer from anywhere. A
/// narrower one is an index or a value.
fn loaded_from(access: &Access, constants: &HashMap<RowIndex, u64>, params: &[Param]) -> Origin {
    if access.space != MemorySpace::Param {
        return if access.bytes == 8 { LOADED } else { 0 };
    }
    let Some(base) = constants.get(&access.address) else { return LOADED };
    let at = usize::try_from(base.wrapping_add_signed(access.offset)).unwrap_or(usize::MAX);
    let index =
        params.iter().position(|param| at >= param.offset && at < param.offset + param.bytes);
    index.map_or(LOADED, |index| 1 << index)
}
