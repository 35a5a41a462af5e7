//! The packed trellis: bytes of a tile to its 256 states.
//!
//! A tile of width K is a ring of 256·K bits: its 32-bit little-endian words in file order, each read
//! from the most significant bit. Value `p` ends at bit `E(p) = (p + 1)·K` and its state is the 16 bits
//! before that, so neighbours overlap and the first ones wrap around to the end of the ring. At a half
//! width the values take `K - 1/2` and `K + 1/2` new bits in turn, the smaller number first, which is
//! `E(p)` rounded down. Format: `turboderp-org/exllamav3` `exllamav3_ext/quant/exl3_dq.cuh`.

use std::fmt;

use super::Exl3Error;

/// Features on a side of a tile.
pub const TILE_SIDE: usize = 16;
/// Values in a tile.
pub const TILE_VALUES: usize = TILE_SIDE * TILE_SIDE;

/// States of a tile as rows of the matrix: `[input row][output column]`.
pub type States = [u16; TILE_VALUES];
/// Values of a tile in the order of [`States`].
pub type Tile = [f32; TILE_VALUES];

/// Bits per weight, in halves: 1 to 8, 1.5, 2.5 and 3.5.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Width {
    half_bits: u8,
}

impl Width {
    /// The width of a trellis with `words` 16-bit words a tile (`trellis.shape[2]`). A configuration's
    /// `bits` is an average over tensors and says nothing about one of them.
    ///
    /// # Errors
    /// [`Exl3Error::UnknownWidth`].
    pub fn from_tile_words(words: usize) -> Result<Self, Exl3Error> {
        match (words / 8, words % 8) {
            (half_bits @ (2..=8 | 10 | 12 | 14 | 16), 0) => {
                Ok(Self { half_bits: half_bits as u8 }) // at most 16
            }
            _ => Err(Exl3Error::UnknownWidth { words }),
        }
    }

    /// Bits per weight times two: 2 to 16.
    pub fn half_bits(self) -> usize {
        usize::from(self.half_bits)
    }

    /// Whether this is one of 1.5, 2.5 and 3.5.
    pub fn is_half(self) -> bool {
        self.half_bits % 2 == 1
    }

    /// Bytes of a packed tile.
    pub fn tile_bytes(self) -> usize {
        16 * self.half_bits()
    }

    /// States of a packed tile, in the order of [`States`].
    ///
    /// # Panics
    /// If `packed` is not [`tile_bytes`](Self::tile_bytes) long.
    pub fn states(self, packed: &[u8], states: &mut States) {
        assert_eq!(packed.len(), self.tile_bytes(), "bytes of a packed tile");
        match self.half_bits {
            2 => unpack::<2>(packed, states),
            3 => unpack::<3>(packed, states),
            4 => unpack::<4>(packed, states),
            5 => unpack::<5>(packed, states),
            6 => unpack::<6>(packed, states),
            7 => unpack::<7>(packed, states),
            8 => unpack::<8>(packed, states),
            10 => unpack::<10>(packed, states),
            12 => unpack::<12>(packed, states),
            14 => unpack::<14>(packed, states),
            16 => unpack::<16>(packed, states),
            _ => unreachable!("from_tile_words makes no other width"),
        }
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.half_bits {
            2 => "1",
            3 => "1.5",
            4 => "2",
            5 => "2.5",
            6 => "3",
            7 => "3.5",
            8 => "4",
            10 => "5",
            12 => "6",
            14 => "7",
            _ => "8",
        })
    }
}

impl fmt::Debug for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Width({self})")
    }
}

/// Row (input side) and column (output side) of the `p`-th value of the stream, both below 16. The order
/// is that of the B fragments of two `mma.m16n8k16`, one lane's values after the other's.
///
/// # Panics
/// If `p` is not below 256.
pub const fn position(p: usize) -> (usize, usize) {
    assert!(p < TILE_VALUES);
    let row = 2 * ((p >> 3) & 3) + (p & 1) + 8 * ((p >> 1) & 1);
    let column = (p >> 5) + 8 * ((p >> 2) & 1);
    (row, column)
}

/// Bytes put before the ring so that the first windows need no wrap: the 16 bits they reach back.
const PREFIX: usize = 2;
/// Prefix, the widest tile, and room for an eight-byte read at the last window.
const STREAM: usize = PREFIX + 256 + 8;

/// The ring as a byte string: most significant bit first, its last two bytes repeated in front.
#[inline(always)]
fn stream(packed: &[u8]) -> [u8; STREAM] {
    let mut stream = [0; STREAM];
    let end = PREFIX + packed.len();
    for (to, from) in stream[PREFIX..end].chunks_exact_mut(4).zip(packed.chunks_exact(4)) {
        to.copy_from_slice(&[from[3], from[2], from[1], from[0]]);
    }
    stream.copy_within(end - PREFIX..end, 0);
    stream
}

/// `H` is twice the width. Sixteen values are `H` whole bytes at every width, so the shifts of a group
/// of sixteen are constants and the compiler unrolls them.
fn unpack<const H: usize>(packed: &[u8], states: &mut States) {
    let packed = &packed[..16 * H];
    let stream = stream(packed);
    for column in 0..8 {
        for half in 0..2 {
            let group = (2 * column + half) * H;
            for first in [0, 4, 8, 12] {
                // With the prefix in place the window of value p starts at bit E(p). Four windows span
                // at most 3·8 + 7 + 16 bits.
                let byte = first_bit(H, first) / 8;
                let at = group + byte;
                let bytes: [u8; 8] = std::array::from_fn(|i| stream[at + i]);
                let word = u64::from_be_bytes(bytes);
                for j in first..first + 4 {
                    let shift = 48 - (first_bit(H, j) - 8 * byte);
                    let (row, side) = position(16 * half + j);
                    states[TILE_SIDE * row + side + column] = (word >> shift) as u16; // the window
                }
            }
        }
    }
}

/// `E(j)` for the `j`-th value of a group.
const fn first_bit(half_bits: usize, j: usize) -> usize {
    (j + 1) * half_bits / 2
}
