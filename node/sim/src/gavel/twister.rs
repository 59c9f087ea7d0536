//! The generator behind Python's `random.Random(seed)`, so that the published traces are drawn number for number.
//! Not for anything else: `crate::rng` is the generator of this crate. Source: Matsumoto and Nishimura, 1998.

const SIZE: usize = 624;
const SHIFT: usize = 397;

/// MT19937 as CPython seeds and reads it.
#[derive(Debug, Clone)]
pub(super) struct Twister {
    state: Vec<u32>,
    at: usize,
}

impl Twister {
    /// Seeds from one small number, as `random.Random(seed)` does.
    #[must_use]
    pub(super) fn new(seed: u32) -> Self {
        let mut state = vec![19_650_218_u32];
        for at in 1..SIZE {
            let last = state[at - 1];
            state.push(1_812_433_253_u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(at as u32));
        }
        let mix = |last: u32, factor: u32| (last ^ (last >> 30)).wrapping_mul(factor);
        let mut at = 1;
        for _ in 0..SIZE {
            state[at] = (state[at] ^ mix(state[at - 1], 1_664_525)).wrapping_add(seed);
            at += 1;
            if at == SIZE {
                state[0] = state[SIZE - 1];
                at = 1;
            }
        }
        for _ in 0..SIZE - 1 {
            state[at] = (state[at] ^ mix(state[at - 1], 1_566_083_941)).wrapping_sub(at as u32);
            at += 1;
            if at == SIZE {
                state[0] = state[SIZE - 1];
                at = 1;
            }
        }
        state[0] = 0x8000_0000;
        Self { state, at: SIZE }
    }

    fn next_u32(&mut self) -> u32 {
        if self.at == SIZE {
            for at in 0..SIZE {
                let joined = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % SIZE] & 0x7fff_ffff);
                let twist = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[at] = self.state[(at + SHIFT) % SIZE] ^ (joined >> 1) ^ twist;
            }
            self.at = 0;
        }
        let mut word = self.state[self.at];
        self.at += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub(super) fn unit(&mut self) -> f64 {
        let high = f64::from(self.next_u32() >> 5);
        let low = f64::from(self.next_u32() >> 6);
        (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
    }

    /// Uniform in `0..bound`, drawn again while too large; 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        if bound == 0 {
            return 0;
        }
        let bits = 32 - bound.leading_zeros();
        loop {
            let draw = self.next_u32() >> (32 - bits);
            if draw < bound {
                return draw;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drawn with CPython 3.11: `r = random.Random(2)`, `r.random()` twice, then `r.choice(range(26))` three times.
    #[test]
    fn draws_what_python_draws() {
        let mut twister = Twister::new(2);
        assert_eq!(twister.unit(), 0.9560342718892494);
        assert_eq!(twister.unit(), 0.9478274870593494);
        assert_eq!([twister.below(26), twister.below(26), twister.below(26)], [1, 2, 2]);
    }
}
