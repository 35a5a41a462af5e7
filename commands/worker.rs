//! Opening a checkpoint and starting a worker on it: what `serve` and `replay --demo` share.

use std::error::Error;
use std::time::Instant;

use dspark::checkpoint::{
    Checkpoint, CheckpointPaths, DrafterConfig, Identities, Synthetic, Unverified, Verdict,
};
use dspark::drafter::Drafter;
use dspark::drafter::cpu::{CpuDrafter, CpuOptions, Logits, Precision};
use dspark::drafter::cuda::{self, BackendUnavailable, CudaDrafter, CudaError, CudaOptions};
use dspark::worker::serve::{Running, ServeError, ServeOptions, start};

use crate::args::{Backend, ComputeArgs, ModelArgs, Rounding};
use crate::exit::{Code, Failure, OrExit};
use crate::output::Output;

/// A checkpoint to draft from, whose files may still have to be hashed.
pub(crate) struct Source {
    pub(crate) checkpoint: Checkpoint,
    files: Option<Unverified>,
}

impl From<Checkpoint> for Source {
    fn from(checkpoint: Checkpoint) -> Self {
        Self { checkpoint, files: None }
    }
}

/// Opens the checkpoint that the flags name; whoever loads it verifies it.
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
    let (checkpoint, files) = opened;
    for warning in &checkpoint.warnings {
        tracing::warn!("{warning}");
    }
    Ok(Source { checkpoint, files: Some(files) })
}

/// Opens the checkpoint that the flags name and verifies it.
pub(crate) fn open_checkpoint(model: &ModelArgs, output: &Output) -> Result<Checkpoint, Failure> {
    let Source { checkpoint, files } = open_source(model, output)?;
    files.map_or(Ok(()), |files| files.verify()).or_exit(Code::BadInput)?;
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
        let checkpoint = &source.checkpoint;
        let files = source.files.take();
        match self.gpu {
            Gpu::Unwanted => {}
            Gpu::Missing(unavailable) => tracing::info!("drafting on the CPU: {unavailable}"),
            Gpu::Usable(options) => match build_cuda(checkpoint, files.as_ref(), options) {
                Ok(drafter) => return Ok(Built::Cuda(Box::new(drafter))),
                Err(error @ CudaError::Files(_)) => return Err(error.into()),
                Err(error) if self.cuda_only => {
                    let hosts_fault =
                        matches!(error, CudaError::Unavailable(_) | CudaError::Device(_));
                    // A file that is not what the receipt says explains every other fault in it.
                    let files = files.filter(|_| !hosts_fault);
                    files.map_or(Ok(()), |files| files.verify())?;
                    return Err(error.into());
                }
                Err(error) => tracing::warn!("drafting on the CPU: {error}"),
            },
        }
        let verdict = files.map(Unverified::verify_beside);
        let built = build_cpu(checkpoint, self.cpu);
        // As above.
        verdict.map_or(Ok(()), Verdict::wait)?;
        built
    }
}

/// Loads onto a GPU; the files that are still to be verified are then.
fn build_cuda(
    checkpoint: &Checkpoint,
    files: Option<&Unverified>,
    options: CudaOptions,
) -> Result<CudaDrafter, CudaError> {
    match files {
        Some(files) => CudaDrafter::load(checkpoint, files, options),
        None => CudaDrafter::new(checkpoint, options),
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
