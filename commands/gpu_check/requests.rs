//! STEPs made up for checks: rows of noise that a position repeats, drafts behind them.

use dspark::drafter::DraftBlocks;
use dspark::geometry::Geometry;
use dspark::plan::{Append, Draft, StepPlan};
use dspark::random::SplitMix64;
use half::bf16;

/// One request's part of a STEP: rows `first_pos ..`, then a draft over all rows from `lo` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) slot: u8,
    pub(super) lo: i64,
    pub(super) first_pos: i64,
    pub(super) rows: usize,
    /// Positions consumed; 0 for rows alone.
    pub(super) n_out: usize,
}

impl Part {
    fn anchor(&self) -> i64 {
        // A STEP has at most some hundred rows.
        self.first_pos + self.rows as i64
    }
}

/// The STEP of some parts.
pub(super) fn plan(geometry: &Geometry, parts: &[Part]) -> StepPlan {
    let mut plan = StepPlan { max_model_len: geometry.max_model_len.into(), ..StepPlan::default() };
    let mut at = 0;
    for (entry, part) in parts.iter().enumerate() {
        let (slot, anchor) = (part.slot, part.anchor());
        if part.rows > 0 {
            let rows = at..at + part.rows;
            at = rows.end;
            plan.appends.push(Append { slot, first_pos: part.first_pos, rows });
        }
        if part.n_out > 0 {
            let lo = part.lo.max(anchor - i64::from(geometry.window));
            plan.drafts.push(Draft {
                entry,
                slot,
                context: lo..anchor,
                anchor_token: token(geometry, slot, anchor),
                anchor_pos: anchor,
                n_out: part.n_out,
            });
        }
    }
    plan
}

fn token(geometry: &Geometry, slot: u8, pos: i64) -> u32 {
    let token = noise(1, slot, pos).below(geometry.vocab_size.into());
    u32::try_from(token).expect("below the vocabulary")
}

/// The rows of some parts: bf16 noise of a size that is the row's own, so that many experts run.
pub(super) fn rows(geometry: &Geometry, parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        for pos in part.first_pos..part.anchor() {
            let mut noise = noise(0, part.slot, pos);
            let scale = 0.5 + 2.5 * noise.unit() as f32;
            bytes.extend((0..geometry.row_elems()).flat_map(|_| {
                let value = scale * (2.0 * noise.unit() as f32 - 1.0);
                bf16::from_f32(value).to_le_bytes()
            }));
        }
    }
    bytes
}

fn noise(stream: u64, slot: u8, pos: i64) -> SplitMix64 {
    SplitMix64::at(stream, slot.into(), pos.cast_unsigned())
}

/// Every bit of one draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) finite: bool,
    pub(super) ids: Vec<i32>,
    pub(super) confidence: Vec<u32>,
    pub(super) margin: Vec<u32>,
}

/// The drafts of a STEP, bit by bit.
pub(super) fn bits(out: &DraftBlocks, drafts: usize) -> Vec<Bits> {
    let words = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    let blocks = (0..drafts).map(|index| out.block(index));
    blocks
        .map(|block| Bits {
            finite: block.finite,
            ids: block.ids.to_vec(),
            confidence: words(block.confidence),
            margin: words(block.margin),
        })
        .collect()
}

impl Bits {
    /// The first `n` positions, zeros behind them.
    pub(super) fn prefix(&self, n: usize) -> Self {
        let mut part = self.clone();
        part.ids[n..].fill(0);
        part.confidence[n..].fill(0);
        part.margin[n..].fill(0);
        part
    }

    /// Largest difference of a margin that a near tie may hide behind; drafts beyond it must agree.
    const NEAR_TIE: f32 = 0.25;

    /// What is wrong with these ids beside those of `other`: the first that differs must be a near tie of
    /// `other`, later ones follow another chain.
    pub(super) fn disagreement(&self, other: &Self) -> Option<String> {
        let pairs = self.ids.iter().zip(&other.ids).zip(&other.margin);
        let (position, ((ours, theirs), margin)) =
            pairs.enumerate().find(|(_, ((ours, theirs), _))| ours != theirs)?;
        let margin = f32::from_bits(*margin);
        let clear = margin > Self::NEAR_TIE || margin.is_nan();
        clear.then(|| {
            format!(
                "position {position}: token {ours} instead of {theirs}, whose margin is {margin}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use dspark::geometry::LIVE;

    use super::*;

    #[test]
    fn a_part_appends_its_rows_and_drafts_behind_them() {
        let part = Part { slot: 2, lo: 0, first_pos: 200, rows: 3, n_out: 5 };
        let append = Part { slot: 0, n_out: 0, rows: 2, ..part };
        let plan = plan(&LIVE, &[append, part]);
        assert_eq!(plan.appends[1].rows, 2..5);
        assert_eq!((plan.drafts.len(), plan.drafts[0].entry), (1, 1));
        assert_eq!((plan.drafts[0].context.clone(), plan.drafts[0].anchor_pos), (75..203, 203));
        let bytes = rows(&LIVE, &[append, part]);
        assert_eq!(bytes.len(), 5 * LIVE.row_bytes());
        let again = rows(&LIVE, &[Part { first_pos: 201, rows: 1, ..part }]);
        assert_eq!(again, bytes[3 * LIVE.row_bytes()..][..LIVE.row_bytes()]);
    }

    #[test]
    fn only_a_near_tie_excuses_another_token() {
        let margin = [0.1f32, 0.3].map(f32::to_bits).to_vec();
        let theirs = Bits { finite: true, ids: vec![1, 2], confidence: vec![0; 2], margin };
        let ours = |ids: [i32; 2]| Bits { ids: ids.to_vec(), ..theirs.clone() };
        assert_eq!(ours([1, 2]).disagreement(&theirs), None);
        assert_eq!(ours([9, 9]).disagreement(&theirs), None);
        assert!(ours([1, 9]).disagreement(&theirs).is_some());
    }
}
