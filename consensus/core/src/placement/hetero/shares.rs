//! The fair time share of each job on each GPU model: max-min of throughput over that of an equal share, as a linear
//! program. Solved by a barrier method whose Newton steps cost jobs x models^2; it ends near the middle of all best
//! shares, so equal jobs get equal shares. It does not say who runs now: `round` does.
//!
//! Source: Narayanan et al., OSDI 2020, section 4. Only + - * / are used, which IEEE 754 defines to the bit.

/// Jobs with the same speeds, workers and weight, treated as one row.
#[derive(Debug, Clone)]
pub struct ShareRow {
    /// How many such jobs there are, at least 1.
    pub count: u32,
    /// Workers that one of them needs at a time, at least 1.
    pub workers: u32,
    /// Its claim; 1.0 is usual.
    pub weight: f64,
    /// Its speed on each model, any unit; 0 where it cannot run.
    pub speeds: Vec<f64>,
}

/// Growth of the barrier's sharpness from stage to stage.
const GROWTH: f64 = 6.0;
/// Gap to the best max-min value at which the method stops, as a part of it.
const GAP: f64 = 2e-4;
/// Newton steps of one stage at most.
const STEPS_MAX: usize = 40;

/// For each row the share of time (0..1) that each of its jobs should run on each model; `fleet` is workers by model.
#[must_use]
pub fn max_min(rows: &[ShareRow], fleet: &[u32]) -> Vec<Vec<f64>> {
    let Some(mut state) = Barrier::start(rows, fleet) else {
        return rows.iter().map(|row| vec![0.0; row.speeds.len()]).collect();
    };
    let walls: f64 = state.rows.iter().map(|row| row.count * (fleet.len() as f64 + 2.0)).sum();
    let mut sharpness = walls / state.level.max(1e-3);
    while walls / sharpness > GAP * state.level.max(1e-9) {
        for _ in 0..STEPS_MAX {
            if !state.step(sharpness) {
                break;
            }
        }
        sharpness *= GROWTH;
    }
    state.rows.into_iter().map(|row| row.share).collect()
}

struct Row {
    count: f64,
    workers: f64,
    /// Throughput over that of an equal share, per unit of time share.
    gain: Vec<f64>,
    share: Vec<f64>,
}

impl Row {
    fn idle(&self) -> f64 {
        1.0 - self.share.iter().sum::<f64>()
    }

    fn reached(&self) -> f64 {
        self.gain.iter().zip(&self.share).map(|(gain, share)| gain * share).sum()
    }

    /// Solves `B z = rhs` for the row's block `B = count * (1/share^2 + 1 1'/idle^2 + gain gain'/over^2)`.
    fn solve(&self, idle: f64, over: f64, rhs: &[f64]) -> Vec<f64> {
        let (mut pp, mut pq, mut qq, mut pr, mut qr) = (1.0, 0.0, 1.0, 0.0, 0.0);
        for (model, share) in self.share.iter().enumerate() {
            let area = share * share;
            let (p, q) = (1.0 / idle, self.gain[model] / over);
            pp += p * p * area;
            pq += p * q * area;
            qq += q * q * area;
            pr += p * rhs[model] * area;
            qr += q * rhs[model] * area;
        }
        let det = pp * qq - pq * pq;
        let (alpha, beta) = ((qq * pr - pq * qr) / det, (pp * qr - pq * pr) / det);
        let part = |(model, share): (usize, &f64)| {
            share * share * (rhs[model] - alpha / idle - beta * self.gain[model] / over) / self.count
        };
        self.share.iter().enumerate().map(part).collect()
    }
}

struct Barrier {
    rows: Vec<Row>,
    fleet: Vec<f64>,
    /// The max-min value, below what every row reaches.
    level: f64,
}

struct Direction {
    shares: Vec<Vec<f64>>,
    level: f64,
    descent: f64,
}

impl Barrier {
    /// A point inside all bounds; none if there is nothing to share or some row runs nowhere.
    fn start(rows: &[ShareRow], fleet: &[u32]) -> Option<Self> {
        let total: f64 = fleet.iter().map(|workers| f64::from(*workers)).sum();
        let asked: f64 = rows.iter().map(|row| f64::from(row.count) * f64::from(row.workers)).sum();
        let room = 0.5 / (1.0 + asked / total.max(1.0)) / fleet.len().max(1) as f64;
        let fill = |row: &ShareRow| {
            let worth =
                |(speed, have): (&f64, &u32)| if *have == 0 { 0.0 } else { speed * f64::from(*have) / total };
            let equal: f64 = row.speeds.iter().zip(fleet).map(worth).sum();
            let scale = f64::from(row.workers) / (row.weight * equal);
            let usable = |speed: f64, have: u32| speed > 0.0 && have >= row.workers;
            let mut gain = Vec::with_capacity(fleet.len());
            let mut share = Vec::with_capacity(fleet.len());
            for (speed, have) in row.speeds.iter().zip(fleet) {
                let open = usable(*speed, *have);
                gain.push(if open { speed * scale } else { 0.0 });
                share.push(if open { room * f64::from(*have) / total } else { 0.0 });
            }
            Row { count: f64::from(row.count), workers: f64::from(row.workers), gain, share }
        };
        let rows: Vec<Row> = rows.iter().map(fill).collect();
        let low = rows.iter().map(Row::reached).fold(f64::INFINITY, f64::min);
        let fleet = fleet.iter().map(|workers| f64::from(*workers)).collect();
        (low.is_finite() && low > 0.0).then_some(Self { rows, fleet, level: low * 0.5 })
    }

