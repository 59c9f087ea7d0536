//! Does this host's clock run as fast as the others' (fault C3)? Leases rest on that: a clock that is slower than the bound
//! of drift keeps a task alive into its successor's life.
//!
//! Sans-io. A host asks a few peers what their boot-time clocks say. An answer was given at some time between question and
//! answer, so two of them bound the rate from both sides, whatever the network does: a slow answer only says less. Who
//! differs from most of those who answered is the one that is wrong; of two hosts alone nobody knows, and both are.

use super::lease::LeaseParams;
use super::own_drain::Change;
use rota_protocol::{BootId, HostId};
use std::collections::{BTreeMap, VecDeque};

/// How a drain of this decider's own begins; one that says anything else is left alone.
pub const REASON: &str = "clock_drift";
/// How often peers are asked, in ms: two questions within the ten seconds after which it must be known.
pub const ASK_MS: u64 = 2_500;
/// Peers that are asked.
pub const PEERS_MAX: usize = 4;
/// Answers of one peer that are kept.
const ANSWERS_MAX: usize = 6;
/// Answers older than this say nothing about now.
const OLD_US: u64 = 15_000_000;
/// A clock must have been sound for so long before its host gets work again, in us.
const SOUND_US: u64 = 30_000_000;
const MILLION: i128 = 1_000_000;

/// One answer: this host's clock before and after, and the peer's in between, in us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Own clock when it was asked.
    pub asked_us: u64,
    /// Own clock when the answer was here.
    pub heard_us: u64,
    /// The peer's clock.
    pub theirs_us: u64,
    /// Clocks of two boots have nothing in common.
    pub boot: BootId,
}

/// What is known of this host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing speaks against it.
    Sound,
    /// It is off by at least this, in millionths (more than 0: fast), which is more than half of what leases bear.
    Suspect(i64),
    /// It is off by more than leases bear.
    Broken(i64),
}

impl Verdict {
    /// By how much it is off at least, in millionths.
    #[must_use]
    pub fn ppm(self) -> i64 {
        match self {
            Self::Sound => 0,
            Self::Suspect(ppm) | Self::Broken(ppm) => ppm,
        }
    }
}

/// The decider.
#[derive(Debug, Clone)]
pub struct Drift {
    rho_ppm: i64,
    answers: BTreeMap<HostId, VecDeque<Answer>>,
    off_us: Option<u64>,
}

impl Drift {
    /// With the bound of drift that leases rest on.
    #[must_use]
    pub fn new(params: LeaseParams) -> Self {
        let rho_ppm = i64::try_from(params.drift_permille).unwrap_or(i64::MAX).saturating_mul(1_000);
        Self { rho_ppm, answers: BTreeMap::new(), off_us: None }
    }

    /// A peer answered.
    pub fn heard(&mut self, host: HostId, answer: Answer) {
        let kept = self.answers.entry(host).or_default();
        let goes_on = |last: &Answer| {
            last.boot == answer.boot && last.theirs_us <= answer.theirs_us && last.heard_us <= answer.heard_us
        };
        if !kept.back().is_none_or(goes_on) {
            kept.clear();
        }
        if kept.len() >= ANSWERS_MAX {
            kept.pop_front();
        }
        kept.push_back(answer);
    }

    /// Looks at all answers.
    pub fn look(&mut self, now_us: u64) -> Verdict {
        let recent = |answer: &Answer| now_us.saturating_sub(answer.heard_us) <= OLD_US;
        for kept in self.answers.values_mut() {
            kept.retain(recent);
        }
        self.answers.retain(|_, kept| !kept.is_empty());
        let rates: Vec<i64> = self.answers.values().filter_map(own_rate_ppm).collect();
        let verdict = match (most(&rates, self.rho_ppm), most(&rates, self.rho_ppm / 2)) {
            (Some(ppm), _) => Verdict::Broken(ppm),
            (None, Some(ppm)) => Verdict::Suspect(ppm),
            (None, None) => Verdict::Sound,
        };
        if verdict != Verdict::Sound {
            self.off_us = Some(now_us);
        }
        verdict
    }

    /// What is to be done about it, by why the host is drained, if it is. One that is off gets no new work, and leads no
    /// more, as any drained host; what runs goes on under its lease and its token.
    #[must_use]
    pub fn decide(&self, verdict: Verdict, now_us: u64, drained: Option<&str>) -> Option<Change> {
        let is_own = drained.is_some_and(|reason| reason.starts_with(REASON));
        match verdict {
            Verdict::Suspect(ppm) | Verdict::Broken(ppm) if drained.is_none() => {
                let (bound, way) = (self.rho_ppm / 2, if ppm > 0 { "fast" } else { "slow" });
                let off = ppm.unsigned_abs();
                Some(Change::Drain(format!("{REASON}: at least {off} ppm too {way}, {bound} are allowed")))
            }
            Verdict::Sound if is_own => {
                let long = self.off_us.is_none_or(|off_us| now_us.saturating_sub(off_us) >= SOUND_US);
                long.then_some(Change::Undrain)
            }
            _ => None,
        }
    }
}

/// The least by which the own clock differs from one peer's, in millionths; more than 0: it is faster. None without two
/// answers.
fn own_rate_ppm(answers: &VecDeque<Answer>) -> Option<i64> {
    let newest = answers.back()?;
    let against = answers.iter().take(answers.len() - 1).map(|old| {
        let theirs = i128::from(newest.theirs_us) - i128::from(old.theirs_us);
        let least = i128::from(newest.asked_us) - i128::from(old.heard_us);
        let most = i128::from(newest.heard_us) - i128::from(old.asked_us);
        match () {
            () if theirs <= 0 || least <= 0 => 0,
            () if least > theirs => (least - theirs) * MILLION / theirs,
            () if most < theirs => (most - theirs) * MILLION / theirs,
            () => 0,
        }
    });
    against.max_by_key(|ppm| ppm.abs()).map(|ppm| i64::try_from(ppm).unwrap_or(i64::MAX))
}

