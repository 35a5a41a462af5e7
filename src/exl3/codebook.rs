//! Codebooks: a 16-bit trellis state to the fp16 value it stands for.
//!
//! The value depends on the state alone. It is computed, in loops that become vector code: measured, that
//! takes 0.6 of the time of the 1,021-entry table that would do for MUL1, and a table of 65,536 entries
//! does not fit a first-level cache. Formulas: `turboderp-org/exllamav3`
//! `exllamav3_ext/quant/codebook.cuh`.

use std::fmt;

use super::Exl3Error;
use super::trellis::{States, Tile};

/// Multiplier of MUL1, and the value of the marker tensor `mul1`: `0x83DCD12D`.
pub const MUL1_MARKER: i32 = -2_082_680_531;
/// Multiplier of MCG, and the value of the marker tensor `mcg`: `0xCBAC1FED`.
pub const MCG_MARKER: i32 = -877_912_083;

const MUL1_MULTIPLIER: u32 = MUL1_MARKER.cast_unsigned();
const MCG_MULTIPLIER: u32 = MCG_MARKER.cast_unsigned();
const THREE_INST_MULTIPLIER: u32 = 89_226_354;
const THREE_INST_ADDEND: u32 = 64_248_484;

/// How states become values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codebook {
    /// No marker: sum of the two fp16 halves of a linear congruence.
    ThreeInst,
    /// Marker `mcg`: the same with another multiplier and no addend.
    Mcg,
    /// Marker `mul1`: affine in the sum of the four bytes of one product.
    Mul1,
}

impl Codebook {
    /// The codebook that the marker tensors beside a trellis name; absent markers are `None`.
    ///
    /// # Errors
    /// [`Exl3Error::BothMarkers`], and [`Exl3Error::MarkerValue`] for a marker with a foreign value: its
    /// file was written for other constants and would decode to noise.
    pub fn from_markers(mul1: Option<i32>, mcg: Option<i32>) -> Result<Self, Exl3Error> {
        let check = |marker, found, expected, codebook| {
            if found == expected {
                Ok(codebook)
            } else {
                Err(Exl3Error::MarkerValue { marker, expected, found })
            }
        };
        match (mul1, mcg) {
            (None, None) => Ok(Self::ThreeInst),
            (Some(found), None) => check("mul1", found, MUL1_MARKER, Self::Mul1),
            (None, Some(found)) => check("mcg", found, MCG_MARKER, Self::Mcg),
            (Some(_), Some(_)) => Err(Exl3Error::BothMarkers),
        }
    }

    /// Values of 256 states, in the order of the states. Every value is exact in fp16.
    pub fn decode(self, states: &States, values: &mut Tile) {
        match self {
            Self::ThreeInst => in_chunks(states, values, three_inst),
            Self::Mcg => in_chunks(states, values, mcg),
            Self::Mul1 => in_chunks(states, values, mul1),
        }
    }
}

impl fmt::Display for Codebook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ThreeInst => "3inst",
            Self::Mcg => "mcg",
            Self::Mul1 => "mul1",
        })
    }
}

/// Values decoded in one go. The 16-bit arithmetic fills a vector register with eight states, the f32
/// arithmetic with four; a short array between two loops lets each have its own number.
const CHUNK: usize = 32;

type ChunkStates = [u16; CHUNK];
type ChunkValues = [f32; CHUNK];

#[inline(always)]
fn in_chunks(states: &States, values: &mut Tile, decode: impl Fn(&ChunkStates, &mut ChunkValues)) {
    let values = values.as_chunks_mut::<CHUNK>().0;
    for (states, values) in states.as_chunks::<CHUNK>().0.iter().zip(values) {
        decode(states, values);
    }
}

#[inline(always)]
fn mul1(states: &ChunkStates, values: &mut ChunkValues) {
    // k = fp16 0x1EEE and 1024 k + b with b = fp16 0xC931: integers over 2^18 below 2^24, so product
    // and sum are exact in f32 and the one rounding is the conversion to fp16.
    const SLOPE: f32 = 1774.0 / 262_144.0;
    const OFFSET: f32 = -905_216.0 / 262_144.0;
    let mut sums = [0; CHUNK];
    for p in 0..CHUNK {
        let (low, high) = product_halves(states[p], MUL1_MULTIPLIER);
        sums[p] = (low & 0xFF) + (low >> 8) + (high & 0xFF) + (high >> 8); // at most 1020
    }
    for p in 0..CHUNK {
        values[p] = round_to_normal_f16(f32::from(sums[p]) * SLOPE + OFFSET);
    }
}

#[inline(always)]
fn mcg(states: &ChunkStates, values: &mut ChunkValues) {
    let (mut lows, mut highs) = ([0; CHUNK], [0; CHUNK]);
    for p in 0..CHUNK {
        let (low, high) = product_halves(states[p], MCG_MULTIPLIER);
        (lows[p], highs[p]) = (masked_half(low), masked_half(high));
    }
    add_halves(&lows, &highs, values);
}

#[inline(always)]
fn three_inst(states: &ChunkStates, values: &mut ChunkValues) {
    const LOW: u16 = THREE_INST_ADDEND as u16; // the two halves, truncation meant
    const HIGH: u16 = (THREE_INST_ADDEND >> 16) as u16;
    let (mut lows, mut highs) = ([0; CHUNK], [0; CHUNK]);
    for p in 0..CHUNK {
        let (low, high) = product_halves(states[p], THREE_INST_MULTIPLIER);
        let low = low.wrapping_add(LOW);
        let carry = u16::from(low < LOW);
        let high = high.wrapping_add(HIGH).wrapping_add(carry);
        (lows[p], highs[p]) = (masked_half(low), masked_half(high));
    }
    add_halves(&lows, &highs, values);
}

/// Low and high half of `state * multiplier` modulo 2^32, in steps of 16 bits: of those, every
/// instruction set multiplies eight at once.
#[inline(always)]
fn product_halves(state: u16, multiplier: u32) -> (u16, u16) {
    let (low, high) = (multiplier as u16, (multiplier >> 16) as u16); // the two halves, truncation meant
    let carry = ((u32::from(state) * u32::from(low)) >> 16) as u16; // below 2^16
    (state.wrapping_mul(low), carry.wrapping_add(state.wrapping_mul(high)))
}

/// Keeps sign, two exponent bits and mantissa and sets the exponent to 12..15: a normal fp16 number of
/// magnitude 0.125 to 2.
#[inline(always)]
fn masked_half(bits: u16) -> u16 {
    (bits & 0x8FFF) ^ 0x3B60
}

/// One fp16 addition: the sum is exact in f32.
#[inline(always)]
fn add_halves(lows: &ChunkStates, highs: &ChunkStates, values: &mut ChunkValues) {
    for p in 0..CHUNK {
        let sum = normal_f16_bits_to_f32(lows[p]) + normal_f16_bits_to_f32(highs[p]);
        values[p] = round_to_normal_f16(sum);
    }
}

/// The number that the bits of a normal fp16 value stand for.
#[inline(always)]
fn normal_f16_bits_to_f32(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = ((bits & 0x7FFF) << 13).wrapping_add(112 << 23); // exponent bias 15 to 127
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// Nearest fp16 number, ties to even, for zero and values whose result is a normal fp16 number: all
/// that a codebook produces.
#[inline(always)]
fn round_to_normal_f16(value: f32) -> f32 {
    let bits = value.to_bits();
    let odd = (bits >> 13) & 1;
    f32::from_bits(bits.wrapping_add(0xFFF + odd) & !0x1FFF)
}
