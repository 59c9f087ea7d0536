//! The row of clocks beyond the bound: C3. Three hosts compare their clocks by the product's own decider; one begins to run
//! five percent too fast or too slow. Beside it stands what that does to a lease, by the product's deciders of both sides.

use crate::real::row::Row;
use crate::world::clock::{Clock, RATE_TRUE};
use crate::world::rng::Rng;
use rota_node::logic::drift::{ASK_MS, Answer, Drift, Verdict};
use rota_node::logic::lease::{LeaseHolder, LeaseParams};
use rota_node::logic::lease_book::LeaseBook;
use rota_node::logic::own_drain::Change;
use rota_protocol::{BootId, HostId, LeaseEpoch};

/// The row.
pub(super) const ROW: (&str, &str) =
    ("C3", "a clock five percent off: until its host says clock_drift>rho and takes no new work");
/// Until it is known, in ms.
const KNOWN_MS: u64 = 10_000;
/// From when on the clock is off, in ms.
const OFF_MS: u64 = 60_000;
/// How much a sound clock may be off, in ten-thousandths: crystals are about half of that.
const SOUND: u64 = 2;
const HOSTS: usize = 3;

/// A clock whose rate changes once, in us.
#[derive(Clone, Copy)]
struct Watch {
    before: Clock,
    off_rate: u64,
}

impl Watch {
    fn us(&self, true_us: u64) -> u64 {
        let turn_us = OFF_MS * 1_000;
        let at = |rate: u64, us: u64| u128::from(us) * u128::from(rate) / u128::from(RATE_TRUE);
        let sound = at(self.before.rate, true_us.min(turn_us));
        let off = at(self.off_rate, true_us.saturating_sub(turn_us));
        self.before.origin_ms * 1_000 + u64::try_from(sound + off).unwrap_or(u64::MAX)
    }
}

/// Tries it once.
pub(super) fn row(seed: u64) -> Row {
    let mut row = Row::new(ROW.0, ROW.1, Some(KNOWN_MS));
    let mut rng = Rng::new(seed);
    let wrong = usize::try_from(rng.below(HOSTS as u64)).unwrap_or(0);
    let percent = RATE_TRUE / 20;
    let off_rate = if rng.chance(500) { RATE_TRUE - percent } else { RATE_TRUE + percent };
    let clocks: Vec<Watch> = (0..HOSTS)
        .map(|host| {
            let rate = rng.range(RATE_TRUE - SOUND, RATE_TRUE + SOUND);
            let before = Clock { since_ms: 0, origin_ms: rng.range(0, 1_000_000), rate };
            Watch { before, off_rate: if host == wrong { off_rate } else { rate } }
        })
        .collect();
    let mut deciders = vec![Drift::new(LeaseParams::CHAOS); HOSTS];
    let mut known = None;
    for round in 0..(OFF_MS + 4 * KNOWN_MS) / ASK_MS {
        let true_us = round * ASK_MS * 1_000;
        for me in 0..HOSTS {
            let mut now_us = true_us;
            for other in (0..HOSTS).filter(|other| *other != me) {
                // A quick way, or now and then a very slow one.
                let longest_us = if rng.chance(100) { 400_000 } else { 3_000 };
                let (there, back) = (rng.range(50, longest_us), rng.range(50, longest_us));
                let answer = Answer {
                    asked_us: clocks[me].us(true_us),
                    heard_us: clocks[me].us(true_us + there + back),
                    theirs_us: clocks[other].us(true_us + there),
                    boot: BootId(other as u128 + 1),
                };
                deciders[me].heard(HostId(other as u64 + 1), answer);
                now_us = now_us.max(true_us + there + back);
            }
            let verdict = deciders[me].look(clocks[me].us(now_us));
            let drained = deciders[me].decide(verdict, clocks[me].us(now_us), None);
            if me == wrong && now_us > OFF_MS * 1_000 {
                let slow = off_rate < RATE_TRUE;
                if let Verdict::Broken(ppm) = verdict {
                    row.must((ppm < 0) == slow, || format!("a clock at {off_rate} was told as {ppm} ppm"));
                    row.must(matches!(drained, Some(Change::Drain(_))), || {
                        format!("it takes work: {drained:?}")
                    });
                    known.get_or_insert(now_us / 1_000 - OFF_MS);
                }
            } else {
                row.must(verdict == Verdict::Sound, || {
                    format!(
                        "at {now_us} us host {me} was told {verdict:?}, host {wrong} is off by {off_rate}"
                    )
                });
            }
        }
    }
    match known {
        Some(ms) => row.ran(ms),
        None => row.wrong("the alarm never came"),
    }
    row.also("overlap_ms", overlap_ms(off_rate), None);
    row
}

/// How long two copies may live at once when the holder's clock is that far off: what tokens are there for.
fn overlap_ms(rate: u64) -> u64 {
    let (params, host, epoch) = (LeaseParams::CHAOS, HostId(1), LeaseEpoch(1));
    let clock = Clock { since_ms: 0, origin_ms: 0, rate };
    let (mut holder, mut book) = (LeaseHolder::new(params), LeaseBook::new(params));
    holder.set_epoch(epoch);
    book.on_elected([(host, epoch)], 0);
    let Some(renewal) = holder.send(clock.local(0)) else { return 0 };
    let stops_ms = holder.ack(renewal, clock.local(1)).map_or(0, |deadline| clock.true_at(deadline));
    let gone_ms = (0..20_000).find(|now| !book.due(*now).is_empty()).unwrap_or(20_000);
    stops_ms.saturating_sub(gone_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::row::Outcome;

    #[test]
    fn a_clock_beyond_the_bound_is_known_over_many_seeds() {
        let mut all = Row::new(ROW.0, ROW.1, None);
        (1..=200).for_each(|seed| all.merge(row(seed)));
        assert_eq!((all.outcome(), all.runs), (Outcome::Held, 200), "{}", all.lines());
    }

    /// A holder within the bound leaves no overlap, one beyond it does: the row is about something.
    #[test]
    fn beyond_the_bound_two_copies_may_live() {
        assert_eq!(overlap_ms(RATE_TRUE - RATE_TRUE / 200), 0);
        assert!(overlap_ms(RATE_TRUE - RATE_TRUE / 20) > 0);
    }
}
