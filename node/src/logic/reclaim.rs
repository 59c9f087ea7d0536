//! Is a card free again? After an attempt's last process is gone, its cards go through fixed steps, each proven by a look
//! at the card (faults G6, S13; report R052): no process on it, nothing that has its device node open, memory back at
//! what an idle card uses, a scrub where the site wants one, and a last look. An attempt's end is told to the log only
//! then; after [`PATIENCE_MS`] the cards are declared dirty instead, with what is left on them as the reason, and come
//! back by themselves once they are clean.
//!
//! Sans-io: looks and times are arguments. Who looks, and how often, is the warden's business.

use rota_protocol::care::{Release, ReleaseStep};
use rota_protocol::limits::REASON_BYTES_MAX;
use rota_protocol::{DeviceUuid, Token};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How long cards may take to become clean before they are declared dirty, in ms (fault G6).
pub const PATIENCE_MS: u64 = 30_000;
/// Memory above the idle card's own that does not make it busy, in MiB: drivers keep a few MiB for themselves even when
/// no process is there (report R026).
pub const SLACK_MIB: u64 = 64;
/// Pause before a scrub that failed is tried again, in ms: it may reset the card, which is no light thing.
pub const SCRUB_PAUSE_MS: u64 = 60_000;
/// Processes named in a reason.
const NAMED_MAX: usize = 3;

/// A process that is still on a card, or has its node open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its id on this host.
    pub pid: u32,
    /// Whose it is, as far as that can be read.
    pub user: Option<String>,
    /// Its memory on the card, in MiB, if the driver tells.
    pub mib: Option<u64>,
}

/// What one look saw of one card. Processes and memory of attempts that share the card and live on are taken out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CardLook {
    /// Processes on it; none if the driver did not answer.
    pub processes: Option<Vec<Left>>,
    /// Who has its device node open and began no earlier than the attempt; none if that was not looked at.
    pub openers: Option<Vec<Left>>,
    /// Memory above that of the idle card, in MiB; none if the driver did not answer.
    pub over_mib: Option<u64>,
    /// Others share the card: its memory says nothing, and it is not scrubbed under them.
    pub shared: bool,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Look again.
    Look,
    /// Look also at who has these cards' nodes open: a dear look, so only when all else is well.
    LookAtNodes,
    /// Scrub these cards.
    Scrub(Vec<DeviceUuid>),
    /// The cards are dirty, and this is why: once, and again when the reason is another.
    Dirty(String),
    /// Clean. Comes once, and is the last.
    Clean,
}

/// The cards of one attempt that is over.
#[derive(Debug, Clone)]
pub struct Reclaim {
    token: Token,
    cards: Vec<DeviceUuid>,
    scrubs: bool,
    began_ms: u64,
    steps: Vec<ReleaseStep>,
    scrub: Scrub,
    dirty: Option<String>,
    took_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Scrub {
    Open,
    Running,
    Failed { reason: String, again_ms: u64 },
    Done,
}

impl Reclaim {
    /// The attempt's last process is gone at `now_ms`. `scrubs`: the site has cards scrubbed.
    #[must_use]
    pub fn new(token: Token, cards: Vec<DeviceUuid>, scrubs: bool, now_ms: u64) -> Self {
        let (steps, dirty, took_ms) = (Vec::new(), None, 0);
        Self { token, cards, scrubs, began_ms: now_ms, steps, scrub: Scrub::Open, dirty, took_ms }
    }

    /// Whose cards they were.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The cards.
    #[must_use]
    pub fn cards(&self) -> &[DeviceUuid] {
        &self.cards
    }

    /// Declared dirty.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty.is_some()
    }

    /// What is kept of it beside the attempt.
    #[must_use]
    pub fn release(&self) -> Release {
        Release { steps: self.steps.clone(), took_ms: self.took_ms, dirty: self.dirty.clone() }
    }

    /// Takes in one look at all its cards; a card that is missing in it could not be asked.
    pub fn looked(&mut self, look: &BTreeMap<DeviceUuid, CardLook>, now_ms: u64) -> Next {
        let unasked = CardLook::default();
        let seen: Vec<(&DeviceUuid, &CardLook)> =
            self.cards.iter().map(|card| (card, look.get(card).unwrap_or(&unasked))).collect();
        if let Some(why) = seen.iter().find_map(|(card, look)| busy(card, look)) {
            return self.wait(why, now_ms);
        }
        if seen.iter().any(|(_, look)| look.openers.is_none()) {
            self.prove(ReleaseStep::Processes);
            return Next::LookAtNodes;
        }
        let opened = seen.iter().find_map(|(card, look)| {
            let openers = look.openers.as_deref().filter(|openers| !openers.is_empty())?;
            Some(format!("{card} is held open by {}", named(openers)))
        });
        if let Some(why) = opened {
            return self.wait(why, now_ms);
        }
        let to_scrub: Vec<DeviceUuid> =
            seen.iter().filter(|(_, look)| !look.shared).map(|(card, _)| (*card).clone()).collect();
        for step in [ReleaseStep::Processes, ReleaseStep::Nodes, ReleaseStep::Memory] {
            self.prove(step);
        }
        self.scrub_or_finish(to_scrub, now_ms)
    }

