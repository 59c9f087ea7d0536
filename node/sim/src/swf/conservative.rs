//! Conservative backfilling: every waiting job has a reservation, and all are planned anew, in order of submission,
//! whenever something ends. A baseline; it shows what promises to all cost.

use super::machine::{Machine, Policy};

/// Reservations for all, by limits.
pub(super) struct Conservative;

impl Policy for Conservative {
    fn round(&mut self, machine: &mut Machine<'_>) {
        let mut profile = Profile::new(machine);
        let queue = machine.waiting.clone();
        for queued in queue {
            let start_s = profile.earliest_s(queued.width, queued.limit_s);
            profile.take(start_s, queued.limit_s, queued.width);
            machine.promise(queued.job, start_s);
            if start_s == machine.now_s
                && let Some(at) = machine.waiting.iter().position(|waiting| waiting.job == queued.job)
            {
                machine.start(at);
            }
        }
    }
}

/// Free processors over time: from each second on until the next, the last for ever.
struct Profile(Vec<(u64, u32)>);

impl Profile {
    fn new(machine: &Machine<'_>) -> Self {
        let mut ends: Vec<(u64, u32)> =
            machine.running.iter().map(|job| (job.limit_end_s, job.width)).collect();
        ends.sort_unstable();
        let mut steps = vec![(machine.now_s, machine.free)];
        let mut free = machine.free;
        for (end_s, width) in ends {
            free += width;
            match steps.last_mut().filter(|(at_s, _)| *at_s == end_s) {
                Some(step) => step.1 = free,
                None => steps.push((end_s, free)),
            }
        }
        Self(steps)
    }

    /// The first second from which `width` processors are free for `length_s`.
    fn earliest_s(&self, width: u32, length_s: u64) -> u64 {
        let mut from_s = None;
        for (at_s, free) in &self.0 {
            match from_s {
                Some(from_s) if from_s + length_s <= *at_s => return from_s,
                _ if *free < width => from_s = None,
                None => from_s = Some(*at_s),
                Some(_) => {}
            }
        }
        // The last step has all processors free, and no job asks more than there are.
        from_s.unwrap_or_else(|| self.0.last().map_or(0, |(at_s, _)| *at_s))
    }

    fn take(&mut self, from_s: u64, length_s: u64, width: u32) {
        let from = self.cut(from_s);
        let to = self.cut(from_s + length_s);
        for (_, free) in &mut self.0[from..to] {
            *free -= width;
        }
    }

    /// The position of the step that begins at a second, made if there is none.
    fn cut(&mut self, at_s: u64) -> usize {
        match self.0.binary_search_by_key(&at_s, |(step_s, _)| *step_s) {
            Ok(at) => at,
            Err(at) => {
                let free = self.0[at - 1].1;
                self.0.insert(at, (at_s, free));
                at
            }
        }
    }
}
