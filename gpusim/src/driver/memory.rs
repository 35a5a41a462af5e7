//! Allocation, page-locked host memory, copies and fills.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::codes::Code;
use super::state::{Answer, Handle, Needs, State, give};
use super::work::{Copy, CopyKind, Work};
use crate::memory::AllocationKind;

/// A device address.
type DevicePtr = u64;

driver_functions! {
    Needs::Context, |state|
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (free_bytes, total_bytes) = state.memory.info();
        give(free, free_bytes)?;
        give(total, total_bytes)
    }
    fn cuMemAlloc_v2(pointer: *mut DevicePtr, bytes: usize) {
        state.forbid_in_capture("cuMemAlloc")?;
        give(pointer, state.allocate(bytes, AllocationKind::Device)?)
    }
    fn cuMemAllocAsync(pointer: *mut DevicePtr, bytes: usize, _stream: Handle) {
        state.forbid_in_capture("cuMemAllocAsync")?;
        give(pointer, state.allocate(bytes, AllocationKind::Device)?)
    }
    fn cuMemAllocFromPoolAsync(pointer: *mut DevicePtr, bytes: usize, _pool: Handle, _stream: Handle) {
        state.forbid_in_capture("cuMemAllocFromPoolAsync")?;
        give(pointer, state.allocate(bytes, AllocationKind::Device)?)
    }
    fn cuMemFree_v2(pointer: DevicePtr) {
        if pointer == 0 {
            return Ok(());
        }
        state.forbid_in_capture("cuMemFree")?;
        state.drain_all()?; // the call waits for the device
        if state.memory.free(pointer, &[AllocationKind::Device]) {
            return Ok(());
        }
        Err(state.fail(Code::INVALID_VALUE, format!("cuMemFree of {pointer:#x}, which is no allocation")))
    }
    fn cuMemFreeAsync(pointer: DevicePtr, stream: Handle) {
        if pointer == 0 {
            return Ok(());
        }
        state.forbid_in_capture("cuMemFreeAsync")?;
        if state.memory.starting_at(pointer).is_none() {
            let message = format!("cuMemFreeAsync of {pointer:#x}, which is no allocation");
            return Err(state.fail(Code::INVALID_VALUE, message));
        }
        state.submit(stream, Work::Free { address: pointer })
    }
    fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        state.forbid_in_capture("cuMemHostAlloc")?;
        give(pointer, state.allocate(bytes, AllocationKind::Pinned)? as *mut c_void)
    }
    fn cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize) {
        state.forbid_in_capture("cuMemAllocHost")?;
        give(pointer, state.allocate(bytes, AllocationKind::Pinned)? as *mut c_void)
    }
    fn cuMemFreeHost(pointer: *mut c_void) {
        state.forbid_in_capture("cuMemFreeHost")?;
        state.drain_all()?;
        let freed = state.memory.free(pointer as u64, &[AllocationKind::Pinned]);
        if freed { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
    fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, _flags: c_uint) {
        if pointer.is_null() || bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let registered = state.memory.register(pointer as u64, bytes);
        if registered { Ok(()) } else { Err(Code::HOST_MEMORY_ALREADY_REGISTERED) }
    }
    fn cuMemHostUnregister(pointer: *mut c_void) {
        state.drain_all()?;
        let freed = state.memory.free(pointer as u64, &[AllocationKind::Registered]);
        if freed { Ok(()) } else { Err(Code::HOST_MEMORY_NOT_REGISTERED) }
    }
    fn cuMemHostGetDevicePointer_v2(device: *mut DevicePtr, host: *mut c_void, _flags: c_uint) {
        let address = host as u64;
        let kind = state.memory.find(address, 1).map(|allocation| allocation.kind);
        if !matches!(kind, Some(AllocationKind::Pinned | AllocationKind::Registered)) {
            return Err(Code::INVALID_VALUE);
        }
        give(device, address)
    }
    fn cuMemHostGetFlags(flags: *mut c_uint, host: *mut c_void) {
        let kind = state.memory.find(host as u64, 1).map(|allocation| allocation.kind);
        if kind != Some(AllocationKind::Pinned) {
            return Err(Code::INVALID_VALUE);
        }
        give(flags, 0)
    }
    fn cuMemGetAddressRange_v2(base: *mut DevicePtr, bytes: *mut usize, pointer: DevicePtr) {
        let allocation = state.memory.find(pointer, 1).ok_or(Code::NOT_FOUND)?;
        let (start, len) = (allocation.base, allocation.len);
        if !base.is_null() {
            give(base, start)?;
        }
        if !bytes.is_null() {
            give(bytes, len)?;
        }
        Ok(())
    }
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, pointer: DevicePtr) {
        let allocation = state.memory.find(pointer, 1).ok_or(Code::INVALID_VALUE)?;
        let on_host = matches!(allocation.kind, AllocationKind::Pinned | AllocationKind::Registered);
        match attribute {
            2 => give(data.cast::<c_uint>(), if on_host { 1 } else { 2 }), // CUmemorytype
            3 | 11 => give(data.cast::<u64>(), if attribute == 3 { pointer } else { allocation.base }),
            4 if on_host => give(data.cast::<u64>(), pointer),
            8 => give(data.cast::<c_uint>(), 0),
            12 => give(data.cast::<usize>(), allocation.len),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    fn cuMemcpyHtoD_v2(to: DevicePtr, from: *const c_void, bytes: usize) {
        state.copy_now(CopyKind::HostToDevice, to, from as u64, bytes)
    }
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePtr, bytes: usize) {
        state.copy_now(CopyKind::DeviceToHost, to as u64, from, bytes)
    }
    fn cuMemcpyDtoD_v2(to: DevicePtr, from: DevicePtr, bytes: usize) {
        state.copy_now(CopyKind::DeviceToDevice, to, from, bytes)
    }
    fn cuMemcpyHtoDAsync_v2(to: DevicePtr, from: *const c_void, bytes: usize, stream: Handle) {
        state.copy(CopyKind::HostToDevice, to, from as u64, bytes, stream)
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Handle) {
        state.copy(CopyKind::DeviceToHost, to as u64, from, bytes, stream)
    }
    fn cuMemcpyDtoDAsync_v2(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle) {
        state.copy(CopyKind::DeviceToDevice, to, from, bytes, stream)
    }
    fn cuMemcpy(to: DevicePtr, from: DevicePtr, bytes: usize) {
        let kind = state.copy_kind(to, from, bytes)?;
        state.copy_now(kind, to, from, bytes)
    }
    fn cuMemcpyAsync(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle) {
        let kind = state.copy_kind(to, from, bytes)?;
        state.copy(kind, to, from, bytes, stream)
    }
    fn cuMemsetD8_v2(to: DevicePtr, value: u8, count: usize) {
        state.fill_now(to, [value; 4], 1, count)
    }
    fn cuMemsetD16_v2(to: DevicePtr, value: u16, count: usize) {
        state.fill_now(to, pattern16(value), 2, count)
    }
    fn cuMemsetD32_v2(to: DevicePtr, value: u32, count: usize) {
        state.fill_now(to, value.to_le_bytes(), 4, count)
    }
    fn cuMemsetD8Async(to: DevicePtr, value: u8, count: usize, stream: Handle) {
        state.fill(to, [value; 4], 1, count, stream)
    }
    fn cuMemsetD16Async(to: DevicePtr, value: u16, count: usize, stream: Handle) {
        state.fill(to, pattern16(value), 2, count, stream)
    }
    fn cuMemsetD32Async(to: DevicePtr, value: u32, count: usize, stream: Handle) {
        state.fill(to, value.to_le_bytes(), 4, count, stream)
    }
    fn cuDeviceGetDefaultMemPool(pool: *mut Handle, _device: c_int) {
        give(pool, POOL)
    }
    fn cuDeviceGetMemPool(pool: *mut Handle, _device: c_int) {
        give(pool, POOL)
    }
    fn cuDeviceSetMemPool(_device: c_int, pool: Handle) {
        if pool == POOL { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
    fn cuMemPoolSetAttribute(pool: Handle, _attribute: c_int, _value: *mut c_void) {
        if pool == POOL { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
    fn cuMemPoolGetAttribute(pool: Handle, _attribute: c_int, value: *mut c_void) {
        if pool != POOL {
            return Err(Code::INVALID_VALUE);
        }
        give(value.cast::<u64>(), 0)
    }
    fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) {
        if pool == POOL { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}

/// The one memory pool.
const POOL: Handle = 0x20;

fn pattern16(value: u16) -> [u8; 4] {
    let [low, high] = value.to_le_bytes();
    [low, high, low, high]
}

impl State {
    fn allocate(&mut self, bytes: usize, kind: AllocationKind) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.memory
            .allocate(bytes, kind)
            .map(|allocation| allocation.base)
            .ok_or(Code::OUT_OF_MEMORY)
    }

    fn is_host(&self, address: u64, bytes: usize) -> bool {
        let kind = self.memory.find(address, bytes).map(|allocation| allocation.kind);
        !matches!(kind, Some(AllocationKind::Device | AllocationKind::Module))
    }

    fn copy_kind(&self, to: u64, from: u64, bytes: usize) -> Result<CopyKind, Code> {
        match (self.is_host(to, bytes), self.is_host(from, bytes)) {
            (false, true) => Ok(CopyKind::HostToDevice),
            (true, false) => Ok(CopyKind::DeviceToHost),
            (false, false) => Ok(CopyKind::DeviceToDevice),
            (true, true) => Err(Code::INVALID_VALUE),
        }
    }

    /// A copy that has happened when the call returns.
    fn copy_now(&mut self, kind: CopyKind, to: u64, from: u64, bytes: usize) -> Answer {
        self.forbid_in_capture("a synchronous copy")?;
        self.copy(kind, to, from, bytes, 0)?;
        self.drain(0)
    }

    fn copy(&mut self, kind: CopyKind, to: u64, from: u64, bytes: usize, stream: Handle) -> Answer {
        for (address, on_device) in
            [(to, kind != CopyKind::DeviceToHost), (from, kind != CopyKind::HostToDevice)]
        {
            if on_device && bytes > 0 && self.memory.find(address, bytes).is_none() {
                let message = format!(
                    "{kind:?} copy of {bytes} bytes: {address:#x} is no device memory of that size"
                );
                return Err(self.fail(Code::INVALID_VALUE, message));
            }
        }
        let capturing = self.is_capturing(stream);
        let mut copy = Copy { kind, to, from, bytes, staged: None };
        let host = if kind == CopyKind::HostToDevice { from } else { to };
        let pageable = kind != CopyKind::DeviceToDevice && self.memory.find(host, bytes).is_none();
        if pageable && !capturing && kind == CopyKind::HostToDevice && self.settings.lazy {
            // SAFETY: the program promises `bytes` readable bytes until the call returns.
            let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
            copy.staged = Some(Arc::new(bytes.to_vec()));
        }
        self.submit(stream, Work::Copy(copy))?;
        if pageable && !capturing && kind == CopyKind::DeviceToHost {
            // To pageable memory the call returns only once the copy is done.
            let queue = self.streams.get(&stream).ok_or(Code::INVALID_HANDLE)?.queue;
            return self.drain(queue);
        }
        Ok(())
    }

    fn fill_now(&mut self, to: u64, pattern: [u8; 4], width: usize, count: usize) -> Answer {
        self.forbid_in_capture("a synchronous fill")?;
        self.fill(to, pattern, width, count, 0)
    }

    fn fill(
        &mut self,
        to: u64,
        pattern: [u8; 4],
        width: usize,
        count: usize,
        stream: Handle,
    ) -> Answer {
        let bytes = count.checked_mul(width).ok_or(Code::INVALID_VALUE)?;
        let fits = bytes == 0 || self.memory.find(to, bytes).is_some();
        if !fits || !to.is_multiple_of(width as u64) {
            let message =
                format!("fill of {bytes} bytes: {to:#x} is no device memory of that size");
            return Err(self.fail(Code::INVALID_VALUE, message));
        }
        self.submit(stream, Work::Fill { to, pattern, width, bytes })
    }
}
