//! A training job as the experiment plays it: steps, epochs, changes of the batch, and what is foreseen of it.

use super::adapt::{Mode, batch_max, critical, doubled, foreseen};
use super::trace::{Speeds, TraceJob};
use super::{ALONE_S_MAX, EPOCHS_MAX, ShockwaveError};
use std::path::PathBuf;

/// A job that has arrived.
#[derive(Debug, Clone)]
pub(super) struct Training {
    /// As it arrived.
    pub(super) asked: TraceJob,
    batch: u64,
    steps_total: u64,
    steps_done: u64,
    /// The rule asked for another batch; it is taken after the next round in which the job runs.
    wants: Option<Want>,
    /// Foreseen time of each epoch alone, in seconds.
    epochs_s: Vec<f64>,
    /// Time it has run, in seconds.
    pub(super) ran_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Want {
    Larger,
    First,
}

impl Training {
    /// Whether a job can be played, told before anything is kept of it: its epochs may be many.
    ///
    /// # Errors
    /// The speeds lack its program, or it takes longer than an experiment.
    pub(super) fn check(asked: &TraceJob, speeds: &Speeds) -> Result<(), ShockwaveError> {
        let epochs = epochs(asked);
        if epochs > EPOCHS_MAX {
            let (program, steps) = (program(asked, asked.batch), asked.steps);
            return Err(ShockwaveError::Epochs { program, steps, epochs });
        }
        let mut alone_s = 0.0;
        for epoch_s in epochs_s(asked, speeds) {
            alone_s += epoch_s?;
            if alone_s > ALONE_S_MAX {
                break;
            }
        }
        if alone_s <= ALONE_S_MAX {
            return Ok(());
        }
        let rate = speeds.get(&(asked.model.clone(), asked.batch, asked.gpus)).copied().unwrap_or(1.0);
        let alone_s = alone_s.max(asked.steps as f64 / rate);
        Err(ShockwaveError::Long { program: program(asked, asked.batch), steps: asked.steps, alone_s })
    }

    /// A new job.
    ///
    /// # Errors
    /// As for [`Self::check`], which is asked before.
    pub(super) fn new(asked: TraceJob, speeds: &Speeds) -> Result<Self, ShockwaveError> {
        let epochs_s = epochs_s(&asked, speeds).collect::<Result<Vec<f64>, _>>()?;
        let (batch, steps_total) = (asked.batch, asked.steps);
        Ok(Self { asked, batch, steps_total, steps_done: 0, wants: None, epochs_s, ran_s: 0.0 })
    }

    /// Its whole time alone as foreseen, in seconds.
    #[must_use]
    pub(super) fn alone_s(&self) -> f64 {
        self.epochs_s.iter().sum()
    }

    /// Steps per second now.
    #[must_use]
    pub(super) fn rate(&self, speeds: &Speeds) -> f64 {
        speeds.get(&(self.asked.model.clone(), self.batch, self.asked.gpus)).copied().unwrap_or(0.0)
    }

    /// Steps left at the batch of now.
    #[must_use]
    pub(super) fn steps_left(&self) -> u64 {
        self.steps_total.saturating_sub(self.steps_done)
    }

    /// Books steps.
    pub(super) fn ran(&mut self, steps: u64, time_s: f64) {
        self.steps_done += steps;
        self.ran_s += time_s;
    }

    fn per_epoch(&self, batch: u64) -> u64 {
        self.asked.samples.div_ceil(batch)
    }

    /// Time left as foreseen, in seconds: whole epochs of the plan, the current one in part.
    #[must_use]
    pub(super) fn left_foreseen_s(&self) -> f64 {
        let done = self.steps_done as f64 / self.per_epoch(self.batch) as f64;
        let whole = (done as usize).min(self.epochs_s.len());
        let begun = self.epochs_s.get(whole).map_or(0.0, |epoch| epoch * (done - whole as f64));
        (self.epochs_s[whole..].iter().sum::<f64>() - begun).max(1.0)
    }

    /// Time left if the batch never changed again, in seconds.
    #[must_use]
    pub(super) fn left_at_this_batch_s(&self, speeds: &Speeds) -> f64 {
        let rate = self.rate(speeds);
        if rate > 0.0 { self.steps_left() as f64 / rate } else { f64::INFINITY }
    }

