//! The continuous trace of the experiment: Poisson arrivals of jobs with drawn programs, sizes and lengths, number for
//! number as published for a seed. Lengths are what the job would take on a V100; the work asked is that in steps.

use super::GavelError;
use super::rates::Rates;
use super::twister::Twister;

/// The programs of the trace in the order in which they are drawn, each with its settings; the last three families
/// run on one GPU only.
const PROGRAMS: [(&str, &[u32], bool); 7] = [
    ("ResNet-18", &[16, 32, 64, 128, 256], true),
    ("ResNet-50", &[16, 32, 64, 128], true),
    ("Transformer", &[16, 32, 64, 128, 256], true),
    ("LM", &[5, 10, 20, 40, 80], true),
    ("Recommendation", &[512, 1024, 2048, 4096, 8192], false),
    ("A3C", &[], false),
    ("CycleGAN", &[], false),
];

/// One job as it arrives.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Arrival {
    /// When, in seconds.
    pub(super) at_s: f64,
    /// Index into the classes of the rates.
    pub(super) class: usize,
    /// GPUs it needs at a time.
    pub(super) workers: u32,
    /// The work it asks for.
    pub(super) steps: f64,
}

/// An endless trace.
#[derive(Debug)]
pub(super) struct Trace<'a> {
    rates: &'a Rates,
    programs: Vec<(String, bool)>,
    multi_gpu: bool,
    jobs: Twister,
    gaps: Twister,
    mean_gap_s: f64,
    next_at_s: f64,
}

impl<'a> Trace<'a> {
    /// A trace of so many jobs per hour.
    #[must_use]
    pub(super) fn new(rates: &'a Rates, jobs_per_hour: f64, multi_gpu: bool, seed: u32) -> Self {
        let mut programs = Vec::new();
        for (name, settings, gangs) in PROGRAMS {
            programs.extend(settings.iter().map(|batch| (format!("{name} (batch size {batch})"), gangs)));
            if settings.is_empty() {
                programs.push((name.to_owned(), gangs));
            }
        }
        let (jobs, gaps) = (Twister::new(seed.wrapping_add(2)), Twister::new(seed.wrapping_add(3)));
        Self { rates, programs, multi_gpu, jobs, gaps, mean_gap_s: 3600.0 / jobs_per_hour, next_at_s: 0.0 }
    }

    /// When the next job arrives, in seconds.
    #[must_use]
    pub(super) fn next_at_s(&self) -> f64 {
        self.next_at_s
    }

    /// Draws the next job.
    ///
    /// # Errors
    /// If the rates lack a program of the trace.
    pub(super) fn draw(&mut self) -> Result<Arrival, GavelError> {
        let drawn = match self.jobs.unit() {
            size if size < 0.7 => 1,
            size if size < 0.8 => 2,
            size if size < 0.95 => 4,
            _ => 8,
        };
        let long = self.jobs.unit() >= 0.8;
        let power = if long { 3.0 + self.jobs.unit() } else { 1.5 + 1.5 * self.jobs.unit() };
        let workers = if self.multi_gpu { drawn } else { 1 };
        let program = loop {
            let program = self.jobs.below(self.programs.len() as u32) as usize;
            if workers == 1 || self.programs[program].1 {
                break &self.programs[program].0;
            }
        };
        let class = self.rates.class(program, workers).ok_or_else(|| GavelError::Class(program.clone()))?;
        if self.rates.alone[class][0] <= 0.0 {
            return Err(GavelError::Still(format!("('{program}', {workers})")));
        }
        let steps = 60.0 * 10.0_f64.powf(power) * self.rates.alone[class][0];
        let arrival = Arrival { at_s: self.next_at_s, class, workers, steps };
        self.next_at_s -= (1.0 - self.gaps.unit()).ln() * self.mean_gap_s;
        Ok(arrival)
    }
}
