//! A client made of a plain socket: bytes out, frames in, nothing checked that a test does not ask for.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use dspark::drafter::BackendInfo;
use dspark::protocol::control::empty_request;
use dspark::protocol::step::StepMeta;
use dspark::protocol::{
    AppHeader, EntryStatus, FrameStatus, HelloRequest, Op, ReqEntry, StepReply, StepWriter,
};
use dspark::transport::{Endpoint, Listener, Peers};
use dspark::worker::serve::ServeOptions;
use serde_json::Value;
use zerocopy::IntoBytes;

pub(crate) use crate::common::golden::TINY;
use crate::common::process::Worker;
use crate::common::{digest_field, fixture};

/// Longest wait for anything that must come.
const WAIT: Duration = Duration::from_secs(20);

/// The HELLO body a demo worker accepts.
pub(crate) fn hello_body() -> HelloRequest {
    let golden = std::fs::read(fixture("tiny/hello.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let digest = |field: &str| digest_field(&golden, field);
    HelloRequest::new(&TINY, digest("drafter_identity"), digest("markov_identity"), "socket")
}

/// A listener on a free loopback port.
pub(crate) fn any_port() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// How a worker in this process serves that identity: one drafting listener, one for control.
pub(crate) fn serve_options() -> ServeOptions {
    let hello = hello_body();
    ServeOptions {
        listeners: vec![any_port()],
        control: Some(any_port()),
        metrics: None,
        peers: Peers::default(),
        name: "here".into(),
        checkpoint: "none".into(),
        identities: [hello.drafter_identity, hello.markov_identity],
        recorder: None,
        keep_warm: None,
    }
}

/// The HELLO message a demo worker accepts.
pub(crate) fn hello_message(seq: u64, session: u32) -> Vec<u8> {
    let header = AppHeader::request(Op::Hello, seq, session, 192);
    [header.as_bytes(), hello_body().as_bytes()].concat()
}

/// A STEP message; `rows` as many as the entries claim.
pub(crate) fn step_message(seq: u64, session: u32, entries: &[ReqEntry], rows: &[u8]) -> Vec<u8> {
    let row_bytes = TINY.row_bytes();
    let meta =
        StepMeta { seq, session, step_id: seq.wrapping_add(1000), want_margin: true, row_bytes };
    let mut message = Vec::new();
    let mut writer = StepWriter::begin(&mut message, meta, entries);
    writer.rows(rows);
    writer.finish();
    message
}

/// `n` tap rows of ordinary size for the positions from `first`: a position's row is always the same.
pub(crate) fn rows(first: i64, n: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(n * TINY.row_bytes());
    for position in 0..n as u64 {
        let mut random = Random((first as u64).wrapping_add(position));
        for _ in 0..TINY.row_bytes() / 2 {
            let value = random.below(2001) as f32 / 1000.0 - 1.0;
            bytes.extend_from_slice(&value.to_bits().to_le_bytes()[2..]);
        }
    }
    bytes
}

/// splitmix64: the same numbers on every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// One reply frame.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) header: AppHeader,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn status(&self) -> FrameStatus {
        self.header.frame_status().expect("a frame status of the contract")
    }

    pub(crate) fn step(&self) -> StepReply<'_> {
        assert_eq!(self.status(), FrameStatus::Ok);
        StepReply::parse(&self.body).expect("a STEP reply")
    }

    /// Status of every entry.
    pub(crate) fn entries(&self) -> Vec<EntryStatus> {
        let step = self.step();
        (0..step.statuses.len()).map(|i| step.status(i).unwrap()).collect()
    }

    /// Ids, confidences and margins of an entry, bit for bit.
    pub(crate) fn drafts(&self, entry: usize) -> Vec<(i32, u32, u32)> {
        let step = self.step();
        let floats = step.confidence(entry).zip(step.margin(entry));
        let cells = step.ids(entry).zip(floats);
        cells.map(|(id, (c, m))| (id, c.to_bits(), m.to_bits())).collect()
    }

    /// The STATS document.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status(), FrameStatus::Ok);
        serde_json::from_slice(&self.body).expect("strict JSON")
    }
}

