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

/// Columns `c` and `c + 8` of a tile take the `c`-th eighth of its stream. Four eighths are handled at
/// once, each in a 16-bit lane of a word.
const LANES: usize = 4;

/// 16-bit units of four eighths side by side. Unit 0 is the one before the eighth: a window reaches 16
/// bits back. The last is never more than shifted out.
type Units = [u64; 16 + 2];

/// `H` is twice the width. An eighth holds 32 values in `H` units, and the `j`-th value of every eighth
/// ends at the same bit of it: four states cost two shifts by a constant, whatever the width.
fn unpack<const H: usize>(packed: &[u8], states: &mut States) {
    let words = packed[..16 * H].as_chunks::<2>().0;
    // The 32-bit words are little-endian: the earlier half of one is its second 16-bit word.
    let unit = |eighth: usize, unit: usize| {
        u64::from(u16::from_le_bytes(words[(eighth % 8 * H + unit) ^ 1]))
    };
    let lanes = |first: usize, u: usize| {
        let high = unit(first + 2, u) << 32 | unit(first + 3, u) << 48;
        unit(first, u) | unit(first + 1, u) << 16 | high
    };
    for half in 0..2 {
        let first = LANES * half;
        let mut units = [0; 16 + 2];
        units[0] = lanes(first + 7, H - 1);
        for unit in 0..H {
            units[unit + 1] = lanes(first, unit);
        }
        cut_windows::<H>(&units, first, states);
    }
}

/// The 32 states of each of the eighths `first .. first + 4`.
#[inline(always)]
fn cut_windows<const H: usize>(units: &Units, first: usize, states: &mut States) {
    macro_rules! windows {
        ($($j:literal)*) => { $({
            let window = window::<H, $j>(units);
            let (row, column) = const { position($j) };
            let at = TILE_SIDE * row + column + first;
            states[at..at + LANES].copy_from_slice(&[0, 16, 32, 48].map(|lane| (window >> lane) as u16));
        })* };
    }
    // Written out, so that every shift and address is a constant.
    windows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    windows!(16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

/// The `J`-th state of four eighths. With unit 0 in front, the window that ends at bit `E(J)` of the
/// eighth starts at that bit of the units.
#[inline(always)]
fn window<const H: usize, const J: usize>(units: &Units) -> u64 {
    let (unit, shift) = const { ((J + 1) * H / 2 / 16, (J + 1) * H / 2 % 16) };
    let late = 0x0001_0001_0001_0001 * (0xFFFF >> (16 - shift));
    units[unit] << shift & !late | units[unit + 1] >> (16 - shift) & late
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, bit by bit.
    fn state_by_bits(packed: &[u8], half_bits: usize, p: usize) -> u16 {
        let bits = 8 * packed.len();
        let end = (p + 1) * half_bits / 2;
        (0..16).fold(0, |state, i| {
            let bit = (end + bits - 16 + i) % bits;
            (state << 1) | u16::from((packed[(bit / 8) ^ 3] >> (7 - bit % 8)) & 1)
        })
    }

    proptest! {
        #[test]
        fn states_are_the_16_bits_before_each_end(
            bytes in proptest::collection::vec(any::<u8>(), 256),
            half_bits in proptest::sample::select(vec![2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16]),
        ) {
            let width = Width::from_tile_words(8 * half_bits).unwrap();
            let packed = &bytes[..width.tile_bytes()];
            let mut states = [0; TILE_VALUES];
            width.states(packed, &mut states);
            for p in 0..TILE_VALUES {
                let (row, column) = position(p);
                let found = states[TILE_SIDE * row + column];
                prop_assert_eq!(found, state_by_bits(packed, half_bits, p), "value {}", p);
            }
        }
    }

    #[test]
    fn widths_are_1_to_8_and_three_halves() {
        let known = |words| Width::from_tile_words(words).ok().map(|w| w.to_string());
        let found: Vec<String> = (0..200).filter_map(known).collect();
        assert_eq!(found, ["1", "1.5", "2", "2.5", "3", "3.5", "4", "5", "6", "7", "8"]);
    }
}
