//! Operations on bits without arithmetic meaning: logic, shifts, fields, permutes.

use super::Opcode;
use crate::exec::lanes::{RowFn, binary, quaternary, ternary, unary};

pub(crate) fn select(op: &Opcode<'_>) -> Option<RowFn> {
    let ty = op.ty();
    let bits = ty.bits;
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    match op.name {
        "mov" | "cvta" => Some(unary(move |a: u64| a & mask)),
        "and" => Some(binary(|a: u64, b: u64| a & b)),
        "or" => Some(binary(|a: u64, b: u64| a | b)),
        "xor" => Some(binary(|a: u64, b: u64| a ^ b)),
        "not" => Some(unary(move |a: u64| !a & mask)),
        "cnot" => Some(unary(|a: u64| u64::from(a == 0))),
        "lop3" => Some(quaternary(three_input)),
        // Amounts beyond the width act as the width.
        "shl" => Some(binary(move |a: u64, b: u32| if b >= bits { 0 } else { (a << b) & mask })),
        "shr" if ty.is_signed() => Some(binary(move |a: u64, b: u32| {
            let unused = 64 - bits;
            let value = (a << unused).cast_signed() >> unused;
            (value >> b.min(bits - 1)).cast_unsigned() & mask
        })),
        "shr" => Some(binary(move |a: u64, b: u32| if b >= bits { 0 } else { a >> b })),
        "shf" => funnel_shift(op),
        "bfe" => {
            let signed = ty.is_signed();
            Some(ternary(move |a: u64, b: u32, c: u32| extract(a, b, c, bits, signed) & mask))
        }
        "bfi" => Some(quaternary(move |a: u64, b: u64, c: u32, d: u32| {
            let (position, length) = (c & 0xFF, d & 0xFF);
            let field = low_bits(length).checked_shl(position).unwrap_or(0) & mask;
            (b & !field) | (a.checked_shl(position).unwrap_or(0) & field)
        })),
        "brev" if bits == 32 => Some(unary(|a: u32| a.reverse_bits())),
        "brev" => Some(unary(|a: u64| a.reverse_bits())),
        "popc" => Some(unary(|a: u64| a.count_ones())),
        "clz" => Some(unary(move |a: u64| a.leading_zeros() - (64 - bits))),
        "bfind" => {
            let (signed, shift) = (ty.is_signed(), op.has("shiftamt"));
            Some(unary(move |a: u64| find_leading(a, bits, signed, shift)))
        }
        "prmt" => permute(op),
        "bmsk" => {
            let wraps = op.has("wrap");
            Some(binary(move |a: u32, b: u32| {
                let (a, b) = if wraps { (a & 31, b & 31) } else { (a, b.min(32)) };
                ((low_bits(b) as u32).checked_shl(a)).unwrap_or(0) // low word of the mask
            }))
        }
        _ => None,
    }
}

fn low_bits(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// `lop3`: bit `4a + 2b + c` of the table for every bit position.
fn three_input(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..8).filter(|entry| table >> entry & 1 == 1).fold(0, |result, entry| {
        let a = if entry & 4 != 0 { a } else { !a };
        let b = if entry & 2 != 0 { b } else { !b };
        let c = if entry & 1 != 0 { c } else { !c };
        result | (a & b & c)
    })
}

/// `shf.{l,r}.{wrap,clamp}.b32 d, a, b, c`: the 64-bit value b:a, shifted.
fn funnel_shift(op: &Opcode<'_>) -> Option<RowFn> {
    let (left, wraps) = (op.has("l"), op.has("wrap"));
    Some(ternary(move |a: u32, b: u32, c: u32| {
        let amount = if wraps { c & 31 } else { c.min(32) };
        let value = (u64::from(b) << 32) | u64::from(a);
        // Low word of the right shift, high word of the left one.
        if left { ((value << amount) >> 32) as u32 } else { (value >> amount) as u32 }
    }))
}

fn extract(a: u64, b: u32, c: u32, bits: u32, signed: bool) -> u64 {
    let (position, length) = (b & 0xFF, c & 0xFF);
    if length == 0 {
        return 0;
    }
    let top = (position + length - 1).min(bits - 1);
    let sign = signed && a >> top & 1 == 1;
    let present = length.min(bits.saturating_sub(position));
    let value = a.checked_shr(position).unwrap_or(0) & low_bits(present);
    if sign { value | !low_bits(present) } else { value }
}

fn find_leading(a: u64, bits: u32, signed: bool, shift: bool) -> u32 {
    let unused = 64 - bits;
    let negative = signed && (a >> (bits - 1)) & 1 == 1;
    let value = if negative { !a & low_bits(bits) } else { a };
    if value == 0 {
        return u32::MAX;
    }
    let position = bits - 1 - (value.leading_zeros() - unused);
    if shift { bits - 1 - position } else { position }
}

fn permute(op: &Opcode<'_>) -> Option<RowFn> {
    let modes = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
    if modes.iter().any(|mode| op.has(mode)) {
        return None;
    }
    Some(ternary(|a: u32, b: u32, selector: u32| {
        let source = ((u64::from(b) << 32) | u64::from(a)).to_le_bytes();
        let pick = |index: u32| {
            let nibble = selector >> (4 * index) & 0xF;
            let byte = source[(nibble & 7) as usize];
            // Bit 3 asks for the sign of the byte, repeated.
            if nibble & 8 == 0 {
                byte
            } else if byte & 0x80 != 0 {
                0xFF
            } else {
                0
            }
        };
        u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
    }))
}
