//! Drafts of one request, whoever made them: recorded, local, or a worker's just now.

use std::io::Read;

use dspark::client::SparkClient;
use dspark::protocol::{EntryStatus, Limits, StepReply, StepRequest};
use dspark::shadow::{BlockAt, Drafted, ShadowReport};
use dspark::trace::RoundReader;

use crate::exit::{Code, Failure, OrExit};

/// Recorded rounds of a trace.
pub(crate) type Rounds = RoundReader<Box<dyn Read>>;

/// Bodies of a STEP and of its reply.
pub(crate) type Bodies = (Vec<u8>, Vec<u8>);

/// Draft positions a client consumes of a block of `num_spec` (contract-notes D26).
pub(crate) fn consumed(n_out: u8, num_spec: u32) -> usize {
    let num_spec = num_spec as usize;
    if n_out == 0 { num_spec } else { usize::from(n_out).min(num_spec) }
}

/// The drafts a client got for a request of its last round, if they may be used.
pub(crate) fn remote_drafts(
    client: &SparkClient,
    request: usize,
    consumed: usize,
) -> Option<Drafted> {
    let usable = client.rank0().results().get(request)?.usable;
    let drafts = client.rank0().drafts(request);
    usable.then(|| Drafted {
        ids: drafts.ids[..consumed].to_vec(),
        confidence: drafts.confidence[..consumed].to_vec(),
        margin: drafts.margin[..consumed].to_vec(),
    })
}

/// The drafts a recorded reply holds for the request in `slot`, if they were usable.
pub(crate) fn recorded_drafts(
    step: &[u8],
    reply: &[u8],
    limits: &Limits,
    slot: u8,
    consumed: usize,
) -> Option<Drafted> {
    let step = StepRequest::parse(step, limits).ok()?;
    let reply = StepReply::parse(reply)?;
    let entry = step.entries.iter().position(|e| e.slot == slot && e.need_draft())?;
    let usable = entry < reply.statuses.len()
        && reply.status(entry).is_some_and(EntryStatus::has_drafts)
        && reply.ids(entry).len() >= consumed;
    usable.then(|| Drafted {
        ids: reply.ids(entry).take(consumed).collect(),
        confidence: reply.confidence(entry).take(consumed).collect(),
        margin: reply.margin(entry).take(consumed).collect(),
    })
}

/// STEP and reply that another trace recorded for this engine step. Both traces are read once, in order
/// of their steps.
pub(crate) fn expected(expect: &mut Rounds, step_id: u64) -> Result<Option<Bodies>, Failure> {
    loop {
        let Some(next) = expect.peek_step_id().or_exit(Code::BadInput)? else { return Ok(None) };
        if next > step_id {
            return Ok(None);
        }
        let round = expect.next_round().or_exit(Code::BadInput)?;
        if let Some(round) = round.filter(|_| next == step_id) {
            return Ok(round.reply.map(|reply| (round.body.to_vec(), reply.to_vec())));
        }
    }
}

/// Adds a pair of blocks, or notes that one side has none.
pub(crate) fn pair(
    report: &mut ShadowReport,
    at: BlockAt,
    left: Option<&Drafted>,
    right: Option<&Drafted>,
) {
    match (left, right) {
        (Some(left), Some(right)) => report.add(at, left, right),
        (None, None) => {}
        _ => report.one_sided += 1,
    }
}
