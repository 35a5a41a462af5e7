//! What a name stands for: registers by scope, variables by address, and the places both get.

use std::collections::HashMap;

use crate::exec::program::{Instruction, Param, PredIndex, RowIndex, Special};
use crate::ptx::types::{Kind, Type};
use crate::ptx::{Module, PtxError, RegisterNames, Space, Variable};

/// A declared register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    Row { index: RowIndex, bits: u32 },
    Pred(PredIndex),
}

/// Where a variable is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Address in the memory of its space.
    Fixed { space: Space, address: u64 },
    /// Begin of dynamic shared memory, known once all static variables are placed.
    DynamicShared,
}

/// Call slots of a device function, in the local memory of each thread.
#[derive(Clone, Debug, Default)]
pub(super) struct CallFrame {
    pub(super) start: usize,
    pub(super) returns: Vec<u64>,
    pub(super) params: Vec<u64>,
    pub(super) return_row: RowIndex,
}

/// The sizes and tables that decoding leaves behind.
pub(super) struct Layout {
    pub(super) rows: usize,
    pub(super) predicates: usize,
    pub(super) constants: Vec<(RowIndex, u64)>,
    pub(super) specials: Vec<(RowIndex, Special)>,
    pub(super) static_shared: usize,
    pub(super) dynamic_shared_at: usize,
    pub(super) local_bytes: usize,
    pub(super) registers_estimate: u32,
}

impl Layout {
    /// Lets registers share rows, see [`super::compact`].
    pub(super) fn renumber(&mut self, code: &mut [Instruction]) {
        let constants = self.constants.iter().map(|(row, _)| *row);
        let pinned: Vec<RowIndex> =
            constants.chain(self.specials.iter().map(|(row, _)| *row)).collect();
        let (rows, moved) = super::compact::compact(code, self.rows, &pinned);
        self.rows = rows;
        self.constants.iter_mut().for_each(|(row, _)| *row = moved[row]);
        self.specials.iter_mut().for_each(|(row, _)| *row = moved[row]);
    }
}

/// All names visible while a kernel is decoded.
pub(super) struct Names<'m> {
    scopes: Vec<HashMap<String, Slot>>,
    variables: HashMap<String, Place>,
    module_shared: HashMap<&'m str, &'m Variable>,
    globals: &'m HashMap<String, u64>,
    params: HashMap<String, Param>,
    constants: HashMap<u64, RowIndex>,
    dynamic_row: Option<RowIndex>,
    specials: HashMap<Special, RowIndex>,
    special_order: Vec<(RowIndex, Special)>,
    rows: usize,
    declared: usize,
    predicates: usize,
    shared_bytes: usize,
    local_bytes: usize,
}

/// Alignment of dynamic shared memory after the static variables.
const DYNAMIC_ALIGN: usize = 128;

impl<'m> Names<'m> {
    pub(super) fn new(
        module: &'m Module,
        globals: &'m HashMap<String, u64>,
        params: Vec<(String, Param)>,
    ) -> Self {
        let shared = module.variables.iter().filter(|variable| variable.space == Space::Shared);
        Self {
            scopes: Vec::new(),
            variables: HashMap::new(),
            module_shared: shared.map(|variable| (variable.name.as_str(), variable)).collect(),
            globals,
            params: params.into_iter().collect(),
            constants: HashMap::new(),
            dynamic_row: None,
            specials: HashMap::new(),
            special_order: Vec::new(),
            rows: 0,
            declared: 0,
            predicates: 0,
            shared_bytes: 0,
            local_bytes: 0,
        }
    }

