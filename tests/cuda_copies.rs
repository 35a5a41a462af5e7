//! What a STEP asks of the driver: rows received into the backend's own memory go up in one copy with all the
//! numbers of the STEP, one graph is launched, one list of results comes back. Counted by the emulated driver.

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod gpu;
mod requests;

use std::collections::BTreeMap;

use cases::{N, ROW_BYTES};
use dspark::drafter::Drafter;
use dspark::drafter::cuda::CudaOptions;
use requests::{Request, four, step, step_in};
use serde_json::Value;

/// Numbers of `what` that grew between two reports, and by how much.
fn grown(what: &str, before: &Value, after: &Value) -> BTreeMap<String, u64> {
    let counts = after[what].as_object().unwrap().iter().map(|(name, count)| {
        let before = before[what][name].as_u64().unwrap_or(0);
        (name.clone(), count.as_u64().unwrap() - before)
    });
    counts.filter(|(_, grown)| *grown > 0).collect()
}

/// Driver calls of a STEP, and bytes up.
fn counted(run: impl FnOnce()) -> (BTreeMap<String, u64>, u64) {
    let before = gpu::report();
    run();
    let after = gpu::report();
    let copies = grown("host_to_device", &before, &after);
    assert_eq!(copies.get("pageable_copies"), None, "{copies:?}");
    (grown("calls", &before, &after), copies["bytes"])
}

fn calls(uploads: u64) -> BTreeMap<String, u64> {
    let calls = [
        ("cuGraphLaunch", 1),
        ("cuMemcpyDtoHAsync_v2", 1),
        ("cuMemcpyHtoDAsync_v2", uploads),
        ("cuStreamSynchronize", 1),
    ];
    calls.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}

/// One test, since other work in the process would be counted too.
#[test]
fn a_step_is_one_copy_one_launch_and_one_answer() {
    let mut drafter = gpu::drafter(&cases::checkpoint(), CudaOptions::default());
    let mut frame = drafter.frame_buffer(512 * ROW_BYTES + 4096).unwrap();
    let numbers_max = 16 << 10;

    let requests = &four();
    let plain = step(&mut *drafter, requests);
    let rows: usize = requests.iter().map(|r| r.rows.len()).sum();
    let mut answer = Vec::new();
    let (done, bytes) = counted(|| answer = step_in(&mut *drafter, &mut frame, requests, 0));
    assert_eq!(done, calls(1));
    assert!((rows..rows + 4 * numbers_max).contains(&(bytes as usize)), "{bytes} of {rows}");
    assert_eq!(answer, plain, "drafts from rows in memory of their own");

    // Six rows, a draft.
    let one = [Request::new(0, 200, 6, 30, 80)];
    let plain = step(&mut *drafter, &one);
    let (done, bytes) = counted(|| answer = step_in(&mut *drafter, &mut frame, &one, 0));
    assert_eq!(done, calls(1));
    let numbers = bytes as usize - one[0].rows.len();
    assert!(numbers < numbers_max, "{numbers} bytes beside the rows");
    assert_eq!(answer, plain);

    // No rows at all.
    let none = [Request { rows: vec![], ..one[0].clone() }.n_out(N)];
    let (done, bytes) = counted(|| answer = step_in(&mut *drafter, &mut frame, &none, 0));
    assert_eq!((done, answer == plain), (calls(1), true));
    assert!((bytes as usize) < numbers_max);

    // The first row stored is not the first of the frame, and a window of rows is one pass as well.
    let late = [Request::new(2, 0, 128, 5, 0)];
    let plain = step(&mut *drafter, &late);
    let (done, _) = counted(|| answer = step_in(&mut *drafter, &mut frame, &late, 1));
    assert_eq!((done, answer == plain), (calls(1), true));

    // Memory that nothing follows takes a second copy, and is pageable here.
    let before = gpu::report();
    let answer = step(&mut *drafter, &one);
    assert_eq!(grown("calls", &before, &gpu::report()), calls(2));
    assert_eq!(answer, step_in(&mut *drafter, &mut frame, &one, 0));

    // Two buffers, as two listeners have them; one that is gone leaves nothing behind.
    let mut other = drafter.frame_buffer(16 * ROW_BYTES).unwrap();
    let (done, _) = counted(|| assert_eq!(step_in(&mut *drafter, &mut other, &one, 0), answer));
    assert_eq!(done, calls(1));
    drop(frame);
    let (done, _) = counted(|| assert_eq!(step_in(&mut *drafter, &mut other, &one, 0), answer));
    assert_eq!(done, calls(1));
}
