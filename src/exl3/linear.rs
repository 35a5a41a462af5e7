//! One quantised linear layer: what a loader must check, and the matrix it stands for.
//!
//! The product is in [`product`](super::product). Nothing is repacked: the trellis stays where it was
//! mapped, and a cut by columns is a view of it.

use std::ops::Range;
use std::sync::Arc;

use half::f16;

use super::hadamard::{BLOCK, transform};
use super::trellis::{States, TILE_SIDE, TILE_VALUES, Tile, Width};
use super::{Codebook, Exl3Error, Side};
use crate::buffer::SharedBytes;

/// Scales of one side of a layer, little-endian as in the file.
#[derive(Clone, Debug)]
pub enum Scales {
    /// `suh` or `svh`: one fp16 number a feature, sign and magnitude.
    F16(SharedBytes),
    /// `su` or `sv` of older files: a 16-bit word for 16 features, bit b of word w set where feature
    /// 16·w + b has scale -1; the others have +1.
    Signs(SharedBytes),
}

impl Scales {
    /// One f32 a feature.
    fn unpack(&self, side: Side, features: usize) -> Result<Arc<[f32]>, Exl3Error> {
        let (bytes, expected) = match self {
            Self::F16(bytes) => (bytes, 2 * features),
            Self::Signs(bytes) => (bytes, features / 8),
        };
        let found = bytes.len();
        if found != expected {
            return Err(Exl3Error::ScaleBytes { side, features, expected, found });
        }
        let words = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        let scales: Arc<[f32]> = match self {
            Self::F16(_) => words.map(|w| f16::from_bits(w).to_f32()).collect(),
            Self::Signs(_) => words
                .flat_map(|w| (0..16).map(move |b| if (w >> b) & 1 == 1 { -1.0 } else { 1.0 }))
                .collect(),
        };
        match scales.iter().position(|s| !s.is_finite()) {
            Some(index) => Err(Exl3Error::ScaleNotFinite { side, index, value: scales[index] }),
            None => Ok(scales),
        }
    }

    fn bits_per_feature(&self) -> usize {
        match self {
            Self::F16(_) => 16,
            Self::Signs(_) => 1,
        }
    }
}

/// The tensors of one layer.
#[derive(Clone, Debug)]
pub struct Exl3Parts {
    /// Packed tiles, little-endian 16-bit words, row-major over (input tile, output tile).
    pub trellis: SharedBytes,
    /// `[in / 16, out / 16, 16 · K]`.
    pub trellis_shape: [usize; 3],
    /// Scales of the inputs.
    pub input: Scales,
    /// Scales of the outputs.
    pub output: Scales,
    /// Added last, `[out]`.
    pub bias: Option<Vec<f32>>,
    /// From the markers, see [`Codebook::from_markers`].
    pub codebook: Codebook,
}

/// The packed tiles of a layer: tile (input, output) is number
/// `input · row_tiles + first_tile + output` of `trellis`.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// All tiles of the stored trellis.
    pub trellis: &'a [u8],
    /// Tiles in a row of the stored trellis: more than the layer has if columns were cut.
    pub row_tiles: usize,
    /// The layer's first tile in each row.
    pub first_tile: usize,
}

/// A linear layer `y = x · W + bias` with `W` `[in, out]` in EXL3 form. Clones share its memory.
#[derive(Clone, Debug)]
pub struct Exl3Linear {
    trellis: SharedBytes,
    /// Output tiles in a row of the stored trellis: more than this layer has if columns were cut.
    stored_tiles: usize,
    /// Output tile of the stored trellis that is the first of this layer.
    first_tile: usize,
    in_features: usize,
    out_features: usize,
    width: Width,
    codebook: Codebook,
    input_scales: Arc<[f32]>,
    output_scales: Arc<[f32]>,
    /// Stored bits of one scale, input and output.
    scale_bits: [usize; 2],
    bias: Option<Arc<[f32]>>,
    /// Tiles as `[out / 128][in / 16][8]`, the order in which the product asks for them.
    decoded: Option<Arc<[Tile]>>,
}

