//! Streams' work: queueing, capturing, executing.
//!
//! Work of a queue runs in order. Without `GPUSIM_LAZY` it runs as it is submitted; with it, when
//! a call waits for it, and then only as far as that call and the events on the way demand. So a
//! missing wait between streams, or a staging buffer that is reused too early, shows.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::codes::Code;
use super::state::{Answer, Handle, State, in_host_function};
use crate::exec::launch::Launch;
use crate::exec::program::{Kernel, Writes};
use crate::memory::AllocationKind;
use crate::race::Published;

/// A queue of submitted work.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<Work>,
}

/// One piece of work.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel(KernelLaunch),
    Copy(Copy),
    Fill {
        to: u64,
        pattern: [u8; 4],
        width: usize,
        bytes: usize,
    },
    Free {
        address: u64,
    },
    /// Completes the event's recording with this number.
    RecordEvent {
        event: Handle,
        number: u64,
    },
    WaitEvent {
        event: Handle,
        number: u64,
    },
    Graph(Arc<Vec<Work>>),
    HostFunction {
        function: unsafe extern "C" fn(*mut c_void),
        data: usize,
    },
}

/// A launch with its arguments, copied when it was submitted.
#[derive(Clone)]
pub(crate) struct KernelLaunch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: usize,
    pub(crate) params: Vec<u8>,
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyKind {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

/// A copy. Pageable host memory is read when the copy is submitted, as the driver stages it.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) kind: CopyKind,
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
    pub(crate) staged: Option<Arc<Vec<u8>>>,
}

impl State {
    /// Gives work to a stream: to its capture, or to its queue.
    pub(crate) fn submit(&mut self, stream: Handle, work: Work) -> Answer {
        let entry = self.streams.get(&stream).ok_or(Code::INVALID_HANDLE)?;
        let origin = entry.joined.unwrap_or(stream);
        let queue = entry.queue;
        if let Some(capture) = self.streams.get_mut(&origin).and_then(|s| s.capture.as_mut()) {
            capture.work.push(work);
            return Ok(());
        }
        self.queues[queue].waiting.push_back(work);
        if self.settings.lazy { Ok(()) } else { self.drain(queue) }
    }

    /// Whether a stream records instead of executing.
    pub(crate) fn is_capturing(&self, stream: Handle) -> bool {
        let origin = self.streams.get(&stream).and_then(|entry| entry.joined).unwrap_or(stream);
        self.streams.get(&origin).is_some_and(|entry| entry.capture.is_some())
    }

    /// Refuses a call that must not be made while any stream captures, and spoils the captures.
    pub(crate) fn forbid_in_capture(&mut self, what: &str) -> Answer {
        let mut found = false;
        for stream in self.streams.values_mut() {
            if let Some(capture) = &mut stream.capture {
                capture.invalidated = true;
                found = true;
            }
        }
        if found {
            let message = format!("{what} while a stream is capturing");
            return Err(self.fail(Code::STREAM_CAPTURE_UNSUPPORTED, message));
        }
        Ok(())
    }

    /// Executes a queue to its end.
    pub(crate) fn drain(&mut self, queue: usize) -> Answer {
        while let Some(work) = self.queues[queue].waiting.pop_front() {
            self.execute(work)?;
        }
        Ok(())
    }

    /// Executes all queues to their ends.
    pub(crate) fn drain_all(&mut self) -> Answer {
        (0..self.queues.len()).try_for_each(|queue| self.drain(queue))
    }

    /// Executes the queue of an event until its recording with this number is complete.
    pub(crate) fn reach_event(&mut self, event: Handle, number: u64) -> Answer {
        while let Some(entry) = self.events.get(&event) {
            if entry.completed >= number {
                break;
            }
            let queue = entry.queue;
            match self.queues[queue].waiting.pop_front() {
                Some(work) => self.execute(work)?,
                None => break,
            }
        }
        Ok(())
    }

    fn execute(&mut self, work: Work) -> Answer {
        if let Some(code) = self.sticky {
            return Err(code);
        }
        match work {
            Work::Kernel(launch) => self.run_kernel(&launch),
            Work::Copy(copy) => self.run_copy(&copy),
            Work::Fill { to, pattern, width, bytes } => self.run_fill(to, pattern, width, bytes),
            Work::Free { address } => {
                if self.memory.free(address, &[AllocationKind::Device]) {
                    return Ok(());
                }
                Err(self.poison(format!("cuMemFreeAsync of {address:#x}, which is no allocation")))
            }
            Work::RecordEvent { event, number } => {
                if let Some(entry) = self.events.get_mut(&event) {
                    entry.complete(number);
                }
                Ok(())
            }
            Work::WaitEvent { event, number } => self.reach_event(event, number),
            Work::Graph(graph) => {
                self.counters.graph_launches += 1;
                if self.settings.fault == Some(self.counters.graph_launches) {
                    return Err(self.poison("the graph launch that GPUSIM_FAULT names".into()));
                }
                graph.iter().try_for_each(|work| self.execute(work.clone()))
            }
            Work::HostFunction { function, data } => {
                // SAFETY: the program handed over function and argument for exactly this call.
                in_host_function(|| unsafe { function(data as *mut c_void) });
                Ok(())
            }
        }
    }

