//! Stage 6: how long a round takes at the live size and how near that is to reading its bytes once at the
//! rate of a copy.
//!
//! Rounds are those of a decoding engine: each request brings one to six new rows and has a block drafted
//! behind a full window; and one that brings a window whole, as after a resync. A round's bytes are its weights and windows, each counted once; a copy reads and
//! writes each byte, so its rate counts both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use dspark::buffer::FrameBuffer;
use dspark::checkpoint::{Checkpoint, Synthetic, SyntheticSize};
use dspark::drafter::cuda::measure::{DeviceDetails, Flush, Inspection, RoundBytes};
use dspark::drafter::cuda::{CudaDrafter, CudaOptions};
use dspark::drafter::stage::{Stage as Point, StageObserver};
use dspark::drafter::{DraftBlocks, Drafter};
use dspark::geometry::Geometry;
use dspark::plan::{RowBlock, StepPlan};

use super::facts::module_version;
use super::report::{Case, Section, StageReport};
use super::requests::{Part, plan, rows};
use super::{Context, Stage};

type Failed = Box<dyn std::error::Error>;

/// Host memory that the live checkpoint needs while it is made and copied.
const HOST_BYTES: u64 = 11 << 30;
/// Device memory that it and everything beside it take.
const DEVICE_BYTES: u64 = 9 << 30;
/// Work given to the device before kernels are timed one by one, so that their launches queue up: more than
/// the host needs to issue a STEP, µs.
const LEAD_US: f64 = 10_000.0;
/// Requests of a round at most.
const REQUESTS: usize = 4;

/// How much is measured.
struct Effort {
    warm_up: usize,
    rounds: usize,
    /// Rounds whose experts are looked at.
    samples: usize,
    /// New rows of a request.
    rows: &'static [usize],
    requests: &'static [usize],
    /// Rows of a request where kernels are timed one by one.
    kernel_rows: usize,
    idle: Duration,
    copy_bytes: usize,
}

const CARD: Effort = Effort {
    warm_up: 5,
    rounds: 60,
    samples: 4,
    rows: &[1, 2, 3, 4, 5, 6],
    requests: &[1, 2, 3, 4],
    kernel_rows: 6,
    idle: Duration::from_secs(10),
    copy_bytes: 512 << 20,
};
const EMULATED: Effort = Effort {
    warm_up: 0,
    rounds: 1,
    samples: 1,
    rows: &[6],
    requests: &[1],
    idle: Duration::from_millis(10),
    copy_bytes: 1 << 20,
    ..CARD
};

pub(super) fn run(context: &Context) -> StageReport {
    match measure(context) {
        Ok(report) => report,
        Err(error) => {
            StageReport::only(Stage::Timing, Case::new("timing").failed(error.to_string()))
        }
    }
}

fn measure(context: &Context) -> Result<StageReport, Failed> {
    let mut report = StageReport::new(Stage::Timing);
    let effort = if context.emulated() { EMULATED } else { CARD };
    let inspection = Inspection::new(context.device.ordinal)?;
    let details = inspection.details()?;
    if context.emulated() {
        report.notes.push(
            "the device is emulated: these times mean nothing, and the checkpoint is the demo's"
                .into(),
        );
    } else if let Some(why) = too_small(&details) {
        return Ok(StageReport::only(Stage::Timing, Case::skipped("timing", why)));
    }
    report.notes.push(describe(context, &details));
    let copy = copy(&inspection, &details, &effort)?;
    report.sections.push(copy.section);
    let checkpoint = match context.emulated() {
        true => Checkpoint::demo()?,
        false => Checkpoint::synthetic(Synthetic { size: SyntheticSize::Live, seed: 1 }),
    };
    let options = CudaOptions { device: context.device.ordinal, ..CudaOptions::default() };
    let drafter = CudaDrafter::new(&checkpoint, options)?;
    report.notes.push(format!("checkpoint {}: {}", checkpoint.origin, drafter.memory_plan()));
    drop(checkpoint);
    let requests = effort.requests.iter().copied().max().unwrap_or(1);
    let mut bench = Bench::new(drafter, requests, copy.bytes_per_us)?;
    let mut parts = Section::new("bytes of a round", &PARTS);
    let mut rounds = Section::new("requests x rows", &ROUNDS);
    let decoding = effort.requests.iter().flat_map(|&n| effort.rows.iter().map(move |&r| (n, r)));
    // A resync sends a whole window.
    let window = bench.geometry.window as usize;
    for (requests, rows) in decoding.chain([(1, window)]) {
        let name = format!("{requests} x {rows}");
        if !context.wants(&name) {
            continue;
        }
        let timed = bench.rounds(&name, requests, rows, &effort)?;
        rounds.cases.push(timed.case);
        if rows == effort.kernel_rows {
            parts.cases.push(timed.parts);
        }
    }
    report.sections.extend([rounds, parts]);
    for requests in [1, REQUESTS].into_iter().filter(|n| effort.requests.contains(n)) {
        let title = format!("kernels of {requests} x {}", effort.kernel_rows);
        report.sections.push(bench.kernels(title, requests, &effort)?);
    }
    let mut idle = Section::new("after a pause", &["pause_us", "step_us"]);
    idle.cases.push(bench.idle(&effort)?);
    report.sections.push(idle);
    report.notes.push(
        "p50, p99: a STEP as the worker counts it; host: of it on the host, beside waiting".into(),
    );
    report.notes.push(
        "device: the launches of a STEP again, without copies; cold: with nothing in the L2 cache"
            .into(),
    );
    report.notes.push("over floor: p50 over the time in which a copy moves as many bytes".into());
    Ok(report)
}

