//! What the free part of a card is worth: the fewest cards into which the expected shares can be cut, as a linear
//! program over cutting patterns, solved by column generation (Gilmore and Gomory, 1961). Its dual gives each share a
//! price in cards; the worth of a part is the dearest pattern that it still holds. Plain IEEE arithmetic in a fixed
//! order, rounded to ppm at the end.

use super::{CARD_MILLI, PPM};

/// Most patterns that are tried. Real demands need 20 to 100.
const ROUNDS_MAX: usize = 400;
/// A pattern must save so much to be taken up.
const GAIN_LEAST: f64 = 1e-7;

/// Worth of a card by its free milli, 0..=1000, in ppm of a whole card. `shares` are (milli, weight), with milli
/// below 1000, ascending and different.
pub(super) fn worth_ppm(shares: &[(u32, u64)]) -> Vec<u32> {
    let mut cutting = Cutting::new(shares);
    for _ in 0..ROUNDS_MAX {
        let best = Best::new(shares, &cutting.prices());
        if best.value[CARD_MILLI as usize] <= 1.0 + GAIN_LEAST || !cutting.take_up(&best.pattern(shares)) {
            break;
        }
    }
    let best = Best::new(shares, &cutting.prices());
    let whole = best.value[CARD_MILLI as usize].max(1.0);
    let mut worth: Vec<u32> = best.value.iter().map(|value| (value / whole * PPM as f64) as u32).collect();
    // A whole card is what whole cards are asked for.
    worth[CARD_MILLI as usize] = PPM as u32;
    worth
}

/// The basis of the program: one pattern for each share.
struct Cutting {
    /// Inverse of the basis, by rows of patterns.
    inverse: Vec<Vec<f64>>,
    /// Cards cut by each pattern of the basis.
    cards: Vec<f64>,
}

impl Cutting {
    /// Starts with cards cut into equal shares.
    fn new(shares: &[(u32, u64)]) -> Self {
        let mut inverse = vec![vec![0.0; shares.len()]; shares.len()];
        let mut cards = Vec::with_capacity(shares.len());
        for (index, (milli, weight)) in shares.iter().enumerate() {
            let pieces = f64::from(CARD_MILLI / milli);
            inverse[index][index] = 1.0 / pieces;
            cards.push(*weight as f64 / pieces);
        }
        Self { inverse, cards }
    }

    /// The price of each share, in cards: each pattern of the basis costs one.
    fn prices(&self) -> Vec<f64> {
        let mut prices = vec![0.0; self.cards.len()];
        for row in &self.inverse {
            for (price, part) in prices.iter_mut().zip(row) {
                *price += part;
            }
        }
        prices.iter().map(|price| price.max(0.0)).collect()
    }

    /// Brings a pattern into the basis for the one that runs out first. False if none does.
    fn take_up(&mut self, pattern: &[f64]) -> bool {
        let part = |row: &Vec<f64>| row.iter().zip(pattern).map(|(a, b)| a * b).sum::<f64>();
        let column: Vec<f64> = self.inverse.iter().map(part).collect();
        let mut out: Option<(f64, usize)> = None;
        for (index, entry) in column.iter().enumerate().filter(|(_, entry)| **entry > 1e-9) {
            let ratio = self.cards[index] / entry;
            if out.is_none_or(|(least, _)| ratio < least) {
                out = Some((ratio, index));
            }
        }
        let Some((ratio, out)) = out else { return false };
        let pivot: Vec<f64> = self.inverse[out].iter().map(|entry| entry / column[out]).collect();
        for (index, row) in self.inverse.iter_mut().enumerate() {
            if index == out {
                row.clone_from(&pivot);
                self.cards[index] = ratio;
                continue;
            }
            for (entry, of_pivot) in row.iter_mut().zip(&pivot) {
                *entry -= column[index] * of_pivot;
            }
            self.cards[index] = (self.cards[index] - column[index] * ratio).max(0.0);
        }
        true
    }
}

/// The dearest patterns by the milli they may use.
struct Best {
    value: Vec<f64>,
    /// The share cut last, if it is worth cutting one.
    last: Vec<Option<usize>>,
}

impl Best {
    fn new(shares: &[(u32, u64)], prices: &[f64]) -> Self {
        let mut value = vec![0.0_f64; CARD_MILLI as usize + 1];
        let mut last = vec![None; CARD_MILLI as usize + 1];
        for milli in 1..value.len() {
            value[milli] = value[milli - 1];
            for (index, (share, _)) in shares.iter().enumerate() {
                let Some(rest) = milli.checked_sub(*share as usize) else { break };
                let sum = value[rest] + prices[index];
                if sum > value[milli] + 1e-12 {
                    value[milli] = sum;
                    last[milli] = Some(index);
                }
            }
        }
        Self { value, last }
    }

    /// How often each share is cut from a whole card.
    fn pattern(&self, shares: &[(u32, u64)]) -> Vec<f64> {
        let mut pattern = vec![0.0; shares.len()];
        let mut milli = CARD_MILLI as usize;
        while milli > 0 {
            if let Some(index) = self.last[milli] {
                pattern[index] += 1.0;
                milli -= shares[index].0 as usize;
            } else {
                milli -= 1;
            }
        }
        pattern
    }
}
