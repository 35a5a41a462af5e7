//! The CUDA backend: the forward pass of the CPU backend as kernels on one stream.
//!
//! Values are rounded where the CPU backend rounds them under bf16 precision; sums are f32 in orders that
//! depend on neither the batch, nor the card, nor the clock, so a request's drafts are the same bits in any
//! company, with any `n_out`, and after any resync (contract-notes D41). The kernels are in `kernels/`,
//! compiled images of them in the program. Everything is taken and captured before the first STEP: a STEP is
//! copies and graph launches. Only machine code of the driver is trusted with memory; `unsafe` stays in this
//! folder.

mod angles;
mod block;
pub mod cases;
mod chunk;
mod context;
mod device;
mod engine;
mod graph;
mod head;
mod image;
mod kernels;
mod linears;
pub mod measure;
mod memory;
mod meta;
pub mod pack;
mod pieces;
mod pinned;
mod placement;
mod products;
mod records;
mod resident;
mod shape;
mod single;
mod step;
pub mod survey;
mod upload;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

pub use device::{BackendUnavailable, Capability, DeviceError, DeviceFacts, probe};
pub use linears::UnsupportedLayer;
pub use memory::MemoryPlan;
pub use shape::UnsupportedShape;
pub use single::LayerCheck;

use self::device::{Device, DeviceMemory};
use self::engine::{Engine, Groups, Halt, Pass, Watch};
use self::graph::Graphs;
use self::kernels::Kernels;
use self::memory::{Buffers, RESERVE_BYTES, Sizes};
use self::meta::MetaLayout;
use self::placement::{CHUNK_BYTES, Origins, Placement};
use self::resident::{ResidentAt, ResidentSize};
use self::shape::Shape;
use self::step::Staging;
use self::upload::{Counter, place, supported};
use super::cpu::Logits;
use super::stage::StageObserver;
use super::weights::{LoadReport, Weights, WeightsError};
use super::{BackendInfo, DraftBlocks, DraftError, Drafter, MarkovCounters};
use crate::buffer::FrameBuffer;
use crate::checkpoint::{Checkpoint, CheckpointError, Unverified};
use crate::geometry::{Geometry, GeometryError};
use crate::plan::{RowBlock, StepPlan};

/// Room for the bias rows of some eight thousand tokens of the live vocabulary under bf16 logits.
const MARKOV_BYTES: u64 = 2 << 30;

/// How a [`CudaDrafter`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Index of the device.
    pub device: u32,
    /// Rounding of logits. Activations are always rounded to bf16.
    pub logits: Logits,
    /// Request slots kept resident.
    pub max_slots: u32,
    /// Whether STEPs run from captured graphs rather than launch by launch. The same bits either way.
    pub graphs: bool,
    /// Whether the Markov step leaves out rows that cannot win. The same bits either way.
    pub prune: bool,
    /// Device memory at most for bias rows of the Markov cache's tokens; what is free bounds it too. The same
    /// bits whatever it is.
    pub markov_bytes: u64,
    /// Byte that all working memory is filled with at the start. It must not show.
    pub fill: u8,
    /// Whether the driver compiles the kernels itself, also where there is machine code for the device.
    pub ptx: bool,
    /// Bytes at most that a load reads at once from a file. The same bits whatever it is.
    pub chunk_bytes: usize,
}

impl Default for CudaOptions {
    fn default() -> Self {
        let logits = Logits::default();
        Self {
            device: 0,
            logits,
            max_slots: 4,
            graphs: true,
            prune: true,
            markov_bytes: MARKOV_BYTES,
            fill: 0,
            ptx: false,
            chunk_bytes: CHUNK_BYTES,
        }
    }
}

