//! Nobody is ended in vain (faults T6, T5; field reports R042 to R045): over random stories in which preemptors come and are
//! cancelled at any point and victims end when they like, each victim is ended at most once for one preemptor, nothing is
//! ended for one that is cancelled beyond what was under way, and no card is lost.

use crate::lab::Lab;
use rota_core::hash::mix;
use rota_protocol::command::{Command, Outcome};
use rota_protocol::job::{AttemptEnd, AttemptState, EndReason};
use rota_protocol::plan::{Move, Plan, Refusal};
use rota_protocol::{JobId, TaskId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// What the victims look like: each fills the cluster, so that a preemptor always needs some of them.
const VICTIMS: [&[&str]; 5] = [
    &["gpus=4 prio=10 retries=1", "gpus=4 prio=10 retries=1"],
    &["gpus=2 prio=10", "gpus=2 prio=20", "gpus=4 prio=10"],
    &["gpus=1 gang=8 prio=10"],
    &["gpus=1 gang=2..8 prio=10"],
    &["gpus=1 array=0-7 prio=10"],
];
const PREEMPTORS: [&str; 4] = ["gpus=4 prio=90", "gpus=2 prio=90", "gpus=1 gang=6 prio=90", "gpus=8 prio=90"];
const STEPS: u64 = 60;

/// A lab that knows for whom each attempt was ended.
struct Story {
    lab: Lab,
    seed: u64,
    drawn: u64,
    /// How often a task was ended for a preemptor.
    ended: BTreeMap<(JobId, TaskId), u32>,
    /// What is under way for somebody.
    going: BTreeMap<Token, JobId>,
    cancelled: BTreeSet<JobId>,
    /// How many were ended, and how many preemptors were cancelled while their victims were going.
    evictions: u32,
    cancelled_amid: u32,
    stale: u32,
}

impl Story {
    fn new(seed: u64) -> Self {
        Self {
            lab: Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB"]),
            seed,
            drawn: 0,
            ended: BTreeMap::new(),
            going: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            evictions: 0,
            cancelled_amid: 0,
            stale: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.drawn += 1;
        mix(self.seed.wrapping_mul(1_000_003).wrapping_add(self.drawn)) % below
    }

    /// Commits a plan that may be older than the state; all that is accepted must be just.
    fn commit(&mut self, plan: Plan, fresh: bool) {
        if plan.moves.is_empty() {
            return;
        }
        let moves = plan.moves.clone();
        let Outcome::Planned { refused } = self.lab.system(Command::CommitPlan { plan }) else {
            panic!("seed {}: no plan", self.seed);
        };
        assert!(!fresh || refused.is_empty(), "seed {}: {refused:?}", self.seed);
        let refused: BTreeMap<u32, Refusal> = refused.into_iter().collect();
        for (at, one) in (0_u32..).zip(&moves) {
            let Move::Evict { job: Some(job), reason: EndReason::Preempt, victims, .. } = one else {
                continue;
            };
            if refused.contains_key(&at) {
                self.stale += 1;
                continue;
            }
            assert!(!self.cancelled.contains(job), "seed {}: ended for a cancelled job: {one:?}", self.seed);
            for token in victims {
                let attempt = self.lab.state.attempt(*token).expect("still ending");
                assert_eq!(attempt.state, AttemptState::Ending);
                let often = self.ended.entry((*job, attempt.task)).or_default();
                *often += 1;
                assert!(*often <= 1, "seed {}: {:?} was ended twice for {job}", self.seed, attempt.task);
                assert_eq!(self.going.insert(*token, *job), None, "seed {}: ended again", self.seed);
                self.evictions += 1;
            }
        }
    }

    /// Some of what was asked to end does, by itself or as asked.
    fn obey(&mut self, some: bool) {
        let ending = self.lab.state.attempts().filter(|a| a.state == AttemptState::Ending);
        let ending: Vec<(Token, AttemptEnd)> =
            ending.map(|a| (a.token, a.end_reason.expect("a reason").end())).collect();
        for (token, asked) in ending {
            if some && self.draw(3) > 0 {
                continue;
            }
            let end = match self.draw(3) {
                0 => AttemptEnd::Signalled { signal: 15 },
                _ => asked,
            };
            self.lab.end(token, end);
            self.going.remove(&token);
        }
    }

    fn start(&mut self, some: bool) {
        let granted = self.lab.state.attempts().filter(|a| a.state == AttemptState::Granted);
        for token in granted.map(|a| a.token).collect::<Vec<_>>() {
            if !some || self.draw(2) > 0 {
                self.lab.start(token);
            }
        }
    }

    fn cancel(&mut self, job: JobId) {
        let amid = self.going.values().any(|beneficiary| *beneficiary == job);
        self.cancelled_amid += u32::from(amid);
        self.lab.cancel(job);
        self.cancelled.insert(job);
    }

    fn round(&mut self) -> bool {
        let plan = self.lab.plan();
        let some = !plan.moves.is_empty();
        self.commit(plan, true);
        some
    }

    fn settle(&mut self) {
        for _ in 0..64 {
            let planned = self.round();
            self.start(false);
            self.obey(false);
            if !planned && !self.lab.state.attempts().any(|a| a.state == AttemptState::Ending) {
                return;
            }
        }
        panic!("seed {}: rounds without end: {:?}", self.seed, self.lab.plan());
    }

    fn tell(mut self, victims: &[&str]) -> [u32; 3] {
        let low: Vec<JobId> = victims.iter().map(|line| self.lab.submit(line)).collect();
        self.settle();
        let mut open: Vec<JobId> = Vec::new();
        // Taken before something happened, committed after it.
        let mut old: Option<Plan> = None;
        for _ in 0..STEPS {
            self.lab.now_ms += self.draw(400);
            match self.draw(8) {
                0 if open.len() < 3 => {
                    let line = PREEMPTORS[self.draw(4) as usize];
                    open.push(self.lab.submit(line));
                }
                1 if !open.is_empty() => {
                    let at = self.draw(open.len() as u64) as usize;
                    let job = open.swap_remove(at);
                    self.cancel(job);
                }
                2 => self.obey(true),
                3 => self.start(true),
                4 => old = Some(self.lab.plan()),
                5 => {
                    if let Some(plan) = old.take() {
                        self.commit(plan, false);
                    }
                }
                _ => _ = self.round(),
            }
        }
        for job in open {
            self.cancel(job);
        }
        self.settle();
        // A task that failed may try again after a pause.
        self.lab.now_ms += 3_600_000;
        self.settle();
        let waits = |job: &&JobId| self.lab.state_of(**job) == "pending";
        let idle = self.lab.state.attempts().count() == 0;
        assert!(!idle || !low.iter().any(|job| waits(&job)), "seed {}: nothing runs", self.seed);
        // Whoever is spared by now is ended by its user.
        for job in low {
            self.lab.cancel(job);
        }
        self.obey(false);
        let all = self.lab.submit("gpus=1 array=0-7 prio=50");
        self.settle();
        assert_eq!(self.lab.state.attempts_of(all).count(), 8, "seed {}: a card is lost", self.seed);
        [self.evictions, self.cancelled_amid, self.stale]
    }
}

#[test]
fn each_victim_is_ended_once_for_one_preemptor_whenever_that_is_cancelled() {
    let mut met = [0; 3];
    for (kind, victims) in (0_u64..).zip(VICTIMS) {
        for seed in 0..30 {
            let seen = Story::new(kind * 1_000 + seed).tell(victims);
            met = [0, 1, 2].map(|at| met[at] + seen[at]);
        }
    }
    let [evictions, cancelled_amid, stale] = met;
    println!("{evictions} evictions, {cancelled_amid} cancels amid them, {stale} stale ones refused");
    assert!(evictions > 300 && cancelled_amid > 50 && stale > 20, "not exercised: {met:?}");
}

/// The plan was made before the cancel and is committed after it.
#[test]
fn a_cancel_that_overtakes_the_plan_ends_nobody() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
    let low = lab.submit("gpus=4 prio=10");
    lab.round();
    let token = lab.token(low);
    lab.start(token);
    let high = lab.submit("gpus=4 prio=90");
    let plan = lab.plan();
    assert!(matches!(plan.moves[..], [Move::Evict { .. }]), "{plan:?}");
    lab.cancel(high);
    assert_eq!(
        lab.system(Command::CommitPlan { plan }),
        Outcome::Planned { refused: vec![(0, Refusal::NotPending)] }
    );
    assert_eq!(lab.state.attempt(token).expect("live").state, AttemptState::Running);
    // And one that comes while the victim goes: its room is the victim's again, which runs once more and no third time.
    let again = lab.submit("gpus=4 prio=90");
    lab.round();
    assert_eq!(lab.state.attempt(token).expect("live").state, AttemptState::Ending);
    lab.cancel(again);
    assert_eq!(lab.round(), 0);
    lab.end(token, AttemptEnd::Preempted);
    while lab.round() > 0 {}
    let known = lab.state.job(low).expect("low");
    assert_eq!((known.evicted, known.live), (1, 1));
}
