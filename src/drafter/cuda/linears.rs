//! Quantised layers as the kernels find them: a table of layers, and groups of them that run in one launch.
//!
//! How often a layer's inputs are split is decided here, from the layer alone: a row's sums must not depend
//! on what else runs (contract-notes D41).

use super::products::Product;
use super::records::{ALL_ROWS, JobRecord, LinearRecord, word};
use crate::drafter::weights::Linear;
use crate::exl3::{Codebook, Exl3Linear};

/// Blocks of threads a launch should have at least: about four on each of the 82 multiprocessors of the
/// smallest card this is made for. A constant, not the device's number: drafts must not depend on the card.
const BLOCKS_WANTED: usize = 320;
/// Outputs of one block of threads.
const BLOCK_OUTPUTS: usize = 128;

/// Width and codebook of a layer, which select its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind(u32);

impl Kind {
    /// Every kind there is a kernel for.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..3).flat_map(|codebook| (2..=8).map(move |bits| Self(bits | codebook << 8)))
    }

    /// The kind of a codebook and a number of bits.
    pub(super) fn new(codebook: Codebook, bits: usize) -> Self {
        let codebook = match codebook {
            Codebook::ThreeInst => 0,
            Codebook::Mcg => 1,
            Codebook::Mul1 => 2,
        };
        Self(word(bits) | codebook << 8)
    }

    /// The kind of a layer, if there is a kernel for it.
    fn of(layer: &Exl3Linear) -> Option<Self> {
        let width = layer.width();
        let bits = width.tile_bytes() / 32;
        let whole = !width.is_half() && (2..=8).contains(&bits);
        whole.then(|| Self::new(layer.codebook(), bits))
    }

    /// Bits a weight.
    pub(super) fn bits(self) -> usize {
        (self.0 & 0xFF) as usize
    }

    /// Codebook and width as names of kernels end.
    pub(super) fn suffix(self) -> String {
        let codebook = ["3inst", "mcg", "mul1"][(self.0 >> 8) as usize];
        format!("{codebook}_k{}", self.bits())
    }
}

impl LinearRecord {
    /// Name of the kernel that decodes it in launches of `rows` rows.
    pub(super) fn kernel(&self, rows: usize) -> String {
        Product::of(rows).kernel(Kind(self.kind))
    }

    /// Bytes of its packed weights.
    pub(super) fn weight_bytes(&self) -> u64 {
        let bits = Kind(self.kind).bits() as u64;
        u64::from(self.in_features) * u64::from(self.out_features) * bits / 8
    }

    /// Bytes of its scales and its bias.
    pub(super) fn scale_bytes(&self) -> u64 {
        let bias = if self.bias == 0 { 0 } else { 4 * u64::from(self.out_features) };
        2 * (u64::from(self.in_features) + u64::from(self.out_features)) + bias
    }
}

/// A layer the kernels cannot compute with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{layer} is {form}: the CUDA kernels compute with EXL3 layers of 2 to 8 whole bits")]
pub struct UnsupportedLayer {
    /// Name of the layer, as in the checkpoint.
    pub layer: String,
    /// What it is.
    pub form: String,
}

/// Where bytes go: counted first, then put on the device.
pub(super) trait Sink {
    type Error;

    /// Places bytes on a boundary of 256 and answers their address.
    fn put(&mut self, bytes: &[u8]) -> Result<u64, Self::Error>;

    /// The same for bytes that outlive the sink and may come again: they are placed once.
    fn put_once(&mut self, bytes: &[u8]) -> Result<u64, Self::Error>;
}

/// The table of layers.
#[derive(Default)]
pub(super) struct LinearTable {
    pub(super) records: Vec<LinearRecord>,
}

impl LinearTable {
    /// Adds a layer, one of about `sharers` that run in one launch, and answers its index.
    pub(super) fn add<S: Sink>(
        &mut self,
        linear: &Linear,
        sharers: usize,
        sink: &mut S,
    ) -> Result<usize, S::Error> {
        let Linear::Exl3(layer) = linear else { unreachable!("plain layers were refused before") };
        let kind = Kind::of(layer).expect("other kinds were refused before");
        let (inputs, outputs) = (layer.in_features(), layer.out_features());
        let packed = layer.packed();
        let tile = packed.first_tile * layer.width().tile_bytes();
        let halves = |scales: &[f32]| -> Vec<u8> {
            // Scales are f16 numbers or signs: exact.
            scales.iter().flat_map(|&s| half::f16::from_f32(s).to_le_bytes()).collect()
        };
        let bias = layer.bias().map(floats);
        let record = LinearRecord {
            trellis: sink.put_once(packed.trellis)? + tile as u64,
            suh: sink.put(&halves(layer.input_scales()))?,
            svh: sink.put(&halves(layer.output_scales()))?,
            bias: bias.map_or(Ok(0), |bias| sink.put(&bias))?,
            in_features: word(inputs),
            out_features: word(outputs),
            row_tiles: word(packed.row_tiles),
            kind: kind.0,
            splits: word(splits(inputs, outputs, sharers)),
            pad: [0; 3],
        };
        self.records.push(record);
        Ok(self.records.len() - 1)
    }

