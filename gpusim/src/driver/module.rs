//! Modules and functions.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use super::codes::Code;
use super::device::{SHARED_DEFAULT_BYTES, SHARED_OPT_IN_BYTES};
use super::state::{Handle, LoadedFunction, LoadedModule, Needs, State, give};
use crate::memory::AllocationKind;
use crate::ptx::{Module, PtxError, Space};

/// JIT options whose buffers take the compiler's messages.
const JIT_ERROR_LOG_BUFFER: c_int = 5;
const JIT_ERROR_LOG_BYTES: c_int = 6;

impl State {
    /// Loads PTX text. Machine code is refused: the emulated device has no binary of its own.
    fn load_module(&mut self, image: &[u8]) -> Result<Handle, Code> {
        let is_elf = image.starts_with(b"\x7fELF");
        let is_fatbin = image.starts_with(&[0x50, 0xED, 0x55, 0xBA]);
        if is_elf || is_fatbin {
            return Err(self.fail(
                Code::NO_BINARY_FOR_GPU,
                "the image is machine code; the emulated device takes PTX only",
            ));
        }
        let Ok(text) = std::str::from_utf8(image) else {
            return Err(
                self.fail(Code::INVALID_IMAGE, "the image is neither machine code nor text")
            );
        };
        if !text.contains(".version") {
            return Err(self.fail(Code::INVALID_IMAGE, "the image is not PTX"));
        }
        self.check_headers(text)?;
        let module = crate::ptx::parse(text).map_err(|error| self.invalid_ptx(&error))?;
        let variables = self.place_variables(&module)?;
        let addresses: HashMap<String, u64> =
            variables.iter().map(|(name, (address, _))| (name.clone(), *address)).collect();
        let kernels = crate::exec::decode(&Arc::from(text), &module, &addresses)
            .map_err(|error| self.invalid_ptx(&error))?;
        let handle = self.new_handle();
        self.modules.insert(handle, LoadedModule { kernels, variables });
        Ok(handle)
    }

    fn invalid_ptx(&mut self, error: &PtxError) -> Code {
        self.fail(Code::INVALID_PTX, error.to_string())
    }

