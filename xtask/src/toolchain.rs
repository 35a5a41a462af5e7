//! Where the kernel compiler is, and how it gets there: NVRTC from Python wheels.
//!
//! Only one version is accepted, because the committed images are compared byte for byte with a
//! rebuild. The wheels are tools under their own licence: they go into the git-ignored
//! `.toolchain/` and nothing of them is committed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::nvrtc::Nvrtc;

/// The one compiler version whose output is committed.
pub(crate) const NVRTC_VERSION: &str = "12.9.86";

const NVRTC_WHEELS: [&str; 2] =
    ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79"];
const SASS_WHEELS: [&str; 1] = ["nvidia-cuda-nvdisasm==13.5.37"];

/// The compiler, the headers it needs and, where present, the disassembler.
pub(crate) struct Toolchain {
    /// NVRTC, loaded and of the pinned version.
    pub(crate) nvrtc: Nvrtc,
    /// Folder with `cuda_fp16.h` and `cuda_bf16.h`.
    pub(crate) include: PathBuf,
    /// `nvdisasm`, for instruction counts; the build works without.
    pub(crate) nvdisasm: Option<PathBuf>,
}

/// Installs the pinned wheels into `<root>/.toolchain` with pip, unless they are there.
///
/// # Errors
/// When no Python with pip is found or the installation fails; what was there stays.
pub(crate) fn fetch(root: &Path) -> Result<()> {
    if find(root).is_ok_and(|tools| tools.nvdisasm.is_some()) {
        return Ok(());
    }
    install(&root.join(".toolchain/nvrtc"), &NVRTC_WHEELS)?;
    if let Err(error) = install(&root.join(".toolchain/sass"), &SASS_WHEELS) {
        eprintln!("no disassembler, instruction counts will be skipped: {error:#}");
    }
    Ok(())
}

fn install(target: &Path, wheels: &[&str]) -> Result<()> {
    // A whole folder or none: pip leaves existing files of a target alone, whatever they are.
    let partial = target.with_extension("partial");
    remove(&partial)?;
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"])
        .args(["--disable-pip-version-check", "--root-user-action=ignore", "--target"])
        .arg(&partial)
        .args(wheels)
        .status()
        .context("start python3 -m pip")?;
    if !status.success() {
        bail!("pip could not install {}", wheels.join(" "));
    }
    remove(target)?;
    std::fs::rename(&partial, target).with_context(|| format!("fill {}", target.display()))
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("empty {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Finds the pinned NVRTC: `$DSPARK_NVRTC`, then `.toolchain/`, then an installed toolkit.
///
/// # Errors
/// When none of the places has the pinned version; the message lists what was found.
pub(crate) fn find(root: &Path) -> Result<Toolchain> {
    let mut refused = Vec::new();
    for place in places(root) {
        let Some((library, include)) = layout(&place) else { continue };
        let nvrtc = Nvrtc::open(&library)?;
        let version = nvrtc.full_version()?;
        if version == NVRTC_VERSION {
            return Ok(Toolchain { nvrtc, include, nvdisasm: find_nvdisasm(root, &place) });
        }
        refused.push(format!("{} is {version}", library.display()));
    }
    if refused.is_empty() {
        bail!("NVRTC {NVRTC_VERSION} not found; run `cargo run -p xtask -- kernels --fetch`");
    }
    bail!("only NVRTC {NVRTC_VERSION} is accepted ({}); use --fetch", refused.join(", "));
}

fn places(root: &Path) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        std::env::var_os("DSPARK_NVRTC").map(PathBuf::from).into_iter().collect();
    places.push(root.join(".toolchain"));
    places
        .extend(["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from));
    places.push(PathBuf::from("/usr/local/cuda"));
    places
}

/// Library and header folder under `place`, for the wheels' layout and a toolkit's.
fn layout(place: &Path) -> Option<(PathBuf, PathBuf)> {
    let candidates = [
        ("nvrtc/nvidia/cuda_nvrtc/lib", "nvrtc/nvidia/cuda_runtime/include"),
        ("nvidia/cuda_nvrtc/lib", "nvidia/cuda_runtime/include"),
        ("lib64", "include"),
    ];
    candidates.iter().find_map(|(lib, include)| {
        let library = place.join(lib).join("libnvrtc.so.12");
        let include = place.join(include);
        (library.is_file() && include.join("cuda_fp16.h").is_file()).then_some((library, include))
    })
}

fn find_nvdisasm(root: &Path, place: &Path) -> Option<PathBuf> {
    let relative = ["sass/nvidia/cu13/bin/nvdisasm", "bin/nvdisasm"];
    [place.to_path_buf(), root.join(".toolchain")]
        .iter()
        .flat_map(|base| relative.iter().map(|path| base.join(path)))
        .find(|path| path.is_file())
}
