//! Syntax tree to program: names become indices, opcodes become functions.
//!
//! An opcode that is not known decodes to an action that stops with its text when it is reached,
//! so that one exotic instruction does not make the rest of a module useless.

mod compact;
mod control;
mod memory;
mod names;
mod operands;
mod rows;
mod statement;
mod tensor;
mod writes;

use std::collections::HashMap;
use std::sync::Arc;

use super::program::{Action, Instruction, Kernel, Param};
use crate::ptx::{Function, Item, Module, PtxError, Space, Variable};
use names::{CallFrame, Names};

/// Decodes all kernels of a module. `globals` holds the addresses of `.global` and `.const`
/// variables.
///
/// # Errors
/// When a name is unknown or an instruction has operands it cannot have.
pub(crate) fn decode(
    source: &Arc<str>,
    module: &Module,
    globals: &HashMap<String, u64>,
) -> Result<HashMap<String, Arc<Kernel>>, PtxError> {
    let mut kernels = HashMap::new();
    for function in module.functions.iter().filter(|function| function.is_entry) {
        let kernel = Decoder::new(module, globals, function).kernel(source, function)?;
        kernels.insert(function.name.clone(), Arc::new(kernel));
    }
    Ok(kernels)
}

/// State while one kernel is decoded.
struct Decoder<'m> {
    module: &'m Module,
    names: Names<'m>,
    code: Vec<Instruction>,
    /// Label positions of the function being decoded.
    labels: HashMap<String, usize>,
    /// Branches of the function being decoded, to be pointed at their labels.
    branches: Vec<(usize, Vec<String>)>,
    branch_tables: HashMap<String, Vec<String>>,
    /// Device functions that are called: where they begin once decoded.
    frames: HashMap<String, CallFrame>,
    called: Vec<&'m Function>,
    calls: Vec<(usize, String)>,
    /// Frame of the device function being decoded.
    current: Option<String>,
}

impl<'m> Decoder<'m> {
    fn new(module: &'m Module, globals: &'m HashMap<String, u64>, kernel: &'m Function) -> Self {
        Self {
            module,
            names: Names::new(module, globals, kernel_params(kernel)),
            code: Vec::new(),
            labels: HashMap::new(),
            branches: Vec::new(),
            branch_tables: HashMap::new(),
            frames: HashMap::new(),
            called: Vec::new(),
            calls: Vec::new(),
            current: None,
        }
    }

    fn kernel(mut self, source: &Arc<str>, function: &'m Function) -> Result<Kernel, PtxError> {
        self.function(function)?;
        let mut next = 0;
        while let Some(called) = self.called.get(next).copied() {
            next += 1;
            self.current = Some(called.name.clone());
            let start = self.code.len();
            self.function(called)?;
            if let Some(frame) = self.frames.get_mut(&called.name) {
                frame.start = start;
            }
        }
        for (at, name) in std::mem::take(&mut self.calls) {
            if let Action::Call { target, .. } = &mut self.code[at].action {
                *target = self.frames[&name].start;
            }
        }
        let mut layout = self.names.finish();
        let params: Vec<Param> =
            kernel_params(function).into_iter().map(|(_, param)| param).collect();
        let has_global_atomics = self.code.iter().any(|instruction| {
            matches!(&instruction.action, Action::Atomic(atomic) if atomic.may_be_global())
        });
        let writes = writes::written_params(&self.code, &layout.constants, &params);
        layout.renumber(&mut self.code);
        Ok(Kernel {
            name: function.name.clone(),
            code: self.code,
            param_bytes: params.iter().map(|param| param.offset + param.bytes).max().unwrap_or(0),
            params,
            rows: layout.rows,
            predicates: layout.predicates,
            constants: layout.constants,
            specials: layout.specials,
            static_shared: layout.static_shared,
            dynamic_shared_at: layout.dynamic_shared_at,
            local_bytes: layout.local_bytes,
            max_threads: function.max_threads.unwrap_or(1024).min(1024),
            has_global_atomics,
            writes,
            registers: layout.registers_estimate,
            source: Arc::clone(source),
        })
    }

    /// Appends the code of a function; execution never runs past its end.
    fn function(&mut self, function: &'m Function) -> Result<(), PtxError> {
        self.labels.clear();
        self.branches.clear();
        self.branch_tables.clear();
        self.names.open_scope();
        for (index, item) in function.body.iter().enumerate() {
            match item {
                Item::Open => self.names.open_scope(),
                Item::Close => self.names.close_scope(),
                Item::Label(label) => {
                    self.labels.insert(label.clone(), self.code.len());
                }
                Item::Registers { ty, names } => self.names.declare_registers(*ty, names)?,
                Item::BranchTargets { label, targets } => {
                    self.branch_tables.insert(label.clone(), targets.clone());
                }
                Item::Variable(variable) if variable.space == Space::Param => {
                    self.declare_argument(variable, &function.body[index..])?;
                }
                Item::Variable(variable) => self.names.declare_variable(variable),
                Item::Statement(statement) => {
                    let guard = self.guard(statement)?;
                    let action = self.statement(statement)?;
                    self.code.push(Instruction { guard, action, line: statement.line });
                }
            }
        }
        let line = self.code.last().map_or(0, |instruction| instruction.line);
        self.code.push(Instruction { guard: None, action: self.end_of_function(), line });
        self.names.close_scope();
        self.resolve_branches()
    }

    fn resolve_branches(&mut self) -> Result<(), PtxError> {
        for (at, labels) in std::mem::take(&mut self.branches) {
            let line = self.code[at].line;
            let mut positions = Vec::new();
            for label in &labels {
                let position = self.labels.get(label).copied();
                positions.push(position.ok_or_else(|| unknown_name(line, label))?);
            }
            match &mut self.code[at].action {
                Action::Branch { target } => *target = positions[0],
                Action::BranchIndexed { targets, .. } => *targets = positions,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Names and places of a kernel's parameters.
fn kernel_params(function: &Function) -> Vec<(String, Param)> {
    let mut offset = 0usize;
    let place = |variable: &Variable| {
        offset = offset.next_multiple_of(variable.align.max(1));
        let param = Param { offset, bytes: variable.bytes };
        offset += variable.bytes;
        (variable.name.clone(), param)
    };
    function.params.iter().map(place).collect()
}

fn unknown_name(line: u32, name: &str) -> PtxError {
    PtxError::new(line, format!("{name} is not declared"))
}
