//! Captured launches: one graph for every number of groups of context rows, and one for every number of
//! drafts and of groups of head rows. Sizes within a bucket come from the uploaded pieces.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUstreamCaptureMode};

use super::device::{Device, DeviceError, Doing};
use super::engine::{Engine, Halt, Watch};
use super::records::ROWS_MAX;

/// An executable graph.
struct Graph {
    device: Arc<Device>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl Graph {
    /// Captures what `body` launches.
    fn capture(
        engine: &Engine,
        body: impl FnOnce() -> Result<(), Halt>,
    ) -> Result<Self, DeviceError> {
        let device = engine.device.clone();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and idle, and capturing ends below.
        unsafe { result::stream::begin_capture(device.stream(), mode) }.doing("begin a graph")?;
        let launched = body();
        // SAFETY: begun above.
        let graph = unsafe { result::stream::end_capture(device.stream()) }.doing("end a graph");
        if let Err(Halt::Device(error)) = launched {
            return Err(error);
        }
        let graph = graph?;
        // SAFETY: the graph was captured just now.
        let exec = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        let exec = exec.doing("instantiate a graph").inspect_err(|_| {
            // SAFETY: captured just now, used nowhere else.
            let _ = unsafe { result::graph::destroy(graph) };
        })?;
        let graph = Self { device, graph, exec };
        // SAFETY: graph and stream are alive.
        unsafe { result::graph::upload(exec, graph.device.stream()) }.doing("upload a graph")?;
        Ok(graph)
    }

    fn launch(&self) -> Result<(), DeviceError> {
        // SAFETY: graph and stream are alive, and so is all memory the graph names: it belongs to the
        // engine the graph is kept beside.
        unsafe { result::graph::launch(self.exec, self.device.stream()) }.doing("launch a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: made in `capture`, destroyed nowhere else.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}

/// All graphs of an engine.
pub(super) struct Graphs {
    /// By groups of context rows, from 1.
    context: Vec<Graph>,
    /// By drafts and groups of head rows, from 1 each.
    block: Vec<Vec<Graph>>,
}

impl Graphs {
    /// Captures every graph. The uploaded pieces must name no rows, and every kernel must have run once:
    /// drivers may load code at the first launch, which a capture refuses.
    pub(super) fn capture(engine: &Engine) -> Result<Self, DeviceError> {
        let context = (1..=ROWS_MAX / 8)
            .map(|groups| Graph::capture(engine, || engine.context(groups, &[], &mut Watch(None))));
        let block = (1..=engine.shape.drafts).map(|drafts| {
            let groups = 1..=(drafts * engine.shape.block).div_ceil(8);
            let graphs = groups.map(|groups| {
                Graph::capture(engine, || {
                    engine.block(drafts, &mut Watch(None))?;
                    engine.head(drafts, groups, 0, &mut Watch(None))
                })
            });
            graphs.collect()
        });
        Ok(Self {
            context: context.collect::<Result<_, _>>()?,
            block: block.collect::<Result<_, _>>()?,
        })
    }

    /// Number of graphs.
    pub(super) fn len(&self) -> usize {
        self.context.len() + self.block.iter().map(Vec::len).sum::<usize>()
    }

    /// Stores context rows.
    pub(super) fn context(&self, groups: usize) -> Result<(), DeviceError> {
        self.context[groups - 1].launch()
    }

    /// Drafts.
    pub(super) fn block(&self, drafts: usize, groups: usize) -> Result<(), DeviceError> {
        self.block[drafts - 1][groups - 1].launch()
    }
}
