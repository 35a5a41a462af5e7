//! Graphs: made by capture, instantiated, launched. Nodes keep the arguments they were captured
//! with.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

use super::codes::Code;
use super::state::{Handle, Needs, State, give};
use super::work::Work;

impl State {
    pub(super) fn new_graph(&mut self, work: Vec<Work>) -> Handle {
        let handle = self.new_handle();
        self.graphs.insert(handle, Arc::new(work));
        handle
    }

    fn graph(&self, graph: Handle) -> Result<Arc<Vec<Work>>, Code> {
        self.graphs.get(&graph).cloned().ok_or(Code::INVALID_HANDLE)
    }

    fn remove_graph(&mut self, graph: Handle) -> Result<(), Code> {
        self.graphs.remove(&graph).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }
}

driver_functions! {
    Needs::Context, |state|
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, _flags: c_ulonglong) {
        let work = state.graph(graph)?;
        let handle = state.new_handle();
        state.graphs.insert(handle, work);
        give(exec, handle)
    }
    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) {
        let work = state.graph(graph)?;
        if nodes.is_null() {
            return give(count, work.len());
        }
        Err(Code::NOT_SUPPORTED)
    }
    fn cuGraphUpload(exec: Handle, stream: Handle) {
        state.graph(exec)?;
        state.stream(stream).map(|_| ())
    }
    fn cuGraphLaunch(exec: Handle, stream: Handle) {
        let work = state.graph(exec)?;
        state.submit(stream, Work::Graph(work))
    }
    fn cuGraphExecDestroy(exec: Handle) {
        state.remove_graph(exec)
    }
    fn cuGraphDestroy(graph: Handle) {
        state.remove_graph(graph)
    }
    fn cuGraphCreate(graph: *mut Handle, _flags: c_uint) {
        let handle = state.new_graph(Vec::new());
        give(graph, handle)
    }
}
