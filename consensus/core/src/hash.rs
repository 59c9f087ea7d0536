//! A 64-bit digest of our own for comparing replicas. It is stable for ever and fast; it is not cryptographic:
//! it finds accidents, not adversaries.
//!
//! Definition: the input is cut into 8-byte little-endian words, the last padded with zeros; for each word
//! `h = rotl(h ^ word, 29) * 0x9E3779B97F4A7C15`; at the end of each `write` the length in bytes is mixed in the
//! same way; `finish` applies the two-round xor-shift-multiply of splitmix64.

/// Multiplier: 2^64 divided by the golden ratio, odd.
const PHI: u64 = 0x9E37_79B9_7F4A_7C15;

/// A running digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Starts from a seed, which may be the result of an earlier digest (a chain).
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x524f_5441_0000_0001)
    }

    /// Mixes in one number.
    pub fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).rotate_left(29).wrapping_mul(PHI);
    }

    /// Mixes in bytes and their length.
    pub fn write(&mut self, bytes: &[u8]) {
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        if !tail.is_empty() {
            let mut last = [0; 8];
            last[..tail.len()].copy_from_slice(tail);
            self.write_u64(u64::from_le_bytes(last));
        }
        self.write_u64(bytes.len() as u64);
    }

    /// The digest so far.
    #[must_use]
    pub fn finish(self) -> u64 {
        mix(self.0)
    }
}

/// The finaliser of splitmix64: a bijection that spreads every bit.
#[must_use]
pub fn mix(word: u64) -> u64 {
    let a = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    b ^ (b >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest is part of the snapshot format: this value must never change.
    #[test]
    fn known_value() {
        let mut d = Digest::new(7);
        d.write(b"rota: a gpu scheduler");
        assert_eq!(d.finish(), 8_869_568_928_004_096_277);
    }

    #[test]
    fn padding_is_not_ambiguous() {
        let of = |bytes: &[u8]| {
            let mut d = Digest::new(0);
            d.write(bytes);
            d.finish()
        };
        assert_ne!(of(b"a"), of(b"a\0"));
        assert_ne!(of(b""), of(b"\0"));
    }
}
