//! Traces: the format, the synthesizer, and what is counted of them.
#![allow(clippy::unwrap_used, missing_docs)]

mod format;
mod info;
mod synthetic;

use dspark::geometry::{Geometry, LIVE};
use dspark::protocol::HelloRequest;
use dspark::trace::synth::SynthEvent;
use dspark::trace::{
    RecordKind, SynthOptions, TraceHeader, TraceInfo, TraceReader, TraceWriter, synth, synth_header,
};

/// A drafter of the demo's size.
const DEMO: Geometry = Geometry { hidden: 256, vocab_size: 512, noise_token_id: 499, ..LIVE };
/// Rows of 12 bytes, so that many traces are cheap.
const TINY: Geometry = Geometry { hidden: 2, vocab_size: 512, noise_token_id: 499, ..LIVE };

type Owned = (RecordKind, u64, Vec<u8>);

fn header(note: &str) -> TraceHeader {
    let hello = HelloRequest::new(&TINY, [1; 32], [2; 32], "spark-a");
    TraceHeader { hello, created_us: 1_764_500_000_000_000, note: note.to_owned() }
}

fn write(header: &TraceHeader, records: &[Owned]) -> Vec<u8> {
    let mut writer = TraceWriter::create(Vec::new(), header).unwrap();
    for (kind, time_us, payload) in records {
        writer.record(*kind, *time_us, payload).unwrap();
    }
    let bytes = writer.bytes();
    let out = writer.finish().unwrap();
    assert_eq!(out.len() as u64, bytes);
    out
}

fn synthesize(geometry: &Geometry, options: &SynthOptions) -> (Vec<u8>, Vec<SynthEvent>) {
    let header = synth_header(geometry, [1; 32], [2; 32], options);
    let mut writer = TraceWriter::create(Vec::new(), &header).unwrap();
    let events = synth(&header, options, &mut writer).unwrap();
    (writer.finish().unwrap(), events)
}

fn info(bytes: &[u8]) -> TraceInfo {
    TraceInfo::collect(&mut TraceReader::open(bytes, "t").unwrap()).unwrap()
}
