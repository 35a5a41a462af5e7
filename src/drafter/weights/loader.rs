//! Takes tensors out of a store by canonical name and keeps account of what happened to each.
//!
//! A failed request records its problem and answers an empty value, so that one pass finds every
//! problem; [`Loader::finish`] lets no such value out.

use std::collections::HashSet;

use super::{Float, Ignored, Linear, LoadReport, Matrix, ModuleRow, Problem, WeightsError};
use crate::buffer::SharedBytes;
use crate::checkpoint::{Dtype, Tensor, TensorStore};
use crate::exl3::{Codebook, Exl3Linear, Exl3Parts, Scales};

pub(super) struct Loader<'a> {
    store: &'a TensorStore,
    /// Canonical names of the tensors that were read.
    consumed: HashSet<String>,
    problems: Vec<Problem>,
    report: LoadReport,
}

impl<'a> Loader<'a> {
    pub(super) fn new(store: &'a TensorStore) -> Self {
        let (consumed, problems, report) = Default::default();
        Self { store, consumed, problems, report }
    }

    pub(super) fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// A tensor of a float dtype and the given shape, as f32.
    pub(super) fn plain(&mut self, name: &str, shape: &[usize]) -> Vec<f32> {
        let Some(tensor) = self.take(name) else { return Vec::new() };
        let matrix = self.float(name, tensor, shape);
        matrix.map(|matrix| matrix.to_f32()).unwrap_or_default()
    }

    /// A float tensor `[rows, cols]`, left in its file.
    pub(super) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Matrix {
        let tensor = self.take(name);
        tensor.and_then(|tensor| self.float(name, tensor, &[rows, cols])).unwrap_or_else(no_matrix)
    }

    /// The linear of module `module`: EXL3 if there is a trellis, else a plain `weight` [out, in].
    pub(super) fn linear(&mut self, module: &str, inputs: usize, outputs: usize) -> Linear {
        let linear = if self.has(&format!("{module}.trellis")) {
            self.exl3(module, inputs, outputs).map(Linear::Exl3)
        } else {
            self.dense(module, inputs, outputs).map(Linear::Dense)
        };
        linear.unwrap_or_else(|| Linear::Dense(no_matrix()))
    }

    /// `groups` linears of one shape, stored as `module.slice.{g}` or as one linear whose outputs are
    /// the groups in order.
    pub(super) fn grouped(
        &mut self,
        module: &str,
        groups: usize,
        inputs: usize,
        outputs: usize,
    ) -> Vec<Linear> {
        let slice = |g: usize| format!("{module}.slice.{g}");
        let whole = ["trellis", "weight"].iter().any(|part| self.has(&format!("{module}.{part}")));
        if !whole {
            return (0..groups).map(|g| self.linear(&slice(g), inputs, outputs)).collect();
        }
        let whole = self.linear(module, inputs, groups * outputs);
        if whole.out_features() != groups * outputs {
            return Vec::new();
        }
        let part = |g: usize| {
            let columns = g * outputs..(g + 1) * outputs;
            match &whole {
                Linear::Exl3(exl3) => exl3.output_columns(columns).map(Linear::Exl3),
                Linear::Dense(matrix) => Ok(Linear::Dense(matrix.row_range(columns))),
            }
        };
        match (0..groups).map(part).collect() {
            Ok(parts) => parts,
            Err(error) => {
                self.problem(Problem::Exl3 { module: module.into(), reason: error.to_string() });
                Vec::new()
            }
        }
    }

    /// Accounts for every tensor that was not taken.
    pub(super) fn finish(mut self) -> Result<LoadReport, WeightsError> {
        for tensor in self.store.iter() {
            let canonical = self.store.canonical(&tensor.name);
            if canonical.as_ref().is_some_and(|name| self.consumed.contains(name)) {
                self.report.consumed += 1;
            } else if let Some(reason) = self.may_ignore(&tensor.name, canonical.as_deref()) {
                self.report.ignored.push(Ignored { tensor: tensor.name.clone(), reason });
            } else {
                self.problems.push(Problem::Unknown { tensor: tensor.name.clone() });
            }
        }
        if self.problems.is_empty() {
            Ok(self.report)
        } else {
            Err(WeightsError { problems: self.problems })
        }
    }

