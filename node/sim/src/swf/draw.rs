//! Synthetic logs from a seed: users with a few programs each, which they run again and again with limits of round
//! numbers. For tests, which must not lean on files that a checkout lacks, and as a check that a policy tuned on one
//! machine's year holds elsewhere. Not a model of any real machine.

use super::log::{Log, LogJob};
use crate::rng::Rng;

/// Limits that people type, s.
const LIMITS_S: [u64; 11] = [120, 300, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400, 172_800];
/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// What to draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrawConfig {
    /// Same seed, same log.
    pub seed: u64,
    /// How many jobs.
    pub jobs: usize,
    /// How many users.
    pub users: u64,
    /// Processors of the machine; no job asks more than half, but for one program in thirty.
    pub processors: u32,
    /// Offered work by capacity over the span of the log, permille.
    pub load_permille: u64,
}

/// A program that a user runs again and again.
struct Program {
    number: u64,
    processors: u32,
    run_s: f64,
    spread: f64,
    fails: f64,
    limit_s: u64,
}

/// A log in order of submission. Jobs of one user come in bursts of one program, by day more than by night; run times
/// of a program are log-normal around its own median, some runs fail early, and limits are round and too long.
#[must_use]
pub fn draw(config: &DrawConfig) -> Vec<LogJob> {
    let mut rng = Rng::new(config.seed);
    let mut programs_drawn = 0;
    let users: Vec<Vec<Program>> = (0..config.users.max(1))
        .map(|_| {
            let count = 1 + rng.below(6);
            (0..count)
                .map(|_| {
                    programs_drawn += 1;
                    program(&mut rng, programs_drawn, config.processors)
                })
                .collect()
        })
        .collect();
    let mut jobs = Vec::with_capacity(config.jobs);
    let mut now_s = 0.0;
    while jobs.len() < config.jobs {
        now_s += rng.exponential(1_800.0);
        let hour = (now_s as u64 % DAY_S) / 3_600;
        if !(8..20).contains(&hour) && rng.below(4) > 0 {
            continue;
        }
        // The square of a uniform number favours the first users: a few do most of the work.
        let user = ((rng.unit() * rng.unit()) * users.len() as f64) as usize;
        let of_user = &users[user];
        let program = &of_user[rng.below(of_user.len() as u64) as usize];
        burst(&mut rng, program, user as u64 + 1, now_s, config.jobs, &mut jobs);
    }
    jobs.sort_by_key(|job| (job.submit_s, job.number));
    stretch(&mut jobs, config);
    jobs
}

/// The same log with every submission moved later by less than `later_s`, at random: a schedule is chaotic, so that one
/// replay of one log says little about which of two near policies is better.
#[must_use]
pub fn jitter(log: &Log, seed: u64, later_s: u64) -> Log {
    let mut rng = Rng::new(seed);
    let mut moved = log.clone();
    for job in &mut moved.jobs {
        job.submit_s += rng.below(later_s);
    }
    moved.jobs.sort_by_key(|job| job.submit_s);
    moved
}

/// Standard normal, by the sum of twelve uniform numbers: tails beyond six sigma do not exist, which suits here.
fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0
}

fn program(rng: &mut Rng, number: u64, processors: u32) -> Program {
    let half = (processors / 2).max(1);
    let exponent = rng.below(u64::from(half.ilog2()) + 1) as u32;
    let narrow = 2_u32.pow(exponent) + if rng.below(3) == 0 { rng.below(3) as u32 } else { 0 };
    let processors = if rng.below(30) == 0 { processors.max(4) / 4 * 3 } else { narrow.min(half) };
    let run_s = (900.0 * (2.0 * normal(rng)).exp()).clamp(5.0, 100_000.0);
    let wanted_s = run_s * (1.2 + rng.exponential(2.0));
    let limit_s = LIMITS_S.into_iter().find(|limit| *limit as f64 >= wanted_s).unwrap_or(LIMITS_S[10]);
    Program { number, processors, run_s, spread: 0.05 + 0.6 * rng.unit(), fails: 0.25 * rng.unit(), limit_s }
}

fn burst(rng: &mut Rng, program: &Program, user: u64, from_s: f64, most: usize, jobs: &mut Vec<LogJob>) {
    let count = 1 + rng.exponential(3.0) as usize;
    let mut at_s = from_s;
    for _ in 0..count.min(most - jobs.len()) {
        let usual_s = program.run_s * (program.spread * normal(rng)).exp();
        let run_s = if rng.unit() < program.fails { rng.exponential(30.0) } else { usual_s };
        jobs.push(LogJob {
            number: jobs.len() as u64 + 1,
            submit_s: at_s as u64,
            run_s: (run_s as u64).clamp(1, program.limit_s),
            limit_s: program.limit_s,
            processors: program.processors,
            user,
            program: Some(program.number),
        });
        at_s += rng.exponential(600.0);
    }
}

/// Moves submissions apart, or together, until the log offers the wanted load.
fn stretch(jobs: &mut [LogJob], config: &DrawConfig) {
    let area: u64 = jobs.iter().map(|job| job.run_s * u64::from(job.processors)).sum();
    let span_s = jobs.last().map_or(0, |job| job.submit_s).max(1);
    let wanted_s = area * 1_000 / (u64::from(config.processors) * config.load_permille.max(1));
    for job in jobs {
        job.submit_s = (u128::from(job.submit_s) * u128::from(wanted_s) / u128::from(span_s)) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: DrawConfig =
        DrawConfig { seed: 7, jobs: 1_000, users: 30, processors: 64, load_permille: 700 };

    #[test]
    fn a_seed_gives_one_log_of_the_wanted_load() {
        let jobs = draw(&CONFIG);
        assert_eq!(jobs, draw(&CONFIG));
        assert_ne!(jobs, draw(&DrawConfig { seed: 8, ..CONFIG }));
        assert_eq!(jobs.len(), 1_000);
        assert!(jobs.is_sorted_by_key(|job| job.submit_s));
        assert!(jobs.iter().all(|job| (1..=job.limit_s).contains(&job.run_s)));
        assert!(jobs.iter().all(|job| (1..=64).contains(&job.processors)));
        let work: u64 = jobs.iter().map(|job| job.run_s * u64::from(job.processors)).sum();
        let load_permille = work * 1_000 / (64 * jobs[999].submit_s);
        assert!((695..=705).contains(&load_permille), "{load_permille}");
    }

    #[test]
    fn jitter_moves_submissions_and_nothing_else() {
        let log = Log { jobs: draw(&CONFIG), processors: 64, left_out: 0 };
        let moved = jitter(&log, 1, 600);
        assert!(moved.jobs.is_sorted_by_key(|job| job.submit_s));
        assert_ne!(moved, log);
        let by_number = |log: &Log| {
            let mut jobs = log.jobs.clone();
            jobs.sort_by_key(|job| job.number);
            jobs
        };
        for (was, is) in by_number(&log).into_iter().zip(by_number(&moved)) {
            assert!((was.submit_s..was.submit_s + 600).contains(&is.submit_s));
            assert_eq!(LogJob { submit_s: was.submit_s, ..is }, was);
        }
        assert_eq!(jitter(&log, 1, 0), log, "no room to move");
    }
}