    fn left(&self) -> Vec<f64> {
        let mut left = self.fleet.clone();
        for row in &self.rows {
            for (model, share) in row.share.iter().enumerate() {
                left[model] -= row.count * row.workers * share;
            }
        }
        left
    }

    /// One Newton step; false when the stage is done.
    fn step(&mut self, sharpness: f64) -> bool {
        let Some(direction) = self.direction(sharpness) else { return false };
        if direction.descent < 1e-3 {
            return false;
        }
        let mut length = 1.0;
        for _ in 0..60 {
            self.shift(&direction, length);
            if self.inside() && self.slope(&direction, sharpness) <= 0.1 * direction.descent {
                return true;
            }
            self.shift(&direction, -length);
            length *= 0.6;
        }
        false
    }

    fn shift(&mut self, direction: &Direction, length: f64) {
        self.level += length * direction.level;
        for (row, change) in self.rows.iter_mut().zip(&direction.shares) {
            for (share, change) in row.share.iter_mut().zip(change) {
                *share += length * change;
            }
        }
    }

    fn inside(&self) -> bool {
        let open =
            |row: &Row| row.gain.iter().zip(&row.share).all(|(gain, share)| *gain == 0.0 || *share > 0.0);
        let fits = |row: &Row| open(row) && row.idle() > 0.0 && row.reached() > self.level;
        self.rows.iter().all(fits)
            && self.left().iter().zip(&self.fleet).all(|(left, have)| *left > 0.0 || *have == 0.0)
    }

    /// How the barrier function changes along a direction; at most 0 before its lowest point.
    fn slope(&self, direction: &Direction, sharpness: f64) -> f64 {
        let (gradients, level) = self.gradients(sharpness);
        let mut slope = level * direction.level;
        for (gradient, change) in gradients.iter().zip(&direction.shares) {
            slope += gradient.iter().zip(change).map(|(gradient, change)| gradient * change).sum::<f64>();
        }
        slope
    }

    fn gradients(&self, sharpness: f64) -> (Vec<Vec<f64>>, f64) {
        let left = self.left();
        let mut level = -sharpness;
        let mut all = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let (idle, over) = (row.idle(), row.reached() - self.level);
            level += row.count / over;
            let part = |(model, share): (usize, &f64)| {
                if row.gain[model] == 0.0 {
                    return 0.0;
                }
                let own = 1.0 / idle - 1.0 / share - row.gain[model] / over;
                row.count * (own + row.workers / left[model])
            };
            all.push(row.share.iter().enumerate().map(part).collect());
        }
        (all, level)
    }

    /// The Newton direction: blocks of rows are eliminated, which leaves one unknown per model and the level.
    fn direction(&self, sharpness: f64) -> Option<Direction> {
        let models = self.fleet.len();
        let (gradients, level_gradient) = self.gradients(sharpness);
        let mut system = vec![vec![0.0; models + 2]; models + 1];
        for (model, left) in self.left().iter().enumerate() {
            system[model][model] = if self.fleet[model] == 0.0 { 1.0 } else { left * left };
        }
        system[models][models + 1] = -level_gradient;
        for (row, gradient) in self.rows.iter().zip(&gradients) {
            row_into(row, gradient, row.idle(), row.reached() - self.level, &mut system);
        }
        let unknowns = eliminate(system)?;
        let mut descent = -level_gradient * unknowns[models];
        let mut shares = Vec::with_capacity(self.rows.len());
        for (row, gradient) in self.rows.iter().zip(&gradients) {
            let over = row.reached() - self.level;
            let rhs = |(model, gradient): (usize, &f64)| {
                let coupled = row.count * row.workers * unknowns[model];
                -gradient - coupled + row.count * row.gain[model] / (over * over) * unknowns[models]
            };
            let rhs: Vec<f64> = gradient.iter().enumerate().map(rhs).collect();
            let change = row.solve(row.idle(), over, &rhs);
            descent -= gradient.iter().zip(&change).map(|(gradient, change)| gradient * change).sum::<f64>();
            shares.push(change);
        }
        Some(Direction { shares, level: unknowns[models], descent })
    }
}