/// Why the live checkpoint does not fit here, if so.
fn too_small(details: &DeviceDetails) -> Option<String> {
    let short = |of: &str, need: u64, free: u64| {
        let [need, free] = [need, free].map(|bytes| bytes / 1_000_000);
        format!("the live checkpoint takes {need} MB of {of} memory, {free} MB are free")
    };
    if details.free < DEVICE_BYTES {
        return Some(short("device", DEVICE_BYTES, details.free));
    }
    let free = host_memory().filter(|&free| free < HOST_BYTES)?;
    Some(short("host", HOST_BYTES, free))
}

/// Free host memory, where Linux tells.
fn host_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// What belongs to every figure: the card, its driver, its clocks, the day.
fn describe(context: &Context, details: &DeviceDetails) -> String {
    let driver = context.device.driver;
    format!(
        "{}, driver {} (CUDA {}.{}), clocks up to {} and {} MHz (memory), {}",
        context.device.name,
        module_version().unwrap_or_else(|| "n/a".into()),
        driver / 1000,
        driver % 1000 / 10,
        details.clock_khz / 1000,
        details.memory_clock_khz / 1000,
        super::date(),
    )
}

struct Copy {
    section: Section,
    /// Read and written.
    bytes_per_us: f64,
}

fn copy(inspection: &Inspection, details: &DeviceDetails, effort: &Effort) -> Result<Copy, Failed> {
    let quarter = usize::try_from(details.free / 4).unwrap_or(usize::MAX);
    let bytes = effort.copy_bytes.min(quarter);
    let times = Times::of(inspection.copies(bytes, effort.rounds)?);
    let bytes_per_us = 2.0 * bytes as f64 / times.at(0.5);
    let columns = ["copied_bytes", "p50_us", "spread_us", "rate_gb_s"];
    let mut section = Section::new("device-to-device copy", &columns);
    section.cases.push(
        Case::noted("read and written")
            .figure("copied_bytes", bytes)
            .figure("p50_us", times.at(0.5))
            .figure("spread_us", times.spread())
            .figure("rate_gb_s", bytes_per_us / 1e3),
    );
    Ok(Copy { section, bytes_per_us })
}

/// Sorted times, µs.
struct Times(Vec<f64>);

impl Times {
    fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut sorted: Vec<f64> = times.into_iter().map(|time| time.as_secs_f64() * 1e6).collect();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }

    /// The smallest time that a share of all does not exceed.
    fn at(&self, share: f64) -> f64 {
        // A share of a number of rounds is a small positive number.
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
    }

    /// Between the quartiles.
    fn spread(&self) -> f64 {
        self.at(0.75) - self.at(0.25)
    }
}

const ROUNDS: [&str; 10] = [
    "p50_us",
    "p99_us",
    "spread_us",
    "host_us",
    "device_us",
    "cold_us",
    "read_bytes",
    "rate_gb_s",
    "of_copy",
    "over_floor",
];
const PARTS: [&str; 6] = [
    "projection_bytes",
    "dense_bytes",
    "experts_bytes",
    "head_bytes",
    "markov_bytes",
    "window_bytes",
];

struct Timed {
    case: Case,
    parts: Case,
}

