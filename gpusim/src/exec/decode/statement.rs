//! One instruction to an action: arithmetic and predicates here, the rest by family.

use super::Decoder;
use super::operands::misplaced;
use crate::exec::alu::{self, Opcode};
use crate::exec::program::{Action, CarryKind, CarryOp, MemorySpace, PredOp, RowIndex};
use crate::exec::program::{LOCAL_WINDOW, SHARED_WINDOW};
use crate::ptx::types::Kind;
use crate::ptx::{Operand, PtxError, Statement};

impl Decoder<'_> {
    pub(super) fn statement(&mut self, statement: &Statement) -> Result<Action, PtxError> {
        let op = Opcode::new(&statement.opcode);
        let is_pred = op.types.first().is_some_and(|ty| ty.kind == Kind::Pred);
        match op.name {
            "setp" => self.set_predicate(&op, statement),
            "mov" | "not" | "and" | "or" | "xor" if is_pred => self.predicate_logic(&op, statement),
            "selp" => self.select(&op, statement),
            "mov" => self.mov(&op, statement),
            "cvta" => self.window(&op, statement),
            "isspacep" => self.is_space(&op, statement),
            "add" | "sub" | "mad" if op.has("cc") => self.carry(&op, statement),
            "addc" | "subc" | "madc" => self.carry(&op, statement),
            "ld" | "ldu" | "st" | "atom" | "red" | "cp" | "ldmatrix" => self.memory(&op, statement),
            "createpolicy" | "prefetch" | "prefetchu" | "discard" | "applypriority"
            | "nanosleep" | "pmevent" | "griddepcontrol" => Ok(Action::Nothing),
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "bar" | "barrier" | "membar"
            | "fence" | "brkpt" => self.control(&op, statement),
            "mma" | "shfl" | "vote" | "match" | "redux" | "activemask" => {
                self.warp_wide(&op, statement)
            }
            _ => self.compute(&op, statement),
        }
    }

    fn compute(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let line = statement.line;
        let Some((destination, operands)) = statement.operands.split_first() else {
            return Ok(Action::Unknown);
        };
        let Some(f) = alu::select(op) else { return Ok(Action::Unknown) };
        if operands.len() > 4 || matches!(destination, Operand::Pair(..)) {
            return Ok(Action::Unknown);
        }
        let width = op.types.iter().map(|ty| ty.bits).max().unwrap_or(32);
        let mut sources: [RowIndex; 4] = [0; 4];
        for (index, operand) in operands.iter().enumerate() {
            // The addend of a widening product is twice as wide as its factors.
            let bits = if op.has("wide") && index == 2 { 64 } else { width };
            sources[index] = self.source(line, operand, bits)?;
        }
        let destination = self.destination(line, destination)?;
        Ok(Action::Compute { f, destination, sources, count: operands.len() })
    }

    fn set_predicate(
        &mut self,
        op: &Opcode<'_>,
        statement: &Statement,
    ) -> Result<Action, PtxError> {
        let line = statement.line;
        let [destination, a, b, rest @ ..] = statement.operands.as_slice() else {
            return Ok(Action::Unknown);
        };
        let Some((f, high)) = alu::select_setp(op) else { return Ok(Action::Unknown) };
        let (destination, opposite) = match destination {
            Operand::Pair(p, q) => {
                (self.pred_destination(line, p)?, self.pred_destination(line, q)?)
            }
            p => (self.pred_destination(line, p)?, None),
        };
        let logic = [("and", PredOp::And), ("or", PredOp::Or), ("xor", PredOp::Xor)];
        let logic = logic.iter().find(|(name, _)| op.has(name)).map(|(_, logic)| *logic);
        let combine = match (logic, rest) {
            (Some(logic), [pred]) => Some((logic, self.pred_source(line, pred)?)),
            (None, []) => None,
            _ => return Ok(Action::Unknown),
        };
        let bits = op.ty().bits;
        let (a, b) = (self.source(line, a, bits)?, self.source(line, b, bits)?);
        Ok(Action::SetPred { f, high, a, b, combine, destination, opposite })
    }

    fn predicate_logic(
        &mut self,
        op: &Opcode<'_>,
        statement: &Statement,
    ) -> Result<Action, PtxError> {
        let line = statement.line;
        let (destination, sources) = match statement.operands.as_slice() {
            [destination, a] => (destination, (a, a)),
            [destination, a, b] => (destination, (a, b)),
            _ => return Ok(Action::Unknown),
        };
        let Some(destination) = self.pred_destination(line, destination)? else {
            return Ok(Action::Nothing);
        };
        let (mut a, mut b) =
            (self.pred_source(line, sources.0)?, self.pred_source(line, sources.1)?);
        let logic = match op.name {
            "and" => PredOp::And,
            "xor" => PredOp::Xor,
            _ => PredOp::Or,
        };
        if op.name == "not" {
            (a.1, b.1) = (!a.1, !b.1);
        }
        Ok(Action::PredLogic { op: logic, destination, a, b })
    }

    fn select(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let line = statement.line;
        let [destination, a, b, pred] = statement.operands.as_slice() else {
            return Ok(Action::Unknown);
        };
        let bits = op.ty().bits;
        Ok(Action::Select {
            destination: self.destination(line, destination)?,
            a: self.source(line, a, bits)?,
            b: self.source(line, b, bits)?,
            pred: self.pred_source(line, pred)?,
        })
    }

    fn mov(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let line = statement.line;
        let bits = op.ty().bits;
        match statement.operands.as_slice() {
            [Operand::Vector(parts), source] => {
                let mut rows = Vec::new();
                for part in parts {
                    let is_sink = matches!(part, Operand::Name(name) if name == "_");
                    rows.push(if is_sink { None } else { Some(self.destination(line, part)?) });
                }
                let source = self.source(line, source, bits)?;
                let bits = bits / part_count(line, parts)?;
                Ok(Action::Unpack { parts: rows, bits, source })
            }
            [destination, Operand::Vector(parts)] => {
                let bits = bits / part_count(line, parts)?;
                let mut rows = Vec::new();
                for part in parts {
                    rows.push(self.source(line, part, bits)?);
                }
                Ok(Action::Pack {
                    destination: self.destination(line, destination)?,
                    parts: rows,
                    bits,
                })
            }
            [destination, Operand::Name(name)] if is_clock(name) => {
                Ok(Action::Clock { destination: self.destination(line, destination)? })
            }
            _ => self.compute(op, statement),
        }
    }

    fn window(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let line = statement.line;
        let [destination, source] = statement.operands.as_slice() else {
            return Ok(Action::Unknown);
        };
        let add = if op.has("shared") || op.has("shared::cta") {
            SHARED_WINDOW
        } else if op.has("local") {
            LOCAL_WINDOW
        } else if op.has("param") {
            return Ok(Action::Unknown);
        } else {
            0
        };
        Ok(Action::Window {
            destination: self.destination(line, destination)?,
            source: self.source(line, source, 64)?,
            add,
            remove: op.has("to"),
        })
    }

    fn is_space(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let [destination, source] = statement.operands.as_slice() else {
            return Ok(Action::Unknown);
        };
        let space = if op.has("global") {
            MemorySpace::Global
        } else if op.has("shared") || op.has("shared::cta") {
            MemorySpace::Shared
        } else if op.has("local") {
            MemorySpace::Local
        } else {
            return Ok(Action::Unknown);
        };
        match self.pred_destination(statement.line, destination)? {
            None => Ok(Action::Nothing),
            Some(destination) => {
                let source = self.source(statement.line, source, 64)?;
                Ok(Action::IsSpace { destination, source, space })
            }
        }
    }

    fn carry(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let line = statement.line;
        let Some((destination, operands)) = statement.operands.split_first() else {
            return Ok(Action::Unknown);
        };
        let kind = match op.name {
            "add" | "addc" => CarryKind::Add,
            "sub" | "subc" => CarryKind::Sub,
            _ if op.has("hi") => CarryKind::MadHigh { signed: op.ty().is_signed() },
            _ => CarryKind::MadLow,
        };
        let bits = op.ty().bits;
        let mut sources: [RowIndex; 3] = [0; 3];
        for (row, operand) in sources.iter_mut().zip(operands) {
            *row = self.source(line, operand, bits)?;
        }
        let op = CarryOp { kind, bits, uses: op.name.ends_with('c'), sets: op.has("cc") };
        Ok(Action::Carry { op, destination: self.destination(line, destination)?, sources })
    }
}

fn is_clock(name: &str) -> bool {
    ["%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo"].contains(&name)
}

fn part_count(line: u32, parts: &[Operand]) -> Result<u32, PtxError> {
    match parts.len() {
        2 => Ok(2),
        4 => Ok(4),
        _ => Err(misplaced(line, &Operand::Vector(parts.to_vec()))),
    }
}