    /// The scrub has ended.
    pub fn scrubbed(&mut self, result: Result<(), String>, now_ms: u64) -> Next {
        match result {
            Ok(()) => {
                self.scrub = Scrub::Done;
                self.prove(ReleaseStep::Scrub);
                // Verified by a look that began after it.
                Next::Look
            }
            Err(reason) => {
                let reason = format!("it could not be scrubbed: {reason}");
                self.scrub = Scrub::Failed { reason: reason.clone(), again_ms: now_ms + SCRUB_PAUSE_MS };
                self.declare(reason)
            }
        }
    }

    fn scrub_or_finish(&mut self, to_scrub: Vec<DeviceUuid>, now_ms: u64) -> Next {
        let wanted = self.scrubs && !to_scrub.is_empty();
        match &self.scrub {
            Scrub::Running => Next::Look,
            Scrub::Open if wanted => {
                self.scrub = Scrub::Running;
                Next::Scrub(to_scrub)
            }
            Scrub::Failed { again_ms, .. } if wanted && now_ms >= *again_ms => {
                self.scrub = Scrub::Running;
                Next::Scrub(to_scrub)
            }
            Scrub::Failed { reason, .. } if wanted => {
                let reason = reason.clone();
                self.declare(reason)
            }
            Scrub::Open | Scrub::Failed { .. } | Scrub::Done => {
                if self.scrub == Scrub::Done {
                    self.prove(ReleaseStep::Verify);
                }
                self.took_ms = now_ms.saturating_sub(self.began_ms);
                Next::Clean
            }
        }
    }

    fn wait(&mut self, why: String, now_ms: u64) -> Next {
        // What is on the card now came after what was proven.
        self.steps.clear();
        if self.scrub == Scrub::Done {
            self.scrub = Scrub::Open;
        }
        if now_ms.saturating_sub(self.began_ms) < PATIENCE_MS {
            return Next::Look;
        }
        self.declare(why)
    }

    fn declare(&mut self, mut why: String) -> Next {
        while why.len() > REASON_BYTES_MAX {
            why.pop();
        }
        if self.dirty.as_ref() == Some(&why) {
            return Next::Look;
        }
        self.dirty = Some(why.clone());
        Next::Dirty(why)
    }

    fn prove(&mut self, step: ReleaseStep) {
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }
}

/// Why a card is not clean, by its processes and its memory.
fn busy(card: &DeviceUuid, look: &CardLook) -> Option<String> {
    let Some(processes) = &look.processes else {
        return Some(format!("{card} does not say who is on it"));
    };
    if !processes.is_empty() {
        return Some(format!("{} on {card}", named(processes)));
    }
    if look.shared {
        return None;
    }
    match look.over_mib {
        None => Some(format!("{card} does not say how much of its memory is in use")),
        Some(over) if over > SLACK_MIB => Some(format!("{over} MiB in use on {card} without a process")),
        Some(_) => None,
    }
}

