//! One opcode at a time against a Rust model of the manual's sentence.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, missing_docs, unreachable_pub)]

mod common;

use common::{ONE_WARP, device};
use half::{bf16, f16};

/// Values that find sign, carry and width mistakes.
fn words() -> Vec<u32> {
    let mut values = vec![0, 1, 2, 3, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF];
    values.extend([0x7FFF_FFFF, 0x8000_0000, 0x8000_0001, u32::MAX, u32::MAX - 1, 0x1234_5678]);
    let mut state = 0x9E37_79B9u32;
    while values.len() < 96 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        values.push(state);
    }
    values
}

fn floats() -> Vec<u32> {
    let special = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        1e-40,
        -1e-40,
        3.4e38,
        -3.4e38,
        65504.0,
        65520.0,
        1e-8,
        6e-8,
        0.1,
        1e10,
        -7.75,
        255.5,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        2147483648.0,
    ];
    let mut values: Vec<u32> = special.iter().map(|x| x.to_bits()).collect();
    let mut state = 12345u32;
    while values.len() < 96 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        values.push((f32::from_bits(0x3F80_0000 | state >> 9) * 3.0 - 4.0).to_bits());
    }
    values
}

/// Loads three words per lane into `%r1`, `%r2`, `%r3`, runs `body`, stores `%r10` and `%r11`.
fn three_in_two_out(body: &str, input: &[u32]) -> Vec<[u32; 2]> {
    let text = format!(
        "	mov.u32 %r40, %tid.x;
	mul.wide.u32 %rd30, %r40, 4;
	add.s64 %rd29, %in, %rd30;
	ld.global.u32 %r1, [%rd29];
	ld.global.u32 %r2, [%rd29+128];
	ld.global.u32 %r3, [%rd29+256];
	mov.u32 %r10, 0;
	mov.u32 %r11, 0;
{body}
	mul.wide.u32 %rd30, %r40, 8;
	add.s64 %rd29, %out, %rd30;
	st.global.v2.u32 [%rd29], {{%r10, %r11}};"
    );
    let out = device()
        .run(&text, input, 64, ONE_WARP)
        .unwrap_or_else(|_| panic!("{}", common::last_error()));
    out.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect()
}

/// Checks a body against a model of lanes.
fn check(body: &str, input: &[u32], model: impl Fn(u32, u32, u32) -> u64) {
    for (lane, out) in three_in_two_out(body, input).into_iter().enumerate() {
        let (a, b, c) = (input[lane], input[lane + 32], input[lane + 64]);
        let got = u64::from(out[0]) | u64::from(out[1]) << 32;
        assert_eq!(got, model(a, b, c), "{body}: a={a:#x} b={b:#x} c={c:#x} got {got:#x}");
    }
}

fn check_f32(body: &str, model: impl Fn(f32, f32, f32) -> f32) {
    let bits = f32::from_bits;
    let input = floats();
    let body = format!(
        "	mov.b32 %f1, %r1;\n	mov.b32 %f2, %r2;\n	mov.b32 %f3, %r3;\n{body}\n	mov.b32 %r10, %f10;"
    );
    for (lane, out) in three_in_two_out(&body, &input).into_iter().enumerate() {
        let (a, b, c) = (bits(input[lane]), bits(input[lane + 32]), bits(input[lane + 64]));
        let (got, want) = (bits(out[0]), model(a, b, c));
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "{body}: a={a:e} b={b:e} c={c:e} got {got:e}, want {want:e}");
    }
}

fn check_words(body: &str, model: impl Fn(u32, u32, u32) -> u32) {
    check(body, &words(), |a, b, c| u64::from(model(a, b, c)));
}