    /// Refuses a PTX version or a target newer than the driver or the device.
    fn check_headers(&mut self, text: &str) -> Result<(), Code> {
        let directive = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
            line.trim().strip_prefix(name).map(str::trim)
        };
        if let Some((major, minor)) = directive(".version").and_then(|text| text.split_once('.')) {
            let version = major.parse().unwrap_or(0) * 10 + minor.parse().unwrap_or(0);
            if version > self.settings.ptx_version() {
                let message = format!(
                    "PTX version {major}.{minor} is newer than driver {} translates",
                    self.settings.driver_version
                );
                return Err(self.fail(Code::UNSUPPORTED_PTX_VERSION, message));
            }
        }
        let target = directive(".target").and_then(|text| text.split(',').next()).unwrap_or("");
        let digits: String = target.chars().filter(char::is_ascii_digit).collect();
        let (major, minor) = self.settings.capability;
        if digits.parse::<i32>().is_ok_and(|target| target > 10 * major + minor) {
            let message = format!("PTX target {target} is newer than the device's {major}.{minor}");
            return Err(self.fail(Code::INVALID_PTX, message));
        }
        Ok(())
    }

    fn place_variables(&mut self, module: &Module) -> Result<HashMap<String, (u64, usize)>, Code> {
        let mut placed = HashMap::new();
        let global = |space| matches!(space, Space::Global | Space::Const);
        for variable in module.variables.iter().filter(|variable| global(variable.space)) {
            let allocation = self
                .memory
                .allocate(variable.bytes.max(1), AllocationKind::Module)
                .ok_or(Code::OUT_OF_MEMORY)?;
            let count = variable.initial.len().min(variable.bytes);
            // SAFETY: the allocation was made just now with at least `count` bytes, all zero.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    variable.initial.as_ptr(),
                    allocation.base as *mut u8,
                    count,
                );
            }
            placed.insert(variable.name.clone(), (allocation.base, variable.bytes));
        }
        Ok(placed)
    }

    fn function(&mut self, function: Handle) -> Result<&mut LoadedFunction, Code> {
        self.functions.get_mut(&function).ok_or(Code::INVALID_HANDLE)
    }

    fn function_attribute(&mut self, attribute: c_int, function: Handle) -> Result<c_int, Code> {
        let capability = self.settings.capability;
        let entry = self.function(function)?;
        let kernel = &entry.kernel;
        let int = |value: usize| c_int::try_from(value).map_err(|_| Code::INVALID_VALUE);
        match attribute {
            0 => int(kernel.max_threads as usize),
            1 => int(kernel.static_shared),
            2 => Ok(0),
            3 => int(kernel.local_bytes),
            4 => int(kernel.registers as usize),
            5 | 6 => Ok(capability.0 * 10 + capability.1),
            7 => Ok(0),
            8 => int(entry.dynamic_limit()),
            9 => Ok(-1),
            10..=15 => Ok(0),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

impl LoadedFunction {
    /// Dynamic shared memory that a launch may ask for.
    pub(super) fn dynamic_limit(&self) -> usize {
        let default = SHARED_DEFAULT_BYTES.saturating_sub(self.kernel.static_shared);
        self.max_dynamic_shared.unwrap_or(default)
    }
}

driver_functions! {
    Needs::Context, |state|
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) {
        state.forbid_in_capture("cuModuleLoadData")?;
        let handle = state.load_module(image_bytes(image)?)?;
        give(module, handle)
    }
    fn cuModuleLoadDataEx(
        module: *mut Handle,
        image: *const c_void,
        count: c_uint,
        options: *const c_int,
        values: *const *mut c_void,
    ) {
        state.forbid_in_capture("cuModuleLoadDataEx")?;
        match state.load_module(image_bytes(image)?) {
            Ok(handle) => give(module, handle),
            Err(code) => {
                let message = state.last_error.clone();
                write_jit_log(count as usize, options, values, &message);
                Err(code)
            }
        }
    }
    fn cuModuleLoad(module: *mut Handle, path: *const c_char) {
        if path.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let path = CStr::from_ptr(path).to_string_lossy().into_owned();
        let bytes = std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?;
        let handle = state.load_module(&bytes)?;
        give(module, handle)
    }
    fn cuModuleUnload(module: Handle) {
        state.drain_all()?;
        let unloaded = state.modules.remove(&module).ok_or(Code::INVALID_HANDLE)?;
        for (address, _) in unloaded.variables.values() {
            state.memory.free(*address, &[AllocationKind::Module]);
        }
        state.functions.retain(|_, function| function.module != module);
        Ok(())
    }
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) {
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let loaded = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let Some(kernel) = loaded.kernels.get(&name).cloned() else {
            return Err(state.fail(Code::NOT_FOUND, format!("the module has no kernel {name}")));
        };
        let handle = state.new_handle();
        state.functions.insert(handle, LoadedFunction { kernel, module, max_dynamic_shared: None });
        give(function, handle)
    }
    fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char) {
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let loaded = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let (start, len) = *loaded.variables.get(&name).ok_or(Code::NOT_FOUND)?;
        if !address.is_null() {
            give(address, start)?;
        }
        if !bytes.is_null() {
            give(bytes, len)?;
        }
        Ok(())
    }
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle) {
        give(value, state.function_attribute(attribute, function)?)
    }
    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) {
        let entry = state.function(function)?;
        let value = usize::try_from(value).map_err(|_| Code::INVALID_VALUE)?;
        match attribute {
            8 if value + entry.kernel.static_shared <= SHARED_OPT_IN_BYTES => {
                entry.max_dynamic_shared = Some(value);
                Ok(())
            }
            9 => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    fn cuFuncSetCacheConfig(function: Handle, _config: c_int) {
        state.function(function).map(|_| ())
    }
}

/// The bytes of an image: an ELF's first ones, or text up to its NUL.
///
/// # Safety
/// `image` must be null, point to an ELF or fatbin header, or to text that ends in NUL.
unsafe fn image_bytes<'a>(image: *const c_void) -> Result<&'a [u8], Code> {
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: an image has at least four bytes, or is text that ends in NUL before.
    unsafe { Ok(CStr::from_ptr(image.cast()).to_bytes()) }
}

/// # Safety
/// `options` and `values` must be valid for `count` entries, with values as the options demand.
unsafe fn write_jit_log(
    count: usize,
    options: *const c_int,
    values: *const *mut c_void,
    message: &str,
) {
    if options.is_null() || values.is_null() {
        return;
    }
    // SAFETY: as the caller promises.
    let (options, values) = unsafe {
        (std::slice::from_raw_parts(options, count), std::slice::from_raw_parts(values, count))
    };
    let value_of = |wanted: c_int| {
        options.iter().position(|option| *option == wanted).map(|index| values[index])
    };
    let (Some(buffer), Some(room)) =
        (value_of(JIT_ERROR_LOG_BUFFER), value_of(JIT_ERROR_LOG_BYTES))
    else {
        return;
    };
    // The size option carries its value in the pointer itself.
    let room = room as usize;
    if room > 0 && !buffer.is_null() {
        let count = message.len().min(room - 1);
        // SAFETY: the program promises `room` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), buffer.cast::<u8>(), count);
            buffer.cast::<u8>().add(count).write(0);
        }
    }
}
