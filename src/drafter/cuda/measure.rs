//! What the driver makes of a device and its kernels, and how long things take there: the measuring side of
//! the backend, for checks on a card. Serving uses none of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUfunction_attribute};

use super::device::{Device, DeviceError, DeviceFacts, DeviceMemory, Doing, probe};
use super::engine::{Halt, Pass, Watch};
use super::kernels::{Function, Kernels};
use super::records::CONTEXT_ROWS;
use super::{CudaDrafter, CudaError, MarkovCounters};
use crate::drafter::{DraftBlocks, DraftError};
use crate::plan::{RowBlock, StepPlan};

/// How the emulated driver of the test suite names its device.
const EMULATED: &str = "gpusim";

impl DeviceFacts {
    /// Whether kernels are executed by the CPU: results count, times mean nothing.
    pub fn is_emulated(&self) -> bool {
        self.name.starts_with(EMULATED)
    }
}

/// Numbers of a device that bear on speed, as the driver states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceDetails {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of the second-level cache.
    pub l2_bytes: u32,
    /// Highest clock of the processors, kHz; 0 where the driver does not say.
    pub clock_khz: u32,
    /// Highest clock of the memory, kHz; 0 where the driver does not say.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub bus_bits: u32,
    /// Free bytes of memory.
    pub free: u64,
    /// All bytes of memory.
    pub total: u64,
}

/// One kernel as loaded on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Source without `.cu`.
    pub source: &'static str,
    /// Name of the kernel.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory of a thread: 0 unless it spills.
    pub local_bytes: u32,
    /// Static bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that run at once on one multiprocessor.
    pub blocks: u32,
}

/// A device with all kernels loaded.
pub struct Inspection {
    kernels: Kernels,
    device: Arc<Device>,
}

impl Inspection {
    /// Opens device `ordinal` and loads the kernels.
    ///
    /// # Errors
    /// [`CudaError`] when the device cannot be used.
    pub fn new(ordinal: u32) -> Result<Self, CudaError> {
        let device = Device::open(probe(ordinal)?)?;
        Ok(Self { kernels: Kernels::load(&device, false)?, device })
    }

    /// Architecture of the images in use.
    pub fn arch(&self) -> &str {
        &self.kernels.arch
    }

    /// Numbers of the device.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn details(&self) -> Result<DeviceDetails, DeviceError> {
        let number = |which| {
            let value = self.device.attribute(which)?;
            // Counts and sizes; a driver that does not know one says 0.
            Ok::<_, DeviceError>(u32::try_from(value).unwrap_or(0))
        };
        let (free, total) = self.device.memory()?;
        Ok(DeviceDetails {
            multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            bus_bits: number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
            free,
            total,
        })
    }

    /// What the driver says of every kernel, for blocks with `dynamic` bytes of shared memory by name.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn kernels(
        &self,
        dynamic: impl Fn(&str) -> usize,
    ) -> Result<Vec<KernelFacts>, DeviceError> {
        let all = self.kernels.all().into_iter();
        all.map(|(source, name, launch)| {
            let dynamic = dynamic(&name);
            kernel_facts(source, name, launch, dynamic)
        })
        .collect()
    }

    /// Times of `rounds` copies of `bytes` bytes within device memory, after one that does not count. Each
    /// byte is read and written.
    ///
    /// # Errors
    /// When the memory cannot be had or the device fails.
    pub fn copies(&self, bytes: usize, rounds: usize) -> Result<Vec<Duration>, DeviceError> {
        let mut memory = DeviceMemory::new(self.device.clone());
        let (from, to) = (memory.take(bytes, 1)?, memory.take(bytes, 0)?);
        let (start, end) = (Event::new()?, Event::new()?);
        let copy = || {
            start.record(&self.device)?;
            // SAFETY: both places have that many bytes until the wait below.
            unsafe { result::memcpy_dtod_async(to, from, bytes, self.device.stream()) }
                .doing("copy within the device")?;
            end.record(&self.device)?;
            self.device.synchronize()?;
            end.since(&start)
        };
        copy()?;
        (0..rounds).map(|_| copy()).collect()
    }
}

