//! Opening a checkpoint and starting a worker on it: what `serve` and `replay --demo` share.

use dspark::checkpoint::{Checkpoint, CheckpointPaths};
use dspark::drafter::Drafter;
use dspark::drafter::cpu::{CpuDrafter, CpuOptions, Logits, Precision};
use dspark::worker::serve::{Running, ServeError, ServeOptions, start};

use crate::args::{Backend, ComputeArgs, ModelArgs, Rounding};
use crate::exit::{Code, Failure, OrExit};
use crate::output::Output;

/// Opens and verifies the checkpoint that the flags name.
pub(crate) fn open_checkpoint(model: &ModelArgs, output: &Output) -> Result<Checkpoint, Failure> {
    if model.demo {
        return Checkpoint::demo().or_exit(Code::BadInput);
    }
    let Some(dir) = &model.checkpoint else {
        return Err(Failure::new(Code::Usage, "no checkpoint given")
            .hint(
                "give one with --checkpoint DIR (or DSPARK_CHECKPOINT), or try the built-in demo:",
            )
            .hint("  dspark serve --demo"));
    };
    let paths = CheckpointPaths {
        dir: dir.clone(),
        receipt: model.receipt.clone(),
        markov: model.markov.clone(),
    };
    let checkpoint = Checkpoint::open(&paths, &output.progress()).or_exit(Code::BadInput)?;
    for warning in &checkpoint.warnings {
        tracing::warn!("{warning}");
    }
    Ok(checkpoint)
}

/// The options of the CPU backend.
fn cpu_options(compute: &ComputeArgs) -> Result<CpuOptions, Failure> {
    if compute.backend == Backend::Cuda {
        return Err(Failure::new(Code::Backend, "this build has no CUDA backend")
            .hint("draft on the CPU with --backend cpu"));
    }
    Ok(CpuOptions {
        max_slots: compute.max_slots,
        precision: match compute.precision {
            Rounding::Bf16 => Precision::Bf16,
            Rounding::F32 => Precision::F32,
        },
        logits: match compute.logits {
            Rounding::Bf16 => Logits::Bf16,
            Rounding::F32 => Logits::F32,
        },
    })
}

/// The drafter that a worker would serve.
pub(crate) fn cpu_drafter(
    checkpoint: &Checkpoint,
    compute: &ComputeArgs,
) -> Result<CpuDrafter, Failure> {
    CpuDrafter::new(checkpoint, cpu_options(compute)?).or_exit(Code::BadInput)
}

/// Starts a worker that drafts from `checkpoint`.
pub(crate) fn start_worker(
    checkpoint: Checkpoint,
    compute: &ComputeArgs,
    options: ServeOptions,
) -> Result<Running, Failure> {
    let cpu = cpu_options(compute)?;
    let build = move || {
        // The drafting thread takes part in its own thread pool, so that a round needs no hand-off and no
        // allocation to enter it. A pool that exists already, in a program with two workers, serves too.
        let pool = rayon::ThreadPoolBuilder::new().use_current_thread().build_global();
        if let Err(error) = pool {
            tracing::debug!(%error, "the thread pool exists already");
        }
        let drafter = CpuDrafter::new(&checkpoint, cpu)?;
        let report = drafter.report();
        tracing::debug!("{report}");
        Ok(Box::new(drafter) as Box<dyn Drafter>)
    };
    start(options, build).map_err(|error| {
        let code = match &error {
            ServeError::Backend(_) => Code::BadInput,
            ServeError::Draft(_) => Code::Backend,
            ServeError::Io { .. } => Code::Unreachable,
            ServeError::Died => Code::Failed,
        };
        Failure::new(code, error)
    })
}
