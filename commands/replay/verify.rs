//! The verdict of a replay: does the worker hold what an undisturbed run would have left there?
//!
//! Rank 0's ring is exact whatever the link did. So every live slot is drafted once over the windows that
//! the worker was left with, and once over windows that a new session was sent whole from the ring. A
//! row that is wrong, missing or left over gives other drafts.

use std::time::Duration;

use dspark::client::rank0::EngineRound;
use dspark::client::{ConnectError, SparkClient};
use dspark::plan::RowBlock;
use dspark::shadow::{BlockAt, Drafted, ShadowReport};

use crate::drafts::remote_drafts;

/// Step id of the verifying rounds: no engine has it.
const STEP_ID: u64 = u64::MAX;

/// What the final drafts said.
pub(crate) struct Verdict {
    /// Left: the windows as they were; right: the windows sent anew.
    pub(crate) comparison: ShadowReport,
    /// Live slots that could not be drafted on one of the sides.
    pub(crate) missing: u64,
    /// Of the live slots, those that were sent again before the first drafts: rank 0 knew them as lost.
    pub(crate) resynced: u64,
}

impl Verdict {
    /// Whether every live slot drafts the same on both sides.
    pub(crate) fn windows_equal(&self) -> bool {
        let c = &self.comparison;
        self.missing == 0 && c.mismatches.iter().all(|m| m.near_tie)
    }
}

/// Drafts every live slot over the windows as they are, then over windows sent anew.
pub(crate) fn final_drafts(
    client: &mut SparkClient,
    near_tie: f32,
) -> Result<Verdict, ConnectError> {
    client.end_faults();
    client.connect()?;
    let (as_is, resynced) = draft_all(client);
    client.rank0_mut().start_session();
    client.connect()?;
    let (anew, _) = draft_all(client);
    let num_spec = as_is.iter().flatten().map(|d| d.ids.len()).max().unwrap_or(0);
    let mut verdict =
        Verdict { comparison: ShadowReport::new(num_spec, near_tie), missing: 0, resynced };
    for (slot, (left, right)) in (0u8..).zip(as_is.iter().zip(&anew)) {
        let at = BlockAt { step_id: STEP_ID, slot, resync: false };
        match (left, right) {
            (Some(left), Some(right)) => verdict.comparison.add(at, left, right),
            _ => verdict.missing += 1,
        }
    }
    Ok(verdict)
}

/// One round that re-drafts every live slot; the drafts in slot order, and how many were sent again.
fn draft_all(client: &mut SparkClient) -> (Vec<Option<Drafted>>, u64) {
    let mut requests = Vec::new();
    client.rank0().redraft(&mut requests);
    let rows = RowBlock::new(&[], client.rank0().geometry().row_bytes());
    let round = EngineRound { step_id: STEP_ID, want_margin: true, requests: &requests, rows };
    match client.round(&round, u64::MAX, Duration::MAX) {
        Ok(_) => {
            let results = client.rank0().results();
            let resynced = results.iter().filter(|r| r.resync).count() as u64;
            let num_spec = client.rank0().geometry().num_spec as usize;
            let drafts = (0..requests.len()).map(|i| remote_drafts(client, i, num_spec)).collect();
            (drafts, resynced)
        }
        Err(error) => {
            tracing::error!(%error, "the verifying round is none");
            (vec![None; requests.len()], 0)
        }
    }
}
