//! Which compiled image runs on a device.
//!
//! Machine code runs on the architecture it was made for and on later minors of the same major; an `a`
//! image on its own architecture alone. Everything else is compiled by the driver from PTX.

use std::path::Path;

use super::device::{BackendUnavailable, Capability};
use super::pack::{self, Image};

/// Environment variable that forces the PTX road when set to `ptx`.
const IMAGE_VARIABLE: &str = "DSPARK_KERNEL_IMAGE";
/// Environment variable that names a folder of images to use instead of the embedded ones.
const FOLDER_VARIABLE: &str = "DSPARK_KERNEL_DIR";

/// Images of one architecture, one a source.
pub(super) struct Chosen {
    pub(super) arch: String,
    pub(super) images: Vec<Image>,
}

/// The images for a device, from the pack or the developer's folder; with `ptx` as if the variable said so.
///
/// # Errors
/// [`BackendUnavailable`] when none fits, with the list of what there is.
pub(super) fn choose(capability: Capability, ptx: bool) -> Result<Chosen, BackendUnavailable> {
    let folder = std::env::var_os(FOLDER_VARIABLE);
    let images = match &folder {
        Some(folder) => pack::folder(Path::new(folder)),
        None => pack::embedded(),
    };
    let hint = format!("unset {FOLDER_VARIABLE} to use the built-in kernels");
    let images = images.map_err(|e| BackendUnavailable::new(e.to_string(), hint))?;
    let ptx_only = ptx || std::env::var(IMAGE_VARIABLE).is_ok_and(|image| image == "ptx");
    let mut archs: Vec<&str> = images.iter().map(|image| &*image.arch).collect();
    archs.sort_unstable();
    archs.dedup();
    let Some(arch) = fitting(&archs, capability, ptx_only).map(str::to_owned) else {
        let Capability(major, minor) = capability;
        return Err(BackendUnavailable::new(
            format!(
                "no kernels for compute capability {major}.{minor}; there are {}",
                archs.join(", ")
            ),
            "use a card of compute capability 8.0 or later, or draft on the CPU with --backend cpu",
        ));
    };
    let images = images.into_iter().filter(|image| image.arch == arch).collect();
    Ok(Chosen { arch, images })
}

/// The best of `archs` for a device: its own, else the highest earlier minor of its major, else the highest
/// PTX that it can execute.
fn fitting<'a>(archs: &[&'a str], device: Capability, ptx_only: bool) -> Option<&'a str> {
    let exact = archs.iter().filter_map(|arch| {
        let number = arch.strip_prefix("sm_")?;
        let rank = match number.strip_suffix('a') {
            Some(number) => (capability(number)? == device).then_some((1, device))?,
            None => {
                let made_for = capability(number)?;
                (made_for.0 == device.0 && made_for.1 <= device.1).then_some((0, made_for))?
            }
        };
        Some((rank, *arch))
    });
    let ptx = archs.iter().filter_map(|arch| {
        let needs = capability(arch.strip_prefix("compute_")?)?;
        (needs <= device).then_some((needs, *arch))
    });
    let exact = exact.max().map(|(_, arch)| arch).filter(|_| !ptx_only);
    exact.or_else(|| ptx.max().map(|(_, arch)| arch))
}

/// `86` is 8.6 and `120` is 12.0: the last digit is the minor.
fn capability(number: &str) -> Option<Capability> {
    let number: i32 = number.parse().ok()?;
    Some(Capability(number / 10, number % 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHS: [&str; 4] = ["sm_86", "sm_90a", "sm_120", "compute_80"];

    #[test]
    fn each_capability_gets_its_own_code_or_an_earlier_minor_or_ptx() {
        let table = [
            ((7, 5), None),
            ((8, 0), Some("compute_80")),
            ((8, 6), Some("sm_86")),
            ((8, 9), Some("sm_86")),
            ((9, 0), Some("sm_90a")),
            ((10, 0), Some("compute_80")),
            ((12, 0), Some("sm_120")),
            ((12, 1), Some("sm_120")),
            ((13, 0), Some("compute_80")),
        ];
        for ((major, minor), arch) in table {
            assert_eq!(fitting(&ARCHS, Capability(major, minor), false), arch, "{major}.{minor}");
        }
    }

    #[test]
    fn ptx_can_be_forced() {
        assert_eq!(fitting(&ARCHS, Capability(8, 6), true), Some("compute_80"));
        assert_eq!(fitting(&["sm_86"], Capability(8, 6), true), None);
    }

    #[test]
    fn an_architectures_own_code_beats_the_general_one() {
        assert_eq!(fitting(&["sm_90", "sm_90a"], Capability(9, 0), false), Some("sm_90a"));
        assert_eq!(fitting(&["sm_80", "sm_86"], Capability(8, 9), false), Some("sm_86"));
    }
}