/// A drafter with full windows that goes on drafting.
struct Bench {
    drafter: CudaDrafter,
    geometry: Geometry,
    out: DraftBlocks,
    /// Page-locked, like the worker's.
    frame: FrameBuffer,
    flush: Flush,
    next_pos: [i64; REQUESTS],
    bytes_per_us: f64,
}

impl Bench {
    fn new(drafter: CudaDrafter, requests: usize, bytes_per_us: f64) -> Result<Self, Failed> {
        let geometry = *drafter.geometry();
        let window = geometry.window as usize;
        let mut bench = Self {
            out: DraftBlocks::new(&geometry),
            frame: drafter.frame_buffer(window * geometry.row_bytes())?,
            flush: drafter.flush()?,
            next_pos: [0; REQUESTS],
            drafter,
            geometry,
            bytes_per_us,
        };
        for slot in 0..requests {
            let part = Part { n_out: 0, ..bench.part(slot, window) };
            let plan = bench.take(&[part]);
            bench.step(&plan)?;
        }
        Ok(bench)
    }

    /// What a request sends next: `rows` rows, and a draft of which four requests consume one position less.
    fn part(&self, slot: usize, rows: usize) -> Part {
        let first_pos = self.next_pos[slot];
        let n_out = self.geometry.num_spec as usize;
        // There are four slots.
        Part { slot: slot as u8, lo: 0, first_pos, rows, n_out }
    }

    fn round(&mut self, requests: usize, rows: usize) -> StepPlan {
        let fewer = usize::from(requests > 2);
        let parts: Vec<Part> = (0..requests)
            .map(|slot| self.part(slot, rows))
            .map(|part| Part { n_out: part.n_out - fewer, ..part })
            .collect();
        self.take(&parts)
    }

    /// Puts the rows of a STEP into the frame and answers its plan.
    fn take(&mut self, parts: &[Part]) -> StepPlan {
        let bytes = rows(&self.geometry, parts);
        self.frame.frame_mut(bytes.len()).copy_from_slice(&bytes);
        for part in parts {
            self.next_pos[usize::from(part.slot)] += part.rows as i64;
        }
        plan(&self.geometry, parts)
    }

