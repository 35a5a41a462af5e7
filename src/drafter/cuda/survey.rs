//! What a probed device offers, asked without putting anything on it.

use super::device::{BackendUnavailable, Device, DeviceError, DeviceFacts};
use super::image;

/// Architecture of the kernel images that the device would run: `sm_90a`, or `compute_80` for PTX that its
/// driver compiles.
///
/// # Errors
/// [`BackendUnavailable`] when no image fits.
pub fn kernel_image(facts: &DeviceFacts) -> Result<String, BackendUnavailable> {
    image::choose(facts.capability, false).map(|chosen| chosen.arch)
}

/// Free and total bytes of the device's memory. Opens a context for the time of the call.
///
/// # Errors
/// [`DeviceError`] when the driver refuses.
pub fn memory(facts: &DeviceFacts) -> Result<(u64, u64), DeviceError> {
    Device::open(facts.clone())?.memory()
}
