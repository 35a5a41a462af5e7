//! The ten functions of NVRTC that compiling needs, loaded by path.
//!
//! Headers of the project are handed over as text, not as search path, so that no path of the
//! building machine can enter an image.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use libloading::{Library, Symbol};

type Program = *mut c_void;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// A loaded NVRTC.
pub(crate) struct Nvrtc {
    library: Library,
}

/// A source with the headers it may include, all as text.
pub(crate) struct Source<'a> {
    /// Name shown in messages, such as `norm.cu`.
    pub(crate) name: &'a str,
    /// The translation unit.
    pub(crate) text: &'a str,
    /// Header name as written in `#include "…"`, and its text.
    pub(crate) headers: &'a [(String, String)],
}

/// What a compilation gives.
pub(crate) struct Compiled {
    /// The cubin, or PTX text without its final NUL.
    pub(crate) image: Vec<u8>,
    /// Warnings, and ptxas' resource report where asked for.
    pub(crate) log: String,
}

/// Which of the two outputs is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Machine code of one architecture (`sm_XY`).
    Cubin,
    /// PTX text (`compute_XY`).
    Ptx,
}

impl Nvrtc {
    /// Loads the library at `path`.
    ///
    /// # Errors
    /// When the file is no loadable NVRTC.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        // SAFETY: loading runs the library's initialisers; NVRTC has none that touch our state.
        let library =
            unsafe { Library::new(path) }.with_context(|| format!("load {}", path.display()))?;
        Ok(Self { library })
    }

    /// The release with its build number, such as `12.9.86`.
    ///
    /// `nvrtcVersion` gives two numbers only; the third stands in the header of any PTX.
    ///
    /// # Errors
    /// When nothing can be compiled.
    pub(crate) fn full_version(&self) -> Result<String> {
        let source = Source { name: "version.cu", text: "", headers: &[] };
        let compiled =
            self.compile(&source, &["--gpu-architecture=compute_80".into()], Output::Ptx)?;
        let text = String::from_utf8_lossy(&compiled.image).into_owned();
        let version = text.lines().filter(|line| line.starts_with("//")).find_map(|line| {
            line.rsplit_once(", V").map(|(_, version)| version.trim().to_string())
        });
        version.ok_or_else(|| anyhow!("NVRTC's PTX names no version"))
    }

    /// Compiles one source.
    ///
    /// # Errors
    /// With the compiler's log when the source is refused.
    pub(crate) fn compile(
        &self,
        source: &Source<'_>,
        options: &[String],
        output: Output,
    ) -> Result<Compiled> {
        let program = self.create(source)?;
        let result = self.compile_program(program, source.name, options, output);
        let mut handle = program;
        // SAFETY: `handle` came from nvrtcCreateProgram and is not used after this.
        unsafe {
            let destroy: Symbol<'_, unsafe extern "C" fn(*mut Program) -> c_int> =
                self.library.get(b"nvrtcDestroyProgram\0")?;
            destroy(&mut handle);
        }
        result
    }

    fn create(&self, source: &Source<'_>) -> Result<Program> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        let name = CString::new(source.name)?;
        let text = CString::new(source.text)?;
        let mut owned = Vec::new();
        for (name, text) in source.headers {
            owned.push((CString::new(name.as_str())?, CString::new(text.as_str())?));
        }
        let names: Vec<*const c_char> = owned.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<*const c_char> = owned.iter().map(|(_, text)| text.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: all strings end in NUL and outlive the call, which copies them.
        let code = unsafe {
            let create: Symbol<'_, Create> = self.library.get(b"nvrtcCreateProgram\0")?;
            create(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                c_int::try_from(names.len())?,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.expect_success(code, "nvrtcCreateProgram")?;
        Ok(program)
    }

    fn compile_program(
        &self,
        program: Program,
        name: &str,
        options: &[String],
        output: Output,
    ) -> Result<Compiled> {
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        let owned: Vec<CString> =
            options.iter().map(|option| CString::new(option.as_str())).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = owned.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the option strings end in NUL and outlive the call.
        let code = unsafe {
            let compile: Symbol<'_, Compile> = self.library.get(b"nvrtcCompileProgram\0")?;
            compile(program, c_int::try_from(pointers.len())?, pointers.as_ptr())
        };
        let log = self.bytes(program, b"nvrtcGetProgramLogSize\0", b"nvrtcGetProgramLog\0")?;
        let log = String::from_utf8_lossy(without_nul(&log)).trim().to_string();
        if code != 0 {
            bail!("{name} does not compile ({}):\n{log}", options.join(" "));
        }
        let image = match output {
            Output::Cubin => self.bytes(program, b"nvrtcGetCUBINSize\0", b"nvrtcGetCUBIN\0")?,
            Output::Ptx => {
                let text = self.bytes(program, b"nvrtcGetPTXSize\0", b"nvrtcGetPTX\0")?;
                without_nul(&text).to_vec()
            }
        };
        Ok(Compiled { image, log })
    }

    /// Calls a pair of "how long" and "give me" functions.
    fn bytes(&self, program: Program, size: &[u8], get: &[u8]) -> Result<Vec<u8>> {
        let mut length = 0usize;
        // SAFETY: `program` is live; the second call writes exactly the announced length.
        unsafe {
            let size: Symbol<'_, Size> = self.library.get(size)?;
            self.expect_success(size(program, &mut length), "ask for an output's size")?;
            let mut bytes = vec![0u8; length];
            let get: Symbol<'_, Text> = self.library.get(get)?;
            self.expect_success(get(program, bytes.as_mut_ptr().cast()), "read an output")?;
            Ok(bytes)
        }
    }

    fn expect_success(&self, code: c_int, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a static string for every code.
        let text = unsafe {
            let name: Symbol<'_, unsafe extern "C" fn(c_int) -> *const c_char> =
                self.library.get(b"nvrtcGetErrorString\0")?;
            CStr::from_ptr(name(code)).to_string_lossy().into_owned()
        };
        bail!("{what}: {text}")
    }
}

fn without_nul(bytes: &[u8]) -> &[u8] {
    bytes.strip_suffix(&[0]).unwrap_or(bytes)
}
