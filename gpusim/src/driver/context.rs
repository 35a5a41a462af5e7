//! Contexts: the primary one, retained and released; limits and other settings.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};

use super::codes::Code;
use super::device::check_device;
use super::state::{Handle, Needs, PRIMARY_CONTEXT, current_context, give, set_current_context};

driver_functions! {
    Needs::Initialized, |state|
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) {
        check_device(state, device)?;
        state.context_count += 1;
        give(context, PRIMARY_CONTEXT)
    }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        check_device(state, device)?;
        if state.context_count == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        let finished = if state.sticky.is_none() { state.drain_all() } else { Ok(()) };
        state.context_count -= 1;
        if state.context_count == 0 {
            state.reset_context();
            state.write_report();
        }
        finished
    }
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        check_device(state, device)?;
        give(flags, 0)?;
        give(active, c_int::from(state.context_count > 0))
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) {
        check_device(state, device)
    }
    fn cuCtxSetCurrent(context: Handle) {
        if context != 0 && (context != PRIMARY_CONTEXT || state.context_count == 0) {
            return Err(Code::INVALID_CONTEXT);
        }
        set_current_context(context);
        Ok(())
    }
    fn cuCtxGetCurrent(context: *mut Handle) {
        if state.context_count == 0 {
            set_current_context(0);
        }
        give(context, current_context())
    }
}

driver_functions! {
    Needs::Context, |state|
    fn cuCtxGetDevice(device: *mut c_int) {
        give(device, 0)
    }
    fn cuCtxSynchronize() {
        state.forbid_in_capture("cuCtxSynchronize")?;
        state.drain_all()
    }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        give(least, 0)?;
        give(greatest, -5)
    }
    fn cuCtxSetFlags(_flags: c_uint) {
        Ok(())
    }
    fn cuCtxSetLimit(limit: c_int, value: usize) {
        state.limits.insert(limit, value);
        Ok(())
    }
    fn cuCtxGetLimit(value: *mut usize, limit: c_int) {
        let defaults = HashMap::from([(0, 1024), (1, 1 << 20), (2, 8 << 20)]);
        let known = state.limits.get(&limit).or_else(|| defaults.get(&limit)).copied();
        give(value, known.unwrap_or(0))
    }
    fn cuCtxSetCacheConfig(_config: c_int) {
        Ok(())
    }
    fn cuCtxGetCacheConfig(config: *mut c_int) {
        give(config, 0)
    }
    fn cuProfilerStart() {
        Ok(())
    }
    fn cuProfilerStop() {
        Ok(())
    }
}
