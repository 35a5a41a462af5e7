//! `dspark serve --check`: load and verify everything, say what would run, listen nowhere.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use dspark::checkpoint::Checkpoint;
use dspark::drafter::cuda::MemoryPlan;
use dspark::drafter::weights::{LoadReport, ModuleRow};
use dspark::drafter::{BackendInfo, Drafter};
use dspark::geometry::REQUEST_BYTES_MAX;
use serde_json::{Value, json};

use crate::environment::FLAGLESS;
use crate::exit::Failure;
use crate::output::{Output, count, table};
use crate::worker::{BackendChoice, Built, Source, build_drafter};

/// Flags that steer this command and configure no worker.
const NOT_SETTINGS: [&str; 3] = ["check", "help", "version"];

/// A setting with its effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Long name of the flag, or the variable's where there is no flag.
    name: String,
    /// As it was written; `None` when it is not set.
    value: Option<String>,
    /// `flag`, the variable, `default`, or `not set`.
    origin: String,
}

/// Every setting of a parsed command.
pub(crate) fn settings(command: &Command, matches: &ArgMatches) -> Vec<Setting> {
    let flags = command.get_arguments().filter_map(|arg| {
        let id = arg.get_id().as_str();
        let name = arg.get_long().filter(|_| !NOT_SETTINGS.contains(&id))?;
        let raw = matches.try_get_raw(id).ok()?;
        let value = raw.map(|values| {
            let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            values.join(",")
        });
        let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "flag".into(),
            Some(ValueSource::EnvVariable) => variable.unwrap_or_default(),
            Some(ValueSource::DefaultValue) => "default".into(),
            _ => "not set".into(),
        };
        Some(Setting { name: format!("--{name}"), value, origin })
    });
    let others = FLAGLESS.into_iter().map(|(name, _)| {
        let value = std::env::var(name).ok();
        let origin = if value.is_some() { name } else { "not set" };
        Setting { name: name.into(), value, origin: origin.into() }
    });
    flags.chain(others).collect()
}

/// Bytes a worker takes.
struct Memory {
    files: u64,
    window_kv: u64,
    /// Held on the device, 0 on the CPU.
    device: u64,
    /// What of the device was taken for what, on a GPU.
    plan: Option<MemoryPlan>,
    frame_buffers: u64,
    /// Resident now, with everything loaded; `None` where the system does not say.
    resident: Option<u64>,
}

/// Loads the drafter and prints what would be served.
pub(crate) fn run(
    mut source: Source,
    choice: BackendChoice,
    listeners: usize,
    settings: &[Setting],
    output: &Output,
) -> Result<(), Failure> {
    let built = build_drafter(&mut source, choice)?;
    let checkpoint = &source.checkpoint;
    let (drafter, report, plan): (&dyn Drafter, _, _) = match &built {
        Built::Cpu(drafter) => (&**drafter, drafter.report(), None),
        Built::Cuda(drafter) => (&**drafter, drafter.report(), Some(drafter.memory_plan())),
    };
    let (geometry, info) = (*drafter.geometry(), drafter.info());
    let config = &checkpoint.config;
    let kv = config.stages * config.head_dim * (geometry.max_slots * geometry.window) as usize;
    let memory = Memory {
        files: checkpoint.bytes,
        // The CPU keeps window values as f32, whatever they are rounded to.
        window_kv: if info.backend == "cpu" { 4 } else { 2 } * kv as u64,
        device: info.gpu_mem_bytes,
        plan: plan.cloned(),
        frame_buffers: (listeners * REQUEST_BYTES_MAX) as u64,
        resident: resident(),
    };
    if output.json() {
        let doc = document(checkpoint, &info, report, &memory, settings);
        return Ok(output.document(&doc, false)?);
    }
    output.line(format_args!(
        "checkpoint {}, backend {} ({}), precision {}, logits {}, kv {}",
        checkpoint.origin, info.backend, info.device, info.precision, info.logits, info.kv
    ))?;
    output.line(format_args!("drafter identity {}", checkpoint.identities.drafter))?;
    output.line(format_args!("Markov identity  {}\n", checkpoint.identities.markov))?;
    output.line(modules(report))?;
    output.line(format_args!("tensors {report}\n"))?;
    output.line(memory_table(&memory))?;
    output.line(settings_table(settings))?;
    output.line("\nchecked; nothing was listened on")?;
    Ok(())
}

