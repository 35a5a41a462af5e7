//! Comparing two sets of drafts block by block: agreement, first mismatch, margins.
//!
//! After the first mismatch of a block the two sides continue different Markov chains, so later positions
//! say nothing: a position is *comparable* up to and including the first mismatch. A mismatch whose
//! margin on the left side is small is a near-tie: two correct programs may round it differently, so it
//! is counted apart and is no disagreement.
#![forbid(unsafe_code)]

use serde_json::{Value, json};

/// Upper ends of the margin classes of the histogram, in logits; the last class is open.
pub const MARGIN_CLASSES: [f32; 7] = [0.0, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0];
/// Mismatching blocks that are listed.
const WORST_MAX: usize = 1000;

/// The consumed positions of one drafted block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafted {
    /// Draft ids.
    pub ids: Vec<i32>,
    /// Confidences.
    pub confidence: Vec<f32>,
    /// Margins; empty when unknown.
    pub margin: Vec<f32>,
}

/// Where a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAt {
    /// Engine step.
    pub step_id: u64,
    /// Slot of the request.
    pub slot: u8,
    /// Whether its window had just been sent again.
    pub resync: bool,
}

/// Counts of one draft position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Position {
    /// Blocks in which it is comparable.
    pub comparable: u64,
    /// Of these, equal.
    pub equal: u64,
    /// Of these, different within a near-tie.
    pub near_ties: u64,
    /// Sum and largest of the confidence differences where equal.
    pub confidence_sum: f64,
    /// Largest confidence difference where equal.
    pub confidence_max: f32,
}

impl Position {
    /// Equal positions of those that are comparable and no near-tie; `None` without any.
    pub fn agreement(&self) -> Option<f64> {
        ratio(self.equal, self.comparable - self.near_ties)
    }
}

/// A block whose sides differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Where.
    pub at: BlockAt,
    /// First position that differs.
    pub position: usize,
    /// Margin of the left side there, if known.
    pub margin: Option<f32>,
    /// Whether it is a near-tie.
    pub near_tie: bool,
    /// Both sides' ids, all consumed positions.
    pub ids: [Vec<i32>; 2],
}

/// Agreement over a group of blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Blocks compared.
    pub blocks: u64,
    /// Of these, equal in every consumed position.
    pub equal_blocks: u64,
    /// By draft position.
    pub positions: Vec<Position>,
    /// Sum over blocks of the share of consumed positions before the first mismatch.
    request_sum: f64,
}

/// The comparison so far.
#[derive(Clone, Debug)]
pub struct ShadowReport {
    near_tie: f32,
    /// Blocks on undisturbed windows.
    pub steady: Group,
    /// Blocks right behind a resync.
    pub resync: Group,
    /// Blocks by first mismatching position; the last entry counts blocks without one.
    pub first_mismatch: Vec<u64>,
    /// Per class of [`MARGIN_CLASSES`], and one above: comparable positions, and mismatches.
    pub by_margin: [[u64; 2]; MARGIN_CLASSES.len() + 1],
    /// Mismatching blocks in order, at most 1000 of them.
    pub mismatches: Vec<Mismatch>,
    /// Blocks drafted on one side only.
    pub one_sided: u64,
}

impl Group {
    fn new(num_spec: usize) -> Self {
        Self { positions: vec![Position::default(); num_spec], ..Self::default() }
    }

    /// Token-weighted: every comparable position counts once. `None` without any.
    pub fn token_agreement(&self) -> Option<f64> {
        let sum = |of: fn(&Position) -> u64| self.positions.iter().map(of).sum::<u64>();
        ratio(sum(|p| p.equal), sum(|p| p.comparable - p.near_ties))
    }

    /// Request-weighted: every block counts once, with the share of its positions before the first
    /// mismatch. `None` without any block.
    pub fn request_agreement(&self) -> Option<f64> {
        (self.blocks > 0).then(|| self.request_sum / self.blocks as f64)
    }

    fn json(&self) -> Value {
        let position = |p: &Position| {
            json!({ "comparable": p.comparable, "equal": p.equal, "near_ties": p.near_ties,
                "agreement": p.agreement(),
                "confidence_delta_mean": ratio_f(p.confidence_sum, p.equal),
                "confidence_delta_max": p.confidence_max })
        };
        json!({ "blocks": self.blocks, "equal_blocks": self.equal_blocks,
            "token_agreement": self.token_agreement(),
            "request_agreement": self.request_agreement(),
            "positions": self.positions.iter().map(position).collect::<Vec<_>>() })
    }
}

impl ShadowReport {
    /// An empty comparison of blocks of `num_spec` positions; mismatches with a left margin up to
    /// `near_tie` logits are near-ties.
    pub fn new(num_spec: usize, near_tie: f32) -> Self {
        Self {
            near_tie,
            steady: Group::new(num_spec),
            resync: Group::new(num_spec),
            first_mismatch: vec![0; num_spec + 1],
            by_margin: Default::default(),
            mismatches: Vec::new(),
            one_sided: 0,
        }
    }

