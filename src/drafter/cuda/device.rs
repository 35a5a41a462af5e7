//! One CUDA device: found without a panic, its memory, its one stream, and what its errors mean.
//!
//! Everything goes through the driver library, which is looked for when the backend is asked for; a host
//! without it runs every other command. All work of a process but the copies of a load is on one stream, so
//! order needs no events.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// Oldest driver interface this program asks functions of: CUDA 12.0.
const DRIVER_VERSION_MIN: i32 = 12_000;

/// The CUDA backend cannot run here, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct BackendUnavailable {
    /// What is missing, in one line.
    pub what: String,
    /// What to do about it, in one line.
    pub hint: String,
}

impl BackendUnavailable {
    pub(super) fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

/// The driver refused or failed something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {reason}")]
pub struct DeviceError {
    /// What was being done.
    pub doing: &'static str,
    /// The driver's name for the error.
    pub reason: String,
}

/// Names what was being done when the driver failed.
pub(super) trait Doing<T> {
    /// The value, or a [`DeviceError`] that says what was being done.
    fn doing(self, doing: &'static str) -> Result<T, DeviceError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, doing: &'static str) -> Result<T, DeviceError> {
        self.map_err(|error| {
            let name = error.error_name().ok();
            let reason =
                name.map_or_else(|| format!("{:?}", error.0), |n| n.to_string_lossy().into());
            DeviceError { doing, reason }
        })
    }
}

/// Compute capability, major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability(pub i32, pub i32);

/// What there is to know about a device before anything is put on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Index of the device.
    pub ordinal: u32,
    /// The driver's name of it.
    pub name: String,
    /// Compute capability.
    pub capability: Capability,
    /// CUDA version of the driver, 1000 · major + 10 · minor.
    pub driver: i32,
}

/// Looks for device `ordinal`. Never panics.
///
/// # Errors
/// [`BackendUnavailable`] without a driver library, with one that is too old or has no devices, or when
/// there is no device of that index.
pub fn probe(ordinal: u32) -> Result<DeviceFacts, BackendUnavailable> {
    // SAFETY: only opens libraries by the driver's well-known names; their constructors are the driver's.
    let present = unsafe { sys::is_culib_present() };
    if !present {
        return Err(BackendUnavailable::new(
            "no CUDA driver: libcuda.so.1 was not found",
            "install the NVIDIA driver, or draft on the CPU with --backend cpu",
        ));
    }
    // A driver that lacks a function makes its first call panic.
    let probed = catch_unwind(AssertUnwindSafe(|| probe_present(ordinal)));
    probed.unwrap_or_else(|_| {
        Err(BackendUnavailable::new(
            "the CUDA driver lacks functions of CUDA 12.0",
            "update the NVIDIA driver to 525 or later, or draft on the CPU with --backend cpu",
        ))
    })
}

