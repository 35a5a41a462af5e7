//! The emulated driver for tests: loaded into this process, or laid out for a child process.

#![allow(dead_code)]

use std::ffi::c_char;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use dspark::checkpoint::{Checkpoint, Unverified};
use dspark::drafter::cuda::{CudaDrafter, CudaError, CudaOptions};

/// The emulator's library, which cargo builds beside the test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("path of the test");
    test.parent().expect("folder of the test").join("libgpusim.so")
}

static EMULATOR: OnceLock<libloading::Library> = OnceLock::new();

/// Loads the emulated driver, so that the library's own search for `libcuda.so.1` finds it.
pub(crate) fn load() {
    EMULATOR.get_or_init(|| {
        // SAFETY: a library of this workspace whose constructors do nothing but set up Rust statics.
        unsafe { libloading::Library::new(library()) }.expect("load the emulated driver")
    });
}

/// The emulator's counters since the process began.
pub(crate) fn report() -> serde_json::Value {
    type Text = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let library = EMULATOR.get().expect("the emulator is loaded");
    let mut text = Vec::new();
    // SAFETY: the emulator declares the function so, and writes at most the length it is given. No kernel
    // runs between the two calls.
    unsafe {
        let report: libloading::Symbol<'_, Text> =
            library.get(b"gpusim_report\0").expect("a symbol");
        text.resize(report(std::ptr::null_mut(), 0) + 1, 0u8);
        report(text.as_mut_ptr().cast(), text.len());
    }
    text.pop();
    serde_json::from_slice(&text).expect("the report is JSON")
}

/// A folder that holds nothing but the emulated driver, `libcuda.so.1` and the management library, for a child's
/// `LD_LIBRARY_PATH`.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink(library(), folder.path().join(name)).expect("a link");
    }
    folder
}

/// Held while memory is taken or given back: neither may happen while another thread captures a graph.
static SETUP: Mutex<()> = Mutex::new(());

/// A CUDA backend on the emulated device.
pub(crate) struct Emulated(Option<CudaDrafter>);

/// The backend for a checkpoint.
pub(crate) fn drafter(checkpoint: &Checkpoint, options: CudaOptions) -> Emulated {
    load();
    let _turn = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
    let drafter = CudaDrafter::new(checkpoint, options);
    Emulated(Some(drafter.expect("the emulated device serves the checkpoint")))
}

/// The backend for a checkpoint whose files are verified on the way.
pub(crate) fn from_files(
    checkpoint: &Checkpoint,
    files: &Unverified,
    options: CudaOptions,
) -> Result<Emulated, CudaError> {
    load();
    let _turn = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
    CudaDrafter::load(checkpoint, files, options).map(|drafter| Emulated(Some(drafter)))
}

impl Deref for Emulated {
    type Target = CudaDrafter;

    fn deref(&self) -> &CudaDrafter {
        self.0.as_ref().expect("taken in drop only")
    }
}

impl DerefMut for Emulated {
    fn deref_mut(&mut self) -> &mut CudaDrafter {
        self.0.as_mut().expect("taken in drop only")
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let _turn = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.take();
    }
}