    fn row_block<'a>(frame: &'a FrameBuffer, geometry: &Geometry, plan: &StepPlan) -> RowBlock<'a> {
        let rows: usize = plan.appends.iter().map(|append| append.rows.len()).sum();
        RowBlock::new(frame.frame(rows * geometry.row_bytes()), geometry.row_bytes())
    }

    /// Executes a STEP as the worker does, and answers how long it took.
    fn step(&mut self, plan: &StepPlan) -> Result<Duration, Failed> {
        let rows = Self::row_block(&self.frame, &self.geometry, plan);
        let started = Instant::now();
        self.drafter.step(plan, rows, &mut self.out)?;
        Ok(started.elapsed())
    }

    fn rounds(
        &mut self,
        name: &str,
        requests: usize,
        rows: usize,
        effort: &Effort,
    ) -> Result<Timed, Failed> {
        for _ in 0..effort.warm_up {
            let plan = self.round(requests, rows);
            self.step(&plan)?;
        }
        let [mut worker, mut host, mut device, mut cold] = [const { Vec::new() }; 4];
        let mut read = Vec::new();
        for round in 0..effort.rounds {
            let plan = self.round(requests, rows);
            worker.push(self.step(&plan)?);
            host.push(self.drafter.host_time());
            device.push(self.drafter.relaunch(&plan, None)?);
            cold.push(self.drafter.relaunch(&plan, Some(&self.flush))?);
            if round < effort.samples {
                read.push(self.bytes(&plan)?);
            }
        }
        let bytes = read.iter().map(RoundBytes::total).sum::<u64>() / read.len().max(1) as u64;
        let [worker, host, device, cold] = [worker, host, device, cold].map(Times::of);
        let rate = bytes as f64 / device.at(0.5);
        let case = Case::new(name)
            .figure("p50_us", worker.at(0.5))
            .figure("p99_us", worker.at(0.99))
            .figure("spread_us", worker.spread())
            .figure("host_us", host.at(0.5))
            .figure("device_us", device.at(0.5))
            .figure("cold_us", cold.at(0.5))
            .figure("read_bytes", bytes)
            .figure("rate_gb_s", rate / 1e3)
            .figure("of_copy", rate / self.bytes_per_us)
            .figure("over_floor", worker.at(0.5) * self.bytes_per_us / bytes as f64);
        let mut parts: BTreeMap<&str, u64> = BTreeMap::new();
        for (part, bytes) in read.iter().flat_map(|bytes| &bytes.parts) {
            *parts.entry(part).or_default() += bytes / read.len() as u64;
        }
        let parts = parts.into_iter().fold(Case::noted(name), |case, (part, bytes)| {
            case.figure(&format!("{part}_bytes"), bytes)
        });
        Ok(Timed { case, parts })
    }

    /// Bytes of the STEP just executed: it is shown again to see which experts its rows take.
    fn bytes(&mut self, plan: &StepPlan) -> Result<RoundBytes, Failed> {
        let rows = Self::row_block(&self.frame, &self.geometry, plan);
        let mut experts = Experts(Vec::new());
        let before = self.drafter.markov_counters();
        let _ = self.drafter.step_observed(plan, rows, &mut self.out, &mut experts)?;
        Ok(self.drafter.round_bytes(plan, &experts.0, before))
    }

    /// Times of the kernels of a round, one by one.
    fn kernels(
        &mut self,
        title: String,
        requests: usize,
        effort: &Effort,
    ) -> Result<Section, Failed> {
        let mut times: BTreeMap<String, (usize, Vec<Duration>)> = BTreeMap::new();
        let mut products: BTreeMap<String, u64> = BTreeMap::new();
        let lead = (LEAD_US * self.bytes_per_us / self.flush.bytes() as f64).ceil() as usize;
        for _ in 0..effort.rounds {
            let plan = self.round(requests, effort.kernel_rows);
            self.step(&plan)?;
            let rows = Self::row_block(&self.frame, &self.geometry, &plan);
            let all = self.drafter.kernel_times(&plan, rows, &mut self.out, &self.flush, lead)?;
            for kernel in all {
                let (launches, all) = times.entry(kernel.name).or_default();
                *launches = kernel.launches;
                all.push(kernel.time);
            }
            if products.is_empty() {
                products = self.bytes(&plan)?.products;
            }
        }
        let columns = ["launches", "p50_us", "spread_us", "read_bytes", "rate_gb_s", "of_copy"];
        let mut section = Section::new(title, &columns);
        let mut timed: Vec<(String, usize, Times)> =
            times.into_iter().map(|(name, (n, all))| (name, n, Times::of(all))).collect();
        timed.sort_by(|a, b| b.2.at(0.5).total_cmp(&a.2.at(0.5)));
        for (name, launches, times) in timed {
            let mut case = Case::noted(&name)
                .figure("launches", launches)
                .figure("p50_us", times.at(0.5))
                .figure("spread_us", times.spread());
            if let Some(&bytes) = products.get(&name) {
                let rate = bytes as f64 / times.at(0.5);
                case = case
                    .figure("read_bytes", bytes)
                    .figure("rate_gb_s", rate / 1e3)
                    .figure("of_copy", rate / self.bytes_per_us);
            }
            section.cases.push(case);
        }
        Ok(section)
    }

    /// One STEP after a pause, in which the card may have lowered its clocks.
    fn idle(&mut self, effort: &Effort) -> Result<Case, Failed> {
        let plan = self.round(1, effort.kernel_rows);
        thread::sleep(effort.idle);
        let time = self.step(&plan)?;
        Ok(Case::noted(format!("1 x {}", effort.kernel_rows))
            .figure("pause_us", effort.idle.as_secs_f64() * 1e6)
            .figure("step_us", time.as_secs_f64() * 1e6))
    }
}

/// Experts taken, by layer.
struct Experts(Vec<BTreeSet<usize>>);

impl StageObserver for Experts {
    fn stage(&mut self, stage: Point, layer: Option<usize>, values: &[f32]) -> ControlFlow<()> {
        if let (Point::RouterIds, Some(_)) = (stage, layer) {
            // Ids are whole numbers below the number of experts.
            self.0.push(values.iter().map(|&id| id as usize).collect());
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_times_is_one_of_them() {
        let times = Times::of((1..=100).rev().map(Duration::from_micros));
        assert_eq!(
            [0.0, 0.25, 0.5, 0.99, 1.0].map(|share| times.at(share)),
            [1.0, 25.0, 50.0, 99.0, 100.0]
        );
        assert_eq!(times.spread(), 50.0);
        assert_eq!(Times::of([Duration::from_micros(7)]).at(0.5), 7.0);
        assert!(Times::of([]).at(0.5).is_nan());
    }
}
