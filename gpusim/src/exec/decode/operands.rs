//! Operands to rows and predicates.

use super::names::{Place, Slot};
use super::{Decoder, unknown_name};
use crate::exec::program::{PredIndex, PredSource, RowIndex, Special};
use crate::ptx::{Operand, PtxError, Space, Statement};

impl Decoder<'_> {
    pub(super) fn guard(
        &self,
        statement: &Statement,
    ) -> Result<Option<(PredIndex, bool)>, PtxError> {
        let Some((name, negated)) = &statement.guard else { return Ok(None) };
        match self.names.register(name) {
            Some(Slot::Pred(index)) => Ok(Some((index, *negated))),
            _ => Err(unknown_name(statement.line, name)),
        }
    }

    /// The row of a source; `bits` is the width a literal is cut to.
    pub(super) fn source(
        &mut self,
        line: u32,
        operand: &Operand,
        bits: u32,
    ) -> Result<RowIndex, PtxError> {
        let cut = |value: u64| if bits >= 64 { value } else { value & ((1 << bits) - 1) };
        match operand {
            Operand::Int(value) => self.names.constant(cut(*value)),
            Operand::F32(value) => self.names.constant(u64::from(*value)),
            // A decimal number is an f64 that becomes an f32 where one is wanted.
            Operand::F64(value) if bits == 32 => {
                let narrow = f64::from_bits(*value) as f32;
                self.names.constant(u64::from(narrow.to_bits()))
            }
            Operand::F64(value) => self.names.constant(*value),
            Operand::Name(name) => self.named_source(line, name),
            Operand::Address { base, offset } => {
                let Operand::Name(name) = base.as_ref() else {
                    return Err(misplaced(line, operand));
                };
                match self.names.variable(name) {
                    Some(Place::Fixed { address, .. }) => {
                        self.names.constant(address.wrapping_add_signed(*offset))
                    }
                    _ => Err(misplaced(line, operand)),
                }
            }
            _ => Err(misplaced(line, operand)),
        }
    }

    fn named_source(&mut self, line: u32, name: &str) -> Result<RowIndex, PtxError> {
        if let Some(Slot::Row { index, .. }) = self.names.register(name) {
            return Ok(index);
        }
        if let Some(special) = special_register(name) {
            return self.names.special(special);
        }
        if name == "WARP_SZ" {
            return self.names.constant(32);
        }
        match self.names.variable(name) {
            Some(Place::Fixed { address, .. }) => self.names.constant(address),
            Some(Place::DynamicShared) => self.names.dynamic_shared(),
            None => Err(unknown_name(line, name)),
        }
    }

    /// The row a result goes to; `_` gets one that nobody reads.
    pub(super) fn destination(
        &mut self,
        line: u32,
        operand: &Operand,
    ) -> Result<RowIndex, PtxError> {
        self.destination_bits(line, operand).map(|(index, _)| index)
    }

    /// The row a result goes to and its declared width.
    pub(super) fn destination_bits(
        &mut self,
        line: u32,
        operand: &Operand,
    ) -> Result<(RowIndex, u32), PtxError> {
        let Operand::Name(name) = operand else { return Err(misplaced(line, operand)) };
        if name == "_" {
            return Ok((self.names.new_row()?, 64));
        }
        match self.names.register(name) {
            Some(Slot::Row { index, bits }) => Ok((index, bits)),
            _ => Err(unknown_name(line, name)),
        }
    }

    /// The predicate a result goes to, `None` for `_`.
    pub(super) fn pred_destination(
        &self,
        line: u32,
        operand: &Operand,
    ) -> Result<Option<PredIndex>, PtxError> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(None),
            Operand::Name(name) => match self.names.register(name) {
                Some(Slot::Pred(index)) => Ok(Some(index)),
                _ => Err(unknown_name(line, name)),
            },
            _ => Err(misplaced(line, operand)),
        }
    }

    /// A predicate source: a register, its opposite, or a literal.
    pub(super) fn pred_source(&self, line: u32, operand: &Operand) -> Result<PredSource, PtxError> {
        match operand {
            Operand::Not(inner) => {
                let (index, negated) = self.pred_source(line, inner)?;
                Ok((index, !negated))
            }
            Operand::Int(value) => Ok((None, *value == 0)),
            _ => self.pred_destination(line, operand).map(|index| (index, false)),
        }
    }

    /// Whether an operand is a declared predicate.
    pub(super) fn is_pred(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Name(name) if matches!(self.names.register(name), Some(Slot::Pred(_))))
    }

    /// The rows of `{a, b, …}` or of a single register, as results with their widths.
    pub(super) fn destinations(
        &mut self,
        line: u32,
        operand: &Operand,
    ) -> Result<Vec<(RowIndex, u32)>, PtxError> {
        match operand {
            Operand::Vector(parts) => {
                parts.iter().map(|part| self.destination_bits(line, part)).collect()
            }
            _ => Ok(vec![self.destination_bits(line, operand)?]),
        }
    }

    /// The rows of `{a, b, …}` or of a single operand, as sources.
    pub(super) fn sources(
        &mut self,
        line: u32,
        operand: &Operand,
        bits: u32,
    ) -> Result<Vec<RowIndex>, PtxError> {
        match operand {
            Operand::Vector(parts) => {
                parts.iter().map(|part| self.source(line, part, bits)).collect()
            }
            _ => Ok(vec![self.source(line, operand, bits)?]),
        }
    }

    /// `[base + offset]` as row, offset and, for a variable, its space.
    pub(super) fn address(
        &mut self,
        line: u32,
        operand: &Operand,
    ) -> Result<(RowIndex, i64, Option<Space>), PtxError> {
        let Operand::Address { base, offset } = operand else {
            return Err(misplaced(line, operand));
        };
        let mut space = None;
        if let Operand::Name(name) = base.as_ref()
            && self.names.register(name).is_none()
        {
            space = match self.names.variable(name) {
                Some(Place::Fixed { space, .. }) => Some(space),
                Some(Place::DynamicShared) => Some(Space::Shared),
                None => return Err(unknown_name(line, name)),
            };
        }
        Ok((self.source(line, base, 64)?, *offset, space))
    }
}

pub(super) fn misplaced(line: u32, operand: &Operand) -> PtxError {
    PtxError::new(line, format!("operand {operand:?} cannot stand here"))
}

fn special_register(name: &str) -> Option<Special> {
    let axis = || match name.rsplit('.').next() {
        Some("y") => 1,
        Some("z") => 2,
        _ => 0,
    };
    Some(match name.strip_prefix('%')?.split('.').next()? {
        "tid" => Special::Tid(axis()),
        "ntid" => Special::Ntid(axis()),
        "ctaid" => Special::Ctaid(axis()),
        "nctaid" => Special::Nctaid(axis()),
        "laneid" => Special::LaneId,
        "warpid" => Special::WarpId,
        "nwarpid" => Special::NumWarps,
        "smid" => Special::SmId,
        "nsmid" => Special::NumSms,
        "gridid" => Special::GridId,
        "lanemask_eq" => Special::LaneMaskEq,
        "lanemask_lt" => Special::LaneMaskLt,
        "lanemask_le" => Special::LaneMaskLe,
        "lanemask_gt" => Special::LaneMaskGt,
        "lanemask_ge" => Special::LaneMaskGe,
        "dynamic_smem_size" => Special::DynamicSharedBytes,
        "total_smem_size" => Special::TotalSharedBytes,
        _ => return None,
    })
}