impl Exl3Linear {
    /// Checks shapes, lengths and scales and keeps the bytes.
    ///
    /// # Errors
    /// The [`Exl3Error`] that says which part does not fit: feature counts that are no positive multiples
    /// of 128, a width that does not exist (with this codebook), a trellis, scales or bias of another
    /// length than the shape says, a scale or bias that is not finite.
    pub fn new(parts: Exl3Parts) -> Result<Self, Exl3Error> {
        let [input_tiles, output_tiles, words] = parts.trellis_shape;
        let width = Width::from_tile_words(words)?;
        let codebook = parts.codebook;
        if width.is_half() && codebook != Codebook::Mul1 {
            return Err(Exl3Error::HalfWidth { width, codebook });
        }
        for (side, tiles) in [(Side::Input, input_tiles), (Side::Output, output_tiles)] {
            if tiles == 0 || tiles % 8 != 0 {
                return Err(Exl3Error::Features { side, tiles });
            }
        }
        let tiles = input_tiles.checked_mul(output_tiles);
        let found = parts.trellis.len();
        if tiles.and_then(|t| t.checked_mul(width.tile_bytes())) != Some(found) {
            return Err(Exl3Error::TrellisBytes { shape: parts.trellis_shape, found });
        }
        // The trellis has 32 bytes and more a tile, so feature counts cannot overflow from here on.
        let (in_features, out_features) = (TILE_SIDE * input_tiles, TILE_SIDE * output_tiles);
        Ok(Self {
            trellis: parts.trellis,
            stored_tiles: output_tiles,
            first_tile: 0,
            in_features,
            out_features,
            width,
            codebook,
            input_scales: parts.input.unpack(Side::Input, in_features)?,
            output_scales: parts.output.unpack(Side::Output, out_features)?,
            scale_bits: [parts.input.bits_per_feature(), parts.output.bits_per_feature()],
            bias: parts.bias.map(|bias| checked_bias(bias, out_features)).transpose()?,
            decoded: None,
        })
    }

    /// Features of the input, a multiple of 128.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Features of the output, a multiple of 128.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Bits per weight.
    pub fn width(&self) -> Width {
        self.width
    }

    /// How states become values.
    pub fn codebook(&self) -> Codebook {
        self.codebook
    }

    /// `suh` `[in]`, or the unpacked signs.
    pub fn input_scales(&self) -> &[f32] {
        &self.input_scales
    }

    /// `svh` `[out]`, or the unpacked signs.
    pub fn output_scales(&self) -> &[f32] {
        &self.output_scales
    }