#[test]
fn integer_arithmetic_wraps_and_widens() {
    check_words("add.s32 %r10, %r1, %r2;", |a, b, _| a.wrapping_add(b));
    check_words("sub.s32 %r10, %r1, %r2;", |a, b, _| a.wrapping_sub(b));
    check_words("mul.lo.s32 %r10, %r1, %r2;", |a, b, _| a.wrapping_mul(b));
    check_words("mul.hi.u32 %r10, %r1, %r2;", |a, b, _| {
        ((u64::from(a) * u64::from(b)) >> 32) as u32
    });
    check_words("mul.hi.s32 %r10, %r1, %r2;", |a, b, _| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
    });
    check_words("mad.lo.s32 %r10, %r1, %r2, %r3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    check_words("mad.hi.u32 %r10, %r1, %r2, %r3;", |a, b, c| {
        (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
    });
    let wide = "mul.wide.s32 %rd1, %r1, %r2; mov.b64 {%r10, %r11}, %rd1;";
    check(wide, &words(), |a, b, _| (i64::from(a as i32) * i64::from(b as i32)) as u64);
    let mad =
        "cvt.u64.u32 %rd2, %r3; mad.wide.u32 %rd1, %r1, %r2, %rd2; mov.b64 {%r10, %r11}, %rd1;";
    check(mad, &words(), |a, b, c| u64::from(a) * u64::from(b) + u64::from(c));
    let negative = "mov.u64 %rd2, 5; mad.wide.s32 %rd1, %r1, -3, %rd2; mov.b64 {%r10, %r11}, %rd1;";
    check(negative, &words(), |a, _, _| (i64::from(a as i32) * -3 + 5) as u64);
}

#[test]
fn division_minimum_and_absolute_value() {
    check_words("or.b32 %r2, %r2, 1; div.u32 %r10, %r1, %r2;", |a, b, _| a / (b | 1));
    check_words("or.b32 %r2, %r2, 1; rem.s32 %r10, %r1, %r2;", |a, b, _| {
        (a as i32).wrapping_rem((b | 1) as i32) as u32
    });
    check_words("min.s32 %r10, %r1, %r2;", |a, b, _| (a as i32).min(b as i32) as u32);
    check_words("max.u32 %r10, %r1, %r2;", |a, b, _| a.max(b));
    check_words("abs.s32 %r10, %r1;", |a, _, _| (a as i32).wrapping_abs() as u32);
    check_words("neg.s32 %r10, %r1;", |a, _, _| (a as i32).wrapping_neg() as u32);
    check_words("sad.u32 %r10, %r1, %r2, %r3;", |a, b, c| a.abs_diff(b).wrapping_add(c));
    check_words("add.sat.s32 %r10, %r1, %r2;", |a, b, _| {
        (a as i32).saturating_add(b as i32) as u32
    });
}

#[test]
fn carries_chain_into_wider_numbers() {
    let body = "add.cc.u32 %r10, %r1, %r2; addc.u32 %r11, %r3, 0;";
    check(body, &words(), |a, b, c| (u64::from(a) + u64::from(b)).wrapping_add(u64::from(c) << 32));
    let body = "sub.cc.u32 %r10, %r1, %r2; subc.u32 %r11, %r3, 7;";
    check(body, &words(), |a, b, c| {
        let (wide, other) = (u64::from(a) | u64::from(c) << 32, u64::from(b) | 7 << 32);
        wide.wrapping_sub(other)
    });
    let body = "mad.lo.cc.u32 %r10, %r1, %r2, %r3; madc.hi.u32 %r11, %r1, %r2, 0;";
    check(body, &words(), |a, b, c| u64::from(a) * u64::from(b) + u64::from(c));
}

