//! `serve --record`: what was served can be read, counted and replayed with the same drafts.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use dspark::protocol::{AppHeader, FrameStatus, Op};
use dspark::trace::{RecordKind, RoundReader, TraceReader};
use serde_json::Value;

use crate::client::{Client, demo, hello_message, rows, stats_of};
use crate::common::frames::{entry, new_owner};
use crate::common::process::{Worker, dspark, run};

const SESSION: u32 = 0x4ec0;

/// Serves `rounds` decode rounds of two requests after a prefill, recorded to `path`.
fn serve_recorded(path: &Path, rounds: i64, more: &[&str]) -> Worker {
    let arguments = [&["--demo", "--record", path.to_str().unwrap()], more].concat();
    let worker = Worker::start(&arguments);
    let mut client = Client::open(&worker.drafting(), SESSION, 1);
    let prefill = [new_owner(0, 1, 0, 40), new_owner(2, 1, 0, 7)];
    client.step(&prefill, &[rows(0, 40), rows(0, 7)].concat());
    for round in 0..rounds {
        let entries = [entry(0, 1, 40 + 3 * round, 3), entry(2, 1, 7 + round, 1)];
        let block = [rows(40 + 3 * round, 3), rows(7 + round, 1)].concat();
        assert_eq!(client.step(&entries, &block).status(), FrameStatus::Ok);
    }
    worker
}

fn reader(path: &Path) -> TraceReader<BufReader<File>> {
    TraceReader::open(BufReader::new(File::open(path).unwrap()), "recorded").unwrap()
}

#[test]
fn a_recorded_session_gives_the_same_drafts_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("round.trace");
    let name = path.to_str().unwrap();
    serve_recorded(&path, 20, &[]).terminate();

    let info = run(&["trace", "info", "--json", name]);
    assert_eq!(info.code, Some(0), "{}", info.err);
    let info: Value = serde_json::from_str(&info.out).unwrap();
    assert_eq!((&info["rounds"], &info["rows"]), (&21.into(), &127.into()));
    assert_eq!(info["records"]["requests"], info["records"]["replies"]);

    let worker = demo();
    let mut client = Client::connect(&worker.drafting());
    assert_eq!(client.ask(&hello_message(1, SESSION)).status(), FrameStatus::Ok);
    let mut recorded = RoundReader::new(reader(&path));
    let mut rounds = 0;
    while let Some(round) = recorded.next_round().unwrap() {
        let request = [zerocopy::IntoBytes::as_bytes(&round.header), round.body].concat();
        let reply = client.ask(&request);
        // Behind the ReplyHeader with its durations every byte is the same.
        assert_eq!(reply.body[32..], round.reply.unwrap()[32..], "round {rounds}");
        rounds += 1;
    }
    assert_eq!(rounds, 21);

    // And through the tool, in a session of its own.
    let endpoint = worker.drafting().to_string();
    let replayed =
        run(&["replay", name, "--endpoint", &endpoint, "--pace", "max", "--timeout", "20s"]);
    assert_eq!(replayed.code, Some(0), "{}{}", replayed.out, replayed.err);
    assert_eq!(stats_of(&worker)["drafted_requests"], 84);
}

#[test]
fn at_its_limit_recording_stops_for_good_and_serving_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limited.trace");
    let limit = 100 * 1024;
    let mut worker = serve_recorded(&path, 20, &["--record-limit", "100KiB"]);
    let stats = stats_of(&worker);
    assert_eq!(stats["steps"], 21, "serving went on");
    worker.terminate();
    let len = path.metadata().unwrap().len();
    assert!(len <= limit, "{len} bytes of at most {limit}");
    // What is there is the beginning, without holes: each request with its reply, seq by seq.
    let mut trace = reader(&path);
    let (mut next, mut kind) = (1, RecordKind::Request);
    while let Some(record) = trace.next_record().unwrap() {
        let (header, _) = AppHeader::split(record.payload).unwrap();
        assert_eq!((record.kind, header.seq.get()), (kind, next));
        kind = match kind {
            RecordKind::Request => RecordKind::Reply,
            _ => {
                next += 1;
                RecordKind::Request
            }
        };
    }
    assert_eq!(kind, RecordKind::Request, "the last request has its reply");
    let recorded = next - 1;
    assert!((2..22).contains(&recorded), "{recorded} frames");
    assert_eq!(stats["link"]["unrecorded_frames"], 22 - recorded);
}

#[test]
fn an_existing_file_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "precious").unwrap();
    let arguments =
        ["serve", "--demo", "--listen", "tcp://127.0.0.1:0", "--control", "off", "--record"];
    let said = run(&[&arguments[..], &[path.to_str().unwrap()]].concat());
    assert_eq!(said.code, Some(5));
    assert!(said.err.contains("precious: cannot be created"), "{}", said.err);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_folder_gets_a_file_of_each_start() {
    let folder = tempfile::tempdir().unwrap();
    for starts in 1..3 {
        serve_recorded(folder.path(), 1, &[]).signal("KILL");
        let files = std::fs::read_dir(folder.path()).unwrap();
        let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names.len(), starts, "{names:?}");
        for name in names {
            assert!(name.to_str().unwrap().ends_with("Z.trace"), "{name:?}");
        }
    }
}

#[test]
fn a_start_that_fails_leaves_no_recording_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let arguments = ["serve", "--demo", "--listen", "tcp://127.0.0.1:0", "--control", "off"];
    let mut command = dspark(&arguments);
    command.args(["--backend", "cuda", "--record"]).arg(path);
    // A GPU that is there is hidden, so that the backend cannot start on any machine.
    let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn every_operation_is_recorded_with_its_reply() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ops.trace");
    let mut worker = serve_recorded(&path, 1, &[]);
    let mut other = Client::connect(&worker.drafting());
    assert_eq!(other.ping(), FrameStatus::Ok);
    let refused = hello_message(1, SESSION);
    assert_eq!(other.ask(&refused).status(), FrameStatus::StaleSeq);
    worker.terminate();
    let mut trace = reader(&path);
    let mut seen = Vec::new();
    let mut clock = 0;
    while let Some(record) = trace.next_record().unwrap() {
        let (header, _) = AppHeader::split(record.payload).unwrap();
        assert!(record.time_us >= clock, "the clock does not go back");
        clock = record.time_us;
        if record.kind == RecordKind::Reply {
            seen.push((Op::from_code(header.op.get()).unwrap(), header.frame_status().unwrap()));
        }
    }
    let ok = FrameStatus::Ok;
    let expected = [Op::Hello, Op::Step, Op::Step, Op::Ping].map(|op| (op, ok));
    assert_eq!(seen[..4], expected);
    assert_eq!(seen[4..], [(Op::Hello, FrameStatus::StaleSeq)]);
}