    /// Bias `[out]`.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// The packed tiles where they were mapped.
    pub fn packed(&self) -> Packed<'_> {
        let (row_tiles, first_tile) = (self.stored_tiles, self.first_tile);
        Packed { trellis: &self.trellis, row_tiles, first_tile }
    }

    /// Bytes read for one pass over the layer: trellis and scales as stored.
    pub fn packed_bytes(&self) -> usize {
        let tiles = self.in_features / TILE_SIDE * (self.out_features / TILE_SIDE);
        let [input, output] = self.scale_bits;
        let scales = (self.in_features * input + self.out_features * output) / 8;
        tiles * self.width.tile_bytes() + scales
    }

    /// The layer that computes columns `columns` of this one's result: one group of a block-diagonal
    /// layer stored as one matrix, or one shard of an output split. It shares the packed bytes.
    ///
    /// # Errors
    /// [`Exl3Error::Columns`] unless the range is a non-empty run of whole blocks of 128: the output
    /// rotation mixes the columns of a block.
    pub fn output_columns(&self, columns: Range<usize>) -> Result<Self, Exl3Error> {
        let Range { start, end } = columns;
        let out_features = self.out_features;
        if start >= end || end > out_features || start % BLOCK != 0 || end % BLOCK != 0 {
            return Err(Exl3Error::Columns { start, end, out_features });
        }
        let block_tiles = self.block_tiles();
        let tiles = start / BLOCK * block_tiles..end / BLOCK * block_tiles;
        Ok(Self {
            first_tile: self.first_tile + start / TILE_SIDE,
            out_features: end - start,
            output_scales: self.output_scales[start..end].into(),
            bias: self.bias.as_ref().map(|bias| bias[start..end].into()),
            decoded: self.decoded.as_ref().map(|decoded| decoded[tiles].into()),
            ..self.clone()
        })
    }

    /// Keeps the decoded matrix, 4 bytes a weight, so that products skip the decoding. Results stay the
    /// same bit for bit. For small checkpoints.
    pub fn keep_decoded(&mut self) {
        if self.decoded.is_some() {
            return;
        }
        let block_tiles = self.block_tiles();
        let n_tiles = self.out_features / BLOCK * block_tiles;
        let tiles = (0..n_tiles).map(|i| {
            let mut tile = [0.0; TILE_VALUES];
            let (block, i) = (i / block_tiles, i % block_tiles);
            self.decode_tile(i / 8, 8 * block + i % 8, &mut tile);
            tile
        });
        self.decoded = Some(tiles.collect());
    }

    /// The decoded trellis `W_inner`, `[in, out]` row-major; every value is exact in fp16.
    pub fn inner(&self) -> Vec<f16> {
        let mut inner = vec![f16::ZERO; self.in_features * self.out_features];
        let mut tile = [0.0; TILE_VALUES];
        for input_tile in 0..self.in_features / TILE_SIDE {
            for output_tile in 0..self.out_features / TILE_SIDE {
                self.decode_tile(input_tile, output_tile, &mut tile);
                for (r, values) in tile.chunks_exact(TILE_SIDE).enumerate() {
                    let row = TILE_SIDE * input_tile + r;
                    let at = row * self.out_features + TILE_SIDE * output_tile;
                    for (to, &value) in inner[at..at + TILE_SIDE].iter_mut().zip(values) {
                        *to = f16::from_f32(value);
                    }
                }
            }
        }
        inner
    }

    /// The plain weight `W`, `[in, out]` row-major: both rotations exact in f64 (sums of 16384 multiples
    /// of 2^-24 below 4), one rounding for the scales, one to f32.
    pub fn weight(&self) -> Vec<f32> {
        let inner = self.inner();
        let out = self.out_features;
        let mut weight = vec![0.0; inner.len()];
        let mut block = vec![[0.0f64; BLOCK]; BLOCK];
        for top in (0..self.in_features).step_by(BLOCK) {
            for left in (0..out).step_by(BLOCK) {
                for (i, row) in block.iter_mut().enumerate() {
                    let at = (top + i) * out + left;
                    *row = std::array::from_fn(|j| inner[at + j].to_f64());
                }
                rotate_both_sides(&mut block);
                for (i, row) in block.iter().enumerate() {
                    let input = f64::from(self.input_scales[top + i]);
                    for (j, value) in row.iter().enumerate() {
                        let scale = input * f64::from(self.output_scales[left + j]);
                        // Rounds to nearest, which is what f32 weights are.
                        weight[(top + i) * out + left + j] = (value / 128.0 * scale) as f32;
                    }
                }
            }
        }
        weight
    }

    /// States of one tile in the order of [`States`].
    ///
    /// # Panics
    /// If the layer has no such tile.
    pub fn tile_states(&self, input_tile: usize, output_tile: usize) -> States {
        let mut states = [0; TILE_VALUES];
        self.width.states(self.packed_tile(&self.trellis, input_tile, output_tile), &mut states);
        states
    }

    /// Tiles that make up 128 columns.
    pub(super) fn block_tiles(&self) -> usize {
        self.in_features / TILE_SIDE * (BLOCK / TILE_SIDE)
    }

    pub(super) fn is_decoded(&self) -> bool {
        self.decoded.is_some()
    }

    /// Kept tiles of the `block`-th 128 columns, as `[in / 16][8]`.
    pub(super) fn decoded_block(&self, block: usize) -> Option<&[Tile]> {
        let n = self.block_tiles();
        self.decoded.as_ref().map(|tiles| &tiles[block * n..(block + 1) * n])
    }

    /// The mapped bytes, to be looked up once per block of columns.
    pub(super) fn trellis(&self) -> &[u8] {
        &self.trellis
    }

    /// Packed bytes of one tile.
    pub(super) fn packed_tile<'a>(
        &self,
        trellis: &'a [u8],
        input_tile: usize,
        output_tile: usize,
    ) -> &'a [u8] {
        assert!(TILE_SIDE * input_tile < self.in_features, "input tile {input_tile}");
        assert!(TILE_SIDE * output_tile < self.out_features, "output tile {output_tile}");
        let index = input_tile * self.stored_tiles + self.first_tile + output_tile;
        let bytes = self.width.tile_bytes();
        &trellis[index * bytes..(index + 1) * bytes]
    }

    fn decode_tile(&self, input_tile: usize, output_tile: usize, tile: &mut Tile) {
        self.codebook.decode(&self.tile_states(input_tile, output_tile), tile);
    }
}

fn checked_bias(bias: Vec<f32>, out_features: usize) -> Result<Arc<[f32]>, Exl3Error> {
    if bias.len() != out_features {
        return Err(Exl3Error::BiasLength { expected: out_features, found: bias.len() });
    }
    match bias.iter().position(|b| !b.is_finite()) {
        Some(index) => Err(Exl3Error::BiasNotFinite { index, value: bias[index] }),
        None => Ok(bias.into()),
    }
}

/// `H · block · H`, unscaled.
fn rotate_both_sides(block: &mut [[f64; BLOCK]]) {
    for row in block.iter_mut() {
        transform(row);
    }
    for j in 0..BLOCK {
        let mut column: [f64; BLOCK] = std::array::from_fn(|i| block[i][j]);
        transform(&mut column);
        for (row, value) in block.iter_mut().zip(column) {
            row[j] = value;
        }
    }
}