#[test]
fn logic_shifts_and_fields() {
    check_words("and.b32 %r10, %r1, %r2;", |a, b, _| a & b);
    check_words("not.b32 %r10, %r1;", |a, _, _| !a);
    check_words("xor.b32 %r10, %r1, -1;", |a, _, _| !a);
    check_words("shl.b32 %r10, %r1, %r2;", |a, b, _| if b > 31 { 0 } else { a << b });
    check_words("shr.u32 %r10, %r1, %r2;", |a, b, _| if b > 31 { 0 } else { a >> b });
    check_words("shr.s32 %r10, %r1, %r2;", |a, b, _| ((a as i32) >> b.min(31)) as u32);
    check_words("shf.l.wrap.b32 %r10, %r1, %r2, %r3;", |a, b, c| {
        (((u64::from(b) << 32 | u64::from(a)) << (c & 31)) >> 32) as u32
    });
    check_words("shf.r.clamp.b32 %r10, %r1, %r2, %r3;", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32
    });
    check_words(
        "and.b32 %r2, %r2, 31; and.b32 %r3, %r3, 31; bfe.u32 %r10, %r1, %r2, %r3;",
        |a, b, c| (a >> (b & 31)) & ((1u64 << (c & 31)) - 1) as u32,
    );
    check_words("bfe.s32 %r10, %r1, 8, 8;", |a, _, _| ((a >> 8) as u8 as i8) as i32 as u32);
    check_words("bfe.s32 %r10, %r1, 28, 8;", |a, _, _| ((a as i32) >> 28) as u32);
    check_words("bfi.b32 %r10, %r1, %r2, 4, 12;", |a, b, _| b & !0xFFF0 | (a & 0xFFF) << 4);
    check_words("lop3.b32 %r10, %r1, %r2, %r3, 0xE8;", |a, b, c| a & b | b & c | a & c);
    check_words("lop3.b32 %r10, %r1, %r2, %r3, 0x6A;", |a, b, c| (a & b) ^ c);
    check_words("brev.b32 %r10, %r1;", |a, _, _| a.reverse_bits());
    check_words("popc.b32 %r10, %r1;", |a, _, _| a.count_ones());
    check_words("clz.b32 %r10, %r1;", |a, _, _| a.leading_zeros());
    check_words("bfind.u32 %r10, %r1;", |a, _, _| 31u32.wrapping_sub(a.leading_zeros()));
}

#[test]
fn bytes_are_permuted_and_multiplied() {
    check_words("prmt.b32 %r10, %r1, %r2, 0x7531;", |a, b, _| {
        let [_, a1, _, a3] = a.to_le_bytes();
        let [_, b1, _, b3] = b.to_le_bytes();
        u32::from_le_bytes([a1, a3, b1, b3])
    });
    check_words("prmt.b32 %r10, %r1, %r2, 0xB880;", |a, _, _| {
        let sign = |byte: u8| if byte & 0x80 != 0 { 0xFF } else { 0 };
        let [a0, _, _, a3] = a.to_le_bytes();
        u32::from_le_bytes([a0, sign(a0), sign(a0), sign(a3)])
    });
    let dot = |a: u32, b: u32, c: u32| {
        let terms = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        terms.fold(c, |sum, (a, b)| sum.wrapping_add((i32::from(a as i8) * i32::from(b)) as u32))
    };
    check_words("dp4a.s32.u32 %r10, %r1, %r2, %r3;", dot);
    check_words("vabsdiff4.u32.u32.u32.add %r10, %r1, %r2, %r3;", |a, b, c| {
        let terms = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        terms.fold(c, |sum, (a, b)| sum.wrapping_add(u32::from(a.abs_diff(b))))
    });
}

#[test]
fn selection_and_predicates() {
    check_words("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r10, %r1, %r2, %p1;", |a, b, _| {
        (a as i32).min(b as i32) as u32
    });
    let body = "setp.eq.u32 %p2, %r3, 0; setp.gt.and.u32 %p1|%p3, %r1, %r2, !%p2;
	selp.u32 %r10, 1, 0, %p1; selp.u32 %r11, 1, 0, %p3;";
    check(body, &words(), |a, b, c| u64::from(a > b && c != 0) | u64::from(a <= b && c != 0) << 32);
    let body = "setp.ne.s32 %p1, %r1, %r2; not.pred %p2, %p1; xor.pred %p3, %p1, %p2;
	@%p2 mov.u32 %r10, 5; @!%p2 mov.u32 %r10, 6; selp.b32 %r11, 1, 0, %p3;";
    check(body, &words(), |a, b, _| (if a == b { 5 } else { 6 }) | 1 << 32);
    check_words(
        "set.le.u32.s32 %r10, %r1, %r2;",
        |a, b, _| {
            if a as i32 <= b as i32 { u32::MAX } else { 0 }
        },
    );
}

