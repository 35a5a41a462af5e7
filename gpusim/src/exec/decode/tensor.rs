//! Instructions of a whole warp: tensor-core products, shuffles, votes.

use super::Decoder;
use crate::exec::alu::Opcode;
use crate::exec::program::{Action, MmaFormat, ReduxOp, RowIndex, ShuffleMode, VoteMode};
use crate::ptx::types::Kind;
use crate::ptx::{Operand, PtxError, Statement};

impl Decoder<'_> {
    pub(super) fn warp_wide(
        &mut self,
        op: &Opcode<'_>,
        statement: &Statement,
    ) -> Result<Action, PtxError> {
        let line = statement.line;
        match (op.name, statement.operands.as_slice()) {
            ("mma", operands) => self.mma(op, line, operands),
            ("shfl", operands) if op.has("sync") => self.shuffle(op, line, operands),
            ("vote", [destination, source, members]) if op.has("sync") => {
                self.vote(op, line, destination, source, members)
            }
            ("activemask", [destination]) => {
                Ok(Action::ActiveMask { destination: self.destination(line, destination)? })
            }
            ("match", [destination, value, members]) => {
                self.matching(op, line, destination, value, members)
            }
            ("redux", [destination, value, members]) => {
                let kinds = [
                    ("add", ReduxOp::Add),
                    ("min", ReduxOp::Min),
                    ("max", ReduxOp::Max),
                    ("and", ReduxOp::And),
                    ("or", ReduxOp::Or),
                    ("xor", ReduxOp::Xor),
                ];
                let Some((_, kind)) = kinds.iter().find(|(name, _)| op.has(name)) else {
                    return Ok(Action::Unknown);
                };
                Ok(Action::Redux {
                    op: *kind,
                    signed: op.ty().is_signed(),
                    destination: self.destination(line, destination)?,
                    value: self.source(line, value, 32)?,
                    members: self.source(line, members, 32)?,
                })
            }
            _ => Ok(Action::Unknown),
        }
    }

    /// `mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c`
    fn mma(
        &mut self,
        op: &Opcode<'_>,
        line: u32,
        operands: &[Operand],
    ) -> Result<Action, PtxError> {
        let [d, a, b, c] = operands else { return Ok(Action::Unknown) };
        let &[d_type, a_type, b_type, c_type] = op.types.as_slice() else {
            return Ok(Action::Unknown);
        };
        let is_f32 = |kind, bits| kind == Kind::Float && bits == 32;
        if !is_f32(d_type.kind, d_type.bits)
            || !is_f32(c_type.kind, c_type.bits)
            || a_type != b_type
        {
            return Ok(Action::Unknown);
        }
        let format = match (a_type.kind, a_type.bits) {
            (Kind::Float, 16) => MmaFormat::F16,
            (Kind::Bf16, _) => MmaFormat::Bf16,
            (Kind::Tf32, _) => MmaFormat::Tf32,
            _ => return Ok(Action::Unknown),
        };
        let shapes = [("m16n8k4", 4), ("m16n8k8", 8), ("m16n8k16", 16)];
        let Some((_, depth)) = shapes.iter().find(|(name, _)| op.has(name)) else {
            return Ok(Action::Unknown);
        };
        let d = self.four(line, d, true)?;
        let c = self.four(line, c, false)?;
        let (a, b) = (self.sources(line, a, 32)?, self.sources(line, b, 32)?);
        let per_register = if format == MmaFormat::Tf32 { 1 } else { 2 };
        let b_registers = depth / (4 * per_register);
        match (d, c) {
            (Some(d), Some(c)) if a.len() == 2 * b_registers && b.len() == b_registers => {
                Ok(Action::Mma { format, depth: *depth, d, a, b, c })
            }
            _ => Ok(Action::Unknown),
        }
    }

    fn four(
        &mut self,
        line: u32,
        operand: &Operand,
        written: bool,
    ) -> Result<Option<[RowIndex; 4]>, PtxError> {
        let rows = if written {
            self.destinations(line, operand)?.into_iter().map(|(row, _)| row).collect()
        } else {
            self.sources(line, operand, 32)?
        };
        Ok(rows.try_into().ok())
    }

    fn shuffle(
        &mut self,
        op: &Opcode<'_>,
        line: u32,
        operands: &[Operand],
    ) -> Result<Action, PtxError> {
        let [destination, value, lane, clamp, members] = operands else {
            return Ok(Action::Unknown);
        };
        let modes = [
            ("up", ShuffleMode::Up),
            ("down", ShuffleMode::Down),
            ("bfly", ShuffleMode::Butterfly),
            ("idx", ShuffleMode::Index),
        ];
        let Some((_, mode)) = modes.iter().find(|(name, _)| op.has(name)) else {
            return Ok(Action::Unknown);
        };
        let (destination, in_range) = match destination {
            Operand::Pair(d, p) => (d.as_ref(), self.pred_destination(line, p)?),
            d => (d, None),
        };
        Ok(Action::Shuffle {
            mode: *mode,
            destination: self.destination(line, destination)?,
            in_range,
            value: self.source(line, value, 32)?,
            lane: self.source(line, lane, 32)?,
            clamp: self.source(line, clamp, 32)?,
            members: self.source(line, members, 32)?,
        })
    }

    fn vote(
        &mut self,
        op: &Opcode<'_>,
        line: u32,
        destination: &Operand,
        source: &Operand,
        members: &Operand,
    ) -> Result<Action, PtxError> {
        let source = self.pred_source(line, source)?;
        let members = self.source(line, members, 32)?;
        if op.has("ballot") {
            return Ok(Action::Ballot {
                destination: self.destination(line, destination)?,
                source,
                members,
            });
        }
        let modes = [("all", VoteMode::All), ("any", VoteMode::Any), ("uni", VoteMode::Uniform)];
        let Some((_, mode)) = modes.iter().find(|(name, _)| op.has(name)) else {
            return Ok(Action::Unknown);
        };
        match self.pred_destination(line, destination)? {
            Some(destination) => Ok(Action::Vote { mode: *mode, destination, source, members }),
            None => Ok(Action::Nothing),
        }
    }

    fn matching(
        &mut self,
        op: &Opcode<'_>,
        line: u32,
        destination: &Operand,
        value: &Operand,
        members: &Operand,
    ) -> Result<Action, PtxError> {
        let (row, pred) = match destination {
            Operand::Pair(d, p) => (d.as_ref(), self.pred_destination(line, p)?),
            d => (d, None),
        };
        Ok(Action::Match {
            destination: self.destination(line, row)?,
            value: self.source(line, value, op.ty().bits)?,
            members: self.source(line, members, 32)?,
            all: op.has("all").then_some(pred),
        })
    }
}
