//! The warden's deciders in virtual time: G6, G10's end of the offender, S13's order, R026 and R052.

use super::*;
use crate::logic::reclaim::PATIENCE_MS;
use rota_protocol::JobId;
use rota_protocol::care::ReleaseStep::{Memory, Nodes, Processes, Scrub, Verify};

const RULES: Rules = Rules { outside_allowed: false, scrubs: false, vram_warns: false, vram_slack_mib: 512 };

/// A host under a virtual clock.
struct Host {
    duty: Duty,
    cards: BTreeMap<DeviceUuid, CardSeen>,
    log: BTreeMap<Token, Granted>,
    closed: BTreeSet<DeviceUuid>,
    rules: Rules,
    now_ms: u64,
}

fn card(name: &str) -> DeviceUuid {
    DeviceUuid(name.into())
}

fn seen(used_mib: u64, processes: &[(u32, u64, Whose)]) -> CardSeen {
    let process =
        |(pid, mib, whose): &(u32, u64, Whose)| Seen { pid: *pid, mib: Some(*mib), whose: whose.clone() };
    CardSeen {
        processes: Some(processes.iter().map(process).collect()),
        used_mib: Some(used_mib),
        total_mib: Some(80 << 10),
        busy_permille: Some(0),
    }
}

impl Host {
    fn new() -> Self {
        let cards = [(card("a"), seen(600, &[])), (card("b"), seen(600, &[]))].into();
        let (duty, log, closed) = (Duty::default(), BTreeMap::new(), BTreeSet::new());
        let mut host = Self { duty, cards, log, closed, rules: RULES, now_ms: 0 };
        assert_eq!(host.look(), []);
        host
    }

    fn grant(&mut self, token: u64, devices: &[&str], share_mib: Option<u64>) {
        let granted = Granted {
            task: TaskId { job: JobId(token), index: 0 },
            devices: devices.iter().map(|name| card(name)).collect(),
            gpu_milli: 1_000,
            share_mib,
            running: true,
            idle: IdleRule::default(),
            idle_until_ms: None,
            cpu_ms: None,
            io_bytes: None,
        };
        self.log.insert(Token(token), granted);
    }

    fn shows(&mut self, name: &str, used_mib: u64, processes: &[(u32, u64, Whose)]) {
        self.cards.insert(card(name), seen(used_mib, processes));
    }

    fn give_back(&mut self, token: u64) {
        let devices = self.log[&Token(token)].devices.clone();
        self.duty.give_back(Token(token), &devices, self.rules, self.now_ms);
    }

    /// One look; nodes that are to be looked at are found closed within it.
    fn look(&mut self) -> Vec<Do> {
        let mut todo = self.one_look();
        while let Some(at) = todo.iter().position(|one| matches!(one, Do::LookAtNodes(..))) {
            let Do::LookAtNodes(token, uuid) = todo.remove(at) else { unreachable!("found as such") };
            self.duty.opened(token, BTreeMap::from([(uuid, Vec::new())]));
            let now_ms = self.now_ms;
            todo.extend(self.duty.look_for_returns(&self.cards, &self.log, &self.closed, self.rules, now_ms));
        }
        todo
    }

    fn one_look(&mut self) -> Vec<Do> {
        let times = (self.now_ms, self.now_ms);
        self.duty.looked(&self.cards, &self.log, &self.closed, self.rules, times)
    }

    /// Looks each half second until something is to be done; gives that and the time it took.
    fn until_something(&mut self) -> (u64, Vec<Do>) {
        let began = self.now_ms;
        for _ in 0..1_000 {
            let todo = self.look();
            if !todo.is_empty() {
                return (self.now_ms - began, todo);
            }
            self.now_ms += 500;
            // The log learns within a look which cards are closed.
            self.closed = self.duty.marks(self.rules).into_keys().collect();
        }
        panic!("nothing happened within 500 s");
    }

    fn marked(&self) -> Vec<String> {
        self.duty.marks(self.rules).into_iter().map(|(uuid, why)| format!("{uuid}: {why}")).collect()
    }
}

#[test]
fn a_clean_card_is_returned_by_the_first_look() {
    let mut host = Host::new();
    host.grant(1, &["a"], None);
    host.give_back(1);
    let release = Release { steps: vec![Processes, Nodes, Memory], took_ms: 0, dirty: None };
    assert_eq!(host.look(), [Do::Returned(Token(1), release, Vec::new())]);
    assert!(!host.duty.is_hurried());
}

/// G6: the end is told after 30 s with the card closed in the log, and only that card; it comes back by itself.
#[test]
fn a_card_that_is_not_let_go_is_dirty_after_30_s_and_the_other_is_free() {
    let mut host = Host::new();
    host.grant(1, &["a", "b"], None);
    host.shows("a", 10_840, &[(77, 10_240, Whose::Stranger("eve".into()))]);
    host.give_back(1);
    let (took_ms, todo) = host.until_something();
    assert!((PATIENCE_MS..=PATIENCE_MS + 1_000).contains(&took_ms), "{took_ms} ms");
    let [Do::Returned(Token(1), release, left)] = todo.as_slice() else { panic!("{todo:?}") };
    assert_eq!(release.dirty.as_deref(), Some("pid 77 of eve with 10240 MiB on a"));
    assert_eq!(left, &[card("a")]);
    host.log.clear();
    assert_eq!(host.marked(), ["a: pid 77 of eve with 10240 MiB on a"]);
    host.now_ms += 100_000;
    assert_eq!(host.look(), [], "it stays so");
    host.shows("a", 600, &[]);
    assert_eq!(host.look(), [Do::Back(Token(1))]);
    assert_eq!(host.marked(), Vec::<String>::new());
}

