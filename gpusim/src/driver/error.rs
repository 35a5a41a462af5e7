//! Names and texts of errors, and the message of the last failed check.

use std::ffi::{c_char, c_int};

use super::codes::{Code, describe};
use super::state::{Needs, give, lock};

driver_functions! {
    Needs::Nothing, |state|
    fn cuGetErrorName(code: c_int, text: *mut *const c_char) {
        give(text, describe(code).ok_or(Code::INVALID_VALUE)?.0.as_ptr())
    }
    fn cuGetErrorString(code: c_int, text: *mut *const c_char) {
        give(text, describe(code).ok_or(Code::INVALID_VALUE)?.1.as_ptr())
    }
}

/// Copies the message of the last failure into `buffer` as UTF-8 with a final NUL and returns the
/// message's length in bytes. Not part of the driver API: tests find it by name.
///
/// # Safety
/// `buffer` must be valid for `len` bytes, or `len` be 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn gpusim_last_error(buffer: *mut c_char, len: usize) -> usize {
    let message = lock().last_error.clone();
    if len > 0 {
        let count = message.len().min(len - 1);
        // SAFETY: `count` bytes and the NUL fit into the `len` bytes the caller promises.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr().cast(), buffer, count);
            buffer.add(count).write(0);
        }
    }
    message.len()
}

/// Copies the counters as JSON, in the manner of [`gpusim_last_error`].
///
/// # Safety
/// `buffer` must be valid for `len` bytes, or `len` be 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn gpusim_report(buffer: *mut c_char, len: usize) -> usize {
    let text = {
        let state = lock();
        state.counters.to_json(&state.last_error).to_string()
    };
    if len > 0 {
        let count = text.len().min(len - 1);
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, count);
            buffer.add(count).write(0);
        }
    }
    text.len()
}