/// A connected socket that counts sequence numbers.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) session: u32,
    pub(crate) seq: u64,
}

impl Client {
    pub(crate) fn connect(endpoint: &Endpoint) -> Self {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.set_write_timeout(Some(WAIT)).unwrap();
        Self { stream, session: 0, seq: 0 }
    }

    /// Connects and opens a session, from sequence number `seq` on.
    pub(crate) fn open(endpoint: &Endpoint, session: u32, seq: u64) -> Self {
        let mut client = Self::connect(endpoint);
        assert_eq!(client.ask(&hello_message(seq, session)).status(), FrameStatus::Ok);
        Self { session, seq, ..client }
    }

    /// Sends a message with its length.
    pub(crate) fn send(&mut self, message: &[u8]) {
        self.stream.write_all(&framed(message)).unwrap();
    }

    /// Receives one reply frame.
    pub(crate) fn recv(&mut self) -> Reply {
        let mut prefix = [0; 4];
        self.stream.read_exact(&mut prefix).expect("a reply");
        let len = u32::from_le_bytes(prefix) as usize;
        assert!((32..=65_536).contains(&len), "a reply of {len} bytes");
        let mut message = vec![0; len];
        self.stream.read_exact(&mut message).expect("a whole reply");
        let (header, body) = AppHeader::split(&message).unwrap();
        assert_eq!(header.body_len.get() as usize, body.len());
        Reply { header, body: body.to_vec() }
    }

    pub(crate) fn ask(&mut self, message: &[u8]) -> Reply {
        self.send(message);
        self.recv()
    }

    /// A STEP under the next sequence number.
    pub(crate) fn step(&mut self, entries: &[ReqEntry], rows: &[u8]) -> Reply {
        self.seq += 1;
        self.ask(&step_message(self.seq, self.session, entries, rows))
    }

    pub(crate) fn ping(&mut self) -> FrameStatus {
        self.ask(&empty_request(Op::Ping, 77, 0)).status()
    }

    pub(crate) fn stats(&mut self) -> Value {
        self.ask(&empty_request(Op::Stats, 78, 0)).json()
    }

    /// Nothing more will be sent; replies are still read.
    pub(crate) fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// The worker closes this connection within two seconds and sends nothing more.
    pub(crate) fn assert_closed(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => {}
            Ok(n) => panic!("{n} bytes instead of the end"),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            Err(e) => panic!("not closed: {e}"),
        }
    }
}

/// A message behind its length.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).unwrap();
    [&len.to_le_bytes(), message].concat()
}

/// A demo worker.
pub(crate) fn demo() -> Worker {
    Worker::start(&["--demo"])
}

/// The counters, asked at the control listener.
pub(crate) fn stats_of(worker: &Worker) -> Value {
    Client::connect(&worker.control()).stats()
}

/// What a backend of the tests says of itself.
pub(crate) fn backend_info() -> BackendInfo {
    BackendInfo {
        backend: "cpu",
        device: "test".into(),
        precision: "f32",
        logits: "f32",
        kv: "none",
        gpu_mem_bytes: 0,
    }
}

/// A counter of the sockets.
pub(crate) fn link(stats: &Value, name: &str) -> u64 {
    stats["link"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
}

/// The listener answers a new client, within the second in which displacement must have happened.
pub(crate) fn assert_serves(endpoint: &Endpoint) {
    let started = Instant::now();
    assert_eq!(Client::connect(endpoint).ping(), FrameStatus::Ok);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

/// Waits for something that must become true.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < WAIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Open descriptors of a process.
pub(crate) fn descriptors(worker: &Worker) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", worker.id())).unwrap().count()
}

/// A line of `/proc/PID/status` in KiB: `VmRSS` now, `VmHWM` at its peak.
pub(crate) fn memory_kib(worker: &Worker, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}