#[test]
fn an_end_is_not_told_before_the_log_has_the_card_closed() {
    let mut host = Host::new();
    host.grant(1, &["a"], None);
    host.shows("a", 9_000, &[]);
    host.give_back(1);
    for _ in 0..200 {
        assert_eq!(host.look(), []);
        host.now_ms += 500;
    }
    assert_eq!(host.marked(), ["a: 8400 MiB in use on a without a process"]);
    host.closed.insert(card("a"));
    assert!(matches!(host.look().as_slice(), [Do::Returned(..)]));
}

/// S13: nothing is scrubbed under a process, and the card is looked at again after it.
#[test]
fn a_scrub_comes_after_the_proofs_and_before_the_end_is_told() {
    let mut host = Host::new();
    host.rules.scrubs = true;
    host.grant(1, &["a"], None);
    host.shows("a", 2_000, &[(7, 1_400, Whose::Attempt(Token(1)))]);
    host.give_back(1);
    assert_eq!(host.look(), []);
    host.shows("a", 600, &[]);
    assert_eq!(host.look(), [Do::Scrub(Token(1), card("a"))]);
    assert_eq!(host.look(), []);
    host.duty.scrubbed(Token(1), &card("a"), Ok(()), host.now_ms);
    let todo = host.look();
    let [Do::Returned(_, release, _)] = todo.as_slice() else { panic!("{todo:?}") };
    assert_eq!(release.steps, [Processes, Nodes, Memory, Scrub, Verify]);
    // A scrub that fails closes the card, and its end is told when the log knows.
    host.grant(2, &["b"], None);
    host.give_back(2);
    assert_eq!(host.look(), [Do::Scrub(Token(2), card("b"))]);
    host.duty.scrubbed(Token(2), &card("b"), Err("exit 1".into()), host.now_ms);
    assert_eq!(host.marked(), ["b: it could not be scrubbed: exit 1"]);
    assert!(matches!(host.until_something().1.as_slice(), [Do::Returned(..)]));
}

/// A share is given back although its neighbour's process and memory are there; the neighbour is not ended.
#[test]
fn the_offender_of_a_shared_card_is_ended_and_given_back_beside_its_neighbour() {
    let mut host = Host::new();
    host.grant(1, &["a"], Some(20 << 10));
    host.grant(2, &["a"], Some(20 << 10));
    let own = |token, pid, gib: u64| (pid, gib << 10, Whose::Attempt(Token(token)));
    host.shows("a", 52 << 10, &[own(1, 7, 31), own(2, 8, 20)]);
    assert_eq!(host.look(), []);
    host.now_ms += 2_000;
    let cause = HostCause::Vram { asked_mib: 20 << 10, used_mib: 31 << 10 };
    assert_eq!(host.look(), [Do::End(Token(1), cause)]);
    host.shows("a", 21 << 10, &[own(2, 8, 20)]);
    host.give_back(1);
    assert!(matches!(host.look().as_slice(), [Do::Returned(Token(1), ..)]));
    assert_eq!(host.marked(), Vec::<String>::new());
    // Where the site only warns.
    let mut host = Host::new();
    host.rules.vram_warns = true;
    host.grant(1, &["a"], Some(20 << 10));
    host.shows("a", 52 << 10, &[own(1, 7, 31)]);
    host.look();
    host.now_ms += 2_000;
    let words = "vram limit: asked 20 GiB, used 31 GiB".to_owned();
    assert_eq!(host.look(), [Do::Note(Token(1), words)]);
}

/// R026, and what a site may say about it.
#[test]
fn a_card_that_is_used_outside_is_marked_and_returns() {
    let mut host = Host::new();
    host.shows("b", 10_840, &[(99, 10_240, Whose::Stranger("bob".into()))]);
    host.look();
    assert_eq!(host.marked(), ["b: used outside: pid 99 of bob with 10240 MiB"]);
    host.rules.outside_allowed = true;
    assert_eq!(host.marked(), Vec::<String>::new());
    // There a job's card is given back although a stranger is on it.
    host.grant(1, &["b"], None);
    host.give_back(1);
    assert!(matches!(host.look().as_slice(), [Do::Returned(..)]));
    host.rules.outside_allowed = false;
    host.log.clear();
    host.shows("b", 600, &[]);
    host.look();
    assert_eq!(host.marked(), Vec::<String>::new());
}

#[test]
fn a_job_on_a_card_of_another_is_told_with_both_cards() {
    let mut host = Host::new();
    host.grant(1, &["b"], None);
    host.shows("a", 3_000, &[(12, 2_000, Whose::Attempt(Token(1)))]);
    let words = "its process 12 is on a, and it was granted b".to_owned();
    assert_eq!(host.look(), [Do::Note(Token(1), words)]);
    assert_eq!(host.look(), []);
}
