//! Kernel launches: shape, limits and arguments are checked before anything is queued.

use std::ffi::{c_uint, c_void};

use super::codes::Code;
use super::state::{Handle, Needs, State};
use super::work::{KernelLaunch, Work};
use crate::exec::program::Kernel;

driver_functions! {
    Needs::Context, |state|
    #[allow(clippy::too_many_arguments)]
    fn cuLaunchKernel(
        function: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: Handle,
        params: *const *const c_void,
        extra: *const *const c_void,
    ) {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared: shared_bytes as usize,
        };
        launch(state, function, shape, stream, params, extra)
    }
    #[allow(clippy::too_many_arguments)]
    fn cuLaunchCooperativeKernel(
        function: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: Handle,
        params: *const *const c_void,
    ) {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared: shared_bytes as usize,
        };
        launch(state, function, shape, stream, params, std::ptr::null())
    }
}

struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: usize,
}

/// # Safety
/// `params` must point to one valid pointer per kernel parameter.
unsafe fn launch(
    state: &mut State,
    function: Handle,
    shape: Shape,
    stream: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Result<(), Code> {
    let entry = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
    let kernel = entry.kernel.clone();
    let limit = entry.dynamic_limit();
    if let Some(message) = refuse(&kernel, &shape, limit) {
        return Err(
            state.fail(Code::INVALID_VALUE, format!("launch of {}: {message}", kernel.name))
        );
    }
    if !extra.is_null() {
        let message = format!("launch of {}: arguments in a buffer are not supported", kernel.name);
        return Err(state.fail(Code::NOT_SUPPORTED, message));
    }
    // SAFETY: as the caller promises.
    let params = match unsafe { read_params(&kernel, params) } {
        Ok(params) => params,
        Err(message) => {
            return Err(
                state.fail(Code::INVALID_VALUE, format!("launch of {}: {message}", kernel.name))
            );
        }
    };
    let launch = KernelLaunch {
        kernel,
        grid: shape.grid,
        block: shape.block,
        dynamic_shared: shape.dynamic_shared,
        params,
    };
    state.submit(stream, Work::Kernel(launch))
}

fn refuse(kernel: &Kernel, shape: &Shape, dynamic_limit: usize) -> Option<String> {
    let threads = shape.block.iter().try_fold(1u32, |product, size| product.checked_mul(*size));
    let threads = threads.unwrap_or(u32::MAX);
    let [x, y, z] = shape.grid;
    if threads == 0 || threads > kernel.max_threads {
        return Some(format!("{threads} threads per block, of at most {}", kernel.max_threads));
    }
    let blocks = x.checked_mul(y).and_then(|product| product.checked_mul(z)).unwrap_or(0);
    if blocks == 0 || y > 65_535 || z > 65_535 || blocks > i32::MAX.cast_unsigned() {
        return Some(format!("grid ({x},{y},{z})"));
    }
    if shape.dynamic_shared > dynamic_limit {
        return Some(format!(
            "{} bytes of dynamic shared memory, the limit set is {dynamic_limit}",
            shape.dynamic_shared
        ));
    }
    None
}

/// Copies the arguments. The API passes neither their number nor their sizes, so a wrong pointer is
/// found only by reading through it with the kernel's help.
///
/// # Safety
/// `params` must point to one pointer per kernel parameter.
unsafe fn read_params(kernel: &Kernel, params: *const *const c_void) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0u8; kernel.param_bytes];
    if kernel.params.is_empty() {
        return Ok(bytes);
    }
    if params.is_null() {
        return Err(format!("no arguments for {} parameters", kernel.params.len()));
    }
    for (index, param) in kernel.params.iter().enumerate() {
        let mut from: *const c_void = std::ptr::null();
        let slot = (&raw mut from).cast::<u8>();
        // SAFETY: `slot` is one pointer wide; an unreadable source is reported, not followed.
        let known = unsafe { probe(params.wrapping_add(index).cast(), slot, size_of::<usize>()) };
        let to = bytes[param.offset..].as_mut_ptr();
        // SAFETY: the parameter's bytes lie inside `bytes`.
        if !known || !unsafe { probe(from.cast(), to, param.bytes) } {
            return Err(format!(
                "argument {index} of {} cannot be read: too few arguments?",
                kernel.params.len()
            ));
        }
    }
    Ok(bytes)
}

/// Copies `len` bytes of this process, or answers false where they cannot be read.
///
/// # Safety
/// `to` must be valid for `len` bytes.
unsafe fn probe(from: *const u8, to: *mut u8, len: usize) -> bool {
    let local = libc::iovec { iov_base: to.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    // SAFETY: the kernel checks the source; the target is valid as the caller promises.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if copied < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
        // The system forbids the call: trust the program.
        // SAFETY: the API's caller promises readable arguments.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        return true;
    }
    copied == isize::try_from(len).unwrap_or(-1)
}
