//! Weights on the device: counted once for the memory plan, then given places.
//!
//! EXL3 layers and large tables go as they are stored, everything else as f32. How the bytes come to their
//! places is told in `placement`. The host's copies can be dropped afterwards.

use std::collections::HashMap;

use super::device::{Device, DeviceError};
use super::linears::UnsupportedLayer;
use super::linears::{LinearTable, Sink, check, floats};
use super::shape::Shape;
use crate::drafter::weights::{Float, HyperWeights, LayerWeights, Linear, Matrix, Weights};

/// Placed bytes start on multiples of this.
pub(super) const ALIGN: usize = 256;

/// A table of rows in one of three formats.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableAt {
    pub(super) at: u64,
    /// `Format` of common.cuh.
    pub(super) format: u32,
}

/// Mix weights of one sublayer.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyperAt {
    pub(super) function: u64,
    pub(super) base: u64,
    pub(super) scale: u64,
}

/// One draft layer: addresses of plain tensors, table indices of quantised ones.
#[derive(Clone, Debug)]
pub(super) struct LayerAt {
    pub(super) attn_norm: u64,
    pub(super) ffn_norm: u64,
    pub(super) q_norm: u64,
    pub(super) sinks: u64,
    pub(super) hc_attn: HyperAt,
    pub(super) hc_ffn: HyperAt,
    pub(super) gate: u64,
    pub(super) gate_bias: u64,
    pub(super) wq_a: usize,
    pub(super) wkv: usize,
    pub(super) wq_b: usize,
    /// One a group.
    pub(super) wo_a: Vec<usize>,
    pub(super) wo_b: usize,
    /// Gate of expert 0; an expert's gate, up and down follow each other, the shared expert comes last.
    pub(super) experts: usize,
}

/// Where all weights are.
pub(super) struct WeightsAt {
    pub(super) table: LinearTable,
    pub(super) main_proj: usize,
    pub(super) head: usize,
    pub(super) main_norm: u64,
    pub(super) final_norm: u64,
    /// `[layers, head_dim]`
    pub(super) kv_norms: u64,
    pub(super) embed: TableAt,
    pub(super) markov_embed: TableAt,
    pub(super) markov_head: TableAt,
    /// `[vocab]` Euclidean lengths of their rows, rounded up.
    pub(super) markov_embed_norm: u64,
    pub(super) markov_head_norm: u64,
    pub(super) confidence: u64,
    pub(super) layers: Vec<LayerAt>,
}

/// Names the first layer the kernels cannot compute with.
pub(super) fn supported(weights: &Weights) -> Result<(), UnsupportedLayer> {
    check("mtp.0.main_proj", &weights.main_proj)?;
    check("head", &weights.head)?;
    for (i, layer) in weights.layers.iter().enumerate() {
        let attention = [("wq_a", &layer.wq_a), ("wq_b", &layer.wq_b), ("wkv", &layer.wkv)];
        let attention = attention.into_iter().chain(layer.wo_a.iter().map(|l| ("wo_a", l)));
        for (name, linear) in attention.chain([("wo_b", &layer.wo_b)]) {
            check(&format!("mtp.{i}.attn.{name}"), linear)?;
        }
        let experts = layer.experts.iter().enumerate().map(|(e, x)| (format!("experts.{e}"), x));
        for (name, expert) in experts.chain([("shared_experts".into(), &layer.shared)]) {
            for (part, linear) in [("w1", &expert.w1), ("w2", &expert.w2), ("w3", &expert.w3)] {
                check(&format!("mtp.{i}.ffn.{name}.{part}"), linear)?;
            }
        }
    }
    Ok(())
}

/// A sink that also keeps room for what is known later.
pub(super) trait Rooms: Sink {
    /// Room for so many bytes on a boundary of 256: its address.
    fn room(&mut self, bytes: usize) -> Result<u64, Self::Error>;
}

/// Puts all weights into `sink`. The lengths of rows have room; [`WeightsAt::write_norms`] fills it.
pub(super) fn place<S: Rooms>(
    weights: &Weights,
    shape: &Shape,
    sink: &mut S,
) -> Result<WeightsAt, S::Error> {
    let mut table = LinearTable::default();
    let main_proj = table.add(&weights.main_proj, 1, sink)?;
    let head = table.add(&weights.head, 1, sink)?;
    let layers = weights.layers.iter();
    let layers = layers.map(|layer| place_layer(layer, &mut table, sink));
    let layers = layers.collect::<Result<_, _>>()?;
    let kv_norms: Vec<f32> =
        weights.layers.iter().flat_map(|l| l.kv_norm.iter().copied()).collect();
    debug_assert_eq!(kv_norms.len(), shape.layers * shape.head_dim, "one norm a layer");
    Ok(WeightsAt {
        main_proj,
        head,
        main_norm: sink.put(&floats(&weights.main_norm))?,
        final_norm: sink.put(&floats(&weights.final_norm))?,
        kv_norms: sink.put(&floats(&kv_norms))?,
        embed: place_matrix(&weights.embed, sink)?,
        markov_embed: place_matrix(&weights.markov_embed, sink)?,
        markov_head: place_matrix(&weights.markov_head, sink)?,
        markov_embed_norm: sink.room(4 * weights.markov_embed.rows())?,
        markov_head_norm: sink.room(4 * weights.markov_head.rows())?,
        confidence: sink.put(&floats(&weights.confidence))?,
        layers,
        table,
    })
}

