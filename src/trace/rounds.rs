//! A trace as engine rounds: each STEP with what was recorded of its answer.

use std::io::Read;

use super::{RecordKind, TraceError, TraceHeader, TraceReader};
use crate::protocol::{AppHeader, HEADER_BYTES, Op};

/// Reads one STEP at a time, with the reply and the local draft recorded behind it.
///
/// Memory is three message buffers, whatever the length of the trace.
pub struct RoundReader<R> {
    reader: TraceReader<R>,
    ahead: Option<u64>,
    next: Vec<u8>,
    step: Vec<u8>,
    reply: Vec<u8>,
    local: Vec<u8>,
}

/// One recorded round.
#[derive(Clone, Copy, Debug)]
pub struct RecordedRound<'a> {
    /// When it was sent, µs since the start of the recording.
    pub time_us: u64,
    /// Header of the STEP.
    pub header: AppHeader,
    /// Body of the STEP. Not judged.
    pub body: &'a [u8],
    /// Body of the recorded reply, if it was a STEP reply with this seq and session. Not judged.
    pub reply: Option<&'a [u8]>,
    /// Body of the local draft, likewise.
    pub local: Option<&'a [u8]>,
}

impl<R: Read> RoundReader<R> {
    /// Reads rounds from here on.
    pub fn new(reader: TraceReader<R>) -> Self {
        let empty = Vec::new;
        Self { reader, ahead: None, next: empty(), step: empty(), reply: empty(), local: empty() }
    }

    /// Header of the trace.
    pub fn header(&self) -> &TraceHeader {
        self.reader.header()
    }

    /// Engine step of the round that [`next_round`](Self::next_round) would return.
    ///
    /// # Errors
    /// As there.
    pub fn peek_step_id(&mut self) -> Result<Option<u64>, TraceError> {
        if self.ahead.is_none() {
            self.ahead = self.read_to_step()?;
        }
        let id = self.next.get(HEADER_BYTES..HEADER_BYTES + 8).and_then(|b| b.try_into().ok());
        // A body too short for a step_id is found out by whoever parses it.
        Ok(self.ahead.map(|_| id.map_or(0, u64::from_le_bytes)))
    }

    /// The next round; `None` at the end. Other operations and notes are passed over.
    ///
    /// # Errors
    /// Where the trace is cut or corrupt. A round that is whole before that place is delivered first.
    pub fn next_round(&mut self) -> Result<Option<RecordedRound<'_>>, TraceError> {
        let time_us = match self.ahead.take() {
            Some(time_us) => time_us,
            None => match self.read_to_step()? {
                Some(time_us) => time_us,
                None => return Ok(None),
            },
        };
        std::mem::swap(&mut self.step, &mut self.next);
        self.reply.clear();
        self.local.clear();
        // A cut behind this round is met again by the next call.
        self.ahead = self.read_to_step().unwrap_or(None);
        let (header, body) = AppHeader::split(&self.step).expect("read_to_step splits it");
        let answer = |message: &'_ [u8]| {
            let (h, _) = AppHeader::split(message)?;
            ((h.seq, h.session, h.op) == (header.seq, header.session, header.op)).then_some(())
        };
        Ok(Some(RecordedRound {
            time_us,
            header,
            body,
            reply: answer(&self.reply).map(|()| &self.reply[HEADER_BYTES..]),
            local: answer(&self.local).map(|()| &self.local[HEADER_BYTES..]),
        }))
    }

    /// Reads up to the next STEP and keeps it in `next`; answers on the way are kept too.
    fn read_to_step(&mut self) -> Result<Option<u64>, TraceError> {
        while let Some(record) = self.reader.next_record()? {
            let target = match record.kind {
                RecordKind::Request => {
                    let op = AppHeader::split(record.payload).map(|(header, _)| header.op.get());
                    if op != Some(Op::Step.code()) {
                        continue;
                    }
                    &mut self.next
                }
                RecordKind::Reply => &mut self.reply,
                RecordKind::LocalDraft => &mut self.local,
                RecordKind::Note => continue,
            };
            target.clear();
            target.extend_from_slice(record.payload);
            if record.kind == RecordKind::Request {
                return Ok(Some(record.time_us));
            }
        }
        Ok(None)
    }
}
