//! Functions for what the emulated device does not have: managed memory, peers, pools and contexts
//! of one's own. They answer as a driver does for such a device.

use std::ffi::{c_int, c_uint, c_void};

use super::codes::Code;
use super::state::{Handle, Needs};

driver_functions! {
    Needs::Initialized, |state|
    fn cuMemAllocManaged(_pointer: *mut u64, _bytes: usize, _flags: c_uint) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuStreamAttachMemAsync(_stream: Handle, _pointer: u64, _bytes: usize, _flags: c_uint) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuMemPoolCreate(_pool: *mut Handle, _properties: *const c_void) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuMemPoolDestroy(_pool: Handle) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuImportExternalMemory(_memory: *mut Handle, _description: *const c_void) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuDestroyExternalMemory(_memory: Handle) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuExternalMemoryGetMappedBuffer(
        _pointer: *mut u64,
        _memory: Handle,
        _description: *const c_void,
    ) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuMemcpyPeerAsync(
        _to: u64,
        _to_context: Handle,
        _from: u64,
        _from_context: Handle,
        _bytes: usize,
        _stream: Handle,
    ) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuCtxCreate_v3(
        _context: *mut Handle,
        _affinity: *mut c_void,
        _count: c_int,
        _flags: c_uint,
        _device: c_int,
    ) {
        Err(Code::NOT_SUPPORTED)
    }
    fn cuCtxDestroy_v2(_context: Handle) {
        Err(Code::NOT_SUPPORTED)
    }
}
