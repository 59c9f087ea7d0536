//! Who runs on which model so that the sum of values is largest. Exact for jobs of one worker (each job enters along
//! the best chain of moves); gangs are rounded from prices. It does not know why one job is worth more than another.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What one job would be worth on each model.
#[derive(Debug, Clone)]
pub struct Bid {
    /// Workers it needs at a time, all of one model, at least 1.
    pub workers: u32,
    /// Value of the whole job on each model; 0 or less: never there.
    pub values: Vec<f64>,
}

/// The model of each job, none for those that wait. Ties go to the job named first, then to the lower model.
#[must_use]
pub fn assign(bids: &[Bid], fleet: &[u32]) -> Vec<Option<usize>> {
    let mut market = Market::new(bids, fleet);
    for unit in 0..market.units.len() {
        market.enter(unit);
    }
    if bids.iter().all(|bid| bid.workers == 1) {
        return market.seats;
    }
    round(bids, fleet, &market.prices())
}

/// Places whole gangs, the largest gain over the prices first, each on its best model that still has room.
fn round(bids: &[Bid], fleet: &[u32], prices: &[f64]) -> Vec<Option<usize>> {
    let gain = |bid: &Bid, model: usize| bid.values[model] / f64::from(bid.workers) - prices[model];
    let best = |bid: &Bid| {
        let gains = (0..fleet.len()).filter(|model| bid.values[*model] > 0.0).map(|model| gain(bid, model));
        gains.fold(f64::NEG_INFINITY, f64::max)
    };
    let mut order: Vec<(f64, usize)> = bids.iter().map(best).zip(0..).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut left = fleet.to_vec();
    let mut seats = vec![None; bids.len()];
    for (_, job) in order {
        let bid = &bids[job];
        let open = (0..fleet.len()).filter(|model| bid.values[*model] > 0.0 && left[*model] >= bid.workers);
        let choice = open.max_by(|a, b| gain(bid, *a).total_cmp(&gain(bid, *b)).then(b.cmp(a)));
        if let Some(model) = choice {
            left[model] -= bid.workers;
            seats[job] = Some(model);
        }
    }
    seats
}

/// An entry of a heap: what a move loses, negated so that the least loss is on top.
#[derive(PartialEq)]
struct Move(f64, usize);

impl Eq for Move {}

impl Ord for Move {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(other.1.cmp(&self.1))
    }
}

impl PartialOrd for Move {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An optimal assignment of the units (one per worker of a job) that have entered so far.
struct Market<'a> {
    bids: &'a [Bid],
    /// The job of each unit.
    units: Vec<usize>,
    left: Vec<u32>,
    seats: Vec<Option<usize>>,
    /// `moves[from][to]`: seated units by what moving them gains; `to == models` is out. Stale entries are dropped.
    moves: Vec<Vec<BinaryHeap<Move>>>,
}

impl<'a> Market<'a> {
    fn new(bids: &'a [Bid], fleet: &[u32]) -> Self {
        let of_job = |(job, bid): (usize, &Bid)| std::iter::repeat_n(job, bid.workers as usize);
        let units: Vec<usize> = bids.iter().enumerate().flat_map(of_job).collect();
        let heaps = |_| (0..=fleet.len()).map(|_| BinaryHeap::new()).collect();
        let (left, seats) = (fleet.to_vec(), vec![None; units.len()]);
        Self { bids, units, left, seats, moves: (0..fleet.len()).map(heaps).collect() }
    }

    fn value(&self, unit: usize, model: usize) -> f64 {
        let bid = &self.bids[self.units[unit]];
        if model == self.left.len() {
            0.0
        } else if bid.values[model] > 0.0 {
            bid.values[model] / f64::from(bid.workers)
        } else {
            f64::NEG_INFINITY
        }
    }

    /// The unit that loses least by a move, and what it gains (at most 0 but for ties and freed room).
    fn cheapest(&mut self, from: usize, to: usize) -> Option<(f64, usize)> {
        while let Some(top) = self.moves[from][to].peek() {
            if self.seats[top.1] == Some(from) {
                return top.0.is_finite().then_some((top.0, top.1));
            }
            self.moves[from][to].pop();
        }
        None
    }

    fn edges(&mut self) -> Vec<Vec<Option<(f64, usize)>>> {
        let models = self.left.len();
        let mut edges = vec![vec![None; models + 1]; models];
        for (from, row) in edges.iter_mut().enumerate() {
            for (to, edge) in row.iter_mut().enumerate() {
                if from != to {
                    *edge = self.cheapest(from, to);
                }
            }
        }
        edges
    }