#[test]
fn floats_add_multiply_and_round() {
    check_f32("add.f32 %f10, %f1, %f2;", |a, b, _| a + b);
    check_f32("mul.rn.f32 %f10, %f1, %f2;", |a, b, _| a * b);
    check_f32("fma.rn.f32 %f10, %f1, %f2, %f3;", |a, b, c| a.mul_add(b, c));
    check_f32("div.rn.f32 %f10, %f1, %f2;", |a, b, _| a / b);
    check_f32("sqrt.rn.f32 %f10, %f1;", |a, _, _| a.sqrt());
    check_f32("min.f32 %f10, %f1, %f2;", |a, b, _| {
        if a.is_nan() {
            b
        } else if a == b {
            if a.is_sign_negative() { a } else { b }
        } else {
            a.min(b)
        }
    });
    check_f32("abs.f32 %f10, %f1;", |a, _, _| a.abs());
    check_f32("neg.f32 %f10, %f1;", |a, _, _| -a);
    check_f32("add.sat.f32 %f10, %f1, %f2;", |a, b, _| {
        if (a + b).is_nan() { 0.0 } else { (a + b).clamp(0.0, 1.0) + 0.0 }
    });
    check_f32("cvt.rni.f32.f32 %f10, %f1;", |a, _, _| a.round_ties_even());
    check_f32("cvt.rzi.f32.f32 %f10, %f1;", |a, _, _| a.trunc());
    check_f32("cvt.rmi.f32.f32 %f10, %f1;", |a, _, _| a.floor());
    check_f32("mul.ftz.f32 %f10, %f1, %f2;", |a, b, _| {
        let flush = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
        flush(flush(a) * flush(b))
    });
    check_f32("ex2.approx.f32 %f10, %f1;", |a, _, _| f64::from(a).exp2() as f32);
    check_f32("rsqrt.approx.f32 %f10, %f1;", |a, _, _| (1.0 / f64::from(a).sqrt()) as f32);
}

#[test]
fn directed_rounding_brackets_the_sum() {
    // The f64 sum, moved by one f64 step towards the side where the exact sum lies.
    let exact = |a: f32, b: f32| {
        let (small, large) = if a.abs() < b.abs() { (a, b) } else { (b, a) };
        let (small, large) = (f64::from(small), f64::from(large));
        let sum = small + large;
        let lost = small - (sum - large);
        if lost > 0.0 {
            sum.next_up()
        } else if lost < 0.0 {
            sum.next_down()
        } else {
            sum
        }
    };
    check_f32("add.rz.f32 %f10, %f1, %f2;", |a, b, _| {
        let nearest = a + b;
        let beyond = f64::from(nearest).abs() > exact(a, b).abs() && !nearest.is_nan();
        if beyond && a.is_finite() && b.is_finite() {
            if nearest > 0.0 { nearest.next_down() } else { nearest.next_up() }
        } else {
            nearest
        }
    });
}