/// By how much the clock is off at least, by the word of most peers; none if they do not say that it is more than this.
fn most(rates: &[i64], above: i64) -> Option<i64> {
    let signs: [fn(i64) -> i64; 2] = [|ppm| ppm, |ppm| -ppm];
    signs.into_iter().find_map(|sign| {
        let off: Vec<i64> = rates.iter().copied().filter(|ppm| sign(*ppm) > above).collect();
        let least = off.iter().copied().min_by_key(|ppm| ppm.abs());
        least.filter(|_| off.len() * 2 > rates.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Answers of a peer whose clock goes so many us in a second of ours, at ways of these lengths.
    fn peer(drift: &mut Drift, host: u64, second_us: u64, ways_us: &[(u64, u64)]) {
        for (at, (there, back)) in ways_us.iter().enumerate() {
            let asked_us = 100 * SECOND + at as u64 * ASK_MS * 1_000;
            let theirs_us = 7 * SECOND + (asked_us + there) / 1_000 * second_us / 1_000;
            let answer =
                Answer { asked_us, heard_us: asked_us + there + back, theirs_us, boot: BootId(host.into()) };
            drift.heard(HostId(host), answer);
        }
    }

    fn looked(peers: &[(u64, &[(u64, u64)])]) -> Verdict {
        let mut drift = Drift::new(LeaseParams::CHAOS);
        for (number, (second_us, ways_us)) in peers.iter().enumerate() {
            peer(&mut drift, number as u64 + 2, *second_us, ways_us);
        }
        drift.look(110 * SECOND)
    }

    const LAN: &[(u64, u64)] = &[(200, 300), (900, 150), (250, 250)];

    #[test]
    fn a_clock_is_off_if_most_others_say_so() {
        let even = (SECOND, LAN);
        let (slower, faster) = ((952_381, LAN), (1_052_632, LAN));
        assert_eq!(looked(&[even, even]), Verdict::Sound);
        assert!(matches!(looked(&[slower, slower]), Verdict::Broken(49_000..=50_100)));
        assert!(matches!(looked(&[faster, faster]), Verdict::Broken(-50_100..=-49_000)));
        assert_eq!(looked(&[slower, even]), Verdict::Sound, "the other one is off");
        assert_eq!(looked(&[slower, faster]), Verdict::Sound, "each of them is");
        assert!(matches!(looked(&[slower]), Verdict::Broken(_)), "of two nobody knows");
        assert!(matches!(looked(&[slower, slower, even]), Verdict::Broken(_)));
        assert!(matches!(looked(&[(992_000, LAN), (992_000, LAN)]), Verdict::Suspect(7_000..=8_100)));
        assert_eq!(looked(&[(999_800, LAN), (1_000_200, LAN)]), Verdict::Sound, "crystals differ");
    }

    #[test]
    fn slow_and_uneven_ways_say_less_and_nothing_wrong() {
        let uneven: &[(u64, u64)] = &[(1, 400_000), (400_000, 1), (1, 1), (200_000, 200_000)];
        assert_eq!(looked(&[(SECOND, uneven), (SECOND, uneven)]), Verdict::Sound);
        let frozen: &[(u64, u64)] = &[(200, 300), (2_400_000, 50_000), (200, 300)];
        assert_eq!(looked(&[(SECOND, frozen), (SECOND, frozen)]), Verdict::Sound);
        assert!(matches!(looked(&[(950_000, frozen), (950_000, frozen)]), Verdict::Broken(_)));
        assert_eq!(looked(&[(950_000, &LAN[..1]), (950_000, &LAN[..1])]), Verdict::Sound, "one answer");
    }

    #[test]
    fn another_boot_and_old_answers_say_nothing() {
        let mut drift = Drift::new(LeaseParams::CHAOS);
        for host in [2, 3] {
            peer(&mut drift, host, 950_000, LAN);
            let fresh = Answer {
                asked_us: 106 * SECOND,
                heard_us: 106 * SECOND + 400,
                theirs_us: 5,
                boot: BootId(99),
            };
            drift.heard(HostId(host), fresh);
        }
        assert_eq!(drift.look(107 * SECOND), Verdict::Sound);
        peer(&mut drift, 2, 950_000, LAN);
        assert_eq!(drift.look(200 * SECOND), Verdict::Sound);
    }

    #[test]
    fn a_host_that_is_off_takes_no_work_until_it_was_sound_for_long() {
        let mut drift = Drift::new(LeaseParams::CHAOS);
        peer(&mut drift, 2, 992_000, LAN);
        let now_us = 106 * SECOND;
        let verdict = drift.look(now_us);
        let Some(Change::Drain(reason)) = drift.decide(verdict, now_us, None) else { panic!("{verdict:?}") };
        assert!(reason.starts_with(REASON) && reason.ends_with("too fast, 5000 are allowed"), "{reason}");
        assert_eq!(drift.decide(verdict, now_us, Some("new fans")), None);
        assert_eq!(drift.decide(verdict, now_us, Some(&reason)), None);
        for (seconds, wanted) in [(29, None), (30, Some(Change::Undrain))] {
            let then_us = now_us + seconds * SECOND;
            assert_eq!(drift.decide(Verdict::Sound, then_us, Some(&reason)), wanted);
            assert_eq!(drift.decide(Verdict::Sound, then_us, Some("new fans")), None);
        }
    }
}
