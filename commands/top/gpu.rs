//! The graphics cards of this host, read through the driver's management library where there is one.
//!
//! Reading happens on a thread of its own: a driver that hangs freezes nothing. What a card does not tell
//! (a board with unified memory has no memory figure) is left out.

use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};

/// Between two readings.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);
/// The library's name at run time; the name without a version belongs to the development package.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// What was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cards {
    /// Nothing yet, or nothing can be: why, in words.
    None(String),
    /// Every card of the host.
    Read(Vec<Card>),
}

impl Default for Cards {
    fn default() -> Self {
        Self::None("not read yet".into())
    }
}

/// One card.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Card {
    pub(crate) name: String,
    /// Used and all bytes of memory.
    pub(crate) memory: Option<(u64, u64)>,
    /// Clocks of the multiprocessors and of the memory, MHz.
    pub(crate) clocks_mhz: Option<(u32, u32)>,
    pub(crate) power_mw: Option<u32>,
    pub(crate) celsius: Option<u32>,
    /// Per cent of the time that a kernel ran.
    pub(crate) busy: Option<u32>,
}

/// An opened library.
pub(crate) struct Reader(Nvml);

impl Reader {
    /// Opens the management library.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn open() -> Result<Self, String> {
        let opened = Nvml::builder().lib_path(LIBRARY.as_ref()).init();
        opened.map(Self).map_err(|error| match error {
            nvml_wrapper::error::NvmlError::LibloadingError(_) => format!("no {LIBRARY}"),
            error => error.to_string(),
        })
    }

    /// Reads every card.
    pub(crate) fn read(&self) -> Cards {
        let count = match self.0.device_count() {
            Ok(count) => count,
            Err(error) => return Cards::None(error.to_string()),
        };
        let devices = (0..count).filter_map(|index| self.0.device_by_index(index).ok());
        Cards::Read(devices.map(|device| card(&device)).collect())
    }
}

fn card(device: &Device<'_>) -> Card {
    let clock = |which| device.clock_info(which).ok();
    Card {
        name: device.name().unwrap_or_else(|_| "card".into()),
        memory: device.memory_info().ok().map(|memory| (memory.used, memory.total)),
        clocks_mhz: clock(Clock::SM).zip(clock(Clock::Memory)),
        power_mw: device.power_usage().ok(),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        busy: device.utilization_rates().ok().map(|rates| rates.gpu),
    }
}

impl Card {
    /// What it is and holds, then what it does, if it tells.
    pub(crate) fn text(&self) -> [String; 2] {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let memory = self
            .memory
            .map(|(used, total)| format!("memory {:.1} of {:.1} GB", gb(used), gb(total)));
        let clocks = self.clocks_mhz.map(|(sm, memory)| format!("clocks {sm} / {memory} MHz"));
        let power = self.power_mw.map(|mw| format!("power {:.0} W", f64::from(mw) / 1e3));
        let celsius = self.celsius.map(|degrees| format!("{degrees} °C"));
        let busy = self.busy.map(|busy| format!("busy {busy}%"));
        let join = |parts: &[Option<String>]| {
            parts.iter().flatten().map(String::as_str).collect::<Vec<_>>().join("  ")
        };
        [join(&[Some(self.name.clone()), memory]), join(&[clocks, power, celsius, busy])]
    }
}
