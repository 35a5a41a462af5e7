//! Codebooks: a 16-bit trellis state to the fp16 value it stands for.
//!
//! The value depends on the state alone. All three codebooks are computed, eight states to a vector
//! register, which beats a table of 65,536 entries that does not fit a first-level cache. Formulas:
//! `turboderp-org/exllamav3` `exllamav3_ext/quant/codebook.cuh`.

use std::fmt;

use super::Exl3Error;
use super::trellis::{States, TILE_VALUES, Tile};

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
            Self::ThreeInst => decode_all(states, values, three_inst),
            Self::Mcg => decode_all(states, values, mcg),
            Self::Mul1 => decode_all(states, values, mul1),
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

#[inline(always)]
fn decode_all(states: &States, values: &mut Tile, value: impl Fn(u16) -> f32) {
    for p in 0..TILE_VALUES {
        values[p] = value(states[p]);
    }
}

/// Low and high half of `state * multiplier` modulo 2^32, computed in 16-bit steps because every
/// instruction set multiplies eight of those at once.
#[inline(always)]
fn product_halves(state: u16, multiplier: u32) -> (u16, u16) {
    let (low, high) = (multiplier as u16, (multiplier >> 16) as u16); // the two halves, truncation meant
    let carry = ((u32::from(state) * u32::from(low)) >> 16) as u16; // below 2^16
    (state.wrapping_mul(low), carry.wrapping_add(state.wrapping_mul(high)))
}

#[inline(always)]
fn mul1(state: u16) -> f32 {
    // k = fp16 0x1EEE and 1024 k + b with b = fp16 0xC931: integers over 2^18 below 2^24, so product
    // and sum are exact in f32 and the one rounding is the conversion to fp16.
    const SLOPE: f32 = 1774.0 / 262_144.0;
    const OFFSET: f32 = -905_216.0 / 262_144.0;
    let (low, high) = product_halves(state, MUL1_MULTIPLIER);
    let pairs = (low & 0xFF) + (low >> 8) + (high & 0xFF) + (high >> 8); // at most 1020
    round_to_normal_f16(f32::from(pairs) * SLOPE + OFFSET)
}

#[inline(always)]
fn mcg(state: u16) -> f32 {
    let (low, high) = product_halves(state, MCG_MULTIPLIER);
    sum_of_halves(low, high)
}

#[inline(always)]
fn three_inst(state: u16) -> f32 {
    let product = u32::from(state).wrapping_mul(THREE_INST_MULTIPLIER);
    let x = product.wrapping_add(THREE_INST_ADDEND);
    sum_of_halves(x as u16, (x >> 16) as u16) // the two halves, truncation meant
}

/// Keeps sign, two exponent bits and mantissa of each half, sets the exponents to 12..15 and adds the
/// two fp16 numbers with one rounding; their sum is exact in f32.
#[inline(always)]
fn sum_of_halves(low: u16, high: u16) -> f32 {
    let half = |bits: u16| normal_f16_bits_to_f32((bits & 0x8FFF) ^ 0x3B60);
    round_to_normal_f16(half(low) + half(high))
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