    /// Why a tensor may stay unread, if it may. Any other tensor of the drafter could be a misspelt one.
    fn may_ignore(&self, name: &str, canonical: Option<&str>) -> Option<&'static str> {
        if canonical.is_some_and(|name| self.is_shadowed(name)) {
            Some("EXL3 form taken")
        } else if self.store.is_ignored(name) {
            Some("known to be of no use")
        } else if canonical.is_none() && !name.split('.').any(|part| part == "mtp") {
            Some("not the drafter's")
        } else {
            None
        }
    }

    /// Whether this is the plain form of a linear whose EXL3 form was read.
    fn is_shadowed(&self, name: &str) -> bool {
        let module = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".scale"));
        module.is_some_and(|module| {
            ["trellis", "slice.0.trellis"]
                .iter()
                .any(|part| self.consumed.contains(&format!("{module}.{part}")))
        })
    }

    fn has(&self, name: &str) -> bool {
        self.store.find(name).is_some()
    }

    /// The tensor, marked as read; records it as missing otherwise.
    fn take(&mut self, name: &str) -> Option<&'a Tensor> {
        let taken = self.take_optional(name);
        if taken.is_none() {
            self.problem(Problem::Missing { tensor: name.into() });
        }
        taken
    }

    fn take_optional(&mut self, name: &str) -> Option<&'a Tensor> {
        let tensor = self.store.find(name)?;
        self.consumed.insert(name.into());
        Some(tensor)
    }

    /// Checks dtype and shape of a plain tensor and adds its row to the report.
    fn float(&mut self, name: &str, tensor: &Tensor, shape: &[usize]) -> Option<Matrix> {
        let dtype = match tensor.dtype {
            Dtype::Bf16 => Float::Bf16,
            Dtype::F16 => Float::F16,
            Dtype::F32 => Float::F32,
            _ => {
                self.problem(Problem::Dtype {
                    tensor: name.into(),
                    got: tensor.dtype.to_string(),
                    expected: "BF16, F16 or F32",
                });
                return None;
            }
        };
        self.shape(name, &tensor.shape, shape)?;
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().rev().skip(1).product();
        let matrix = Matrix::new(dtype, rows, cols, tensor.data.clone());
        if matrix.is_none() {
            self.problem(Problem::Shape {
                tensor: name.into(),
                got: vec![tensor.data.len()],
                expected: vec![rows * cols * dtype.bytes()],
            });
        }
        let form = format!("{dtype:?}").to_lowercase();
        self.row(name, tensor, form, shape.to_vec());
        matrix
    }

    fn dense(&mut self, module: &str, inputs: usize, outputs: usize) -> Option<Matrix> {
        let name = format!("{module}.weight");
        let Some(tensor) = self.take_optional(&name) else {
            self.problem(Problem::Missing { tensor: format!("{module}.trellis") });
            return None;
        };
        match tensor.dtype {
            Dtype::Bf16 | Dtype::F16 | Dtype::F32 => self.float(&name, tensor, &[outputs, inputs]),
            _ => {
                // The scale belongs to the refused form; reporting it as unknown too would mislead.
                self.take_optional(&format!("{module}.scale"));
                let form = tensor.dtype.to_string();
                self.problem(Problem::NotSupported { tensor: name, form });
                None
            }
        }
    }

    fn exl3(&mut self, module: &str, inputs: usize, outputs: usize) -> Option<Exl3Linear> {
        let name = format!("{module}.trellis");
        let trellis = self.take(&name)?;
        let input = self.scales(module, "suh", "su", inputs);
        let output = self.scales(module, "svh", "sv", outputs);
        let codebook = self.codebook(module);
        let bias = format!("{module}.bias");
        let bias = self.has(&bias).then(|| self.plain(&bias, &[outputs]));
        self.dtype(&name, trellis, &Dtype::I16, "I16")?;
        let &[tiles_in, tiles_out, words] = trellis.shape.as_slice() else {
            self.shape(&name, &trellis.shape, &[inputs / 16, outputs / 16, 0])?;
            return None;
        };
        self.shape(&name, &trellis.shape, &[inputs / 16, outputs / 16, words])?;
        let linear = Exl3Linear::new(Exl3Parts {
            trellis: trellis.data.clone(),
            trellis_shape: [tiles_in, tiles_out, words],
            input: input?,
            output: output?,
            bias,
            codebook: codebook?,
        });
        match linear {
            Ok(linear) => {
                self.row(module, trellis, "exl3".into(), vec![outputs, inputs]);
                if let Some(row) = self.report.modules.last_mut() {
                    row.width = Some(linear.width().to_string());
                    row.codebook = Some(linear.codebook().to_string());
                }
                Some(linear)
            }
            Err(error) => {
                self.problem(Problem::Exl3 { module: module.into(), reason: error.to_string() });
                None
            }
        }
    }

    /// Scales of one side, or the packed signs of older packs.
    fn scales(&mut self, module: &str, full: &str, signs: &str, len: usize) -> Option<Scales> {
        let signs = format!("{module}.{signs}");
        let full = format!("{module}.{full}");
        if !self.has(&full) && self.has(&signs) {
            let tensor = self.take(&signs)?;
            self.dtype(&signs, tensor, &Dtype::I16, "I16")?;
            self.shape(&signs, &tensor.shape, &[len / 16])?;
            return Some(Scales::Signs(tensor.data.clone()));
        }
        let tensor = self.take(&full)?;
        self.dtype(&full, tensor, &Dtype::F16, "F16")?;
        self.shape(&full, &tensor.shape, &[len])?;
        Some(Scales::F16(tensor.data.clone()))
    }

    /// The codebook is named by which marker tensor exists.
    fn codebook(&mut self, module: &str) -> Option<Codebook> {
        let mul1 = self.marker(module, "mul1")?;
        let mcg = self.marker(module, "mcg")?;
        match Codebook::from_markers(mul1, mcg) {
            Ok(codebook) => Some(codebook),
            Err(error) => {
                self.problem(Problem::Exl3 { module: module.into(), reason: error.to_string() });
                None
            }
        }
    }

    /// The value of a marker tensor, if there is one; `None` if it is not one I32.
    fn marker(&mut self, module: &str, marker: &str) -> Option<Option<i32>> {
        let name = format!("{module}.{marker}");
        let Some(tensor) = self.take_optional(&name) else { return Some(None) };
        self.dtype(&name, tensor, &Dtype::I32, "I32")?;
        let value: Option<[u8; 4]> = tensor.data[..].try_into().ok();
        if value.is_none() {
            self.shape(&name, &tensor.shape, &[]);
        }
        value.map(|bytes| Some(i32::from_le_bytes(bytes)))
    }

    fn dtype(
        &mut self,
        name: &str,
        tensor: &Tensor,
        dtype: &Dtype,
        text: &'static str,
    ) -> Option<()> {
        if tensor.dtype == *dtype {
            return Some(());
        }
        let got = tensor.dtype.to_string();
        self.problem(Problem::Dtype { tensor: name.into(), got, expected: text });
        None
    }

    fn shape(&mut self, name: &str, got: &[usize], expected: &[usize]) -> Option<()> {
        if got == expected {
            return Some(());
        }
        self.problem(Problem::Shape {
            tensor: name.into(),
            got: got.to_vec(),
            expected: expected.to_vec(),
        });
        None
    }

    fn row(&mut self, module: &str, tensor: &Tensor, form: String, shape: Vec<usize>) {
        self.report.modules.push(ModuleRow {
            module: module.into(),
            file: tensor.file.clone(),
            form,
            width: None,
            codebook: None,
            shape,
        });
    }
}

/// Stands in for a matrix whose problem has been recorded.
fn no_matrix() -> Matrix {
    Matrix::new(Float::F32, 0, 0, SharedBytes::new(Vec::new())).expect("no rows need no bytes")
}
