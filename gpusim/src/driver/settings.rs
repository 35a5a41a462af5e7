//! The environment switches, read once when the driver is first called.

use std::path::PathBuf;

/// How the emulated machine is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `GPUSIM_LAZY=1`: nothing runs before a call that waits for it.
    pub(crate) lazy: bool,
    /// `GPUSIM_MEM_MB`: device memory, 24 GiB by default.
    pub(crate) memory_bytes: usize,
    /// `GPUSIM_CC`: compute capability, 8.0 by default.
    pub(crate) capability: (i32, i32),
    /// `GPUSIM_UNIFIED=1`: the management library has no memory figure, as of boards with unified memory.
    pub(crate) unified: bool,
    /// `GPUSIM_DEVICES`: 0 or 1 devices.
    pub(crate) devices: i32,
    /// `GPUSIM_DRIVER_VERSION` as the driver counts: 12090 is 12.9.
    pub(crate) driver_version: i32,
    /// `GPUSIM_REPORT`: where the counters go.
    pub(crate) report: Option<PathBuf>,
    /// `GPUSIM_FILL`: the byte new allocations hold; their bytes count as unset all the same.
    pub(crate) fill: Option<u8>,
    /// `GPUSIM_ORDER=reverse`: blocks and warps run last first.
    pub(crate) reversed: bool,
    /// `GPUSIM_STEPS`: instructions after which a warp counts as hanging.
    pub(crate) steps_max: u64,
    /// `GPUSIM_IDLE=1`: kernels are launched and do nothing, to see what the host takes alone.
    pub(crate) idle: bool,
    /// `GPUSIM_FAULT=N`: the N-th graph launch fails as a kernel with a bad access does.
    pub(crate) fault: Option<u64>,
    /// `GPUSIM_REFUSE=FUNCTION:N`: the N-th call of that function answers that memory ran out.
    pub(crate) refuse: Option<(String, u64)>,
}

impl Settings {
    /// Reads the process environment. A value that cannot be read is reported and ignored.
    pub(crate) fn from_environment() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let memory_mb = number(&lookup, "GPUSIM_MEM_MB").unwrap_or(24 << 10);
        Self {
            lazy: lookup("GPUSIM_LAZY").is_some_and(|value| value == "1"),
            memory_bytes: usize::try_from(memory_mb).unwrap_or(usize::MAX >> 20) << 20,
            capability: lookup("GPUSIM_CC").and_then(|text| capability(&text)).unwrap_or((8, 0)),
            devices: i32::from(number(&lookup, "GPUSIM_DEVICES") != Some(0)),
            driver_version: number(&lookup, "GPUSIM_DRIVER_VERSION")
                .and_then(|version| i32::try_from(version).ok())
                .unwrap_or(12_090),
            report: lookup("GPUSIM_REPORT").map(PathBuf::from),
            fill: number(&lookup, "GPUSIM_FILL").and_then(|fill| u8::try_from(fill).ok()),
            reversed: lookup("GPUSIM_ORDER").is_some_and(|value| value == "reverse"),
            steps_max: number(&lookup, "GPUSIM_STEPS").unwrap_or(2_000_000_000),
            unified: lookup("GPUSIM_UNIFIED").is_some_and(|value| value == "1"),
            idle: lookup("GPUSIM_IDLE").is_some_and(|value| value == "1"),
            fault: number(&lookup, "GPUSIM_FAULT"),
            refuse: lookup("GPUSIM_REFUSE").and_then(|text| {
                let (name, call) = text.split_once(':')?;
                Some((name.to_owned(), call.parse().ok()?))
            }),
        }
    }

    /// The newest PTX this driver translates, as major * 10 + minor.
    pub(crate) fn ptx_version(&self) -> u32 {
        match self.driver_version {
            ..11_000 => 65,
            11_000..12_000 => 70 + (self.driver_version.cast_unsigned() - 11_000) / 10,
            12_000..12_060 => 80 + (self.driver_version.cast_unsigned() - 12_000) / 10,
            12_060..12_080 => 85,
            12_080..12_090 => 87,
            12_090..13_000 => 88,
            _ => 90 + (self.driver_version.cast_unsigned() - 13_000) / 10,
        }
    }
}

fn number(lookup: &impl Fn(&str) -> Option<String>, name: &str) -> Option<u64> {
    let text = lookup(name)?;
    let value = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    if value.is_err() {
        eprintln!("gpusim: {name}={text} is not a number");
    }
    value.ok()
}

fn capability(text: &str) -> Option<(i32, i32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_read_and_bad_values_ignored() {
        let settings = Settings::from_lookup(|name| {
            let value = match name {
                "GPUSIM_FILL" => "0xFF",
                "GPUSIM_CC" => "9.0",
                "GPUSIM_DRIVER_VERSION" => "11040",
                "GPUSIM_MEM_MB" => "many",
                "GPUSIM_FAULT" => "3",
                "GPUSIM_IDLE" => "1",
                "GPUSIM_REFUSE" => "cuGraphLaunch:2",
                _ => return None,
            };
            Some(value.to_string())
        });
        assert_eq!((settings.fill, settings.capability), (Some(0xFF), (9, 0)));
        assert_eq!((settings.memory_bytes, settings.ptx_version()), (24 << 30, 74));
        assert_eq!((settings.fault, settings.idle, settings.lazy), (Some(3), true, false));
        assert_eq!(settings.refuse, Some(("cuGraphLaunch".to_string(), 2)));
    }
}