    /// The rule looks at the epoch reached and may ask for another batch.
    pub(super) fn look(&mut self) {
        let (model, first, max) = (self.asked.model.as_str(), self.asked.batch, batch_max(&self.asked.model));
        let epoch = self.steps_done.div_ceil(self.per_epoch(self.batch));
        let at_max = max.is_none_or(|max| self.batch >= max);
        match self.asked.mode {
            Mode::Gns if !at_max => {
                let target = |epoch| doubled(model, first, self.asked.gpus, epoch);
                if target(epoch + 1) > self.batch || target(epoch) > self.batch {
                    self.wants = Some(Want::Larger);
                }
            }
            Mode::Accordion if max.is_some() => {
                let in_phase = critical(model, first, epoch);
                if self.batch == first && !in_phase && !at_max {
                    self.wants = Some(Want::Larger);
                } else if self.batch != first && in_phase {
                    self.wants = Some(Want::First);
                }
            }
            _ => {}
        }
    }

    /// Takes the batch asked for, if the speeds know it. Whole epochs are kept: those done and those in all.
    pub(super) fn adapt(&mut self, speeds: &Speeds) {
        let Some(want) = self.wants.take() else { return };
        let Some(max) = batch_max(&self.asked.model).filter(|max| self.asked.batch < *max) else { return };
        let batch = match (want, self.asked.mode) {
            (Want::First, _) => self.asked.batch,
            (Want::Larger, Mode::Accordion) => max,
            (Want::Larger, _) => self.batch * 2,
        };
        if !speeds.get(&(self.asked.model.clone(), batch, self.asked.gpus)).is_some_and(|rate| *rate > 0.0) {
            return;
        }
        let (old, new) = (self.per_epoch(self.batch), self.per_epoch(batch));
        let epochs = self.steps_total.div_ceil(old);
        let scaled = (self.steps_total * self.batch).div_ceil(batch);
        self.steps_total = if scaled.div_ceil(new) == epochs { scaled } else { new * epochs };
        self.steps_done = self.steps_done.div_ceil(old) * new;
        self.batch = batch;
    }
}

/// How many epochs the steps asked are.
fn epochs(asked: &TraceJob) -> u64 {
    asked.steps.div_ceil(asked.samples.div_ceil(asked.batch))
}

/// Time of each epoch alone as foreseen, in seconds, or the program that has no speed.
fn epochs_s<'a>(
    asked: &'a TraceJob,
    speeds: &'a Speeds,
) -> impl Iterator<Item = Result<f64, ShockwaveError>> + use<'a> {
    let batches = foreseen(&asked.model, asked.batch, asked.gpus, epochs(asked), asked.mode);
    batches.map(|batch| {
        let rate = speeds.get(&(asked.model.clone(), batch, asked.gpus)).filter(|rate| **rate > 0.0);
        let missing = || ShockwaveError::Speed { path: PathBuf::new(), program: program(asked, batch) };
        Ok(asked.samples as f64 / batch as f64 / *rate.ok_or_else(missing)?)
    })
}

/// A program as the table of speeds names it.
fn program(asked: &TraceJob, batch: u64) -> String {
    format!("('{} (batch size {batch})', {})", asked.model, asked.gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(mode: Mode) -> (Training, Speeds) {
        let rate = |batch: u64| (("LM".to_owned(), batch, 1), 100.0);
        let speeds: Speeds = [10, 20, 40, 80].into_iter().map(rate).collect();
        let asked = TraceJob {
            model: "LM".into(),
            batch: 10,
            samples: 59_675,
            steps: 5968 * 30,
            gpus: 1,
            mode,
            arrival_s: 0.0,
        };
        (Training::new(asked, &speeds).unwrap(), speeds)
    }

    /// 30 epochs of 5968 steps; after 10 of them the batch grows eightfold, and 20 epochs of 746 steps are left.
    #[test]
    fn a_larger_batch_keeps_the_epochs() {
        let (mut job, speeds) = job(Mode::Accordion);
        job.look();
        job.adapt(&speeds);
        assert_eq!(job.steps_left(), 5968 * 30, "the first epochs are critical");
        job.ran(5968 * 10, 1.0);
        job.look();
        job.adapt(&speeds);
        assert_eq!((job.batch, job.steps_left()), (80, 746 * 20));
        assert!((job.left_at_this_batch_s(&speeds) - 149.2).abs() < 1e-9);
    }

    #[test]
    fn foreseen_time_falls_with_progress() {
        let (mut job, _) = job(Mode::Static);
        assert!((job.alone_s() - 30.0 * 59.675).abs() < 1e-6);
        job.ran(5968 * 15, 1.0);
        assert!((job.left_foreseen_s() - 15.0 * 59.675).abs() < 1e-6);
    }
}