#[test]
fn conversions_round_and_saturate() {
    check("mov.b32 %f1, %r1; cvt.rzi.s32.f32 %r10, %f1;", &floats(), |a, _, _| {
        u64::from(f32::from_bits(a) as i32 as u32)
    });
    check("mov.b32 %f1, %r1; cvt.rni.u32.f32 %r10, %f1;", &floats(), |a, _, _| {
        u64::from(f32::from_bits(a).round_ties_even() as u32)
    });
    check("cvt.rn.f32.s32 %f1, %r1; mov.b32 %r10, %f1;", &words(), |a, _, _| {
        u64::from((a as i32 as f32).to_bits())
    });
    check("cvt.s64.s32 %rd1, %r1; mov.b64 {%r10, %r11}, %rd1;", &words(), |a, _, _| {
        i64::from(a as i32) as u64
    });
    check("cvt.u16.u32 %rs1, %r1; cvt.s32.s16 %r10, %rs1;", &words(), |a, _, _| {
        u64::from(a as u16 as i16 as i32 as u32)
    });
    check("cvt.s32.s8 %r10, %r1;", &words(), |a, _, _| u64::from(a as u8 as i8 as i32 as u32));
    let half = |x: u32| {
        let x = f32::from_bits(x);
        u64::from(if x.is_nan() { 0x7FFF } else { f16::from_f32(x).to_bits() })
    };
    check(
        "mov.b32 %f1, %r1; cvt.rn.f16.f32 %rs1, %f1; cvt.u32.u16 %r10, %rs1;",
        &floats(),
        |a, _, _| half(a),
    );
    let packed = "mov.b32 %f1, %r1; mov.b32 %f2, %r2; cvt.rn.f16x2.f32 %r10, %f1, %f2;";
    check(packed, &floats(), |a, b, _| half(b) | half(a) << 16);
    let bhalf = |x: u32| {
        let x = f32::from_bits(x);
        u64::from(if x.is_nan() { 0x7FFF } else { bf16::from_f32(x).to_bits() })
    };
    let packed = "mov.b32 %f1, %r1; mov.b32 %f2, %r2; cvt.rn.bf16x2.f32 %r10, %f1, %f2;";
    check(packed, &floats(), |a, b, _| bhalf(b) | bhalf(a) << 16);
    check(
        "mov.b32 {%rs1, %rs2}, %r1; cvt.f32.f16 %f1, %rs1; mov.b32 %r10, %f1;",
        &words(),
        |a, _, _| {
            let x = f16::from_bits(a as u16);
            u64::from(x.to_f32().to_bits())
        },
    );
    check(
        "cvt.rn.f64.s32 %d1, %r1; cvt.rz.f32.f64 %f1, %d1; mov.b32 %r10, %f1;",
        &words(),
        |a, _, _| {
            let exact = f64::from(a as i32);
            let nearest = exact as f32;
            let over = f64::from(nearest).abs() > exact.abs();
            u64::from(if over { f32::from_bits(nearest.to_bits() - 1) } else { nearest }.to_bits())
        },
    );
}

#[test]
fn packed_halves_compute_each_half() {
    let input: Vec<u32> = floats()
        .iter()
        .zip(floats().iter().rev())
        .map(|(a, b)| {
            let half = |x: &u32| u32::from(f16::from_f32(f32::from_bits(*x)).to_bits());
            half(a) | half(b) << 16
        })
        .collect();
    let each = |a: u32, b: u32, c: u32, f: fn(f64, f64, f64) -> f64| {
        let half = |word: u32, high: bool| {
            f16::from_bits(if high { word >> 16 } else { word } as u16).to_f64()
        };
        let one = |high| {
            let value = f(half(a, high), half(b, high), half(c, high));
            if value.is_nan() { 0x7FFF } else { f16::from_f64(value).to_bits() }
        };
        u64::from(one(false)) | u64::from(one(true)) << 16
    };
    check("add.f16x2 %r10, %r1, %r2;", &input, |a, b, c| each(a, b, c, |a, b, _| a + b));
    check("mul.f16x2 %r10, %r1, %r2;", &input, |a, b, c| each(a, b, c, |a, b, _| a * b));
    check("fma.rn.f16x2 %r10, %r1, %r2, %r3;", &input, |a, b, c| {
        each(a, b, c, |a, b, c| a * b + c)
    });
    check("neg.f16x2 %r10, %r1;", &input, |a, _, _| {
        let flip = |bits: u32| if bits & 0x7FFF > 0x7C00 { 0x7FFF } else { bits ^ 0x8000 };
        u64::from(flip(a & 0xFFFF) | flip(a >> 16) << 16)
    });
}