    /// Kinds of some layers, each once.
    pub(super) fn kinds(&self, layers: impl Iterator<Item = usize>) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = layers.map(|i| Kind(self.records[i].kind)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Floats of partial sums of one row of a layer.
    pub(super) fn sums(&self, layer: usize) -> usize {
        let record = &self.records[layer];
        record.splits as usize * record.out_features as usize
    }
}

/// Says of a layer that the kernels cannot compute with it, if so.
pub(super) fn check(name: &str, linear: &Linear) -> Result<(), UnsupportedLayer> {
    let form = match linear {
        Linear::Dense(matrix) => format!("{:?}", matrix.dtype()).to_lowercase(),
        Linear::Exl3(layer) if Kind::of(layer).is_some() => return Ok(()),
        Linear::Exl3(layer) => format!("EXL3 of {} bits", layer.width()),
    };
    Err(UnsupportedLayer { layer: name.into(), form })
}

/// Little-endian f32 bytes.
pub(super) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Runs a layer's inputs are cut into, each a whole number of blocks of 128.
fn splits(inputs: usize, outputs: usize, sharers: usize) -> usize {
    let blocks = outputs / BLOCK_OUTPUTS * sharers;
    BLOCKS_WANTED.div_ceil(blocks).clamp(1, inputs / 128)
}

/// One layer of a group.
#[derive(Clone, Copy)]
pub(super) struct Member {
    /// Index into the table.
    pub(super) layer: usize,
    /// First column of its input in a source row.
    pub(super) x_col: usize,
    /// Address of its output's first row.
    pub(super) y: u64,
    /// Elements from one output row to the next.
    pub(super) y_pitch: usize,
}

/// Layers of one input width that run in one launch.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Address of the jobs.
    pub(super) jobs: u64,
    /// Jobs there are.
    pub(super) count: usize,
    pub(super) in_features: usize,
    /// Largest output width and number of splits of any layer.
    pub(super) out_features: usize,
    pub(super) splits: usize,
    pub(super) kinds: Vec<Kind>,
}

impl Group {
    /// A group of `count` jobs at `jobs` over layers of the table.
    pub(super) fn new(
        table: &LinearTable,
        jobs: u64,
        count: usize,
        layers: impl Iterator<Item = usize> + Clone,
    ) -> Self {
        let most = |of: fn(&LinearRecord) -> u32| {
            layers.clone().map(|i| of(&table.records[i])).max().unwrap_or(0) as usize
        };
        Self {
            jobs,
            count,
            in_features: most(|l| l.in_features),
            out_features: most(|l| l.out_features),
            splits: most(|l| l.splits),
            kinds: table.kinds(layers.clone()),
        }
    }
}

/// Jobs of a group whose members each take all rows of the launch, at most `rows_max`.
pub(super) fn jobs(table: &LinearTable, members: &[Member], rows_max: usize) -> Vec<JobRecord> {
    let mut part = 0;
    let job = |(i, member): (usize, &Member)| {
        let job = JobRecord {
            y: member.y,
            linear: word(member.layer),
            rows: ALL_ROWS,
            row0: word(i * rows_max),
            part: word(part),
            pitch: word(rows_max),
            x_col: word(member.x_col),
            y_pitch: word(member.y_pitch),
            pad: 0,
        };
        part += rows_max * table.sums(member.layer);
        job
    };
    members.iter().enumerate().map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_is_a_whole_number_of_blocks_and_small_layers_are_cut_most() {
        assert_eq!(splits(15_360, 5120, 1), 8);
        assert_eq!(splits(5120, 512, 2), 40);
        assert_eq!(splits(5120, 129_280, 1), 1);
        assert_eq!(splits(2304, 5120, 8), 1);
        assert_eq!(splits(128, 128, 1), 1);
    }
}
