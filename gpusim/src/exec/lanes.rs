//! Thirty-two lanes at once: a register of a warp, and how a function of scalars becomes one of
//! registers.

use half::{bf16, f16};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A register of all lanes; a value narrower than 64 bits is zero-extended.
pub(crate) type Row = [u64; LANES];

/// A register operation without side effects: destination and up to four sources. All lanes are
/// computed; the caller keeps those that take part.
pub(crate) type RowFn = Box<dyn Fn(&mut Row, &Row, &Row, &Row, &Row) + Send + Sync + 'static>;

/// A scalar that a lane of a register can hold.
pub(crate) trait Lane: Copy + 'static {
    fn get(bits: u64) -> Self;
    fn put(self) -> u64;
}

// Registers hold raw bits: taking the low part of one is what a narrower access means.
macro_rules! integer_lane {
    ($($name:ty as $unsigned:ty),*) => {$(
        impl Lane for $name {
            #[inline(always)]
            fn get(bits: u64) -> Self {
                bits as Self
            }
            #[inline(always)]
            fn put(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }
    )*};
}
integer_lane!(
    u8 as u8, i8 as u8, u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64, i64 as u64
);

macro_rules! float_lane {
    ($($name:ty as $bits:ty),*) => {$(
        impl Lane for $name {
            #[inline(always)]
            fn get(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn put(self) -> u64 {
                u64::from(self.to_bits())
            }
        }
    )*};
}
float_lane!(f32 as u32, f64 as u64, f16 as u16, bf16 as u16);

/// Two halves in 32 bits; the first is the low one.
#[derive(Clone, Copy)]
pub(crate) struct Two<T>(pub(crate) T, pub(crate) T);

impl<T: Lane> Lane for Two<T> {
    #[inline(always)]
    fn get(bits: u64) -> Self {
        Self(T::get(bits & 0xFFFF), T::get((bits >> 16) & 0xFFFF))
    }
    #[inline(always)]
    fn put(self) -> u64 {
        self.0.put() | (self.1.put() << 16)
    }
}

impl<T> Two<T> {
    /// Applies `f` to both halves.
    pub(crate) fn map<R>(self, f: impl Fn(T) -> R) -> Two<R> {
        Two(f(self.0), f(self.1))
    }

    /// Applies `f` to both pairs of halves.
    pub(crate) fn zip<U, R>(self, other: Two<U>, f: impl Fn(T, U) -> R) -> Two<R> {
        Two(f(self.0, other.0), f(self.1, other.1))
    }
}

pub(crate) fn unary<A: Lane, R: Lane>(f: impl Fn(A) -> R + Send + Sync + 'static) -> RowFn {
    Box::new(move |out, a, _, _, _| {
        for lane in 0..LANES {
            out[lane] = f(A::get(a[lane])).put();
        }
    })
}

pub(crate) fn binary<A: Lane, B: Lane, R: Lane>(
    f: impl Fn(A, B) -> R + Send + Sync + 'static,
) -> RowFn {
    Box::new(move |out, a, b, _, _| {
        for lane in 0..LANES {
            out[lane] = f(A::get(a[lane]), B::get(b[lane])).put();
        }
    })
}

pub(crate) fn ternary<A: Lane, B: Lane, C: Lane, R: Lane>(
    f: impl Fn(A, B, C) -> R + Send + Sync + 'static,
) -> RowFn {
    Box::new(move |out, a, b, c, _| {
        for lane in 0..LANES {
            out[lane] = f(A::get(a[lane]), B::get(b[lane]), C::get(c[lane])).put();
        }
    })
}

pub(crate) fn quaternary<A: Lane, B: Lane, C: Lane, D: Lane, R: Lane>(
    f: impl Fn(A, B, C, D) -> R + Send + Sync + 'static,
) -> RowFn {
    Box::new(move |out, a, b, c, d| {
        for lane in 0..LANES {
            let (a, b, c, d) = (a[lane], b[lane], c[lane], d[lane]);
            out[lane] = f(A::get(a), B::get(b), C::get(c), D::get(d)).put();
        }
    })
}

/// Lanes where `f` holds, as a mask.
pub(crate) type MaskFn = Box<dyn Fn(&Row, &Row) -> u32 + Send + Sync + 'static>;

pub(crate) fn relation<A: Lane>(f: impl Fn(A, A) -> bool + Send + Sync + 'static) -> MaskFn {
    Box::new(move |a, b| {
        let mut mask = 0;
        for lane in 0..LANES {
            mask |= u32::from(f(A::get(a[lane]), A::get(b[lane]))) << lane;
        }
        mask
    })
}

/// The set lanes of a mask, lowest first.
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros() as usize;
        (rest != 0).then(|| {
            rest &= rest - 1;
            lane
        })
    })
}
