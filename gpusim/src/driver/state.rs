//! The driver's one state, and the frame every API call runs in.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::codes::Code;
use super::event::Event;
use super::settings::Settings;
use super::work::{Queue, Work};
use crate::counters::Counters;
use crate::exec::program::Kernel;
use crate::memory::Memory;

/// A handle as the program sees it; 0 is null.
pub(crate) type Handle = usize;

/// The primary context's handle.
pub(crate) const PRIMARY_CONTEXT: Handle = 0x10;

/// What a call gives back before it becomes a code.
pub(crate) type Answer = Result<(), Code>;

/// A loaded module.
pub(crate) struct LoadedModule {
    pub(crate) kernels: HashMap<String, Arc<Kernel>>,
    /// Address and size of `.global` and `.const` variables.
    pub(crate) variables: HashMap<String, (u64, usize)>,
}

/// A kernel of a loaded module.
pub(crate) struct LoadedFunction {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) module: Handle,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`, once set.
    pub(crate) max_dynamic_shared: Option<usize>,
}

/// A stream.
pub(crate) struct Stream {
    /// The queue its work goes to.
    pub(crate) queue: usize,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) capture: Option<Capture>,
    /// The capturing stream whose capture this stream was drawn into by an event.
    pub(crate) joined: Option<Handle>,
}

/// Work recorded instead of executed.
pub(crate) struct Capture {
    pub(crate) work: Vec<Work>,
    pub(crate) invalidated: bool,
}

/// Everything the driver knows.
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) initialized: bool,
    pub(crate) context_count: u32,
    pub(crate) memory: Memory,
    pub(crate) modules: HashMap<Handle, LoadedModule>,
    pub(crate) functions: HashMap<Handle, LoadedFunction>,
    pub(crate) streams: HashMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    /// Graphs and instantiated graphs alike.
    pub(crate) graphs: HashMap<Handle, Arc<Vec<Work>>>,
    /// Queue 0 is that of the default stream and all streams that wait for it.
    pub(crate) queues: Vec<Queue>,
    pub(crate) counters: Counters,
    pub(crate) limits: HashMap<c_int, usize>,
    /// The error that a failed kernel leaves behind for all later calls.
    pub(crate) sticky: Option<Code>,
    /// Message of the last failure.
    pub(crate) last_error: String,
    pub(crate) launches: u64,
    next_handle: Handle,
}

thread_local! {
    /// Set while this thread runs a function of the program for a stream.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    static CURRENT: Cell<Handle> = const { Cell::new(0) };
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

impl State {
    fn new(settings: Settings) -> Self {
        let memory = Memory::new(settings.memory_bytes, settings.fill);
        let mut state = Self {
            settings,
            initialized: false,
            context_count: 0,
            memory,
            modules: HashMap::new(),
            functions: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            queues: vec![Queue::default()],
            counters: Counters::default(),
            limits: HashMap::new(),
            sticky: None,
            last_error: String::new(),
            launches: 0,
            next_handle: 0x100,
        };
        state.add_default_stream();
        state
    }

    fn add_default_stream(&mut self) {
        let stream = Stream { queue: 0, flags: 0, priority: 0, capture: None, joined: None };
        self.streams.insert(0, stream);
    }

    pub(crate) fn new_handle(&mut self) -> Handle {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// Notes and prints a message, and returns the code that goes with it.
    pub(crate) fn fail(&mut self, code: Code, message: impl Into<String>) -> Code {
        self.last_error = message.into();
        eprintln!("gpusim: {}", self.last_error);
        code
    }

    /// Drops everything the primary context owned.
    pub(crate) fn reset_context(&mut self) {
        let (leaked, bytes) = self.memory.free_all();
        if leaked > 0 {
            eprintln!("gpusim: {leaked} allocations ({bytes} bytes) not freed at context release");
            self.counters.leaked_allocations += leaked as u64;
            self.counters.leaked_bytes += bytes as u64;
        }
        self.modules.clear();
        self.functions.clear();
        self.streams.clear();
        self.events.clear();
        self.graphs.clear();
        self.queues = vec![Queue::default()];
        self.add_default_stream();
        self.sticky = None;
    }

    /// Writes the report, if one is asked for.
    pub(crate) fn write_report(&self) {
        let Some(path) = &self.settings.report else { return };
        let report = self.counters.to_json(&self.last_error);
        if let Err(error) = std::fs::write(path, format!("{report:#}\n")) {
            eprintln!("gpusim: cannot write {}: {error}", path.display());
        }
    }
}

/// What a call needs before it can do anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Initialized,
    /// A current context without a failed kernel behind it.
    Context,
}

/// The handle of the calling thread's context.
pub(crate) fn current_context() -> Handle {
    CURRENT.get()
}

/// Makes a context current on the calling thread.
pub(crate) fn set_current_context(context: Handle) {
    CURRENT.set(context);
}

/// Runs a function of the program; driver calls it makes meanwhile are refused.
pub(crate) fn in_host_function(f: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    f();
    IN_HOST_FUNCTION.set(false);
}

/// Runs one API call: counts it, checks what it needs, and turns its answer into a code. A panic
/// of the emulator itself becomes `CUDA_ERROR_UNKNOWN`.
pub(crate) fn call(
    name: &'static str,
    needs: Needs,
    f: impl FnOnce(&mut State) -> Answer,
) -> c_int {
    if IN_HOST_FUNCTION.get() {
        eprintln!("gpusim: {name} inside a host function");
        return Code::NOT_PERMITTED.0;
    }
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let mut state = lock();
        let calls = state.counters.calls.entry(name).or_default();
        *calls += 1;
        let calls = *calls;
        if state.settings.refuse.as_ref().is_some_and(|(of, at)| of == name && *at == calls) {
            let message = format!("call {calls} of {name}, which GPUSIM_REFUSE names");
            return Err(state.fail(Code::OUT_OF_MEMORY, message));
        }
        if needs != Needs::Nothing && !state.initialized {
            return Err(Code::NOT_INITIALIZED);
        }
        if needs == Needs::Context {
            if state.context_count == 0 || current_context() == 0 {
                let message = format!("{name} without a current context");
                return Err(state.fail(Code::INVALID_CONTEXT, message));
            }
            if let Some(code) = state.sticky {
                return Err(code);
            }
        }
        f(&mut state)
    }));
    match answer {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// The state, locked.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    let state = STATE.get_or_init(|| {
        // SAFETY: the function takes no arguments and stays loaded as long as the process runs.
        unsafe { libc::atexit(at_exit) };
        Mutex::new(State::new(Settings::from_environment()))
    });
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn at_exit() {
    if let Some(Ok(state)) = STATE.get().map(Mutex::try_lock) {
        state.write_report();
    }
}

/// Writes a result through a pointer of the program.
///
/// # Safety
/// `to` must be null or valid for a write.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and valid as the caller promises.
    unsafe { to.write(value) };
    Ok(())
}
