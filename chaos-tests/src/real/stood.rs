//! How long this program itself stood still, because the machine gave its time to others. What a scenario measures then is the
//! load and not Rota: a bound that was missed by no more than that says nothing, and the scenario says that it starved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the watch sleeps at a time; what is on top of that is time that it did not get.
const NAP: Duration = Duration::from_millis(5);
/// Oversleeping by less is how machines are.
const NOISE: Duration = Duration::from_millis(10);

type Times = Arc<Mutex<Vec<(Instant, Duration)>>>;

/// A thread that only looks at the time.
pub(super) struct Stood {
    times: Times,
    over: Arc<AtomicBool>,
}

impl Stood {
    /// Watches from now on.
    pub(super) fn begin() -> Self {
        let (times, over) = (Times::default(), Arc::new(AtomicBool::new(false)));
        let (noted, ended) = (times.clone(), over.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(NAP);
                let stood = began.elapsed().saturating_sub(NAP);
                if stood > NOISE {
                    noted.lock().unwrap_or_else(PoisonError::into_inner).push((began, stood));
                }
            }
        });
        Self { times, over }
    }

    /// Time that was not had since then.
    fn since(&self, from: Instant) -> Duration {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let after = times.iter().rev().take_while(|(began, stood)| *began + NAP + *stood > from);
        after.map(|(began, stood)| (*began + NAP + *stood).duration_since(from).min(*stood)).sum()
    }

    /// The longest time at a stretch, in ms.
    pub(super) fn longest_ms(&self) -> u64 {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.iter().map(|(_, stood)| stood.as_millis() as u64).max().unwrap_or(0)
    }

    /// What it took since then, in ms; or why that says nothing about a bound that it misses.
    pub(super) fn judge(&self, from: Instant, bound_ms: u64) -> Result<u64, String> {
        judged(from.elapsed().as_millis() as u64, || self.since(from).as_millis() as u64, bound_ms)
    }
}

impl Drop for Stood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn judged(took_ms: u64, stood_ms: impl FnOnce() -> u64, bound_ms: u64) -> Result<u64, String> {
    if took_ms <= bound_ms {
        return Ok(took_ms);
    }
    let stood_ms = stood_ms();
    if took_ms.saturating_sub(stood_ms) > bound_ms {
        return Ok(took_ms);
    }
    Err(format!(
        "starved: {took_ms} ms where {bound_ms} are stated, of which this program itself stood still for {stood_ms} ms"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_that_nobody_had_excuses_a_bound() {
        assert_eq!(judged(2_400, || 0, 2_500), Ok(2_400));
        assert_eq!(judged(6_790, || 900, 2_500), Ok(6_790));
        let starved = judged(6_790, || 4_400, 2_500).unwrap_err();
        assert!(starved.starts_with("starved: 6790 ms where 2500"), "{starved}");
    }

    #[test]
    fn time_before_the_question_does_not_count() {
        let stood = Stood { times: Times::default(), over: Arc::default() };
        let asked = Instant::now();
        let before = asked.checked_sub(Duration::from_secs(3)).unwrap();
        let ms = Duration::from_millis;
        stood.times.lock().unwrap().extend([
            (before, ms(2_000)),
            (asked - ms(105), ms(400)),
            (asked + ms(500), ms(70)),
        ]);
        assert_eq!(stood.since(asked), ms(300 + 70));
        assert_eq!(stood.longest_ms(), 2_000);
    }
}