#[test]
fn shuffles_move_values_within_their_segment() {
    let by_lane = |body: &str| three_in_two_out(body, &words());
    let input = words();
    let out = by_lane("shfl.sync.bfly.b32 %r10|%p1, %r1, 5, 31, -1; selp.b32 %r11, 1, 0, %p1;");
    (0..32).for_each(|lane| assert_eq!(out[lane], [input[lane ^ 5], 1]));
    let out = by_lane("shfl.sync.down.b32 %r10|%p1, %r1, 3, 31, -1; selp.b32 %r11, 1, 0, %p1;");
    for (lane, out) in out.into_iter().enumerate() {
        let from = if lane + 3 < 32 { lane + 3 } else { lane };
        assert_eq!(out, [input[from], u32::from(lane + 3 < 32)]);
    }
    let out = by_lane("shfl.sync.up.b32 %r10|%p1, %r1, 3, 0, -1; selp.b32 %r11, 1, 0, %p1;");
    for (lane, out) in out.into_iter().enumerate() {
        assert_eq!(out, [input[lane.checked_sub(3).unwrap_or(lane)], u32::from(lane >= 3)]);
    }
    // Width 8: clamp 31, segment mask 0x18.
    let out = by_lane("shfl.sync.idx.b32 %r10, %r1, 2, 0x181f, -1;");
    (0..32).for_each(|lane| assert_eq!(out[lane][0], input[lane & 24 | 2]));
}

#[test]
fn votes_and_reductions_see_all_lanes() {
    let input = words();
    let odd =
        (0..32).filter(|lane| input[*lane] & 1 == 1).fold(0u32, |mask, lane| mask | 1 << lane);
    let body = "and.b32 %r4, %r1, 1; setp.eq.u32 %p1, %r4, 1; vote.sync.ballot.b32 %r10, %p1, -1;
	vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1;
	selp.b32 %r5, 2, 0, %p2; selp.b32 %r6, 1, 0, %p3; or.b32 %r11, %r5, %r6;";
    for out in three_in_two_out(body, &input) {
        assert_eq!(out, [odd, 2]);
    }
    let sum = input[..32].iter().fold(0u32, |sum, x| sum.wrapping_add(*x));
    let least = input[..32].iter().map(|x| *x as i32).min().unwrap() as u32;
    let body = "redux.sync.add.s32 %r10, %r1, -1; redux.sync.min.s32 %r11, %r1, -1;";
    assert!(three_in_two_out(body, &input).iter().all(|out| *out == [sum, least]));
    let body = "and.b32 %r4, %r40, 3; match.any.sync.b32 %r10, %r4, -1; activemask.b32 %r11;";
    for (lane, out) in three_in_two_out(body, &input).into_iter().enumerate() {
        assert_eq!(out, [0x1111_1111 << (lane & 3), u32::MAX]);
    }
}

#[test]
fn branches_and_loops_reconverge() {
    // Each lane loops lane % 7 times; the sum of all lanes is shuffled together afterwards.
    let body = "rem.u32 %r4, %r40, 7;
	mov.u32 %r5, 0;
$LOOP:
	setp.eq.u32 %p1, %r4, 0;
	@%p1 bra $DONE;
	add.u32 %r5, %r5, %r4;
	sub.u32 %r4, %r4, 1;
	bra.uni $LOOP;
$DONE:
	shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1;
	mov.u32 %r10, %r5;
	mov.u32 %r11, %r6;";
    let triangle = |lane: usize| (0..=(lane % 7) as u32).sum::<u32>();
    for (lane, out) in three_in_two_out(body, &words()).into_iter().enumerate() {
        assert_eq!(out, [triangle(lane), triangle(lane ^ 1)]);
    }
}

#[test]
fn a_branch_table_jumps_per_lane() {
    let body = "and.b32 %r4, %r40, 3;
$TABLE: .branchtargets $L0, $L1, $L2, $L3;
	brx.idx %r4, $TABLE;
$L0:	mov.u32 %r10, 100; bra.uni $END;
$L1:	mov.u32 %r10, 101; bra.uni $END;
$L2:	mov.u32 %r10, 102; bra.uni $END;
$L3:	mov.u32 %r10, 103;
$END:";
    for (lane, out) in three_in_two_out(body, &words()).into_iter().enumerate() {
        assert_eq!(out[0], 100 + (lane as u32 & 3));
    }
}