fn kernel_facts(
    source: &'static str,
    name: String,
    (function, threads): (Function, u32),
    dynamic: usize,
) -> Result<KernelFacts, DeviceError> {
    let ask = |which| {
        // SAFETY: the function's module is loaded.
        let value = unsafe { result::function::get_function_attribute(function.0, which) };
        value.doing("ask for a kernel's resources").map(i32::cast_unsigned)
    };
    // SAFETY: as above.
    let blocks = unsafe {
        result::occupancy::max_active_block_per_multiprocessor(
            function.0,
            threads.cast_signed(),
            dynamic,
        )
    };
    Ok(KernelFacts {
        source,
        name,
        registers: ask(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        local_bytes: ask(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        shared_bytes: ask(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        threads,
        blocks: blocks.doing("ask for a kernel's occupancy")?.cast_unsigned(),
    })
}

/// A point in the work of a device.
struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Self, DeviceError> {
        // The default flags are those that take the time.
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        event.doing("create an event").map(Self)
    }

    fn record(&self, device: &Device) -> Result<(), DeviceError> {
        // SAFETY: event and stream are alive.
        unsafe { result::event::record(self.0, device.stream()) }.doing("record an event")
    }

    /// Time from `earlier` to this event; both must have passed.
    fn since(&self, earlier: &Self) -> Result<Duration, DeviceError> {
        // SAFETY: both events were recorded on the one stream of the process.
        let ms = unsafe { result::event::elapsed(earlier.0, self.0) }.doing("read the time")?;
        Ok(Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed nowhere else.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Times of launches, while somebody measures.
#[derive(Default)]
pub(super) struct Marks(RefCell<Option<Vec<Mark>>>);

struct Mark {
    kernel: usize,
    start: Event,
    end: Event,
}

impl Marks {
    /// Launches a kernel, between two events if somebody measures.
    pub(super) fn around(
        &self,
        device: &Device,
        kernel: Function,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut marks = self.0.borrow_mut();
        let Some(marks) = &mut *marks else { return launch() };
        let mark = Mark { kernel: kernel.0.addr(), start: Event::new()?, end: Event::new()? };
        mark.start.record(device)?;
        launch()?;
        mark.end.record(device)?;
        marks.push(mark);
        Ok(())
    }
}

/// Time of one kernel in one STEP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Name of the kernel.
    pub name: String,
    /// Launches of it.
    pub launches: usize,
    /// Time of all of them.
    pub time: Duration,
}

/// Bytes of weights and windows that one STEP reads, each counted once (`drafter.md` §6). Inputs and results
/// of launches are left out: they are small and stay in the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundBytes {
    /// By part of the forward pass.
    pub parts: BTreeMap<&'static str, u64>,
    /// Of them packed weights, by the kernel that decodes them.
    pub products: BTreeMap<String, u64>,
}

impl RoundBytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.parts.values().sum()
    }
}

/// Device memory to write on when the cache shall hold nothing else.
pub struct Flush {
    _memory: DeviceMemory,
    at: u64,
    bytes: usize,
}

impl Flush {
    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl CudaDrafter {
    /// Memory for [`Self::relaunch`] and [`Self::kernel_times`]: four times the cache.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn flush(&self) -> Result<Flush, DeviceError> {
        let device = &self.engine.device;
        let cache = device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        let bytes = 4 * usize::try_from(cache).unwrap_or(0).max(1 << 20);
        let mut memory = DeviceMemory::new(device.clone());
        let at = memory.take(bytes, 0)?;
        Ok(Flush { _memory: memory, at, bytes })
    }

    fn overwrite(&self, flush: &Flush) -> Result<(), DeviceError> {
        let stream = self.engine.device.stream();
        // SAFETY: the memory has that many bytes; nobody reads it.
        unsafe { result::memset_d8_async(flush.at, 0, flush.bytes, stream) }
            .doing("set device memory")
    }

    /// Host time of the last STEP, beside waiting for the device: plan to pieces, copies and launches issued,
    /// results read.
    pub fn host_time(&self) -> Duration {
        self.staging.host
    }

    /// Device time of the launches of the last STEP, done again without its copies: they find the same
    /// numbers and compute the same. With `flush` nothing is in the cache before.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// If `plan` took not just one pass.
    pub fn relaunch(
        &mut self,
        plan: &StepPlan,
        flush: Option<&Flush>,
    ) -> Result<Duration, DeviceError> {
        let rows: usize = plan.appends.iter().map(|append| append.rows.len()).sum();
        let (drafts, head_rows) = (plan.drafts.len(), plan.drafts.iter().map(|d| d.n_out).sum());
        let one = rows <= CONTEXT_ROWS && drafts <= self.engine.shape.drafts && rows + drafts > 0;
        assert!(one, "a plan of one pass");
        if let Some(flush) = flush {
            self.overwrite(flush)?;
        }
        let (start, end) = (Event::new()?, Event::new()?);
        start.record(&self.engine.device)?;
        self.launch_again(rows, drafts, head_rows)?;
        end.record(&self.engine.device)?;
        self.engine.device.synchronize()?;
        end.since(&start)
    }

    fn launch_again(
        &self,
        rows: usize,
        drafts: usize,
        head_rows: usize,
    ) -> Result<(), DeviceError> {
        let pass =
            Pass { context: Pass::context_bucket(rows), drafts, head: head_rows.div_ceil(8) };
        match &self.graphs {
            Some(graphs) => graphs.launch(pass),
            None => self.engine.unwatched(pass),
        }
    }

    /// Executes a STEP launch by launch and answers the device time of each kernel, by falling time.
    ///
    /// The device is first given `lead` writes of `flush`, so that launches queue up behind them and no time
    /// of the host is counted; the cache then holds nothing of use.
    ///
    /// # Errors
    /// When the device fails.
    pub fn kernel_times(
        &mut self,
        plan: &StepPlan,
        rows: RowBlock<'_>,
        out: &mut DraftBlocks,
        flush: &Flush,
        lead: usize,
    ) -> Result<Vec<KernelTime>, DraftError> {
        out.clear();
        for _ in 0..lead {
            self.overwrite(flush).map_err(|error| self.failure(error))?;
        }
        self.engine.kernels.marks.0.replace(Some(Vec::new()));
        let (engine, staging) = (&self.engine, &mut self.staging);
        let ran = staging.run(engine, None, plan, rows, out, &mut Watch(None));
        let marks = self.engine.kernels.marks.0.take().unwrap_or_default();
        let times = match ran {
            Err(Halt::Device(error)) => Err(error),
            Ok(()) | Err(Halt::Stopped) => self.sum(&marks),
        };
        times.map_err(|error| self.failure(error))
    }

    fn sum(&self, marks: &[Mark]) -> Result<Vec<KernelTime>, DeviceError> {
        let all = self.engine.kernels.all().into_iter();
        let names: HashMap<usize, String> =
            all.map(|(_, name, (function, _))| (function.0.addr(), name)).collect();
        let mut times: BTreeMap<usize, (usize, Duration)> = BTreeMap::new();
        for mark in marks {
            let (launches, time) = times.entry(mark.kernel).or_default();
            *launches += 1;
            *time += mark.end.since(&mark.start)?;
        }
        let named = times.into_iter().map(|(kernel, (launches, time))| {
            let name = names.get(&kernel).cloned().unwrap_or_default();
            KernelTime { name, launches, time }
        });
        let mut times: Vec<KernelTime> = named.collect();
        times.sort_by_key(|kernel| std::cmp::Reverse(kernel.time));
        Ok(times)
    }

    /// Bytes that the last STEP, which executed `plan`, read if each draft layer took the experts named.
    /// `before` are the Markov counters before it.
    pub fn round_bytes(
        &self,
        plan: &StepPlan,
        experts: &[BTreeSet<usize>],
        before: MarkovCounters,
    ) -> RoundBytes {
        let (s, w) = (&self.engine.shape, &self.engine.weights);
        let mut bytes = RoundBytes::default();
        let mut add = |part, rows: usize, linears: &[usize]| {
            for &index in linears {
                let linear = &w.table.records[index];
                let packed = linear.weight_bytes();
                *bytes.parts.entry(part).or_default() += packed + linear.scale_bytes();
                *bytes.products.entry(linear.kernel(rows)).or_default() += packed;
            }
        };
        let rows = plan.appends.iter().map(|append| append.rows.len()).sum();
        if rows > 0 {
            add("projection", rows, &[w.main_proj]);
        }
        if !plan.drafts.is_empty() {
            add("head", 1, &[w.head]);
            for (layer, chosen) in w.layers.iter().zip(experts) {
                let expert = |e: usize| [0, 1, 2].map(|part| layer.experts + 3 * e + part);
                add("dense", 1, &[layer.wq_a, layer.wkv, layer.wq_b, layer.wo_b]);
                add("dense", 1, &layer.wo_a);
                add("dense", 1, &expert(s.experts));
                chosen.iter().for_each(|&e| add("experts", 1, &expert(e)));
            }
            // Router and both mixes of a layer: 24 rows over four streams each, f32 like the router.
            let plain = 4 * s.hidden * (s.experts + 2 * 24 * 4);
            *bytes.parts.entry("dense").or_default() += (s.layers * plain) as u64;
            let now = self.markov_counters();
            let row = s.markov_rank * if w.markov_head.format == 2 { 4 } else { 2 };
            let bias = s.vocab * if self.engine.round_logits { 2 } else { 4 };
            let markov = (now.rows - before.rows) * row as u64
                + (now.resident - before.resident) * bias as u64;
            bytes.parts.insert("markov", markov);
        }
        let keys: u64 = plan.drafts.iter().map(|d| d.context.end.abs_diff(d.context.start)).sum();
        bytes.parts.insert("window", keys * (2 * s.layers * s.head_dim) as u64);
        bytes
    }
}
