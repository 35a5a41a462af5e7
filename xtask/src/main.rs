//! Development commands of dspark that `cargo build` never needs.
//!
//! `cargo run -p xtask -- kernels` compiles `kernels/*.cu` with the pinned NVRTC and writes
//! `kernels/prebuilt/`; `--check` rebuilds into memory, compares byte for byte and applies the
//! static gates of `kernels/gates.json`. What a user runs is in `commands/`, not here.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

mod build;
mod check;
mod gates;
mod manifest;
mod nvrtc;
mod occupancy;
mod pack;
mod resources;
mod sass;
mod sources;
mod toolchain;

#[derive(Parser)]
#[command(name = "xtask", about = "Development commands of dspark")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile the CUDA kernels into kernels/prebuilt, or check what is there
    Kernels(KernelsArgs),
}

#[derive(Args)]
struct KernelsArgs {
    /// Install the pinned compiler, its headers and the disassembler into .toolchain/ with pip
    #[arg(long)]
    fetch: bool,
    /// Rebuild into memory, compare with kernels/prebuilt byte for byte and apply the gates
    #[arg(long)]
    check: bool,
    /// Folder with the kernel sources
    #[arg(long, value_name = "DIR", default_value_os_t = repository().join("kernels"))]
    dir: PathBuf,
    /// Compile these sources only (file stems); needs --loose
    #[arg(long, value_name = "STEM", requires = "loose")]
    only: Vec<String>,
    /// Write single images (`<stem>.<arch>.cubin`, `<stem>.<arch>.ptx`) to a folder instead
    #[arg(long, value_name = "DIR", conflicts_with = "check")]
    loose: Option<PathBuf>,
    /// Extra compiler options such as -DNAME=1; needs --loose, so that the pack stays canonical
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, requires = "loose")]
    option: Vec<String>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let Command::Kernels(args) = cli.command;
    let root = repository();
    if args.fetch
        && let Err(error) = toolchain::fetch(&root)
    {
        // A check without the compiler still compares hashes and applies the gates; only a check that
        // is meant to be whole must not pass without it.
        let whole = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        if whole || !args.check {
            return Err(error.context("fetch the compiler"));
        }
        println!("skipped fetch: {error:#}");
    }
    if args.check {
        let summary = check::run(&root, &args.dir)?;
        println!("{summary}");
        return Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let tools = toolchain::find(&root)?;
    if let Some(folder) = &args.loose {
        build::write_loose(&tools, &args.dir, folder, &args.only, &args.option)?;
        return Ok(ExitCode::SUCCESS);
    }
    let built = build::build(&tools, &args.dir, build::prebuilt_manifest(&args.dir).as_ref())?;
    build::write(&built, &args.dir).context("write kernels/prebuilt")?;
    println!("{}", built.describe());
    Ok(ExitCode::SUCCESS)
}

/// The repository this program was built from.
fn repository() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the repository").to_path_buf()
}