/// Adds one row's part to the small system.
fn row_into(row: &Row, gradient: &[f64], idle: f64, over: f64, system: &mut [Vec<f64>]) {
    let models = row.share.len();
    let cross: Vec<f64> = row.gain.iter().map(|gain| -row.count * gain / (over * over)).collect();
    let by_gradient = row.solve(idle, over, gradient);
    let by_cross = row.solve(idle, over, &cross);
    let used = row.count * row.workers;
    for model in 0..models {
        let mut unit = vec![0.0; models];
        unit[model] = 1.0;
        let column = row.solve(idle, over, &unit);
        for other in 0..models {
            system[other][model] += used * used * column[other];
        }
        system[model][models] += used * by_cross[model];
        system[model][models + 1] -= used * by_gradient[model];
        system[models][model] -= used * by_cross[model];
    }
    let dot = |left: &[f64], right: &[f64]| left.iter().zip(right).map(|(a, b)| a * b).sum::<f64>();
    system[models][models] += row.count / (over * over) - dot(&cross, &by_cross);
    system[models][models + 1] += dot(&cross, &by_gradient);
}

/// Gauss with row pivots; the last column is the right side. None if the system has no single solution.
fn eliminate(mut system: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = system.len();
    for at in 0..size {
        let pivot = (at..size).max_by(|a, b| system[*a][at].abs().total_cmp(&system[*b][at].abs()))?;
        system.swap(at, pivot);
        if !(system[at][at].abs() > 0.0 && system[at][at].is_finite()) {
            return None;
        }
        let head = system[at].clone();
        for row in system.iter_mut().skip(at + 1) {
            let factor = row[at] / head[at];
            for (cell, above) in row.iter_mut().zip(&head).skip(at) {
                *cell -= factor * above;
            }
        }
    }
    let mut solution = vec![0.0; size];
    for at in (0..size).rev() {
        let known: f64 = (at + 1..size).map(|next| system[at][next] * solution[next]).sum();
        solution[at] = (system[at][size] - known) / system[at][at];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(count: u32, workers: u32, speeds: &[f64]) -> ShareRow {
        ShareRow { count, workers, weight: 1.0, speeds: speeds.to_vec() }
    }

    /// Throughput over that of an equal share.
    fn reached(row: &ShareRow, share: &[f64], fleet: &[u32]) -> f64 {
        let total: u32 = fleet.iter().sum();
        let equal: f64 =
            row.speeds.iter().zip(fleet).map(|(s, w)| s * f64::from(*w) / f64::from(total)).sum();
        let real: f64 = row.speeds.iter().zip(share).map(|(s, x)| s * x).sum();
        f64::from(row.workers) * real / equal
    }

    /// One GPU of each model; the first job gains 4 from the fast one, the second nothing: each gets its own model.
    #[test]
    fn gives_each_job_the_model_it_gains_from() {
        let rows = [row(1, 1, &[4.0, 1.0]), row(1, 1, &[1.0, 1.0])];
        let shares = max_min(&rows, &[1, 1]);
        assert!(shares[0][0] > shares[0][1], "{shares:?}");
        let low = reached(&rows[0], &shares[0], &[1, 1]).min(reached(&rows[1], &shares[1], &[1, 1]));
        // Worked by hand: job 1 is capped at 1.0 whatever it gets, so 1.0 is the best minimum.
        assert!(low > 0.999, "{low} {shares:?}");
    }

    /// Three equal jobs on two equal GPUs get two thirds each.
    #[test]
    fn shares_equally_among_equals() {
        let shares = max_min(&[row(3, 1, &[1.0])], &[2]);
        assert!((shares[0][0] - 2.0 / 3.0).abs() < 1e-3, "{shares:?}");
    }

    /// One GPU of each model; job a has speeds (4, 1), jobs b and c (1, 1). By hand: a runs on the fast one alone for a
    /// share x and reaches 4 x / 2.5, b and c split the other 2 - x evenly: 1.6 x = 1 - x / 2, so x = 10 / 21.
    #[test]
    fn reaches_the_hand_worked_optimum() {
        let rows = [row(1, 1, &[4.0, 1.0]), row(2, 1, &[1.0, 1.0])];
        let shares = max_min(&rows, &[1, 1]);
        let low = reached(&rows[0], &shares[0], &[1, 1]).min(reached(&rows[1], &shares[1], &[1, 1]));
        assert!((low - 16.0 / 21.0).abs() < 1e-3, "{low} {shares:?}");
    }

    #[test]
    fn never_overbooks_and_leaves_out_what_cannot_run() {
        let rows = [row(40, 1, &[3.0, 1.0, 0.0]), row(7, 4, &[1.0, 2.0, 5.0]), row(90, 2, &[1.0, 1.0, 1.0])];
        let fleet = [16, 8, 2];
        let shares = max_min(&rows, &fleet);
        for (model, have) in fleet.iter().enumerate() {
            let used: f64 =
                rows.iter().zip(&shares).map(|(r, s)| f64::from(r.count * r.workers) * s[model]).sum();
            assert!(used <= f64::from(*have) + 1e-9);
        }
        assert_eq!(shares[0][2], 0.0);
        assert_eq!(shares[1][2], 0.0, "a gang of 4 cannot use 2 workers");
        assert!(max_min(&[], &fleet).is_empty());
        assert_eq!(max_min(&[row(1, 1, &[0.0, 0.0, 0.0])], &fleet), vec![vec![0.0; 3]]);
    }
}
