//! The emulated driver inside of a test process, and a small bench for PTX snippets.
//!
//! The library is loaded by path once; because of its SONAME, cudarc's own look-up of
//! `libcuda.so.1` then finds it. All tests of a process share the one device, so they take turns.
#![allow(dead_code)]

use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg, sys,
};
use cudarc::nvrtc::Ptx;

/// A turn on the device, with a context of its own.
pub struct Device {
    pub stream: Arc<CudaStream>,
    pub context: Arc<CudaContext>,
    _turn: MutexGuard<'static, ()>,
}

/// Waits for the device and makes a context.
pub fn device() -> Device {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    library();
    assert!(unsafe { sys::is_culib_present() });
    let context = CudaContext::new(0).expect("context");
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("stream");
    Device { stream, context, _turn: turn }
}

/// Loads the emulator where it was not yet.
pub fn library() -> &'static libloading::Library {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    LIBRARY
        .get_or_init(|| unsafe { libloading::Library::new(library_path()).expect("libgpusim.so") })
}

pub fn library_path() -> PathBuf {
    let test = std::env::current_exe().expect("path of the test");
    let deps = test.parent().expect("deps folder").to_path_buf();
    [deps.join("libgpusim.so"), deps.join("../libgpusim.so")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds libgpusim.so beside the tests")
}

/// The message of the last failed check.
pub fn last_error() -> String {
    text_of(b"gpusim_last_error\0")
}

/// The counters as JSON.
pub fn report() -> serde_json::Value {
    serde_json::from_str(&text_of(b"gpusim_report\0")).expect("the report is JSON")
}

fn text_of(symbol: &[u8]) -> String {
    type Text = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    unsafe {
        let text: libloading::Symbol<'_, Text> = library().get(symbol).expect("symbol");
        let len = text(std::ptr::null_mut(), 0);
        let mut buffer = vec![0u8; len + 1];
        text(buffer.as_mut_ptr().cast(), buffer.len());
        buffer.pop();
        String::from_utf8(buffer).expect("UTF-8")
    }
}

/// A module around the body of one kernel `k(in, out)` with 64-bit addresses in `%in` and `%out`
/// and the registers `%r0…`, `%rd0…`, `%rs0…`, `%f0…`, `%d0…`, `%p0…`.
pub fn snippet(body: &str) -> String {
    format!(
        "{HEADER}
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 k_in, .param .u64 k_out)
{{
	.reg .pred %p<16>;
	.reg .b16 %rs<32>;
	.reg .b32 %r<48>;
	.reg .f32 %f<32>;
	.reg .b64 %rd<32>;
	.reg .f64 %d<16>;
	.reg .b64 %in, %out;
	ld.param.u64 %in, [k_in];
	ld.param.u64 %out, [k_out];
	cvta.to.global.u64 %in, %in;
	cvta.to.global.u64 %out, %out;
{body}
	ret;
}}
"
    )
}

pub const HEADER: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

/// Shape of a snippet's launch.
#[derive(Clone, Copy)]
pub struct Shape {
    pub blocks: u32,
    pub threads: u32,
    pub shared_bytes: u32,
}

pub const ONE_WARP: Shape = Shape { blocks: 1, threads: 32, shared_bytes: 0 };

impl Device {
    /// Runs a snippet on `input` and returns `out_words` words of output, preset to zero.
    pub fn run(
        &self,
        body: &str,
        input: &[u32],
        out_words: usize,
        shape: Shape,
    ) -> Result<Vec<u32>, DriverError> {
        self.run_module(&snippet(body), input, out_words, shape)
    }

    /// Runs the kernel `k(in, out)` of a module.
    pub fn run_module(
        &self,
        module: &str,
        input: &[u32],
        out_words: usize,
        shape: Shape,
    ) -> Result<Vec<u32>, DriverError> {
        let input = self.stream.clone_htod(input)?;
        let mut output: CudaSlice<u32> = self.stream.alloc_zeros(out_words)?;
        let module = self.context.load_module(Ptx::from_src(module))?;
        let function = module.load_function("k")?;
        let config = LaunchConfig {
            grid_dim: (shape.blocks, 1, 1),
            block_dim: (shape.threads, 1, 1),
            shared_mem_bytes: shape.shared_bytes,
        };
        unsafe {
            self.stream.launch_builder(&function).arg(&input).arg(&mut output).launch(config)?
        };
        self.stream.clone_dtoh(&output)
    }

    /// Runs a snippet that must fail and returns the message.
    pub fn fail(&self, body: &str, input: &[u32], out_words: usize, shape: Shape) -> String {
        let error = self.run(body, input, out_words, shape).expect_err("the check must fail");
        assert_eq!(error.0, sys::CUresult::CUDA_ERROR_LAUNCH_FAILED, "{}", last_error());
        last_error()
    }
}
