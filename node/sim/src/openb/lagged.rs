//! The generator behind Go's `math/rand` with a seed, so that the published arrivals and tie breaks are drawn number
//! for number. Not for anything else: `crate::rng` is the generator of this crate.
//!
//! It is an additive lagged Fibonacci sequence, `s[n] = s[n - 607] + s[n - 273]` modulo 2^64, whose start is a small
//! sequence by Park and Miller mixed with a fixed table. The table is what the same sequence gives after 7.8 x 10^12
//! steps. It is not kept here but found by a jump: x to that power, modulo the polynomial of the sequence.

use std::sync::OnceLock;

const SIZE: usize = 607;
const TAP: usize = 273;
/// Terms of x^607 when it is divided by the polynomial: x^334 + 1.
const BACK: usize = SIZE - TAP;
/// Steps from the first sequence to the table.
const STEPS: u64 = 7_800_000_000_000;

type State = [u64; SIZE];

/// The generator as Go seeds and reads it.
#[derive(Debug, Clone)]
pub struct Lagged {
    state: Box<State>,
    tap: usize,
    feed: usize,
}

impl Lagged {
    /// Seeds it, as `rand.Seed` does.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = Box::new(first(seed, (40, 20)));
        for (word, mixed) in state.iter_mut().zip(table()) {
            *word ^= mixed;
        }
        Self { state, tap: 0, feed: BACK }
    }

    /// The next 63 bits.
    pub fn next_u63(&mut self) -> u64 {
        self.tap = self.tap.checked_sub(1).unwrap_or(SIZE - 1);
        self.feed = self.feed.checked_sub(1).unwrap_or(SIZE - 1);
        let word = self.state[self.feed].wrapping_add(self.state[self.tap]);
        self.state[self.feed] = word;
        word & (u64::MAX >> 1)
    }

    /// Uniform in `0..bound`, as `Intn` draws it; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound.is_power_of_two() || bound == 0 {
            let draw = (self.next_u63() >> 32) as u32;
            return draw & bound.saturating_sub(1);
        }
        let most = (1_u32 << 31) - 1 - (1 << 31) % bound;
        loop {
            let draw = (self.next_u63() >> 32) as u32;
            if draw <= most {
                return draw % bound;
            }
        }
    }

    /// Puts a slice in random order, as `Shuffle` does: by products instead of remainders.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let bound = at as u64 + 1;
            let (mut product, least) = (self.product(bound), (1 << 32) % bound);
            while product & 0xffff_ffff < least {
                product = self.product(bound);
            }
            items.swap(at, (product >> 32) as usize);
        }
    }

    /// The numbers below `count` in random order, as `Perm` gives them.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order = vec![0; count];
        for at in 0..count {
            let other = self.below(at as u32 + 1) as usize;
            order[at] = order[other];
            order[other] = at;
        }
        order
    }

    fn product(&mut self, bound: u64) -> u64 {
        (self.next_u63() >> 31) * bound
    }
}

/// A state from one number, each word from three steps of Park and Miller's sequence.
fn first(seed: u64, (high, middle): (u32, u32)) -> State {
    const PRIME: u64 = (1 << 31) - 1;
    let mut x = match seed % PRIME {
        0 => 89_482_311,
        seed => seed,
    };
    let mut step = || {
        x = x * 48_271 % PRIME;
        x
    };
    for _ in 0..20 {
        step();
    }
    std::array::from_fn(|_| (step() << high) ^ (step() << middle) ^ step())
}

/// The fixed table.
fn table() -> &'static State {
    static TABLE: OnceLock<Box<State>> = OnceLock::new();
    TABLE.get_or_init(|| Box::new(after(first(1, (20, 10)), STEPS)))
}

/// The state after so many steps. A state is read downwards from `BACK`, which is its first term.
fn after(state: State, steps: u64) -> State {
    let place = |term: u64| (BACK + SIZE - 1 - (term % SIZE as u64) as usize) % SIZE;
    let mut terms: Vec<u64> = (0..SIZE as u64).map(|term| state[place(term)]).collect();
    for at in SIZE..2 * SIZE {
        terms.push(terms[at - SIZE].wrapping_add(terms[at - TAP]));
    }
    let power = power_of_x(steps);
    let mut found = [0; SIZE];
    for (term, window) in (0..SIZE as u64).zip(terms.windows(SIZE)) {
        let products = window.iter().zip(&power).map(|(term, factor)| term.wrapping_mul(*factor));
        found[place(steps + term)] = products.fold(0, u64::wrapping_add);
    }
    found
}

/// x to a power, modulo x^607 - x^334 - 1 and 2^64; lowest first.
fn power_of_x(power: u64) -> Vec<u64> {
    let mut result = vec![0_u64; SIZE];
    result[0] = 1;
    for bit in (0..u64::BITS - power.leading_zeros()).rev() {
        let odd = usize::from(power >> bit & 1 == 1);
        let mut product = vec![0_u64; 2 * SIZE];
        for (at, factor) in result.iter().enumerate().filter(|(_, factor)| **factor != 0) {
            for (sum, other) in product[at + odd..].iter_mut().zip(&result) {
                *sum = sum.wrapping_add(factor.wrapping_mul(*other));
            }
        }
        for at in (SIZE..2 * SIZE).rev() {
            let high = product[at];
            for lower in [at - SIZE, at - TAP] {
                product[lower] = product[lower].wrapping_add(high);
            }
        }
        product.truncate(SIZE);
        result = product;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Go prints for `rand.Seed(1)` and ten times `rand.Intn(100)`.
    #[test]
    fn draws_what_go_draws() {
        let mut lagged = Lagged::new(1);
        let drawn: Vec<u32> = (0..10).map(|_| lagged.below(100)).collect();
        assert_eq!(drawn, [81, 87, 47, 59, 81, 18, 25, 40, 56, 0]);
    }

    #[test]
    fn a_jump_is_as_many_steps() {
        let start = first(7, (40, 20));
        let mut stepped = Lagged { state: Box::new(start), tap: 0, feed: BACK };
        for _ in 0..2_000 {
            stepped.next_u63();
        }
        assert_eq!(after(start, 2_000), *stepped.state);
        assert_eq!(after(start, 0), start);
    }

    #[test]
    fn orders_hold_everything_once() {
        let mut lagged = Lagged::new(42);
        let mut order = lagged.order(1_213);
        assert_ne!(order[..3], [0, 1, 2]);
        lagged.shuffle(&mut order);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1_213));
        assert_eq!((lagged.below(0), lagged.below(1)), (0, 0));
    }
}