    /// Compares one block: `left` is the reference. Both hold the same number of consumed positions.
    pub fn add(&mut self, at: BlockAt, left: &Drafted, right: &Drafted) {
        let n = left.ids.len().min(right.ids.len());
        let equal = left.ids.iter().zip(&right.ids).take_while(|(l, r)| l == r).count();
        let margin = left.margin.get(equal).copied();
        let near_tie = equal < n && margin.is_some_and(|m| m <= self.near_tie);
        let group = if at.resync { &mut self.resync } else { &mut self.steady };
        group.blocks += 1;
        group.equal_blocks += u64::from(equal == n);
        group.request_sum += if n == 0 { 1.0 } else { equal as f64 / n as f64 };
        for (j, position) in group.positions.iter_mut().enumerate().take(n.min(equal + 1)) {
            position.comparable += 1;
            if j < equal {
                position.equal += 1;
                let delta = (left.confidence[j] - right.confidence[j]).abs();
                position.confidence_sum += f64::from(delta);
                position.confidence_max = position.confidence_max.max(delta);
            } else if near_tie {
                position.near_ties += 1;
            }
            if let Some(margin) = left.margin.get(j) {
                let class = &mut self.by_margin[margin_class(*margin)];
                class[0] += 1;
                class[1] += u64::from(j == equal);
            }
        }
        let slot = if equal == n { self.first_mismatch.len() - 1 } else { equal };
        self.first_mismatch[slot] += 1;
        if equal < n && self.mismatches.len() < WORST_MAX {
            let ids = [left.ids.clone(), right.ids.clone()];
            self.mismatches.push(Mismatch { at, position: equal, margin, near_tie, ids });
        }
    }

    /// Blocks compared, resyncs included.
    pub fn blocks(&self) -> u64 {
        self.steady.blocks + self.resync.blocks
    }

    /// Token-weighted agreement over all blocks; `None` without a comparable position.
    pub fn agreement(&self) -> Option<f64> {
        let positions = || self.steady.positions.iter().chain(&self.resync.positions);
        let equal = positions().map(|p| p.equal).sum();
        ratio(equal, positions().map(|p| p.comparable - p.near_ties).sum())
    }

    /// Near-ties over all blocks.
    pub fn near_ties(&self) -> u64 {
        let positions = self.steady.positions.iter().chain(&self.resync.positions);
        positions.map(|p| p.near_ties).sum()
    }

    /// The mismatches that weigh most first: largest margin, near-ties and unknown margins last.
    pub fn worst(&self) -> Vec<&Mismatch> {
        let mut worst: Vec<_> = self.mismatches.iter().collect();
        let key = |m: &Mismatch| m.margin.unwrap_or(-1.0);
        worst.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.at.step_id.cmp(&b.at.step_id)));
        worst
    }

    /// The comparison as JSON; margins in logits, shares between 0 and 1.
    pub fn to_json(&self) -> Value {
        let classes = MARGIN_CLASSES.iter().map(|m| json!(m)).chain([Value::Null]);
        let by_margin = classes.zip(&self.by_margin).map(|(up_to, [comparable, mismatches])| {
            json!({ "margin_up_to": up_to, "comparable": comparable, "mismatches": mismatches })
        });
        json!({
            "schema": 1, "blocks": self.blocks(), "agreement": self.agreement(),
            "near_tie_logits": self.near_tie, "near_ties": self.near_ties(),
            "steady": self.steady.json(), "resync": self.resync.json(),
            "first_mismatch": self.first_mismatch, "one_sided": self.one_sided,
            "by_margin": by_margin.collect::<Vec<_>>(),
            "mismatches": self.worst().iter().take(100).map(|m| json!({
                "step_id": m.at.step_id, "slot": m.at.slot, "resync": m.at.resync,
                "position": m.position, "margin": m.margin, "near_tie": m.near_tie,
                "left": m.ids[0], "right": m.ids[1],
            })).collect::<Vec<_>>(),
        })
    }
}

/// Class of a margin: index into [`MARGIN_CLASSES`], or one past it.
fn margin_class(margin: f32) -> usize {
    MARGIN_CLASSES.iter().position(|up_to| margin <= *up_to).unwrap_or(MARGIN_CLASSES.len())
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    ratio_f(part as f64, whole)
}

fn ratio_f(part: f64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: BlockAt = BlockAt { step_id: 1, slot: 0, resync: false };

    fn drafted(ids: [i32; 5], margin: f32) -> Drafted {
        Drafted { ids: ids.to_vec(), confidence: vec![0.5; 5], margin: vec![margin; 5] }
    }

    #[test]
    fn positions_behind_the_first_mismatch_are_not_comparable() {
        let mut report = ShadowReport::new(5, 0.0);
        report.add(AT, &drafted([1, 2, 3, 4, 5], 1.0), &drafted([1, 2, 9, 4, 5], 1.0));
        let comparable: Vec<_> = report.steady.positions.iter().map(|p| p.comparable).collect();
        assert_eq!(comparable, [1, 1, 1, 0, 0]);
        assert_eq!(report.agreement(), Some(2.0 / 3.0));
        assert_eq!(report.steady.request_agreement(), Some(0.4));
        assert_eq!(report.first_mismatch, [0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_near_tie_is_no_disagreement_and_no_agreement() {
        let mut report = ShadowReport::new(5, 0.05);
        report.add(AT, &drafted([1, 2, 3, 4, 5], 0.05), &drafted([9, 2, 3, 4, 5], 1.0));
        assert_eq!((report.near_ties(), report.agreement()), (1, None));
        report.add(AT, &drafted([1, 2, 3, 4, 5], 0.06), &drafted([1, 2, 3, 4, 6], 1.0));
        assert_eq!(report.agreement(), Some(0.8));
        assert_eq!(report.worst()[0].position, 4);
    }

    #[test]
    fn nothing_compared_is_no_number() {
        let report = ShadowReport::new(5, 0.0);
        assert_eq!((report.agreement(), report.steady.request_agreement()), (None, None));
        assert!(report.to_json()["agreement"].is_null());
    }

    #[test]
    fn resync_rounds_are_counted_apart() {
        let mut report = ShadowReport::new(5, 0.0);
        let block = drafted([1, 2, 3, 4, 5], 1.0);
        report.add(BlockAt { resync: true, ..AT }, &block, &block);
        assert_eq!((report.steady.blocks, report.resync.blocks), (0, 1));
    }
}
