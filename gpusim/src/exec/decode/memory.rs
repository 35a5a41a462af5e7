//! Loads, stores, atomics, asynchronous copies and matrix loads.

use super::Decoder;
use crate::exec::alu::Opcode;
use crate::exec::program::{Access, Action, Atomic, AtomicOp, MemorySpace};
use crate::ptx::{Operand, PtxError, Space, Statement};

impl Decoder<'_> {
    pub(super) fn memory(
        &mut self,
        op: &Opcode<'_>,
        statement: &Statement,
    ) -> Result<Action, PtxError> {
        match op.name {
            "ld" | "ldu" => self.load(op, statement),
            "st" => self.store(op, statement),
            "atom" | "red" => self.atomic(op, statement),
            "cp" => self.copy_async(op, statement),
            _ => self.load_matrix(op, statement),
        }
    }

    fn load(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let [destination, address] = without_hint(op, &statement.operands) else {
            return Ok(Action::Unknown);
        };
        let line = statement.line;
        let rows = self.destinations(line, destination)?;
        let mut access = self.access(op, line, address)?;
        if op.ty().is_signed() {
            access.extend_to = rows.first().map(|(_, bits)| *bits);
        }
        access.registers = rows.into_iter().map(|(row, _)| row).collect();
        Ok(Action::Load(access))
    }

    fn store(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let [address, source] = without_hint(op, &statement.operands) else {
            return Ok(Action::Unknown);
        };
        let line = statement.line;
        let registers = self.sources(line, source, op.ty().bits)?;
        let mut access = self.access(op, line, address)?;
        access.registers = registers;
        Ok(Action::Store(access))
    }

    fn access(
        &mut self,
        op: &Opcode<'_>,
        line: u32,
        address: &Operand,
    ) -> Result<Access, PtxError> {
        let (row, offset, variable) = self.address(line, address)?;
        let space = match (space_of(op), variable) {
            // Arguments of a device function live in local memory.
            (MemorySpace::Param, Some(Space::Local)) => MemorySpace::Local,
            (space, _) => space,
        };
        let strong = ["volatile", "relaxed", "acquire", "release", "mmio"];
        Ok(Access {
            space,
            bytes: op.ty().bytes(),
            address: row,
            offset,
            registers: Vec::new(),
            extend_to: None,
            is_strong: strong.iter().any(|word| op.has(word)),
        })
    }

    fn atomic(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let line = statement.line;
        let names = [
            ("add", AtomicOp::Add),
            ("min", AtomicOp::Min),
            ("max", AtomicOp::Max),
            ("and", AtomicOp::And),
            ("or", AtomicOp::Or),
            ("xor", AtomicOp::Xor),
            ("exch", AtomicOp::Exch),
            ("cas", AtomicOp::Cas),
            ("inc", AtomicOp::Inc),
            ("dec", AtomicOp::Dec),
        ];
        let Some((_, kind)) = names.iter().find(|(name, _)| op.has(name)) else {
            return Ok(Action::Unknown);
        };
        let (destination, operands) = match (op.name, statement.operands.as_slice()) {
            ("red", operands) => (None, operands),
            (_, [destination, operands @ ..]) => {
                (Some(self.destination(line, destination)?), operands)
            }
            _ => return Ok(Action::Unknown),
        };
        let (address, a, b) = match operands {
            [address, a] => (address, a, a),
            [address, a, b] => (address, a, b),
            _ => return Ok(Action::Unknown),
        };
        if matches!(a, Operand::Vector(_)) {
            return Ok(Action::Unknown);
        }
        let ty = op.ty();
        let (row, offset, _) = self.address(line, address)?;
        Ok(Action::Atomic(Atomic {
            op: *kind,
            ty,
            space: space_of(op),
            destination,
            address: row,
            offset,
            a: self.source(line, a, ty.bits)?,
            b: self.source(line, b, ty.bits)?,
            releases: op.has("release") || op.has("acq_rel"),
        }))
    }

    fn copy_async(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let line = statement.line;
        if !op.has("async") || op.has("bulk") || op.has("mbarrier") {
            return Ok(Action::Unknown);
        }
        if op.has("commit_group") {
            return Ok(Action::CopyCommit);
        }
        if op.has("wait_all") {
            return Ok(Action::CopyWait(None));
        }
        let operands = without_hint(op, &statement.operands);
        if op.has("wait_group") {
            let [Operand::Int(groups)] = operands else { return Ok(Action::Unknown) };
            return Ok(Action::CopyWait(usize::try_from(*groups).ok()));
        }
        let [to, from, Operand::Int(bytes), rest @ ..] = operands else {
            return Ok(Action::Unknown);
        };
        let source_bytes = match rest {
            [] => None,
            [source_bytes] if !self.is_pred(source_bytes) => {
                Some(self.source(line, source_bytes, 32)?)
            }
            _ => return Ok(Action::Unknown),
        };
        let (to, to_offset, _) = self.address(line, to)?;
        let (from, from_offset, _) = self.address(line, from)?;
        let bytes = match bytes {
            4 => 4,
            8 => 8,
            16 => 16,
            _ => return Ok(Action::Unknown),
        };
        Ok(Action::CopyAsync { to, to_offset, from, from_offset, bytes, source_bytes })
    }

    fn load_matrix(&mut self, op: &Opcode<'_>, statement: &Statement) -> Result<Action, PtxError> {
        let [destination, address] = statement.operands.as_slice() else {
            return Ok(Action::Unknown);
        };
        let line = statement.line;
        let rows = self.destinations(line, destination)?;
        let count = [("x1", 1), ("x2", 2), ("x4", 4)]
            .iter()
            .find(|(name, _)| op.has(name))
            .map(|(_, n)| *n);
        if count != Some(rows.len()) || !op.has("m8n8") || op.ty().bits != 16 {
            return Ok(Action::Unknown);
        }
        let (address, offset, _) = self.address(line, address)?;
        let registers = rows.into_iter().map(|(row, _)| row).collect();
        Ok(Action::LoadMatrix { registers, address, offset, transposed: op.has("trans") })
    }
}

/// The operands without the cache policy that `.L2::cache_hint` appends.
fn without_hint<'a>(op: &Opcode<'_>, operands: &'a [Operand]) -> &'a [Operand] {
    match operands {
        [rest @ .., _] if op.has("L2::cache_hint") => rest,
        _ => operands,
    }
}

fn space_of(op: &Opcode<'_>) -> MemorySpace {
    let space = op.suffixes.iter().find_map(|part| match part.split("::").next()? {
        "global" | "const" => Some(MemorySpace::Global),
        "shared" => Some(MemorySpace::Shared),
        "local" => Some(MemorySpace::Local),
        "param" => Some(MemorySpace::Param),
        _ => None,
    });
    space.unwrap_or(MemorySpace::Generic)
}