    /// Makes the context unusable, as a failed kernel does.
    fn poison(&mut self, message: String) -> Code {
        self.sticky = Some(Code::LAUNCH_FAILED);
        self.fail(Code::LAUNCH_FAILED, message)
    }

    fn run_kernel(&mut self, request: &KernelLaunch) -> Answer {
        if self.settings.idle {
            return Ok(());
        }
        self.launches += 1;
        let allocations = self.memory.snapshot();
        let kernel = request.kernel.as_ref();
        let writes_anywhere = self.counters.surprises.contains(&kernel.name);
        let mut race_checked = Launch::race_checked(kernel, &request.params, &allocations);
        if writes_anywhere {
            race_checked.fill(true);
        }
        let launch = Launch {
            kernel,
            id: (self.launches % 0xFFFF) as u16 + 1, // 1..=0xFFFF
            grid: request.grid,
            block: request.block,
            dynamic_shared: request.dynamic_shared,
            params: &request.params,
            memory: &self.memory,
            allocations,
            race_checked,
            surprised: AtomicBool::new(false),
            published: Published::default(),
            reversed: self.settings.reversed,
            steps_max: self.settings.steps_max,
        };
        let outcome = launch.run();
        if launch.surprised.load(Ordering::Relaxed) && kernel.writes != Writes::Anywhere {
            self.counters.surprises.insert(kernel.name.clone());
        }
        match outcome {
            Ok(counters) => {
                self.counters.kernels.entry(kernel.name.clone()).or_default().add(&counters);
                Ok(())
            }
            Err(fault) => Err(self.poison(fault.to_string())),
        }
    }

    fn run_copy(&mut self, copy: &Copy) -> Answer {
        let Copy { kind, to, from, bytes, ref staged } = *copy;
        if bytes == 0 {
            return Ok(());
        }
        let host = match kind {
            CopyKind::HostToDevice => Some(from),
            CopyKind::DeviceToHost => Some(to),
            CopyKind::DeviceToDevice => None,
        };
        let pageable = host.is_some_and(|host| self.memory.find(host, bytes).is_none());
        if kind != CopyKind::HostToDevice {
            let Some(source) = self.memory.find(from, bytes).cloned() else {
                return Err(self.poison(format!(
                    "copy of {bytes} bytes from {from:#x}, which is no live memory"
                )));
            };
            if let Some(offset) = source.first_unwritten(from, bytes)
                && kind == CopyKind::DeviceToHost
            {
                self.counters.unwritten_bytes_copied +=
                    (from - source.base + bytes as u64) - offset as u64;
            }
        }
        let target = self.memory.find(to, bytes).cloned();
        if kind != CopyKind::DeviceToHost && target.is_none() {
            return Err(
                self.poison(format!("copy of {bytes} bytes to {to:#x}, which is no live memory"))
            );
        }
        let source = staged.as_ref().map_or(from as *const u8, |staged| staged.as_ptr());
        // SAFETY: device sides were found live above; host sides are the program's promise.
        unsafe { std::ptr::copy(source, to as *mut u8, bytes) };
        if let Some(target) = target {
            match (kind, self.memory.find(from, bytes)) {
                // Bytes that were never written stay so in the copy.
                (CopyKind::DeviceToDevice, Some(origin)) => {
                    target.copy_written(to, origin, from, bytes)
                }
                _ => target.mark_range_written(to, bytes),
            }
        }
        let counters = match kind {
            CopyKind::HostToDevice => &mut self.counters.host_to_device,
            CopyKind::DeviceToHost => &mut self.counters.device_to_host,
            CopyKind::DeviceToDevice => &mut self.counters.device_to_device,
        };
        counters.add(bytes, pageable);
        Ok(())
    }

    fn run_fill(&mut self, to: u64, pattern: [u8; 4], width: usize, bytes: usize) -> Answer {
        if bytes == 0 {
            return Ok(());
        }
        let Some(target) = self.memory.find(to, bytes).cloned() else {
            return Err(
                self.poison(format!("fill of {bytes} bytes at {to:#x}, which is no live memory"))
            );
        };
        // SAFETY: the range was found live just above, and only the emulator touches it now.
        let memory = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) };
        for element in memory.chunks_exact_mut(width) {
            element.copy_from_slice(&pattern[..width]);
        }
        target.mark_range_written(to, bytes);
        Ok(())
    }
}
