//! Streams and their capture.

use std::ffi::{c_int, c_uint, c_void};

use super::codes::Code;
use super::state::{Capture, Handle, Needs, State, Stream, give};
use super::work::{Queue, Work};

const NON_BLOCKING: c_uint = 1;

impl State {
    fn new_stream(&mut self, flags: c_uint, priority: c_int) -> Handle {
        // Streams that wait for the default stream share its queue and so its order.
        let queue = if flags & NON_BLOCKING == 0 {
            0
        } else {
            self.queues.push(Queue::default());
            self.queues.len() - 1
        };
        let handle = self.new_handle();
        let stream = Stream { queue, flags, priority, capture: None, joined: None };
        self.streams.insert(handle, stream);
        handle
    }

    pub(super) fn stream(&mut self, stream: Handle) -> Result<&mut Stream, Code> {
        self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)
    }
}

driver_functions! {
    Needs::Context, |state|
    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) {
        give(stream, state.new_stream(flags, 0))
    }
    fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) {
        give(stream, state.new_stream(flags, priority.clamp(-5, 0)))
    }
    fn cuStreamGetPriority(stream: Handle, priority: *mut c_int) {
        give(priority, state.stream(stream)?.priority)
    }
    fn cuStreamGetFlags(stream: Handle, flags: *mut c_uint) {
        give(flags, state.stream(stream)?.flags)
    }
    fn cuStreamDestroy_v2(stream: Handle) {
        if stream == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        let queue = state.stream(stream)?.queue;
        // Work that was submitted still runs.
        let finished = state.drain(queue);
        state.streams.remove(&stream);
        finished
    }
    fn cuStreamSynchronize(stream: Handle) {
        if state.is_capturing(stream) {
            return state.forbid_in_capture("cuStreamSynchronize");
        }
        let queue = state.stream(stream)?.queue;
        state.drain(queue)
    }
    fn cuStreamQuery(stream: Handle) {
        let queue = state.stream(stream)?.queue;
        if state.queues[queue].waiting.is_empty() {
            return Ok(());
        }
        state.drain(queue)?;
        Err(Code::NOT_READY)
    }
    fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_int) {
        if stream == 0 {
            let message = "capture on the default stream";
            return Err(state.fail(Code::STREAM_CAPTURE_UNSUPPORTED, message));
        }
        let entry = state.stream(stream)?;
        if entry.capture.is_some() || entry.joined.is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        entry.capture = Some(Capture { work: Vec::new(), invalidated: false });
        Ok(())
    }
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) {
        let capture = state.stream(stream)?.capture.take().ok_or(Code::ILLEGAL_STATE)?;
        for other in state.streams.values_mut() {
            other.joined = other.joined.filter(|origin| *origin != stream);
        }
        if capture.invalidated {
            give(graph, 0)?;
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let handle = state.new_graph(capture.work);
        give(graph, handle)
    }
    fn cuStreamIsCapturing(stream: Handle, status: *mut c_int) {
        let origin = state.stream(stream)?.joined.unwrap_or(stream);
        let capture = state.stream(origin)?.capture.as_ref();
        // CU_STREAM_CAPTURE_STATUS_NONE, _ACTIVE, _INVALIDATED
        give(status, capture.map_or(0, |capture| if capture.invalidated { 2 } else { 1 }))
    }
    fn cuLaunchHostFunc(
        stream: Handle,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        data: *mut c_void,
    ) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        state.submit(stream, Work::HostFunction { function, data: data as usize })
    }
}