    pub(super) fn open_scope(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub(super) fn close_scope(&mut self) {
        self.scopes.pop();
    }

    pub(super) fn declare_registers(
        &mut self,
        ty: Type,
        names: &[RegisterNames],
    ) -> Result<(), PtxError> {
        for register in names {
            match register.count {
                None => self.declare_register(ty, register.name.clone())?,
                Some(count) => {
                    for index in 0..count {
                        self.declare_register(ty, format!("{}{index}", register.name))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn declare_register(&mut self, ty: Type, name: String) -> Result<(), PtxError> {
        let slot = if ty.kind == Kind::Pred {
            let index = PredIndex::try_from(self.predicates)
                .map_err(|_| PtxError::new(0, "more than 65,535 predicates"))?;
            self.predicates += 1;
            Slot::Pred(index)
        } else {
            self.declared += 1;
            Slot::Row { index: self.new_row()?, bits: ty.bits }
        };
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, slot);
        }
        Ok(())
    }

    /// A row that no name stands for.
    pub(super) fn new_row(&mut self) -> Result<RowIndex, PtxError> {
        let index = RowIndex::try_from(self.rows)
            .map_err(|_| PtxError::new(0, "more than 65,535 registers"))?;
        self.rows += 1;
        Ok(index)
    }

    pub(super) fn register(&self, name: &str) -> Option<Slot> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied()
    }

    /// The row that holds a constant in every lane.
    pub(super) fn constant(&mut self, value: u64) -> Result<RowIndex, PtxError> {
        if let Some(&row) = self.constants.get(&value) {
            return Ok(row);
        }
        let row = self.new_row()?;
        self.constants.insert(value, row);
        Ok(row)
    }

    /// The row that holds the begin of dynamic shared memory.
    pub(super) fn dynamic_shared(&mut self) -> Result<RowIndex, PtxError> {
        if let Some(row) = self.dynamic_row {
            return Ok(row);
        }
        let row = self.new_row()?;
        self.dynamic_row = Some(row);
        Ok(row)
    }

    pub(super) fn special(&mut self, special: Special) -> Result<RowIndex, PtxError> {
        if let Some(&row) = self.specials.get(&special) {
            return Ok(row);
        }
        let row = self.new_row()?;
        self.specials.insert(special, row);
        self.special_order.push((row, special));
        Ok(row)
    }

    /// Places a `.shared` or `.local` variable of the body.
    pub(super) fn declare_variable(&mut self, variable: &Variable) {
        let place = self.place(variable);
        self.variables.insert(variable.name.clone(), place);
    }

    fn place(&mut self, variable: &Variable) -> Place {
        let align = variable.align.max(1);
        let used = match variable.space {
            Space::Shared if variable.bytes == 0 => return Place::DynamicShared,
            Space::Shared => &mut self.shared_bytes,
            _ => &mut self.local_bytes,
        };
        let address = used.next_multiple_of(align);
        *used = address + variable.bytes;
        Place::Fixed { space: variable.space, address: address as u64 }
    }

    /// A call slot of `bytes` in local memory.
    pub(super) fn call_slot(&mut self, variable: &Variable) -> u64 {
        let address = self.local_bytes.next_multiple_of(variable.align.max(16));
        self.local_bytes = address + variable.bytes;
        address as u64
    }

    /// Lets a name stand for a call slot.
    pub(super) fn name_call_slot(&mut self, name: &str, address: u64) {
        let place = Place::Fixed { space: Space::Local, address };
        self.variables.insert(name.to_string(), place);
    }

    /// Where a variable is; shared variables of the module get their place on first use, so that
    /// a kernel pays only for those it names.
    pub(super) fn variable(&mut self, name: &str) -> Option<Place> {
        if let Some(place) = self.variables.get(name) {
            return Some(*place);
        }
        if let Some(param) = self.params.get(name) {
            return Some(Place::Fixed { space: Space::Param, address: param.offset as u64 });
        }
        if let Some(&variable) = self.module_shared.get(name) {
            let place = self.place(variable);
            self.variables.insert(name.to_string(), place);
            return Some(place);
        }
        let address = *self.globals.get(name)?;
        Some(Place::Fixed { space: Space::Global, address })
    }

    pub(super) fn finish(mut self) -> Layout {
        let dynamic_shared_at = self.shared_bytes.next_multiple_of(DYNAMIC_ALIGN);
        let mut constants: Vec<(RowIndex, u64)> =
            self.constants.drain().map(|(value, row)| (row, value)).collect();
        constants.extend(self.dynamic_row.map(|row| (row, dynamic_shared_at as u64)));
        constants.sort_unstable();
        // PTX has one name per value; a quarter of them live at once is a usual figure.
        let registers_estimate = u32::try_from(self.declared / 4).unwrap_or(255).clamp(16, 255);
        Layout {
            rows: self.rows,
            predicates: self.predicates,
            constants,
            specials: self.special_order,
            static_shared: self.shared_bytes,
            dynamic_shared_at,
            local_bytes: self.local_bytes,
            registers_estimate,
        }
    }
}
