//! `dspark trace merge`: several traces of one checkpoint, one after another.

use std::path::PathBuf;

use clap::Args;
use dspark::protocol::{AppHeader, HEADER_BYTES};
use dspark::trace::{TraceHeader, TraceWriter};
use zerocopy::IntoBytes;

use super::{create, open, written};
use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  dspark trace merge monday.trace tuesday.trace --output both.trace";

/// Arguments of `dspark trace merge`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MergeArgs {
    /// Trace files, in the order in which they are to follow each other
    #[arg(required = true, num_args = 2..)]
    traces: Vec<PathBuf>,
    /// Trace file to write; it must not exist
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Merges. Every part keeps its pace and begins where the one before ends; each is given a session id of
/// its own, so that the generations and sequence numbers of two parts are never compared.
pub(super) fn run(args: &MergeArgs, output: &Output) -> Outcome {
    let mut writer = None;
    let mut first = None;
    let (mut start_us, mut records) = (0, 0u64);
    for (part, path) in (1u32..).zip(&args.traces) {
        let mut reader = open(path)?;
        let hello = reader.header().hello;
        let expected = *first.get_or_insert(hello);
        let same = (expected.geometry(), expected.drafter_identity, expected.markov_identity)
            == (hello.geometry(), hello.drafter_identity, hello.markov_identity);
        if !same {
            let text =
                format!("{}: another geometry or identity than the first trace", path.display());
            return Err(Failure::new(Code::BadInput, text));
        }
        let writer = match &mut writer {
            Some(writer) => writer,
            None => writer.insert(
                TraceWriter::create(create(&args.output)?, &TraceHeader::now(hello, ""))
                    .or_exit(Code::BadInput)?,
            ),
        };
        let mut end_us = start_us;
        while let Some(record) = reader.next_record().or_exit(Code::BadInput)? {
            end_us = start_us + record.time_us;
            let message = of_session(record.payload, part);
            writer.record(record.kind, end_us, &message).or_exit(Code::BadInput)?;
            records += 1;
        }
        start_us = end_us;
    }
    let Some(writer) = writer else { return Ok(()) };
    let bytes = writer.bytes();
    writer.finish().or_exit(Code::BadInput)?;
    written(&args.output, ("records", records), bytes, output)
}

/// The message under session id `session`; anything that is no message stays as it is.
fn of_session(payload: &[u8], session: u32) -> Vec<u8> {
    let mut message = payload.to_vec();
    if let Some((mut header, _)) = AppHeader::split(payload)
        && header.magic.get() == dspark::protocol::MAGIC
    {
        header.session = session.into();
        message[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    }
    message
}