fn modules(report: &LoadReport) -> comfy_table::Table {
    let mut table = table(&["module", "file", "form", "K", "codebook", "shape"]);
    for row in &report.modules {
        let optional = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        table.add_row(vec![
            row.module.clone(),
            row.file.clone(),
            row.form.clone(),
            optional(&row.width),
            optional(&row.codebook),
            format!("{:?}", row.shape),
        ]);
    }
    table
}

fn memory_table(memory: &Memory) -> comfy_table::Table {
    let mut table = table(&["memory", "bytes"]);
    for (what, bytes) in memory.rows() {
        table.add_row(vec![what.to_owned(), bytes.map_or("n/a".into(), count)]);
    }
    table
}

fn settings_table(settings: &[Setting]) -> comfy_table::Table {
    let mut table = table(&["\nsetting", "\nvalue", "\norigin"]);
    for setting in settings {
        let value = setting.value.clone().unwrap_or_else(|| "-".into());
        table.add_row(vec![setting.name.clone(), value, setting.origin.clone()]);
    }
    table
}

impl Memory {
    fn rows(&self) -> Vec<(&'static str, Option<u64>)> {
        let mut rows = vec![
            ("checkpoint files", Some(self.files)),
            ("window KV", Some(self.window_kv)),
            ("device memory", Some(self.device)),
        ];
        if let Some(plan) = &self.plan {
            rows.extend([
                ("  of it weights", Some(plan.weights)),
                ("  of it window", Some(plan.window)),
                ("  of it working memory", Some(plan.working)),
                ("device free before", Some(plan.free)),
                ("device in all", Some(plan.total)),
                ("page-locked", Some(plan.pinned)),
            ]);
        }
        rows.extend([
            ("frame buffers", Some(self.frame_buffers)),
            ("resident after loading", self.resident),
        ]);
        rows
    }
}

fn document(
    checkpoint: &Checkpoint,
    info: &BackendInfo,
    report: &LoadReport,
    memory: &Memory,
    settings: &[Setting],
) -> Value {
    let module = |row: &ModuleRow| {
        json!({ "module": row.module, "file": row.file, "form": row.form, "k": row.width,
            "codebook": row.codebook, "shape": row.shape })
    };
    json!({
        "schema": 1,
        "checkpoint": checkpoint.origin,
        "drafter_identity": checkpoint.identities.drafter.to_string(),
        "markov_identity": checkpoint.identities.markov.to_string(),
        "backend": info.backend, "device": info.device, "precision": info.precision,
        "logits": info.logits, "kv": info.kv,
        "modules": report.modules.iter().map(module).collect::<Vec<_>>(),
        "tensors_consumed": report.consumed,
        "tensors_ignored": report.ignored.iter()
            .map(|i| json!({ "tensor": i.tensor, "reason": i.reason })).collect::<Vec<_>>(),
        "memory": {
            "files_bytes": memory.files, "window_kv_bytes": memory.window_kv,
            "device_bytes": memory.device,
            "frame_buffers_bytes": memory.frame_buffers, "resident_bytes": memory.resident,
            "plan": memory.plan.as_ref().map(|plan| json!({
                "weights_bytes": plan.weights, "window_bytes": plan.window,
                "working_bytes": plan.working, "pinned_bytes": plan.pinned,
                "free_bytes": plan.free, "total_bytes": plan.total,
            })),
        },
        "settings": settings.iter()
            .map(|s| json!({ "setting": s.name, "value": s.value, "origin": s.origin }))
            .collect::<Vec<_>>(),
    })
}

/// Resident bytes of this process.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
