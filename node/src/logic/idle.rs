//! Who holds cards and does nothing with them (report R091)? Judged over a window by several signs: a process on the
//! card, its load, its memory, processor time, and bytes read or written by the task. Any one of them that moved within
//! the window speaks for the task; the card's load alone speaks for nobody, because some cards report load with nothing
//! on them, and waiting for a lock looks like none.
//!
//! Sans-io. Nothing is ended without a warning before it, and each warning has a window of its own.

use rota_protocol::care::{HostCause, IdleMode, IdleRule};
use std::collections::BTreeMap;

use rota_protocol::Token;

/// Load from which a card does something, in permille.
pub const BUSY_PERMILLE_MIN: u16 = 20;
/// Memory that moves without meaning anything, in MiB.
pub const MEMORY_MIB_MIN: u64 = 16;
/// Processor time that a program which waits may use, in thousandths of a core.
pub const CPU_MILLI_MIN: u64 = 20;
/// Bytes a second that a program which waits may read and write: log lines and heartbeats.
pub const IO_BYTES_S_MIN: u64 = 64 << 10;

/// What one look says of one attempt that holds cards. What cannot be told is absent and speaks for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signs {
    /// A process of it is on one of its cards.
    pub on_card: bool,
    /// The greatest load of its cards.
    pub busy_permille: Option<u16>,
    /// Memory of its processes on all its cards, in MiB.
    pub memory_mib: Option<u64>,
    /// Processor time of all its processes so far, in ms; less than before when one has ended.
    pub cpu_ms: Option<u64>,
    /// Bytes that its processes read and wrote so far; likewise.
    pub io_bytes: Option<u64>,
}

/// One attempt that holds cards, by the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Cards that it holds, in thousandths.
    pub gpu_milli: u32,
    /// Its queue's rule.
    pub rule: IdleRule,
    /// Idleness is intended until then, ms since the epoch.
    pub until_ms: Option<u64>,
    /// What the look says.
    pub signs: Signs,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Tell its owner.
    Warn(String),
    /// End it.
    End(HostCause),
    /// Card-milliseconds that it held idle since its start.
    Count(u64),
}

/// What is known between looks.
#[derive(Debug, Clone, Default)]
pub struct IdleWatch {
    held: BTreeMap<Token, Held>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    last: Signs,
    looked_ms: u64,
    /// Since when nothing moved.
    still_ms: u64,
    warned: u8,
    ended: bool,
    /// Idle before the present stillness, in ms.
    before_ms: u64,
    counted_ms: u64,
}

impl Held {
    fn new(signs: Signs, now_ms: u64) -> Self {
        let (looked_ms, still_ms) = (now_ms, now_ms);
        Self { last: signs, looked_ms, still_ms, warned: 0, ended: false, before_ms: 0, counted_ms: 0 }
    }

    fn moved(&self, now: &Signs, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.looked_ms).max(1);
        let busy = now.on_card && now.busy_permille.is_some_and(|busy| busy >= BUSY_PERMILLE_MIN);
        let memory = self.last.memory_mib.zip(now.memory_mib);
        let memory = memory.is_some_and(|(before, now)| before.abs_diff(now) >= MEMORY_MIB_MIN);
        let cpu =
            grown(self.last.cpu_ms, now.cpu_ms).is_some_and(|ms| ms * 1_000 >= CPU_MILLI_MIN * since_ms);
        let bytes = grown(self.last.io_bytes, now.io_bytes)
            .is_some_and(|bytes| bytes.saturating_mul(1_000) >= IO_BYTES_S_MIN * since_ms);
        busy || memory || cpu || bytes || now.on_card != self.last.on_card
    }

    /// Idle time so far: what came before, and the present stillness once it is longer than the window.
    fn idle_ms(&self, window_ms: u64, now_ms: u64) -> u64 {
        let still_ms = now_ms.saturating_sub(self.still_ms);
        self.before_ms + if still_ms >= window_ms { still_ms } else { 0 }
    }
}

/// Nothing when it is less than before: a process has ended, which is told by what is left.
fn grown(before: Option<u64>, now: Option<u64>) -> Option<u64> {
    now?.checked_sub(before?)
}

