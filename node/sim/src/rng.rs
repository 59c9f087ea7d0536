//! The one source of randomness of a replay: splitmix64, seeded, equal on every machine and for ever. No cryptography.

use rota_core::hash::mix;

/// A seeded sequence of numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts a sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5349_4d00))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Uniform in `0..bound`; 0 if `bound` is 0. The bias is below 2^-32 for bounds below 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential with the given mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Puts a slice in random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.below(at as u64 + 1) as usize;
            items.swap(at, other);
        }
    }
}
