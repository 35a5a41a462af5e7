//! Events: `cuEvent*` and `cuStreamWaitEvent`.

use std::ffi::c_uint;
use std::time::Instant;

use super::codes::Code;
use super::state::{Handle, Needs, State, give};
use super::work::Work;

const DISABLE_TIMING: c_uint = 2;

/// An event. Recordings are numbered, so that a wait means the one it was asked after.
pub(crate) struct Event {
    flags: c_uint,
    pub(crate) recorded: u64,
    pub(crate) completed: u64,
    /// Queue of the last recording.
    pub(crate) queue: usize,
    /// Capturing stream in which it was recorded last.
    captured_in: Option<Handle>,
    time: Option<Instant>,
}

impl Event {
    pub(crate) fn complete(&mut self, number: u64) {
        self.completed = self.completed.max(number);
        self.time = Some(Instant::now());
    }
}

impl State {
    fn event(&mut self, event: Handle) -> Result<&mut Event, Code> {
        self.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)
    }

    fn record_event(&mut self, event: Handle, stream: Handle) -> Result<(), Code> {
        let entry = self.streams.get(&stream).ok_or(Code::INVALID_HANDLE)?;
        let (queue, origin) = (entry.queue, entry.joined.unwrap_or(stream));
        if self.is_capturing(stream) {
            self.event(event)?.captured_in = Some(origin);
            return Ok(());
        }
        let entry = self.event(event)?;
        entry.captured_in = None;
        entry.recorded += 1;
        entry.queue = queue;
        let number = entry.recorded;
        self.submit(stream, Work::RecordEvent { event, number })
    }

    fn wait_event(&mut self, stream: Handle, event: Handle) -> Result<(), Code> {
        let entry = self.event(event)?;
        let (number, captured_in) = (entry.recorded, entry.captured_in);
        if let Some(origin) = captured_in.filter(|origin| self.is_capturing(*origin)) {
            // Waiting for an event of a capture draws the stream into it.
            let waiting = self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
            waiting.joined = (origin != stream).then_some(origin);
            return Ok(());
        }
        if self.is_capturing(stream) {
            // Work before the capture is complete by the time the graph is launched.
            return Ok(());
        }
        self.submit(stream, Work::WaitEvent { event, number })
    }
}

driver_functions! {
    Needs::Context, |state|
    fn cuEventCreate(event: *mut Handle, flags: c_uint) {
        let handle = state.new_handle();
        let entry = Event { flags, recorded: 0, completed: 0, queue: 0, captured_in: None, time: None };
        state.events.insert(handle, entry);
        give(event, handle)
    }
    fn cuEventDestroy_v2(event: Handle) {
        state.events.remove(&event).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }
    fn cuEventRecord(event: Handle, stream: Handle) {
        state.record_event(event, stream)
    }
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) {
        state.record_event(event, stream)
    }
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        state.wait_event(stream, event)
    }
    fn cuEventSynchronize(event: Handle) {
        let entry = state.event(event)?;
        let (number, captured) = (entry.recorded, entry.captured_in);
        if captured.is_some_and(|stream| state.is_capturing(stream)) {
            return state.forbid_in_capture("cuEventSynchronize");
        }
        state.reach_event(event, number)
    }
    fn cuEventQuery(event: Handle) {
        let entry = state.event(event)?;
        let (number, done) = (entry.recorded, entry.completed >= entry.recorded);
        if done {
            return Ok(());
        }
        // A program that polls makes progress: the next query finds the event complete.
        state.reach_event(event, number)?;
        Err(Code::NOT_READY)
    }
    fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) {
        elapsed(state, milliseconds, start, end)
    }
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) {
        elapsed(state, milliseconds, start, end)
    }
}

/// # Safety
/// `milliseconds` must be null or valid for a write.
unsafe fn elapsed(
    state: &mut State,
    milliseconds: *mut f32,
    start: Handle,
    end: Handle,
) -> Result<(), Code> {
    let mut times = [Instant::now(); 2];
    for (handle, time) in [start, end].into_iter().zip(&mut times) {
        let event = state.event(handle)?;
        if event.flags & DISABLE_TIMING != 0 || event.recorded == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        match event.time {
            Some(at) if event.completed >= event.recorded => *time = at,
            _ => return Err(Code::NOT_READY),
        }
    }
    let forward = times[1].saturating_duration_since(times[0]).as_secs_f32();
    let backward = times[0].saturating_duration_since(times[1]).as_secs_f32();
    // SAFETY: as the caller promises.
    unsafe { give(milliseconds, (forward - backward) * 1e3) }
}