impl IdleWatch {
    /// Takes in all attempts that hold cards, none left out. `now_ms` only grows, `wall_ms` is of the epoch.
    pub fn looked(
        &mut self,
        holders: &BTreeMap<Token, Holder>,
        now_ms: u64,
        wall_ms: u64,
    ) -> Vec<(Token, Act)> {
        self.held.retain(|token, _| holders.contains_key(token));
        let mut acts = Vec::new();
        for (token, holder) in holders {
            let held = self.held.entry(*token).or_insert_with(|| Held::new(holder.signs, now_ms));
            let intended = holder.until_ms.is_some_and(|until_ms| wall_ms < until_ms);
            if intended || held.moved(&holder.signs, now_ms) {
                held.before_ms = held.idle_ms(holder.rule.window_ms, held.looked_ms);
                (held.still_ms, held.warned) = (now_ms, 0);
            }
            (held.last, held.looked_ms) = (holder.signs, now_ms);
            acts.extend(held.judge(holder, now_ms).into_iter().map(|act| (*token, act)));
        }
        acts
    }

    /// How long each attempt has been still now, in ms, and whether it has a process on its cards: those without first.
    #[must_use]
    pub fn still(&self, now_ms: u64) -> Vec<(Token, u64, bool)> {
        let row = |(token, held): (&Token, &Held)| {
            (*token, now_ms.saturating_sub(held.still_ms), held.last.on_card)
        };
        let mut rows: Vec<_> = self.held.iter().map(row).collect();
        rows.sort_by_key(|(token, still_ms, on_card)| (*on_card, std::cmp::Reverse(*still_ms), *token));
        rows
    }
}

impl Held {
    fn judge(&mut self, holder: &Holder, now_ms: u64) -> Vec<Act> {
        let IdleRule { mode, window_ms, warnings } = holder.rule;
        let still_ms = now_ms.saturating_sub(self.still_ms);
        let mut acts = Vec::new();
        let windows = still_ms / window_ms.max(1);
        let wants_warning = mode != IdleMode::Report && windows > u64::from(self.warned);
        if wants_warning && self.warned < warnings {
            self.warned += 1;
            acts.push(Act::Warn(self.words(holder, still_ms)));
        } else if wants_warning && mode == IdleMode::End && !self.ended {
            self.ended = true;
            acts.push(Act::End(HostCause::Idle { idle_ms: still_ms }));
        }
        let idle_ms = self.idle_ms(window_ms, now_ms);
        // Told by the window: an entry of the log each second would be dear.
        if idle_ms >= self.counted_ms.saturating_add(window_ms) || idle_ms > self.counted_ms && still_ms == 0
        {
            self.counted_ms = idle_ms;
            acts.push(Act::Count(idle_ms.saturating_mul(u64::from(holder.gpu_milli)) / 1_000));
        }
        acts
    }

