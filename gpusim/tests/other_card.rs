//! A small card with an old driver, filled memory and a report. Settings are read once per process,
//! so these tests have one of their own.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, missing_docs, unreachable_pub)]

mod common;

use std::path::PathBuf;

use common::{Device, device, snippet};
use cudarc::driver::{CudaSlice, sys};
use cudarc::nvrtc::Ptx;

fn report_file() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("gpusim-report.json")
}

fn other_card() -> Device {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let report = report_file();
        let settings = [
            ("GPUSIM_MEM_MB", "64"),
            ("GPUSIM_CC", "7.5"),
            ("GPUSIM_DRIVER_VERSION", "11000"),
            ("GPUSIM_FILL", "0xFF"),
            ("GPUSIM_REPORT", report.to_str().unwrap()),
        ];
        // SAFETY: all tests of this process come through here before the library is called.
        settings.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
    });
    device()
}

#[test]
fn memory_is_bounded_and_filled() {
    let device = other_card();
    let too_much = unsafe { device.stream.alloc::<u8>(65 << 20) };
    assert_eq!(too_much.err().unwrap().0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let slice: CudaSlice<u8> = unsafe { device.stream.alloc(1 << 20).unwrap() };
    assert_eq!(device.context.mem_get_info().unwrap(), (63 << 20, 64 << 20));
    assert!(device.stream.clone_dtoh(&slice).unwrap().iter().all(|byte| *byte == 0xFF));
}

#[test]
fn ptx_newer_than_driver_or_device_is_refused() {
    let device = other_card();
    let load = |text: String| device.context.load_module(Ptx::from_src(text)).map(|_| ());
    let newer_target = load(snippet("")).unwrap_err();
    assert_eq!(newer_target.0, sys::CUresult::CUDA_ERROR_INVALID_PTX);
    let older = |version: &str| {
        snippet("")
            .replace("sm_80", "sm_75")
            .replace(".version 7.0", &format!(".version {version}"))
    };
    assert!(load(older("7.0")).is_ok());
    let newer_version = load(older("7.1")).unwrap_err();
    assert_eq!(newer_version.0, sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    let mut version = 0;
    assert_eq!(unsafe { sys::cuDriverGetVersion(&mut version) }, sys::CUresult::CUDA_SUCCESS);
    assert_eq!(version, 11_000);
}

#[test]
fn the_report_is_written_when_the_context_goes() {
    let device = other_card();
    let text = snippet("	st.global.u32 [%out], 1;").replace("sm_80", "sm_75");
    device.run_module(&text, &[0], 1, common::ONE_WARP).unwrap();
    drop(device);
    let report = std::fs::read_to_string(report_file()).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["calls"]["cuLaunchKernel"].as_u64().unwrap() >= 1);
    assert!(report["kernels"]["k"]["warp_instructions"].as_u64().unwrap() > 0);
}
