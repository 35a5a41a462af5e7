//! The one device: initialisation, names, attributes.

use std::ffi::{c_char, c_int};

use super::codes::Code;
use super::state::{Answer, Needs, State, give};

/// Multiprocessors of the emulated device.
pub(crate) const MULTIPROCESSORS: u32 = 82;

/// Dynamic shared memory that a block may use after raising the limit.
pub(crate) const SHARED_OPT_IN_BYTES: usize = 99 << 10;

/// Shared memory of a block without raising the limit.
pub(crate) const SHARED_DEFAULT_BYTES: usize = 48 << 10;

pub(super) const NAME: &str = "gpusim emulated device";

driver_functions! {
    Needs::Nothing, |state|
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if state.settings.devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        state.initialized = true;
        Ok(())
    }
    fn cuDriverGetVersion(version: *mut c_int) {
        give(version, state.settings.driver_version)
    }
}

driver_functions! {
    Needs::Initialized, |state|
    fn cuDeviceGetCount(count: *mut c_int) {
        give(count, state.settings.devices)
    }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        check_device(state, ordinal)?;
        give(device, ordinal)
    }
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        check_device(state, device)?;
        write_text(name, len, NAME)
    }
    fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) {
        check_device(state, device)?;
        write_text(text, len, "0000:00:00.0")
    }
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        check_device(state, device)?;
        give(uuid, *b"gpusim-emulated\0")
    }
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        check_device(state, device)?;
        give(uuid, *b"gpusim-emulated\0")
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        check_device(state, device)?;
        give(bytes, state.memory.info().1)
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        check_device(state, device)?;
        give(value, attribute_value(state, attribute).ok_or(Code::INVALID_VALUE)?)
    }
}

pub(super) fn check_device(state: &State, device: c_int) -> Answer {
    if (0..state.settings.devices).contains(&device) { Ok(()) } else { Err(Code::INVALID_DEVICE) }
}

/// Values by the number of `CUdevice_attribute`; those not listed but known to the API are 0.
fn attribute_value(state: &State, attribute: c_int) -> Option<c_int> {
    Some(match attribute {
        1..=3 => 1024,                      // threads per block, block x and y
        4 => 64,                            // block z
        5 => c_int::MAX,                    // grid x
        6 | 7 => 65_535,                    // grid y and z
        8 => SHARED_DEFAULT_BYTES as c_int, // shared memory per block
        9 => 65_536,                        // constant memory
        10 => 32,                           // warp size
        11 => c_int::MAX,                   // pitch
        12 | 82 => 65_536,                  // registers per block and multiprocessor
        13 => 1_400_000,                    // clock, kHz
        14 => 512,                          // texture alignment
        16 => MULTIPROCESSORS.cast_signed(),
        19 | 31 | 41 | 78 => 1, // maps host memory, concurrent kernels, unified addresses, priorities
        36 => 9_500_000,        // memory clock, kHz
        37 => 384,              // bus width, bits
        38 => 6 << 20,          // L2 cache
        39 => 2048,             // threads per multiprocessor
        40 => 2,                // copy engines
        75 => state.settings.capability.0,
        76 => state.settings.capability.1,
        81 => (SHARED_OPT_IN_BYTES + 1024) as c_int, // shared memory per multiprocessor
        91 | 95 | 115 => 1, // host pointers as device pointers, cooperative launch, memory pools
        97 => SHARED_OPT_IN_BYTES as c_int,
        106 => 32,   // blocks per multiprocessor
        111 => 1024, // reserved shared memory per block
        _ if (1..=200).contains(&attribute) => 0,
        _ => return None,
    })
}

/// # Safety
/// `to` must be null or valid for `len` bytes.
pub(super) unsafe fn write_text(to: *mut c_char, len: c_int, text: &str) -> Answer {
    let room = usize::try_from(len).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let count = text.len().min(room - 1);
    // SAFETY: `count` bytes and the NUL fit into the `len` bytes the caller promises.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, count);
        to.add(count).write(0);
    }
    Ok(())
}
