//! The management library of the driver (`libnvidia-ml.so.1`), as far as a card's figures go: an idle card.
//!
//! It is the same library under another name, and as on hardware it knows nothing of the process that asks: a
//! program that shows cards runs no kernels on them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use super::device::{NAME, write_text};
use super::settings::Settings;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;

/// `nvmlClockType_t`: graphics, multiprocessors, memory, video; MHz.
const CLOCKS: [c_uint; 4] = [210, 210, 405, 555];
/// Milliwatts.
const POWER: c_uint = 21_500;
const CELSIUS: c_uint = 31;

/// `nvmlMemory_v2_t`, bytes.
#[repr(C)]
pub(crate) struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// Size and version of the structure, as its users say them.
const MEMORY_VERSION: c_uint = 40 | 2 << 24;

/// `nvmlUtilization_t`, per cent of the time.
#[repr(C)]
pub(crate) struct Utilization {
    kernels: c_uint,
    memory: c_uint,
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `to` is null or has room for one `T`.
unsafe fn tell<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    SUCCESS
}

macro_rules! management_functions {
    ($(fn $name:ident($($argument:ident: $ty:ty),*) $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the management library.")]
        ///
        /// # Safety
        /// Pointers must be valid as the library's interface demands.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub(crate) unsafe extern "C" fn $name($($argument: $ty),*) -> c_int {
            // SAFETY: pointers are valid as the caller of the function promises.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )*};
}

management_functions! {
    fn nvmlInit_v2() {
        SUCCESS
    }
    fn nvmlShutdown() {
        SUCCESS
    }
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) {
        tell(count, Settings::from_environment().devices.unsigned_abs())
    }
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) {
        if index >= Settings::from_environment().devices.unsigned_abs() {
            return INVALID_ARGUMENT;
        }
        // Only ever handed back.
        tell(device, std::ptr::dangling_mut())
    }
    fn nvmlDeviceGetName(_device: *mut c_void, name: *mut c_char, len: c_uint) {
        let len = c_int::try_from(len).unwrap_or(c_int::MAX);
        write_text(name, len, NAME).map_or(INVALID_ARGUMENT, |()| SUCCESS)
    }
    fn nvmlDeviceGetMemoryInfo_v2(_device: *mut c_void, memory: *mut Memory) {
        let settings = Settings::from_environment();
        if settings.unified {
            return NOT_SUPPORTED;
        }
        let total = settings.memory_bytes as c_ulonglong;
        let (reserved, used) = (total / 128, total / 64);
        let version = MEMORY_VERSION;
        tell(memory, Memory { version, total, reserved, free: total - reserved - used, used })
    }
    fn nvmlDeviceGetClockInfo(_device: *mut c_void, kind: c_uint, mhz: *mut c_uint) {
        match CLOCKS.get(kind as usize) {
            Some(clock) => tell(mhz, *clock),
            None => INVALID_ARGUMENT,
        }
    }
    fn nvmlDeviceGetPowerUsage(_device: *mut c_void, milliwatts: *mut c_uint) {
        tell(milliwatts, POWER)
    }
    fn nvmlDeviceGetTemperature(_device: *mut c_void, _sensor: c_uint, celsius: *mut c_uint) {
        tell(celsius, CELSIUS)
    }
    fn nvmlDeviceGetUtilizationRates(_device: *mut c_void, rates: *mut Utilization) {
        tell(rates, Utilization { kernels: 0, memory: 0 })
    }
}

/// `nvmlErrorString` of the management library.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub(crate) extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        SUCCESS => c"no error",
        INVALID_ARGUMENT => c"invalid argument",
        NOT_SUPPORTED => c"not supported",
        _ => c"unknown error",
    };
    text.as_ptr()
}
