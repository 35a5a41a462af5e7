//! Opening a checkpoint and starting a worker on it: what `serve` and `replay --demo` share.

use std::error::Error;
use std::time::Instant;

use dspark::checkpoint::{
    Checkpoint, CheckpointPaths, DrafterConfig, Identities, Synthetic, Verdict,
};
use dspark::drafter::Drafter;
use dspark::drafter::cpu::{CpuDrafter, CpuOptions, Logits, Precision};
use dspark::drafter::cuda::{self, BackendUnavailable, CudaDrafter, CudaError, CudaOptions};
use dspark::worker::serve::{Running, ServeError, ServeOptions, start};

use crate::args::{Backend, ComputeArgs, ModelArgs, Rounding};
use crate::exit::{Code, Failure, OrExit};
use crate::output::Output;

/// A checkpoint to draft from, whose files may still be being hashed.
pub(crate) struct Source {
    pub(crate) checkpoint: Checkpoint,
    verdict: Option<Verdict>,
}

impl From<Checkpoint> for Source {
    fn from(checkpoint: Checkpoint) -> Self {
        Self { checkpoint, verdict: None }
    }
}

/// Opens the checkpoint that the flags name and begins to verify it.
pub(crate) fn open_source(model: &ModelArgs, output: &Output) -> Result<Source, Failure> {
    if model.demo {
        return Ok(Checkpoint::demo().or_exit(Code::BadInput)?.into());
    }
    if let Some(synthetic) = model.synthetic {
        return Ok(make_synthetic(synthetic).into());
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
    let progress = Box::new(output.progress());
    let opened = Checkpoint::open_unverified(&paths, progress).or_exit(Code::BadInput)?;
    let (checkpoint, verdict) = opened;
    for warning in &checkpoint.warnings {
        tracing::warn!("{warning}");
    }
    Ok(Source { checkpoint, verdict: Some(verdict) })
}

/// Opens the checkpoint that the flags name and verifies it.
pub(crate) fn open_checkpoint(model: &ModelArgs, output: &Output) -> Result<Checkpoint, Failure> {
    let Source { checkpoint, verdict } = open_source(model, output)?;
    verdict.map_or(Ok(()), Verdict::wait).or_exit(Code::BadInput)?;
    Ok(checkpoint)
}

fn make_synthetic(synthetic: Synthetic) -> Checkpoint {
    tracing::info!("making the synthetic checkpoint {synthetic}");
    let started = Instant::now();
    let checkpoint = Checkpoint::synthetic(synthetic);
    let (seconds, gb) = (started.elapsed().as_secs_f64(), checkpoint.bytes as f64 / 1e9);
    tracing::info!("made {gb:.2} GB in {seconds:.2} s ({:.2} GB/s)", gb / seconds);
    checkpoint
}

/// Shape and identities of the checkpoint that the flags name, without the tensors where they are not
/// needed to know.
pub(crate) fn outline(
    model: &ModelArgs,
    output: &Output,
) -> Result<(DrafterConfig, Identities), Failure> {
    match model.synthetic {
        Some(synthetic) => Ok((synthetic.config(), synthetic.identities())),
        None => open_checkpoint(model, output).map(|c| (c.config, c.identities)),
    }
}

type BuildError = Box<dyn Error + Send + Sync>;

/// How to build the drafter that flags name.
pub(crate) struct BackendChoice {
    gpu: Gpu,
    cpu: CpuOptions,
    cuda_only: bool,
}

enum Gpu {
    Unwanted,
    Missing(BackendUnavailable),
    Usable(CudaOptions),
}

/// A drafter with what only its backend tells.
pub(crate) enum Built {
    Cpu(Box<CpuDrafter>),
    Cuda(Box<CudaDrafter>),
}

impl BackendChoice {
    /// Chooses a backend, which takes no longer than looking for a GPU.
    pub(crate) fn of(compute: &ComputeArgs) -> Result<Self, Failure> {
        let cpu = CpuOptions {
            max_slots: compute.max_slots,
            precision: match compute.precision {
                Rounding::Bf16 => Precision::Bf16,
                Rounding::F32 => Precision::F32,
            },
            logits: logits(compute),
        };
        let cuda_only = compute.backend == Backend::Cuda;
        Ok(Self { gpu: choose_gpu(compute)?, cpu, cuda_only })
    }

    /// Builds on the thread that will draft, while the files are hashed; what comes out may be used.
    fn build_from(self, source: &mut Source) -> Result<Built, BuildError> {
        let built = self.build(&source.checkpoint);
        let hosts_fault = |error: &BuildError| {
            let cuda = error.downcast_ref();
            matches!(cuda, Some(CudaError::Unavailable(_) | CudaError::Device(_)))
        };
        if built.as_ref().is_err_and(hosts_fault) {
            return built;
        }
        // A file that is not what the receipt says explains every other fault in it.
        source.verdict.take().map_or(Ok(()), Verdict::wait)?;
        built
    }

    fn build(self, checkpoint: &Checkpoint) -> Result<Built, BuildError> {
        match self.gpu {
            Gpu::Unwanted => {}
            Gpu::Missing(unavailable) => tracing::info!("drafting on the CPU: {unavailable}"),
            Gpu::Usable(options) => match CudaDrafter::new(checkpoint, options) {
                Ok(drafter) => return Ok(Built::Cuda(Box::new(drafter))),
                Err(error) if self.cuda_only => return Err(error.into()),
                Err(error) => tracing::warn!("drafting on the CPU: {error}"),
            },
        }
        build_cpu(checkpoint, self.cpu)
    }
}

/// The drafter that a worker would serve.
pub(crate) fn build_drafter(source: &mut Source, choice: BackendChoice) -> Result<Built, Failure> {
    choice.build_from(source).map_err(|error| backend_failure(&*error))
}

/// Starts a worker that drafts from `source`.
pub(crate) fn start_worker(
    mut source: Source,
    choice: BackendChoice,
    options: ServeOptions,
) -> Result<Running, Failure> {
    let build = move || match choice.build_from(&mut source)? {
        Built::Cpu(drafter) => Ok(drafter as Box<dyn Drafter>),
        Built::Cuda(drafter) => Ok(drafter as Box<dyn Drafter>),
    };
    start(options, build).map_err(|error| {
        let code = match &error {
            ServeError::Backend(error) => return backend_failure(&**error),
            ServeError::Draft(_) => Code::Backend,
            ServeError::Io { .. } => Code::Unreachable,
            ServeError::Died => Code::Failed,
        };
        Failure::new(code, error)
    })
}

fn logits(compute: &ComputeArgs) -> Logits {
    match compute.logits {
        Rounding::Bf16 => Logits::Bf16,
        Rounding::F32 => Logits::F32,
    }
}

/// How to draft on a GPU, where one is asked for or usable.
fn choose_gpu(compute: &ComputeArgs) -> Result<Gpu, Failure> {
    let rounds = compute.precision == Rounding::Bf16;
    match compute.backend {
        Backend::Cpu => return Ok(Gpu::Unwanted),
        Backend::Auto if !rounds => return Ok(Gpu::Unwanted),
        Backend::Cuda if !rounds => {
            return Err(Failure::new(Code::Usage, "--precision f32 exists on the CPU only")
                .hint("leave it out, or draft on the CPU with --backend cpu"));
        }
        Backend::Auto | Backend::Cuda => {}
    }
    match cuda::probe(compute.device) {
        Ok(_) => Ok(Gpu::Usable(CudaOptions {
            device: compute.device,
            logits: logits(compute),
            max_slots: compute.max_slots,
            ..CudaOptions::default()
        })),
        Err(unavailable) if compute.backend == Backend::Cuda => Err(unusable(&unavailable)),
        Err(unavailable) => Ok(Gpu::Missing(unavailable)),
    }
}

fn build_cpu(checkpoint: &Checkpoint, options: CpuOptions) -> Result<Built, BuildError> {
    // The drafting thread takes part in its own thread pool, so that a round needs no hand-off and no
    // allocation to enter it. A pool that exists already, in a program with two workers, serves too.
    let pool = rayon::ThreadPoolBuilder::new().use_current_thread().build_global();
    if let Err(error) = pool {
        tracing::debug!(%error, "the thread pool exists already");
    }
    let drafter = CpuDrafter::new(checkpoint, options)?;
    let report = drafter.report();
    tracing::debug!("{report}");
    Ok(Built::Cpu(Box::new(drafter)))
}

/// A backend that could not be built: the host's fault, or the checkpoint's.
fn backend_failure(error: &(dyn Error + Send + Sync + 'static)) -> Failure {
    match error.downcast_ref::<CudaError>() {
        Some(CudaError::Unavailable(unavailable)) => unusable(unavailable),
        Some(CudaError::Device(error)) => Failure::new(Code::Backend, error)
            .hint("check nvidia-smi, or draft on the CPU with --backend cpu"),
        Some(CudaError::Layer(_) | CudaError::Shape(_)) => {
            Failure::new(Code::BadInput, error).hint("draft on the CPU with --backend cpu")
        }
        _ => Failure::new(Code::BadInput, error),
    }
}

fn unusable(unavailable: &BackendUnavailable) -> Failure {
    Failure::new(Code::Backend, unavailable).hint(&*unavailable.hint)
}