fn probe_present(ordinal: u32) -> Result<DeviceFacts, BackendUnavailable> {
    let mut driver: c_int = 0;
    // SAFETY: `driver` outlives the call, which writes one integer.
    let version = unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result();
    if version.is_err() || driver < DRIVER_VERSION_MIN {
        return Err(BackendUnavailable::new(
            format!(
                "the CUDA driver speaks CUDA {}.{}, 12.0 is needed",
                driver / 1000,
                driver % 1000 / 10
            ),
            "update the NVIDIA driver to 525 or later, or draft on the CPU with --backend cpu",
        ));
    }
    let no_device = |reason: String| {
        BackendUnavailable::new(
            format!("no CUDA device: {reason}"),
            "check nvidia-smi, or draft on the CPU with --backend cpu",
        )
    };
    result::init().doing("start the driver").map_err(|e| no_device(e.to_string()))?;
    let count =
        result::device::get_count().doing("count devices").map_err(|e| no_device(e.to_string()))?;
    let index = i32::try_from(ordinal).unwrap_or(i32::MAX);
    if index >= count {
        return Err(no_device(format!("--device {ordinal} asked for, the driver has {count}")));
    }
    let facts = || -> Result<DeviceFacts, DeviceError> {
        let device = result::device::get(index).doing("open the device")?;
        let attribute = |which| {
            // SAFETY: `device` was returned by the driver just now.
            unsafe { result::device::get_attribute(device, which) }.doing("ask for an attribute")
        };
        use sys::CUdevice_attribute as A;
        Ok(DeviceFacts {
            ordinal,
            name: result::device::get_name(device).doing("ask for the device's name")?,
            capability: Capability(
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            driver,
        })
    };
    facts().map_err(|e| no_device(e.to_string()))
}

/// The context of a device and the one stream of all work but a load's copies.
pub(super) struct Device {
    pub(super) facts: DeviceFacts,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: handles of the driver may be used from any thread that has made the context current, which
// every method that needs it does or its caller has done by `Device::open` or `bind`.
unsafe impl Send for Device {}
// SAFETY: as above; the driver serializes calls on one context.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a probed device and makes it current on this thread.
    pub(super) fn open(facts: DeviceFacts) -> Result<Arc<Self>, DeviceError> {
        let index = i32::try_from(facts.ordinal).unwrap_or(i32::MAX);
        let device = result::device::get(index).doing("open the device")?;
        // SAFETY: `device` was returned by the driver; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.doing("open a context")?;
        let mut opened = Self { facts, device, context, stream: std::ptr::null_mut() };
        opened.bind()?;
        let kind = result::stream::StreamKind::NonBlocking;
        opened.stream = result::stream::create(kind).doing("open a stream")?;
        Ok(Arc::new(opened))
    }

    /// Makes the context current on the calling thread.
    pub(super) fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.context) }.doing("enter the context")
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Waits until everything on the stream is done.
    pub(super) fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives until `drop`.
        unsafe { result::stream::synchronize(self.stream) }.doing("wait for the device")
    }

    /// A number the driver has of the device.
    pub(super) fn attribute(&self, which: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
        // SAFETY: the driver named the device in `open`.
        unsafe { result::device::get_attribute(self.device, which) }.doing("ask for an attribute")
    }

    /// Free and total bytes of device memory.
    pub(super) fn memory(&self) -> Result<(u64, u64), DeviceError> {
        let (free, total) = result::mem_get_info().doing("ask for free memory")?;
        Ok((free as u64, total as u64))
    }

    /// Starts a copy of host bytes to the device.
    ///
    /// # Safety
    /// `to` has room for the bytes, and they stay valid and unchanged until the stream has passed.
    pub(super) unsafe fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream) }.doing("copy to the device")
    }

    /// Starts a copy of device bytes to the host.
    ///
    /// # Safety
    /// `from` holds that many bytes, and nobody touches `bytes` until the stream has passed.
    pub(super) unsafe fn download(&self, bytes: &mut [u8], from: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtoh_async(bytes, from, self.stream) }.doing("copy from the device")
    }

    /// Whether the device still answers: after a fault of a kernel every later call fails, until the
    /// process ends.
    pub(super) fn answers(&self) -> bool {
        self.synchronize().is_ok() && self.memory().is_ok()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nobody is left to hear of an error; after a device fault all of these fail.
        let _ = self.bind();
        if !self.stream.is_null() {
            // SAFETY: created in `open`, destroyed nowhere else.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
        // SAFETY: retained in `open`, released nowhere else.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Device allocations, freed together.
pub(super) struct DeviceMemory {
    device: Arc<Device>,
    allocations: Vec<u64>,
    bytes: u64,
}

impl DeviceMemory {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device, allocations: Vec::new(), bytes: 0 }
    }

    /// Bytes taken so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes `bytes` bytes, aligned to 256, and sets each to `fill`.
    pub(super) fn take(&mut self, bytes: usize, fill: u8) -> Result<u64, DeviceError> {
        let bytes = bytes.max(1);
        // SAFETY: freed in `drop`; unset memory is set below.
        let at = unsafe { result::malloc_sync(bytes) }.doing("take device memory")?;
        self.allocations.push(at);
        self.bytes += bytes as u64;
        // SAFETY: `at` has `bytes` bytes.
        unsafe { result::memset_d8_async(at, fill, bytes, self.device.stream) }
            .doing("set device memory")?;
        Ok(at)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // Work in flight, on whatever stream, may still touch what is freed.
        let _ = result::ctx::synchronize();
        for at in self.allocations.drain(..) {
            // SAFETY: taken in `take`, freed nowhere else.
            let _ = unsafe { result::free_sync(at) };
        }
    }
}