#[test]
fn device_functions_are_called_with_arguments() {
    let body = "	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd1, %r1, 4;
	add.s64 %rd2, %out, %rd1;
	{ // callseq 0, 0
	.param .b32 param0;
	st.param.b32 [param0+0], %r1;
	.param .b32 retval0;
	call.uni (retval0), square, (param0);
	ld.param.b32 %r2, [retval0+0];
	}
	st.global.u32 [%rd2], %r2;";
    let function = ".func (.param .b32 func_retval0) square(.param .b32 square_param_0)
{
	.reg .b32 %r<3>;
	ld.param.u32 %r1, [square_param_0];
	mul.lo.s32 %r2, %r1, %r1;
	st.param.b32 [func_retval0+0], %r2;
	ret;
}
";
    let module =
        common::snippet(body).replace(".extern .shared", &format!("{function}.extern .shared"));
    let out = device().run_module(&module, &[0], 32, ONE_WARP).unwrap();
    assert!(out.iter().enumerate().all(|(lane, value)| *value == (lane * lane) as u32));
}

#[test]
fn local_memory_belongs_to_one_thread() {
    let body = "	.local .align 4 .b8 depot[16];
	.reg .b64 %SP, %SPL;
	mov.u64 %SPL, depot;
	cvta.local.u64 %SP, %SPL;
	st.u32 [%SP+8], %r1;
	ld.local.u32 %r10, [%SPL+8];";
    check_words(body, |a, _, _| a);
}

#[test]
fn atomics_return_the_old_value() {
    let body = "	mov.u32 %r4, %tid.x;
	atom.global.add.u32 %r5, [%out], 2;
	mul.wide.u32 %rd1, %r4, 4;
	add.s64 %rd2, %out, %rd1;
	st.global.u32 [%rd2+64], %r5;
	red.global.max.u32 [%out+4], %r4;
	atom.global.cas.b32 %r6, [%out+8], 0, 7;
	atom.global.inc.u32 %r7, [%out+12], 9;";
    let out = device().run(body, &[0], 64, ONE_WARP).unwrap();
    assert_eq!(out[..4], [64, 31, 7, 2]);
    assert!((0..32).all(|lane| out[16 + lane] == 2 * lane as u32));
}

#[test]
fn shared_memory_is_seen_behind_a_barrier() {
    let body = "	mov.u32 %r1, %tid.x;
	shl.b32 %r2, %r1, 2;
	mov.u32 %r3, dynamic;
	add.u32 %r4, %r3, %r2;
	st.shared.u32 [%r4], %r1;
	bar.sync 0;
	xor.b32 %r5, %r2, 0x7C;
	add.u32 %r6, %r3, %r5;
	ld.shared.u32 %r7, [%r6];
	cvt.u64.u32 %rd5, %r6;
	cvta.shared.u64 %rd6, %rd5;
	ld.u32 %r8, [%rd6];
	add.u32 %r7, %r7, %r8;
	mul.wide.u32 %rd1, %r1, 4;
	add.s64 %rd2, %out, %rd1;
	st.global.u32 [%rd2], %r7;";
    let shape = common::Shape { blocks: 1, threads: 128, shared_bytes: 512 };
    let out = device().run(body, &[0], 128, shape).unwrap();
    assert!((0..128).all(|thread| out[thread] == 2 * (thread as u32 ^ 31)));
}

#[test]
fn wide_loads_carry_hints_and_every_width() {
    let body = "	.reg .b64 %policy;
	createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;
	and.b32 %r4, %r40, 7;
	mul.wide.u32 %rd1, %r4, 16;
	add.s64 %rd1, %in, %rd1;
	ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%r5, %r6, %r7, %r8}, [%rd1], %policy;
	ld.global.s8 %r9, [%rd1+3];
	xor.b32 %r10, %r5, %r8;
	mov.u32 %r11, %r9;";
    let input = words();
    for (lane, out) in three_in_two_out(body, &input).into_iter().enumerate() {
        let quad = &input[4 * (lane & 7)..];
        let byte = i32::from(quad[0].to_le_bytes()[3] as i8) as u32;
        assert_eq!(out, [quad[0] ^ quad[3], byte]);
    }
}