/// A CUDA backend that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// Not on this host, or not with this much free memory.
    #[error(transparent)]
    Unavailable(#[from] BackendUnavailable),
    /// The config and the number of slots make no geometry a worker can serve.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The tensors are not the drafter's.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Files are not what the receipt says, or could not be read.
    #[error(transparent)]
    Files(#[from] CheckpointError),
    /// A config the kernels are not written for.
    #[error(transparent)]
    Shape(#[from] UnsupportedShape),
    /// A layer the kernels are not written for.
    #[error(transparent)]
    Layer(#[from] UnsupportedLayer),
    /// The device failed while it was set up.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The CUDA backend.
pub struct CudaDrafter {
    // Dropped in this order: graphs name memory, memory belongs to the device.
    graphs: Option<Graphs>,
    staging: Staging,
    engine: Engine,
    memory: DeviceMemory,
    geometry: Geometry,
    report: LoadReport,
    plan: MemoryPlan,
    logits: Logits,
}

impl CudaDrafter {
    /// Loads weights and kernels, takes all memory, captures the graphs. Nothing is taken on the device if
    /// it would not fit. The weights come from where `checkpoint` has them in memory.
    ///
    /// # Errors
    /// [`CudaError`]; nothing stays behind.
    pub fn new(checkpoint: &Checkpoint, options: CudaOptions) -> Result<Self, CudaError> {
        Self::build(checkpoint, None, options)
    }

    /// As [`new`](Self::new), for a checkpoint whose `files` are still to be verified: each is read once, by
    /// one of several readers that hashes it and uploads what belongs on the device. They are verified when this
    /// returns a drafter.
    ///
    /// # Errors
    /// [`CudaError`]; nothing stays behind. [`CudaError::Files`] says that a file is not what the receipt says;
    /// any other error says nothing about that.
    pub fn load(
        checkpoint: &Checkpoint,
        files: &Unverified,
        options: CudaOptions,
    ) -> Result<Self, CudaError> {
        Self::build(checkpoint, Some(files), options)
    }

    fn build(
        checkpoint: &Checkpoint,
        files: Option<&Unverified>,
        options: CudaOptions,
    ) -> Result<Self, CudaError> {
        let started = Instant::now();
        let config = &checkpoint.config;
        let geometry = config.geometry(options.max_slots)?;
        let shape = Shape::new(config, &geometry)?;
        let (weights, report) = Weights::load(checkpoint)?;
        supported(&weights)?;
        let device = Device::open(probe(options.device)?)?;
        let kernels = Kernels::load(&device, options.ptx)?;
        let layout = MetaLayout::new(&shape);
        let mut counter = Counter::default();
        let Ok(counted) = place(&weights, &shape, &mut counter);
        let sizes = Sizes::new(&shape, &counted);
        let mut plan = memory_plan(&device, &shape, &sizes, &layout, counter.bytes)?;
        let round_logits = options.logits == Logits::Bf16;
        let tokens = checkpoint.markov.as_ref().map_or(&[][..], |cache| cache.tokens());
        let room = options.markov_bytes.min(plan.spare());
        let resident = ResidentSize::fitting(&shape, round_logits, tokens.len(), room);
        (plan.markov, plan.markov_rows) = (resident.bytes(), resident.rows as u64);
        if resident.rows < tokens.len() {
            tracing::info!(
                "{} of the Markov cache's {} bias rows fit; the others are computed when needed",
                resident.rows,
                tokens.len()
            );
        }
        tracing::info!("memory: {plan}");
        if !plan.fits() {
            return Err(too_large(&plan).into());
        }
        let mut memory = DeviceMemory::new(device.clone());
        let origins = Origins::of(checkpoint, files);
        let mut placement = Placement::new(&mut memory, counter.bytes, &origins);
        let placed = place(&weights, &shape, &mut placement)?;
        placement.done().upload(&device, options.chunk_bytes)?;
        placed.write_norms(&weights, &device)?;
        let buffers = Buffers::take(&shape, &sizes, &layout, &mut memory, options.fill)?;
        let (groups, jobs) = Groups::new(&shape, &placed, &buffers);
        let mut engine = Engine {
            context_meta: layout.context(buffers.meta(&shape)),
            block_meta: layout.block(buffers.meta(&shape)),
            round_logits,
            prune: options.prune,
            device: device.clone(),
            weights: placed,
            kernels,
            shape,
            layout,
            buffers,
            groups,
            resident: ResidentAt::default(),
        };
        engine.write_tables(&jobs)?;
        engine.hold_bias_rows(&mut memory, resident, tokens)?;
        let staging = Staging::new(&engine)?;
        let mut drafter = Self {
            graphs: None,
            staging,
            engine,
            memory,
            geometry,
            report,
            plan,
            logits: options.logits,
        };
        drafter.warm_up(options.graphs)?;
        let seconds = started.elapsed().as_secs_f64();
        let rate = checkpoint.bytes as f64 / 1e9 / seconds;
        tracing::info!(
            device = %drafter.engine.device.facts.name,
            image = %drafter.engine.kernels.arch,
            graphs = drafter.graphs.as_ref().map_or(0, Graphs::len),
            "loaded in {seconds:.2} s ({rate:.2} GB/s)"
        );
        Ok(drafter)
    }

    /// What loading found.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// What the backend holds.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// How the Markov steps were computed, since the start.
    pub fn markov_counters(&self) -> MarkovCounters {
        self.staging.markov_counters()
    }

    /// [`Drafter::step`], launch by launch and shown stage by stage. `Break` if the observer ended it;
    /// `out` is then zero. Stages that never exist in memory are not shown: norms of K=V before their
    /// rotation, single experts' sums, and the Markov chain's logits.
    ///
    /// # Errors
    /// When the device fails.
    pub fn step_observed(
        &mut self,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        out: &mut DraftBlocks,
        observer: &mut dyn StageObserver,
    ) -> Result<ControlFlow<()>, DraftError> {
        out.clear();
        let (engine, staging) = (&self.engine, &mut self.staging);
        match staging.run(engine, None, plan, rows, out, &mut Watch(Some(observer))) {
            Ok(()) => Ok(ControlFlow::Continue(())),
            Err(Halt::Stopped) => {
                out.clear();
                Ok(ControlFlow::Break(()))
            }
            Err(Halt::Device(error)) => Err(self.failure(error)),
        }
    }

    /// Runs every kernel on no rows, then captures.
    fn warm_up(&mut self, graphs: bool) -> Result<(), DeviceError> {
        let engine = &self.engine;
        self.staging.upload_nothing(engine)?;
        let drafts = engine.shape.drafts;
        engine.unwatched(Pass { context: 8, drafts, head: 1 })?;
        engine.device.synchronize()?;
        if graphs {
            self.graphs = Some(Graphs::capture(engine)?);
            engine.device.synchronize()?;
        }
        Ok(())
    }

    /// One pass over no rows, as a STEP runs it.
    fn run_nothing(&mut self) -> Result<(), DeviceError> {
        let engine = &self.engine;
        self.staging.upload_nothing(engine)?;
        if let Some(graphs) = &self.graphs {
            graphs.launch(Pass { context: 8, drafts: 1, head: 1 })?;
        }
        engine.device.synchronize()
    }

    /// What a device error means: after a fault of a kernel nothing on this device works again before the
    /// process ends.
    fn failure(&self, error: DeviceError) -> DraftError {
        if self.engine.device.answers() {
            DraftError::Backend(error.to_string())
        } else {
            DraftError::DeviceLost(error.to_string())
        }
    }
}

impl Drafter for CudaDrafter {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn info(&self) -> BackendInfo {
        let facts = &self.engine.device.facts;
        BackendInfo {
            backend: "cuda",
            device: format!("{}, {}", facts.name, self.engine.kernels.arch),
            precision: "bf16",
            logits: if self.logits == Logits::Bf16 { "bf16" } else { "f32" },
            kv: "bf16",
            gpu_mem_bytes: self.memory.bytes(),
        }
    }

    fn markov(&self) -> Option<MarkovCounters> {
        Some(self.markov_counters())
    }

    fn keep_warm(&mut self) -> Result<(), DraftError> {
        self.run_nothing().map_err(|error| self.failure(error))
    }

    fn frame_buffer(&self, bytes: usize) -> Result<FrameBuffer, DraftError> {
        self.staging.frame_buffer(&self.engine, bytes)
    }

    fn step(
        &mut self,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        out: &mut DraftBlocks,
    ) -> Result<(), DraftError> {
        out.clear();
        let (engine, staging, graphs) = (&self.engine, &mut self.staging, self.graphs.as_ref());
        match staging.run(engine, graphs, plan, rows, out, &mut Watch(None)) {
            // Nobody watches, so nobody stops it.
            Ok(()) | Err(Halt::Stopped) => Ok(()),
            Err(Halt::Device(error)) => Err(self.failure(error)),
        }
    }
}

fn memory_plan(
    device: &Arc<Device>,
    shape: &Shape,
    sizes: &Sizes,
    layout: &MetaLayout,
    weights: usize,
) -> Result<MemoryPlan, DeviceError> {
    let (free, total) = device.memory()?;
    let (mut window, mut working) = (0, 0);
    for (name, bytes) in Buffers::plan(shape, sizes, layout) {
        *(if name == "window" { &mut window } else { &mut working }) += bytes as u64;
    }
    let pinned = Staging::bytes(shape, layout) as u64;
    let weights = weights as u64;
    Ok(MemoryPlan { weights, window, working, markov: 0, markov_rows: 0, pinned, free, total })
}

fn too_large(plan: &MemoryPlan) -> BackendUnavailable {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    BackendUnavailable::new(
        format!(
            "too little GPU memory: {:.0} MB are needed, and {:.0} MB beside them for the driver; \
             {:.0} MB of {:.0} MB are free",
            mb(plan.device()),
            mb(RESERVE_BYTES),
            mb(plan.free),
            mb(plan.total)
        ),
        "end other programs on the device (see nvidia-smi), or draft on the CPU with --backend cpu",
    )
}

impl Engine {
    /// Writes the tables of layers and fixed jobs.
    fn write_tables(&self, jobs: &[records::JobRecord]) -> Result<(), DeviceError> {
        use zerocopy::IntoBytes;
        // SAFETY: both tables have room for what they were sized by, and the wait keeps the sources.
        unsafe {
            self.device.upload(self.buffers.table, self.weights.table.records.as_bytes())?;
            self.device.upload(self.buffers.jobs, jobs.as_bytes())?;
        }
        self.device.synchronize()
    }
}
