//! What several integration tests share: fixture files and the geometries they speak.
#![allow(dead_code)]

pub(crate) mod frames;
pub(crate) mod http;

pub(crate) mod golden;
pub(crate) mod process;

use std::path::{Path, PathBuf};

use dspark::geometry::{Geometry, LIVE};
use serde_json::Value;

/// The wire fixtures' small geometry.
pub(crate) const MINI: Geometry =
    Geometry { hidden: 8, vocab_size: 5000, noise_token_id: 4999, ..LIVE };

/// Path of a fixture.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// Whether this system can be asked for the round trips of a connection; says so if it cannot.
pub(crate) fn kernel_tells_round_trips() -> bool {
    use rustix::net::netlink::SOCK_DIAG;
    use rustix::net::{AddressFamily, SocketType, socket};
    let asked = socket(AddressFamily::NETLINK, SocketType::DGRAM, Some(SOCK_DIAG));
    if let Err(error) = &asked {
        eprintln!("skipped: this system has no NETLINK_SOCK_DIAG ({error})");
    }
    asked.is_ok()
}

/// A copy of the small checkpoint that may be damaged.
pub(crate) fn copied_checkpoint() -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("copy fixtures");
    for entry in std::fs::read_dir(fixture("tiny")).expect("copy fixtures") {
        let entry = entry.expect("copy fixtures");
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copy fixtures");
    }
    copy
}

/// Every JSON file of a fixture folder whose name starts with `prefix`, by name.
pub(crate) fn json_files(folder: &str, prefix: &str) -> Vec<(String, Value)> {
    let mut files: Vec<_> = std::fs::read_dir(fixture(folder))
        .expect("list fixtures")
        .map(|entry| entry.expect("list fixtures").path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|path| {
            let name = path.file_stem().expect("a file name").to_string_lossy().into_owned();
            let text = std::fs::read(&path).expect("read fixture");
            (name, serde_json::from_slice(&text).expect("fixture is JSON"))
        })
        .filter(|(name, _): &(String, Value)| name.starts_with(prefix))
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(!files.is_empty(), "no fixture {folder}/{prefix}*");
    files
}

/// The bytes of a hex field.
pub(crate) fn hex_field(value: &Value, field: &str) -> Vec<u8> {
    let text = value[field].as_str().unwrap_or_else(|| panic!("no field {field}"));
    hex::decode(text).expect("fixture hex")
}

/// A hex field of 32 bytes.
pub(crate) fn digest_field(value: &Value, field: &str) -> [u8; 32] {
    hex_field(value, field).try_into().expect("32 bytes")
}
