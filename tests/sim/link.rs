//! The link between rank 0 and the worker: what the schedule's faults do to frames, late frames of dead
//! connections, and a worker that answers in trouble.

use dspark::client::faults::{Fault, FaultKind};
use dspark::protocol::{AppHeader, EntryStatus, FrameStatus, HEADER_BYTES};
use dspark::session::Seat;
use zerocopy::IntoBytes;

use crate::planted::Bug;
use crate::world::{Check, DEADLINE, World};

impl World {
    /// Delivers some or all of the late frames on the connections they were sent on.
    pub(crate) fn deliver_late(&mut self, all: bool) -> Check {
        let late = std::mem::take(&mut self.late);
        for (mut seat, frame) in late {
            if !all && self.rng.one_in(2) {
                self.late.push((seat, frame));
                continue;
            }
            let before = self.worker.windows().to_vec();
            let reply = self.handle(&mut seat, &frame);
            let status = AppHeader::split(&reply).and_then(|(h, _)| h.frame_status());
            if all && (status == Some(FrameStatus::Ok) || self.worker.windows() != before) {
                return Err(format!(
                    "a frame of a dead connection was applied after HELLO: {status:?}"
                ));
            }
        }
        Ok(())
    }

    /// The worker answers a STEP.
    pub(crate) fn handle(&mut self, seat: &mut Seat, frame: &[u8]) -> Vec<u8> {
        let reply = if self.bug == Some(Bug::StaleSeqApplied) {
            let mut fresh = frame.to_vec();
            let (header, _) = AppHeader::split(frame).expect("a STEP");
            let seq = header.seq.get().max(self.worker.session.last_seq() + 1);
            fresh[8..16].copy_from_slice(&seq.to_le_bytes());
            let mut reply = self.worker.handle(seat, &fresh).to_vec();
            reply[8..16].copy_from_slice(&header.seq.get().to_le_bytes());
            reply
        } else {
            self.worker.handle(seat, frame).to_vec()
        };
        let ok = AppHeader::split(&reply).and_then(|(h, _)| h.frame_status());
        if let (Some(frames), Some(FrameStatus::Ok)) = (&mut self.recording, ok) {
            frames.push(frame.to_vec());
        }
        reply
    }

    /// Carries a STEP to the worker and its reply back, or loses either. The flag says whether rank 0 must
    /// refuse the reply.
    pub(crate) fn carry(
        &mut self,
        message: &[u8],
        fault: Option<Fault>,
        calm: bool,
    ) -> Result<Option<(Vec<u8>, bool)>, String> {
        let mut seat = self.seat.expect("a STEP needs a connection");
        if self.dead {
            return Ok(None);
        }
        let kind = fault.map(|f| f.kind);
        if kind == Some(FaultKind::Stale) && !self.last_step.is_empty() {
            self.late_step(&mut seat)?;
        }
        let lost = matches!(kind, Some(FaultKind::Close | FaultKind::Drop));
        if lost && self.rng.one_in(2) {
            // The request is the part that is lost; it may still arrive when nobody expects it.
            if self.rng.one_in(2) {
                self.late.push((seat, message.to_vec()));
            }
            return Ok(None);
        }
        let mut reply = self.handle(&mut seat, message);
        if kind == Some(FaultKind::Duplicate) {
            self.repeated_step(&mut seat, message)?;
        }
        self.seat = Some(seat);
        if lost {
            return Ok(None);
        }
        let mut refuse = false;
        match fault {
            Some(fault) if fault.kind == FaultKind::Delay => {
                self.now += fault.delay.min(DEADLINE);
                if fault.delay > DEADLINE {
                    return Ok(None);
                }
            }
            Some(fault) if fault.kind == FaultKind::Garbage => {
                fault.garble(&mut reply);
                refuse = true;
            }
            Some(fault) if fault.kind == FaultKind::Truncate => {
                reply.truncate(fault.truncated_len(reply.len()));
                refuse = true;
            }
            _ if !calm && self.rng.one_in(150) => self.other_answer(&mut reply),
            _ => {}
        }
        Ok(Some((reply, refuse)))
    }

    /// The STEP of an earlier round arrives once more.
    fn late_step(&mut self, seat: &mut Seat) -> Check {
        let frame = std::mem::take(&mut self.last_step);
        self.repeated_step(seat, &frame)
    }

    fn repeated_step(&mut self, seat: &mut Seat, frame: &[u8]) -> Check {
        let before = self.worker.windows().to_vec();
        let reply = self.handle(seat, frame);
        let status = AppHeader::split(&reply).and_then(|(h, _)| h.frame_status());
        if status == Some(FrameStatus::Ok) || self.worker.windows() != before {
            return Err(format!("a repeated STEP was applied: {status:?}"));
        }
        Ok(())
    }

    /// A worker in trouble: a frame error or an entry error in place of its answer. It may have applied
    /// the STEP all the same.
    fn other_answer(&mut self, reply: &mut Vec<u8>) {
        let (header, body) = AppHeader::split(reply).expect("a reply");
        if header.frame_status() != Some(FrameStatus::Ok) {
            return;
        }
        let n_req = usize::from(u16::from_le_bytes(body[8..10].try_into().expect("two bytes")));
        let n = self.worker.geometry.num_spec as usize;
        if self.rng.one_in(2) {
            let errors = [
                FrameStatus::Malformed,
                FrameStatus::Capacity,
                FrameStatus::Internal,
                FrameStatus::StaleSeq,
                FrameStatus::NoSession,
            ];
            let status = errors[self.rng.below(5) as usize];
            *reply = header.reply(status, 0).as_bytes().to_vec();
            return;
        }
        let errors = [EntryStatus::BadEntry, EntryStatus::Internal, EntryStatus::StaleGeneration];
        let status = errors[self.rng.below(3) as usize];
        let entry = self.rng.below(n_req as u64) as usize;
        let body = &mut reply[HEADER_BYTES..];
        body[32 + 8 * entry..32 + 8 * entry + 4].copy_from_slice(&[status.code() as u8, 0, 0, 0]);
        let arrays = (body.len() - 32 - 8 * n_req) / (4 * n * n_req);
        for array in 0..arrays {
            let at = 32 + 8 * n_req + 4 * n * (array * n_req + entry);
            body[at..at + 4 * n].fill(0);
        }
    }
}