    fn words(&self, holder: &Holder, still_ms: u64) -> String {
        let what = if self.last.on_card { "its processes do nothing" } else { "no process of it is on them" };
        let left = holder.rule.warnings.saturating_sub(self.warned);
        let then = match (holder.rule.mode, left) {
            (IdleMode::End, 0) => "; it is ended after another such time".to_owned(),
            (IdleMode::End, left) => format!("; {left} more warnings before it is ended"),
            _ => String::new(),
        };
        format!("it holds its cards idle for {} min: {what}{then}", still_ms / 60_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: u64 = 60_000;

    /// A watch under a virtual clock that looks every ten seconds.
    struct Clock {
        watch: IdleWatch,
        now_ms: u64,
        acts: Vec<(u64, Act)>,
    }

    impl Clock {
        fn new() -> Self {
            Self { watch: IdleWatch::default(), now_ms: 0, acts: Vec::new() }
        }

        fn run(&mut self, minutes: u64, rule: IdleRule, until_ms: Option<u64>, signs: impl Fn(u64) -> Signs) {
            for _ in 0..minutes * 6 {
                self.now_ms += 10_000;
                let holder = Holder { gpu_milli: 2_000, rule, until_ms, signs: signs(self.now_ms) };
                let acts = self.watch.looked(&BTreeMap::from([(Token(1), holder)]), self.now_ms, self.now_ms);
                self.acts.extend(acts.into_iter().map(|(_, act)| (self.now_ms / MIN, act)));
            }
        }

        fn warned_and_ended(&self) -> (usize, usize) {
            let warned = self.acts.iter().filter(|(_, act)| matches!(act, Act::Warn(_))).count();
            (warned, self.acts.iter().filter(|(_, act)| matches!(act, Act::End(_))).count())
        }

        fn counted_min(&self) -> u64 {
            let last = self.acts.iter().rev().find_map(|(_, act)| match act {
                Act::Count(gpu_ms) => Some(*gpu_ms),
                _ => None,
            });
            last.unwrap_or(0) / MIN
        }
    }

    fn ends() -> IdleRule {
        IdleRule { mode: IdleMode::End, window_ms: 30 * MIN, warnings: 2 }
    }

    fn still(_: u64) -> Signs {
        let (cpu_ms, io_bytes) = (Some(500), Some(9));
        Signs { on_card: true, busy_permille: Some(0), memory_mib: Some(40_000), cpu_ms, io_bytes }
    }

    #[test]
    fn a_dead_program_under_a_living_wrapper_is_warned_then_ended() {
        let mut clock = Clock::new();
        clock.run(60 * 3, ends(), None, |_| Signs { on_card: false, memory_mib: Some(0), ..still(0) });
        assert_eq!(clock.warned_and_ended(), (2, 1));
        let minutes: Vec<u64> =
            clock.acts.iter().filter(|(_, a)| !matches!(a, Act::Count(_))).map(|(m, _)| *m).collect();
        assert_eq!(minutes, [30, 60, 90]);
        let Act::Warn(words) = &clock.acts[0].1 else { panic!("{:?}", clock.acts[0]) };
        assert!(words.contains("30 min: no process of it is on them; 1 more warnings"), "{words}");
        let end = clock.acts.iter().find(|(_, act)| matches!(act, Act::End(_)));
        assert_eq!(end.map(|(_, act)| act), Some(&Act::End(HostCause::Idle { idle_ms: 90 * MIN })));
    }

    #[test]
    fn idle_after_a_busy_start_is_seen_although_its_average_is_not() {
        let mut clock = Clock::new();
        clock.run(10, ends(), None, |at| Signs { busy_permille: Some(900), cpu_ms: Some(at), ..still(0) });
        clock.run(65, ends(), None, still);
        assert_eq!(clock.warned_and_ended(), (2, 0));
        // Two cards, 60 of the 65 minutes told by then.
        assert_eq!(clock.counted_min(), 120);
    }

    #[test]
    fn any_other_sign_speaks_for_it() {
        let busy: [fn(u64) -> Signs; 4] = [
            |at| Signs { cpu_ms: Some(at / 10), ..still(0) },
            |at| Signs { io_bytes: Some(at * 100), ..still(0) },
            |at| Signs { memory_mib: Some(at / 100), ..still(0) },
            |_| Signs { busy_permille: Some(400), ..still(0) },
        ];
        for signs in busy {
            let mut clock = Clock::new();
            clock.run(120, ends(), None, signs);
            assert_eq!(clock.acts, []);
        }
    }

    #[test]
    fn a_card_stuck_at_full_load_with_nothing_on_it_does_not_speak_for_its_holder() {
        let mut clock = Clock::new();
        clock.run(95, ends(), None, |_| Signs { on_card: false, busy_permille: Some(1_000), ..still(0) });
        assert_eq!(clock.warned_and_ended(), (2, 1));
    }

    #[test]
    fn work_between_takes_the_warnings_back_and_intended_idleness_is_none() {
        let mut clock = Clock::new();
        for _ in 0..10 {
            clock.run(65, ends(), None, still);
            clock.run(1, ends(), None, |at| Signs { cpu_ms: Some(at), ..still(0) });
        }
        let (warned, ended) = clock.warned_and_ended();
        assert!(warned >= 19 && ended == 0, "{warned} {ended}");
        let mut clock = Clock::new();
        clock.run(600, ends(), Some(600 * MIN), still);
        assert_eq!(clock.acts, []);
        clock.run(91, ends(), Some(600 * MIN), still);
        assert_eq!(clock.warned_and_ended(), (2, 1));
    }

    #[test]
    fn rules_say_how_far_it_goes() {
        let only = |mode| IdleRule { mode, ..ends() };
        for (mode, warned) in [(IdleMode::Report, 0), (IdleMode::Warn, 2)] {
            let mut clock = Clock::new();
            clock.run(301, only(mode), None, still);
            assert_eq!(clock.warned_and_ended(), (warned, 0), "{mode:?}");
            assert_eq!(clock.counted_min(), 600, "it is counted whatever the rule");
        }
    }

    #[test]
    fn who_has_no_process_at_all_is_reported_first() {
        let mut watch = IdleWatch::default();
        let holder = |on_card| Holder {
            gpu_milli: 1_000,
            rule: ends(),
            until_ms: None,
            signs: Signs { on_card, ..still(0) },
        };
        let all = BTreeMap::from([(Token(1), holder(true)), (Token(2), holder(false))]);
        watch.looked(&all, 0, 0);
        assert_eq!(watch.still(5), [(Token(2), 5, false), (Token(1), 5, true)]);
    }
}
