//! Instructions in which lanes see each other: shuffles, votes, reductions.

use super::lanes::{LANES, lanes_of};
use super::program::{Action, ReduxOp, RowIndex, ShuffleMode, VoteMode};
use super::warp::Warp;
use crate::fault::Trouble;

impl Warp {
    pub(super) fn warp_wide(&mut self, action: &Action, active: u32) -> Result<(), Trouble> {
        match action {
            Action::Shuffle { mode, destination, in_range, value, lane, clamp, members } => {
                self.expect_members(*members, active)?;
                let (value, lane_row, clamp) =
                    (*self.row(*value), *self.row(*lane), *self.row(*clamp));
                let mut out = [0; LANES];
                let mut valid = 0;
                for lane in lanes_of(active) {
                    let (source, holds) = shuffle_source(*mode, lane, lane_row[lane], clamp[lane]);
                    if active >> source & 1 == 0 {
                        let what = format!("shuffle reads lane {source}, which does not take part");
                        return Err(Trouble::at(lane, what));
                    }
                    out[lane] = value[source];
                    valid |= u32::from(holds) << lane;
                }
                self.write(*destination, active, &out);
                if let Some(pred) = in_range {
                    self.write_pred(*pred, active, valid);
                }
            }
            Action::Vote { mode, destination, source, members } => {
                self.expect_members(*members, active)?;
                let votes = self.pred(*source) & active;
                let holds = match mode {
                    VoteMode::All => votes == active,
                    VoteMode::Any => votes != 0,
                    VoteMode::Uniform => votes == active || votes == 0,
                };
                self.write_pred(*destination, active, if holds { u32::MAX } else { 0 });
            }
            Action::Ballot { destination, source, members } => {
                self.expect_members(*members, active)?;
                let votes = self.pred(*source) & active;
                self.write(*destination, active, &[u64::from(votes); LANES]);
            }
            Action::Match { destination, value, members, all } => {
                self.expect_members(*members, active)?;
                let value = *self.row(*value);
                let equal_to = |lane: usize| {
                    lanes_of(active)
                        .filter(|other| value[*other] == value[lane])
                        .fold(0u32, |mask, other| mask | 1 << other)
                };
                let mut out = [0; LANES];
                let unanimous = equal_to(active.trailing_zeros() as usize) == active;
                for lane in lanes_of(active) {
                    out[lane] = match all {
                        None => u64::from(equal_to(lane)),
                        Some(_) if unanimous => u64::from(active),
                        Some(_) => 0,
                    };
                }
                self.write(*destination, active, &out);
                if let Some(Some(pred)) = all {
                    self.write_pred(*pred, active, if unanimous { u32::MAX } else { 0 });
                }
            }
            Action::Redux { op, signed, destination, value, members } => {
                self.expect_members(*members, active)?;
                let value = self.row(*value);
                let values = lanes_of(active).map(|lane| value[lane] as u32);
                let result = values.reduce(|a, b| reduce(*op, *signed, a, b)).unwrap_or(0);
                self.write(*destination, active, &[u64::from(result); LANES]);
            }
            Action::ActiveMask { destination } => {
                self.write(*destination, active, &[u64::from(active); LANES]);
            }
            Action::WarpBarrier { members } => {
                self.expect_members(*members, active)?;
                self.syncs += 1;
            }
            _ => return Err(Trouble::new("the emulator cannot execute this instruction")),
        }
        Ok(())
    }

    /// All lanes that a `.sync` instruction names must be there, and every lane must name itself.
    fn expect_members(&self, members: RowIndex, active: u32) -> Result<(), Trouble> {
        let row = self.row(members);
        for lane in lanes_of(active) {
            let members = row[lane] as u32;
            if members & self.alive != active || members >> lane & 1 == 0 {
                let what =
                    format!("names lanes {members:#010x}, but lanes {active:#010x} are here");
                return Err(Trouble::at(lane, what));
            }
        }
        Ok(())
    }
}

/// The lane a shuffle reads from, and whether that is the one asked for.
fn shuffle_source(mode: ShuffleMode, lane: usize, operand: u64, clamp: u64) -> (usize, bool) {
    let (lane, operand) = (lane as u32, operand as u32 & 31);
    let segment = clamp as u32 >> 8 & 31;
    let bound = lane & segment | clamp as u32 & 31 & !segment;
    let lowest = lane & segment;
    let (source, holds) = match mode {
        ShuffleMode::Up => {
            let source = lane.wrapping_sub(operand);
            (source, source.cast_signed() >= bound.cast_signed())
        }
        ShuffleMode::Down => (lane + operand, lane + operand <= bound),
        ShuffleMode::Butterfly => (lane ^ operand, lane ^ operand <= bound),
        ShuffleMode::Index => {
            let source = lowest | operand & !segment;
            (source, source <= bound)
        }
    };
    (if holds { source } else { lane } as usize, holds)
}

fn reduce(op: ReduxOp, signed: bool, a: u32, b: u32) -> u32 {
    let smaller = if signed { a.cast_signed() < b.cast_signed() } else { a < b };
    match op {
        ReduxOp::Add => a.wrapping_add(b),
        ReduxOp::Min => {
            if smaller {
                a
            } else {
                b
            }
        }
        ReduxOp::Max => {
            if smaller {
                b
            } else {
                a
            }
        }
        ReduxOp::And => a & b,
        ReduxOp::Or => a | b,
        ReduxOp::Xor => a ^ b,
    }
}
