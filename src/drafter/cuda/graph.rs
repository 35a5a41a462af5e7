//! Captured launches: one graph for every pass, so that a STEP in the common case launches once. Sizes within
//! a bucket come from the uploaded piece.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUstreamCaptureMode};

use super::device::{Device, DeviceError, Doing};
use super::engine::{Engine, Pass};

/// An executable graph.
struct Graph {
    device: Arc<Device>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl Graph {
    /// Captures what a pass launches.
    fn capture(engine: &Engine, pass: Pass) -> Result<Self, DeviceError> {
        let device = engine.device.clone();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and idle, and capturing ends below.
        unsafe { result::stream::begin_capture(device.stream(), mode) }.doing("begin a graph")?;
        let launched = engine.unwatched(pass);
        // SAFETY: begun above.
        let graph = unsafe { result::stream::end_capture(device.stream()) }.doing("end a graph");
        launched?;
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
pub(super) struct Graphs(HashMap<Pass, Graph>);

impl Graphs {
    /// Captures every pass there can be. The uploaded piece must name no rows, and every kernel must have run
    /// once: drivers may load code at the first launch, which a capture refuses.
    pub(super) fn capture(engine: &Engine) -> Result<Self, DeviceError> {
        let heads = |drafts: usize| 1..=(drafts * engine.shape.block).div_ceil(8);
        let drafting = (1..=engine.shape.drafts)
            .flat_map(|drafts| heads(drafts).map(move |head| (drafts, head)));
        let passes = std::iter::once((0, 0)).chain(drafting).flat_map(|(drafts, head)| {
            Pass::context_buckets().map(move |context| Pass { context, drafts, head })
        });
        let work = passes.filter(|pass| pass.context + pass.drafts > 0);
        let graphs = work.map(|pass| Ok((pass, Graph::capture(engine, pass)?)));
        graphs.collect::<Result<_, _>>().map(Self)
    }

    /// Number of graphs.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Executes a pass.
    pub(super) fn launch(&self, pass: Pass) -> Result<(), DeviceError> {
        self.0[&pass].launch()
    }
}