    /// Lets one more unit in, along the chain of moves with the largest total gain, if that is above 0.
    fn enter(&mut self, unit: usize) {
        let models = self.left.len();
        let edges = self.edges();
        let mut reach: Vec<f64> = (0..=models).map(|model| self.value(unit, model)).collect();
        let mut via: Vec<Option<usize>> = vec![None; models + 1];
        for _ in 0..models {
            for from in 0..models {
                for to in 0..=models {
                    let Some((gain, _)) = edges[from][to] else { continue };
                    if reach[from] + gain > reach[to] && !passes(&via, from, to) {
                        reach[to] = reach[from] + gain;
                        via[to] = Some(from);
                    }
                }
            }
        }
        let open = (0..=models).filter(|model| *model == models || self.left[*model] > 0);
        let Some(end) = open.max_by(|a, b| reach[*a].total_cmp(&reach[*b]).then(b.cmp(a))) else { return };
        if reach[end].is_nan() || reach[end] < 0.0 || (end == models && via[end].is_none()) {
            return;
        }
        if end < models {
            self.left[end] -= 1;
        }
        let mut to = end;
        while let Some(from) = via[to] {
            if let Some((_, moved)) = edges[from][to] {
                self.seat(moved, (to < models).then_some(to));
            }
            to = from;
        }
        self.seat(unit, Some(to));
    }

    fn seat(&mut self, unit: usize, model: Option<usize>) {
        self.seats[unit] = model;
        let Some(from) = model else { return };
        let own = self.value(unit, from);
        for to in (0..=self.left.len()).filter(|to| *to != from) {
            let gain = self.value(unit, to) - own;
            self.moves[from][to].push(Move(gain, unit));
        }
    }

    /// What one more worker of each model would add.
    fn prices(&mut self) -> Vec<f64> {
        let models = self.left.len();
        let mut prices = vec![0.0_f64; models];
        for unit in 0..self.units.len() {
            if self.seats[unit].is_none() {
                for (model, price) in prices.iter_mut().enumerate() {
                    *price = price.max(self.value(unit, model));
                }
            }
        }
        let edges = self.edges();
        for _ in 0..models {
            for from in 0..models {
                for to in 0..models {
                    // A worker more of `to` draws a unit over from `from`, and that leaves one more there.
                    if let Some((gain, _)) = edges[from][to] {
                        prices[to] = prices[to].max(gain + prices[from]);
                    }
                }
            }
        }
        for (model, price) in prices.iter_mut().enumerate() {
            if self.left[model] > 0 {
                *price = 0.0;
            }
        }
        prices
    }
}

/// Whether the chain into `at` already runs through `model` (an optimum has no gaining circle, rounding may).
fn passes(via: &[Option<usize>], at: usize, model: usize) -> bool {
    let mut next = Some(at);
    let mut steps = 0;
    while let Some(here) = next {
        if here == model || steps > via.len() {
            return true;
        }
        next = via[here];
        steps += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(bids: &[Bid], seats: &[Option<usize>]) -> f64 {
        bids.iter().zip(seats).filter_map(|(bid, seat)| seat.map(|model| bid.values[model])).sum()
    }

    fn best(bids: &[Bid], left: &mut [u32]) -> f64 {
        let Some((bid, rest)) = bids.split_first() else { return 0.0 };
        let mut top = best(rest, left);
        for model in 0..left.len() {
            if left[model] >= bid.workers && bid.values[model] > 0.0 {
                left[model] -= bid.workers;
                top = top.max(bid.values[model] + best(rest, left));
                left[model] += bid.workers;
            }
        }
        top
    }

    /// Job 1 has more to lose than job 0, so job 0 yields the fast model though it came first.
    #[test]
    fn comparative_advantage_decides() {
        let bids = [Bid { workers: 1, values: vec![10.0, 9.0] }, Bid { workers: 1, values: vec![8.0, 1.0] }];
        assert_eq!(assign(&bids, &[1, 1]), vec![Some(1), Some(0)]);
    }

    #[test]
    fn single_workers_match_exhaustive_search() {
        let mut state = 7_u64;
        let mut draw = |bound: u64| {
            state = crate::hash::mix(state.wrapping_add(1));
            state % bound
        };
        for _ in 0..300 {
            let jobs = 1 + draw(7);
            let bids: Vec<Bid> = (0..jobs)
                .map(|_| Bid { workers: 1, values: (0..3).map(|_| draw(9) as f64 - 1.0).collect() })
                .collect();
            let mut fleet = [draw(3) as u32, draw(3) as u32, draw(2) as u32];
            let seats = assign(&bids, &fleet);
            assert_eq!(total(&bids, &seats), best(&bids, &mut fleet), "{bids:?} {fleet:?} {seats:?}");
        }
    }

    #[test]
    fn gangs_stay_whole_and_within_the_fleet() {
        let gang = |workers, value: f64| Bid { workers, values: vec![value, value / 2.0] };
        let bids = [gang(4, 8.0), gang(2, 6.0), gang(1, 1.0), gang(1, 1.5), gang(8, 9.0)];
        let seats = assign(&bids, &[4, 4]);
        // By hand: 6 + 1.5 + 1 fill the fast model (8.5), the gang of 4 takes the slow one whole (4).
        assert_eq!(seats, vec![Some(1), Some(0), Some(0), Some(0), None]);
    }
}
