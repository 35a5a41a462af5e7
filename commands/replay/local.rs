//! The local drafter of policies resilience and shadow: the CPU backend, or a second worker.
//!
//! It is given every round, so its context is as exact as rank 0's ring and it can take over at any
//! round boundary (contract §10).

use std::path::PathBuf;
use std::time::Duration;

use dspark::client::SparkClient;
use dspark::client::rank0::{EngineRound, Slot};
use dspark::drafter::cpu::{CpuDrafter, CpuOptions, Logits, Precision};
use dspark::drafter::{DraftBlocks, Drafter};
use dspark::plan::{Append, Draft, StepPlan};
use dspark::protocol::HelloRequest;
use dspark::shadow::Drafted;

use super::options::{Policy, ReplayArgs};
use crate::args::ModelArgs;
use crate::drafts::remote_drafts;
use crate::exit::{Code, Failure, OrExit};
use crate::output::Output;
use crate::worker::open_checkpoint;

/// A local drafter.
pub(crate) enum Local {
    Cpu(Box<LocalDrafter>),
    Worker(Box<SparkClient>),
}

impl Local {
    /// The local drafter that the policy needs, if any.
    pub(crate) fn open(
        args: &ReplayArgs,
        hello: &HelloRequest,
        output: &Output,
    ) -> Result<Option<Self>, Failure> {
        if args.policy == Policy::Capacity {
            return Ok(None);
        }
        if let Some(url) = args.local.as_ref().filter(|l| l.contains("://")) {
            let endpoint = url.parse().or_exit(Code::Usage)?;
            let mut client = super::client(args, endpoint, hello, None)?;
            client.connect().map_err(|e| super::no_session(e, hello))?;
            return Ok(Some(Self::Worker(Box::new(client))));
        }
        let model = ModelArgs {
            checkpoint: args.local.as_ref().map(PathBuf::from),
            receipt: None,
            markov: None,
            demo: args.local.is_none(),
            synthetic: None,
        };
        let checkpoint = open_checkpoint(&model, output)?;
        let options = CpuOptions {
            max_slots: hello.max_slots.get(),
            precision: Precision::Bf16,
            logits: Logits::Bf16,
        };
        let drafter = CpuDrafter::new(&checkpoint, options).or_exit(Code::BadInput)?;
        if let Some(mismatch) = hello.config_mismatch(drafter.geometry()) {
            return Err(Failure::new(Code::BadInput, "the local drafter does not fit the trace")
                .hint(mismatch.to_string()));
        }
        Ok(Some(Self::Cpu(Box::new(LocalDrafter::new(drafter)))))
    }

    /// Takes a round whose rows rank 0 has taken already: `slots` are its slots.
    pub(crate) fn round(
        &mut self,
        round: &EngineRound<'_>,
        slots: &[Slot],
        number: u64,
        now: Duration,
    ) -> Result<(), Failure> {
        match self {
            Self::Cpu(local) => local.round(round, slots),
            Self::Worker(client) => {
                client.round(round, number, now).map(drop).or_exit(Code::BadInput)
            }
        }
    }

    /// Its drafts for request `request` of the round taken last.
    pub(crate) fn drafted(&self, request: usize, consumed: usize) -> Option<Drafted> {
        match self {
            Self::Cpu(local) => local.drafted(request, consumed),
            Self::Worker(client) => remote_drafts(client, request, consumed),
        }
    }
}

/// The CPU backend, driven by rank 0's own windows instead of a session.
pub(crate) struct LocalDrafter {
    drafter: CpuDrafter,
    plan: StepPlan,
    blocks: DraftBlocks,
    /// Index of each request's draft in the plan.
    drafts: Vec<Option<usize>>,
}

impl LocalDrafter {
    fn new(drafter: CpuDrafter) -> Self {
        let geometry = *drafter.geometry();
        Self {
            blocks: DraftBlocks::new(&geometry),
            plan: StepPlan::with_slots(geometry.max_slots as usize),
            drafts: Vec::new(),
            drafter,
        }
    }

    fn round(&mut self, round: &EngineRound<'_>, slots: &[Slot]) -> Result<(), Failure> {
        let geometry = *self.drafter.geometry();
        let window = i64::from(geometry.window);
        self.plan.clear();
        self.plan.max_model_len = i64::from(geometry.max_model_len);
        self.drafts.clear();
        for (entry, request) in round.requests.iter().enumerate() {
            let anchor_pos = request.anchor_pos;
            if !request.rows.is_empty() {
                self.plan.appends.push(Append {
                    slot: request.slot,
                    first_pos: request.first_pos,
                    rows: request.rows.clone(),
                });
            }
            let span = slots[usize::from(request.slot)].window().span;
            let first = span.map_or(anchor_pos, |s| s.lo.max(anchor_pos - window));
            let anchor_token = u32::try_from(request.anchor_token).ok();
            let draft = anchor_token.filter(|_| request.need_draft).map(|anchor_token| Draft {
                entry,
                slot: request.slot,
                context: first..anchor_pos,
                anchor_token,
                anchor_pos,
                n_out: geometry.num_spec as usize,
            });
            self.drafts.push(draft.as_ref().map(|_| self.plan.drafts.len()));
            self.plan.drafts.extend(draft);
        }
        let stepped = self.drafter.step(&self.plan, round.rows, &mut self.blocks);
        stepped.or_exit(Code::Failed)
    }

    fn drafted(&self, request: usize, consumed: usize) -> Option<Drafted> {
        let block = self.blocks.block((*self.drafts.get(request)?)?);
        block.finite.then(|| Drafted {
            ids: block.ids[..consumed].to_vec(),
            confidence: block.confidence[..consumed].to_vec(),
            margin: block.margin[..consumed].to_vec(),
        })
    }
}
