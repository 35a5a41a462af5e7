//! Reproducible random numbers, from a seed and coordinates. Not for secrets.
#![forbid(unsafe_code)]

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
/// integer arithmetic only, so a seed means the same bytes on every platform.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of a seed and two coordinates: near coordinates give unrelated streams.
    pub fn at(seed: u64, a: u64, b: u64) -> Self {
        let mut outer = Self(seed);
        let mut middle = Self(outer.next() ^ a);
        Self(middle.next() ^ b)
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "an iterator would have to end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0 .. n`, or 0 for an `n` of 0 or less. The bias is below 2⁻³² for the small `n` used.
    pub fn below(&mut self, n: i64) -> i64 {
        let n = u64::try_from(n).unwrap_or(0);
        let high = (u128::from(self.next()) * u128::from(n)) >> 64;
        i64::try_from(high).expect("below n")
    }

    /// Uniform in [0, 1) with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_sequence() {
        // First outputs for seed 1234567 of the reference implementation (prng.di.unimi.it/splitmix64.c).
        let mut generator = SplitMix64::new(1_234_567);
        let first = [0; 3].map(|_| generator.next());
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let mut generator = SplitMix64::at(1, 2, 3);
        assert!((0..1000).all(|_| (0..7).contains(&generator.below(7))));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&generator.unit())));
        assert_eq!((generator.below(0), generator.below(-3)), (0, 0));
    }
}