/// `pid 4711 of alice with 10240 MiB`, of at most a few.
#[must_use]
pub fn named(left: &[Left]) -> String {
    let mut text = String::new();
    for (at, one) in left.iter().take(NAMED_MAX).enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        let user = one.user.as_deref().unwrap_or("unknown");
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}pid {} of {user}", one.pid);
        if let Some(mib) = one.mib {
            let _ = write!(text, " with {mib} MiB");
        }
    }
    let more = left.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReleaseStep::{Memory, Nodes, Processes, Scrub as Scrubbed, Verify};

    fn card() -> DeviceUuid {
        DeviceUuid("GPU-a".into())
    }

    fn look(look: CardLook) -> BTreeMap<DeviceUuid, CardLook> {
        BTreeMap::from([(card(), look)])
    }

    fn on_it(mib: u64) -> CardLook {
        let left = vec![Left { pid: 7, user: Some("alice".into()), mib: Some(mib) }];
        CardLook { processes: Some(left), over_mib: Some(mib), ..CardLook::default() }
    }

    fn empty() -> CardLook {
        CardLook { processes: Some(Vec::new()), over_mib: Some(3), ..CardLook::default() }
    }

    fn closed() -> CardLook {
        CardLook { openers: Some(Vec::new()), ..empty() }
    }

    fn reclaim(scrubs: bool) -> Reclaim {
        Reclaim::new(Token(1), vec![card()], scrubs, 1_000)
    }

    #[test]
    fn a_clean_card_is_free_after_one_dear_look() {
        let mut one = reclaim(false);
        assert_eq!(one.looked(&look(empty()), 1_000), Next::LookAtNodes);
        assert_eq!(one.looked(&look(closed()), 1_004), Next::Clean);
        assert_eq!(one.release(), Release { steps: vec![Processes, Nodes, Memory], took_ms: 4, dirty: None });
    }

    #[test]
    fn what_holds_it_makes_it_dirty_after_the_patience_and_it_comes_back_by_itself() {
        let held = [
            (on_it(10_240), "pid 7 of alice with 10240 MiB on GPU-a"),
            (CardLook { over_mib: Some(65), ..empty() }, "65 MiB in use on GPU-a without a process"),
            (
                CardLook { openers: Some(vec![Left { pid: 9, user: None, mib: None }]), ..empty() },
                "GPU-a is held open by pid 9 of unknown",
            ),
            (CardLook::default(), "GPU-a does not say who is on it"),
        ];
        for (seen, reason) in held {
            let mut one = reclaim(false);
            for at in [1_000, 20_000, 30_999] {
                assert_eq!(one.looked(&look(seen.clone()), at), Next::Look, "{reason}");
                assert!(!one.is_dirty());
            }
            assert_eq!(one.looked(&look(seen.clone()), 31_000), Next::Dirty(reason.into()));
            assert_eq!(one.looked(&look(seen), 31_500), Next::Look, "told once");
            assert_eq!(one.looked(&look(closed()), 90_000), Next::Clean, "{reason}");
        }
    }

    #[test]
    fn a_card_that_is_not_in_the_look_is_not_clean() {
        let mut one = reclaim(false);
        assert_eq!(one.looked(&BTreeMap::new(), 1_000), Next::Look);
        assert!(matches!(one.looked(&BTreeMap::new(), 31_000), Next::Dirty(_)));
    }

    #[test]
    fn a_few_mib_without_a_process_do_not_hold_a_card() {
        let mut one = reclaim(false);
        assert_eq!(one.looked(&look(CardLook { over_mib: Some(SLACK_MIB), ..closed() }), 1_000), Next::Clean);
    }

    #[test]
    fn scrubbing_comes_after_the_proofs_and_is_verified() {
        let mut one = reclaim(true);
        assert_eq!(one.looked(&look(on_it(9)), 1_000), Next::Look, "never under a process");
        assert_eq!(one.looked(&look(empty()), 1_100), Next::LookAtNodes);
        assert_eq!(one.looked(&look(closed()), 1_200), Next::Scrub(vec![card()]));
        assert_eq!(one.looked(&look(closed()), 1_300), Next::Look, "it runs");
        assert_eq!(one.scrubbed(Ok(()), 1_400), Next::Look);
        assert_eq!(one.looked(&look(closed()), 1_500), Next::Clean);
        assert_eq!(one.release().steps, [Processes, Nodes, Memory, Scrubbed, Verify]);
        assert_eq!(one.release().took_ms, 500);
    }

    #[test]
    fn a_scrub_that_fails_makes_the_card_dirty_and_is_tried_again_later() {
        let mut one = reclaim(true);
        assert_eq!(one.looked(&look(closed()), 1_000), Next::Scrub(vec![card()]));
        let why = "it could not be scrubbed: exit 1";
        assert_eq!(one.scrubbed(Err("exit 1".into()), 2_000), Next::Dirty(why.into()));
        assert_eq!(one.looked(&look(closed()), 3_000), Next::Look);
        assert_eq!(one.looked(&look(closed()), 2_000 + SCRUB_PAUSE_MS), Next::Scrub(vec![card()]));
        assert_eq!(one.scrubbed(Ok(()), 63_000), Next::Look);
        assert_eq!(one.looked(&look(closed()), 63_100), Next::Clean);
    }

    #[test]
    fn a_process_that_comes_after_the_scrub_has_it_scrubbed_again() {
        let mut one = reclaim(true);
        one.looked(&look(closed()), 1_000);
        one.scrubbed(Ok(()), 1_100);
        assert_eq!(one.looked(&look(on_it(1)), 1_200), Next::Look);
        assert_eq!(one.looked(&look(closed()), 1_300), Next::Scrub(vec![card()]));
    }

    #[test]
    fn a_card_that_others_share_is_given_back_by_its_processes_alone() {
        let mut one = reclaim(true);
        let shared = CardLook { shared: true, over_mib: Some(40_000), ..closed() };
        assert_eq!(one.looked(&look(shared), 1_000), Next::Clean);
        assert_eq!(one.release().steps, [Processes, Nodes, Memory]);
        let own_left = CardLook { shared: true, ..on_it(5) };
        assert_eq!(reclaim(true).looked(&look(own_left), 1_000), Next::Look);
    }
}