fn place_layer<S: Sink>(
    layer: &LayerWeights,
    table: &mut LinearTable,
    sink: &mut S,
) -> Result<LayerAt, S::Error> {
    let mut add = |linear: &Linear, sharers: usize, sink: &mut S| table.add(linear, sharers, sink);
    let groups = layer.wo_a.len();
    let (wq_a, wkv) = (add(&layer.wq_a, 2, sink)?, add(&layer.wkv, 2, sink)?);
    let (wq_b, wo_b) = (add(&layer.wq_b, 1, sink)?, add(&layer.wo_b, 1, sink)?);
    let wo_a = layer.wo_a.iter().map(|l| add(l, groups, sink)).collect::<Result<_, _>>()?;
    // One draft of five rows that take three experts each runs up to sixteen experts at once; half of it
    // is what may be counted on.
    let mut experts = Vec::new();
    for expert in layer.experts.iter().chain([&layer.shared]) {
        experts.push(add(&expert.w1, 16, sink)?);
        add(&expert.w3, 16, sink)?;
        add(&expert.w2, 8, sink)?;
    }
    Ok(LayerAt {
        attn_norm: sink.put(&floats(&layer.attn_norm))?,
        ffn_norm: sink.put(&floats(&layer.ffn_norm))?,
        q_norm: sink.put(&floats(&layer.q_norm))?,
        sinks: sink.put(&floats(&layer.sinks))?,
        hc_attn: place_hyper(&layer.hc_attn, sink)?,
        hc_ffn: place_hyper(&layer.hc_ffn, sink)?,
        gate: sink.put(&floats(&layer.gate))?,
        gate_bias: sink.put(&floats(&layer.gate_bias))?,
        wq_a,
        wkv,
        wq_b,
        wo_a,
        wo_b,
        experts: experts[0],
    })
}

fn place_hyper<S: Sink>(weights: &HyperWeights, sink: &mut S) -> Result<HyperAt, S::Error> {
    Ok(HyperAt {
        function: sink.put(&floats(&weights.function))?,
        base: sink.put(&floats(&weights.base))?,
        scale: sink.put(&floats(&weights.scale))?,
    })
}

fn place_matrix<S: Sink>(matrix: &Matrix, sink: &mut S) -> Result<TableAt, S::Error> {
    let format = match matrix.dtype() {
        Float::Bf16 => 0,
        Float::F16 => 1,
        Float::F32 => 2,
    };
    Ok(TableAt { at: sink.put_once(matrix.bytes())?, format })
}

impl WeightsAt {
    /// Writes the lengths of the Markov tables' rows. Reads both tables, so it comes after the pass that reads
    /// and verifies them.
    pub(super) fn write_norms(
        &self,
        weights: &Weights,
        device: &Device,
    ) -> Result<(), DeviceError> {
        let (embed, head) = std::thread::scope(|scope| {
            let embed = scope.spawn(|| floats(&row_norms(&weights.markov_embed)));
            let head = floats(&row_norms(&weights.markov_head));
            (embed.join().unwrap_or_else(|fault| std::panic::resume_unwind(fault)), head)
        });
        // SAFETY: both have room for a float a row, and the wait keeps the sources.
        unsafe {
            device.upload(self.markov_embed_norm, &embed)?;
            device.upload(self.markov_head_norm, &head)?;
        }
        device.synchronize()
    }
}

/// Euclidean length of each row, never below the exact one.
fn row_norms(matrix: &Matrix) -> Vec<f32> {
    let mut row = vec![0.0; matrix.cols()];
    let norm = |index| {
        matrix.read(index, 0, &mut row);
        let square: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        // The conversion rounds to nearest; the factor makes up for it and for the sum.
        (square.sqrt() * (1.0 + 1e-6)) as f32
    };
    (0..matrix.rows()).map(norm).collect()
}

/// Counts what [`place`] would put.
#[derive(Default)]
pub(super) struct Counter {
    pub(super) bytes: usize,
    seen: HashMap<(usize, usize), ()>,
}

impl Sink for Counter {
    type Error = std::convert::Infallible;

    fn put(&mut self, bytes: &[u8]) -> Result<u64, Self::Error> {
        self.room(bytes.len())
    }

    fn put_once(&mut self, bytes: &[u8]) -> Result<u64, Self::Error> {
        match self.seen.insert((bytes.as_ptr().addr(), bytes.len()), ()) {
            Some(()) => Ok(0),
            None => self.put(bytes),
        }
    }
}

impl Rooms for Counter {
    fn room(&mut self, bytes: usize) -> Result<u64, Self::Error> {
        self.bytes += bytes.next_multiple_of(ALIGN);
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::SharedBytes;

    #[test]
    fn a_rows_norm_is_never_below_the_exact_one() {
        let values: Vec<f32> = (0..2000).map(|i| ((i * 37) % 101) as f32 / 7.0 - 7.1).collect();
        let bytes = SharedBytes::new(floats(&values));
        let matrix = Matrix::new(Float::F32, 20, 100, bytes).unwrap();
        for (norm, row) in row_norms(&matrix).into_iter().zip(values.chunks(100)) {
            let exact = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            assert!(f64::from(norm) >= exact && f64::from(norm) < exact * 1.000_01);
        }
    }
}
