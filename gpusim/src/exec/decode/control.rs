//! Branches, calls, barriers and fences.

use super::names::CallFrame;
use super::{Decoder, unknown_name};
use crate::exec::alu::Opcode;
use crate::exec::program::Action;
use crate::ptx::{Item, Operand, PtxError, Statement, Variable};

impl<'m> Decoder<'m> {
    pub(super) fn control(
        &mut self,
        op: &Opcode<'_>,
        statement: &Statement,
    ) -> Result<Action, PtxError> {
        let line = statement.line;
        match (op.name, statement.operands.as_slice()) {
            ("bra", [Operand::Name(label)]) => {
                self.branches.push((self.code.len(), vec![label.clone()]));
                Ok(Action::Branch { target: 0 })
            }
            ("brx", [index, Operand::Name(table)]) => {
                let targets = self.branch_tables.get(table).cloned();
                let targets = targets.ok_or_else(|| unknown_name(line, table))?;
                self.branches.push((self.code.len(), targets));
                let index = self.source(line, index, 32)?;
                Ok(Action::BranchIndexed { index, targets: Vec::new() })
            }
            ("call", operands) => self.call(line, operands),
            ("ret", []) => Ok(self.end_of_function()),
            ("exit", []) => Ok(Action::Exit),
            ("trap" | "brkpt", _) => Ok(Action::Trap),
            ("membar", _) => Ok(Action::Fence { device: !op.has("cta") }),
            ("fence", _) => Ok(Action::Fence { device: !op.has("cta") }),
            ("bar" | "barrier", operands) => self.barrier(op, line, operands),
            _ => Ok(Action::Unknown),
        }
    }

    fn barrier(
        &mut self,
        op: &Opcode<'_>,
        line: u32,
        operands: &[Operand],
    ) -> Result<Action, PtxError> {
        if op.has("warp") {
            let [members] = operands else { return Ok(Action::Unknown) };
            return Ok(Action::WarpBarrier { members: self.source(line, members, 32)? });
        }
        let (id, threads) = match operands {
            [id] => (id, None),
            [id, threads] => (id, Some(self.source(line, threads, 32)?)),
            _ => return Ok(Action::Unknown),
        };
        let id = self.source(line, id, 32)?;
        match (op.has("arrive"), op.has("red"), threads) {
            (false, false, threads) => Ok(Action::Barrier { id, threads }),
            (true, false, Some(_)) => Ok(Action::BarrierArrive { id }),
            _ => Ok(Action::Unknown),
        }
    }

    /// `call [(returned),] function [, (arguments)]`
    fn call(&mut self, line: u32, operands: &[Operand]) -> Result<Action, PtxError> {
        let Some(name) = called_name(operands) else { return Ok(Action::Unknown) };
        let Some(return_row) = self.frame(name)?.map(|frame| frame.return_row) else {
            return Err(PtxError::new(line, format!("call of {name}, which has no body")));
        };
        self.calls.push((self.code.len(), name.to_string()));
        Ok(Action::Call { target: 0, return_row })
    }

    /// The call slots of a device function, made when it is first mentioned.
    fn frame(&mut self, name: &str) -> Result<Option<CallFrame>, PtxError> {
        if let Some(frame) = self.frames.get(name) {
            return Ok(Some(frame.clone()));
        }
        let module = self.module;
        let Some(function) = module.functions.iter().find(|f| f.name == name && !f.is_entry) else {
            return Ok(None);
        };
        let mut frame = CallFrame { return_row: self.names.new_row()?, ..CallFrame::default() };
        for variable in &function.returns {
            frame.returns.push(self.named_slot(variable));
        }
        for variable in &function.params {
            frame.params.push(self.named_slot(variable));
        }
        self.frames.insert(name.to_string(), frame.clone());
        self.called.push(function);
        Ok(Some(frame))
    }

    fn named_slot(&mut self, variable: &Variable) -> u64 {
        let address = self.names.call_slot(variable);
        self.names.name_call_slot(&variable.name, address);
        address
    }

    /// A `.param` variable of a call sequence: it stands for the slot of the function that the
    /// sequence calls.
    pub(super) fn declare_argument(
        &mut self,
        variable: &Variable,
        rest: &[Item],
    ) -> Result<(), PtxError> {
        let call = rest.iter().find_map(|item| match item {
            Item::Statement(statement)
                if statement.opcode.first().is_some_and(|name| name == "call") =>
            {
                Some(statement)
            }
            _ => None,
        });
        let Some(statement) = call else { return Ok(()) };
        let Some(name) = called_name(&statement.operands) else { return Ok(()) };
        let Some(frame) = self.frame(name)? else {
            return Err(PtxError::new(
                statement.line,
                format!("call of {name}, which has no body"),
            ));
        };
        let lists: Vec<&Vec<Operand>> = statement
            .operands
            .iter()
            .filter_map(|operand| match operand {
                Operand::List(list) => Some(list),
                _ => None,
            })
            .collect();
        let returned_first = matches!(statement.operands.first(), Some(Operand::List(_)));
        for (index, list) in lists.iter().enumerate() {
            let slots = if returned_first && index == 0 { &frame.returns } else { &frame.params };
            for (operand, slot) in list.iter().zip(slots) {
                if matches!(operand, Operand::Name(name) if *name == variable.name) {
                    self.names.name_call_slot(&variable.name, *slot);
                }
            }
        }
        Ok(())
    }

    /// What `ret` means: the end of a kernel's thread, or the return of a device function.
    pub(super) fn end_of_function(&self) -> Action {
        let frame = self.current.as_ref().and_then(|name| self.frames.get(name));
        frame.map_or(Action::Exit, |frame| Action::Return { return_row: frame.return_row })
    }
}

fn called_name(operands: &[Operand]) -> Option<&str> {
    operands.iter().find_map(|operand| match operand {
        Operand::Name(name) => Some(name.as_str()),
        _ => None,
    })
}
