//! The warden's deciders together, fed by one look at the cards and one at the log: strangers, cards on their way back,
//! shares that hold too much memory, idle holders. Sans-io: what is to be done comes back as a list.

use super::idle::{Act, Holder, IdleWatch, Signs};
use super::reclaim::{CardLook, Left, Next, Reclaim};
use super::strangers::{CardSeen, Seen, Sight, Strangers, Whose};
use super::vram::{Use, VramWatch};
use rota_protocol::care::{HostCause, IdleRule, Release};
use rota_protocol::{DeviceUuid, TaskId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// What the site says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// A card that is used outside is granted all the same.
    pub outside_allowed: bool,
    /// Cards are scrubbed when they are given back.
    pub scrubs: bool,
    /// Who holds too much of a shared card's memory is told, not ended.
    pub vram_warns: bool,
    /// How much above the ask does not count, in MiB.
    pub vram_slack_mib: u64,
}

/// An attempt that the log has on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Its task.
    pub task: TaskId,
    /// Its devices; a shared card comes first.
    pub devices: Vec<DeviceUuid>,
    /// Cards that it holds, in thousandths.
    pub gpu_milli: u32,
    /// Memory that it may use on a card that it shares, in MiB.
    pub share_mib: Option<u64>,
    /// Its process was reported, and its end is not asked.
    pub running: bool,
    /// Its queue's rule for idle cards.
    pub idle: IdleRule,
    /// Idleness is intended until then, ms since the epoch.
    pub idle_until_ms: Option<u64>,
    /// Processor time and bytes of its processes so far, where they were looked at.
    pub cpu_ms: Option<u64>,
    /// Likewise.
    pub io_bytes: Option<u64>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Do {
    /// Tell the log words for an attempt's owner.
    Note(Token, String),
    /// Ask the log for its end.
    End(Token, HostCause),
    /// Tell the log how long it held cards idle.
    Idle(Token, u64),
    /// Look who has the nodes of this attempt's card open.
    LookAtNodes(Token, DeviceUuid),
    /// Scrub the card.
    Scrub(Token, DeviceUuid),
    /// All cards of an attempt are clean, or dirty and known to the log as such: its end may be told.
    Returned(Token, Release, Vec<DeviceUuid>),
    /// A card that was dirty is clean.
    Back(Token),
}

/// Everything known between looks.
#[derive(Debug, Clone, Default)]
pub struct Duty {
    strangers: Strangers,
    vram: VramWatch,
    idle: IdleWatch,
    returns: BTreeMap<Token, Returning>,
    /// Cards that the log has not seen as closed yet, with the reason.
    marks: BTreeMap<DeviceUuid, String>,
}

#[derive(Debug, Clone)]
struct Returning {
    cards: BTreeMap<DeviceUuid, Reclaim>,
    clean: Vec<Release>,
    openers: BTreeMap<DeviceUuid, Vec<Left>>,
    told: bool,
}

impl Duty {
    /// An attempt's last process is gone: its cards are to be given back. Asked again, nothing changes.
    pub fn give_back(&mut self, token: Token, cards: &[DeviceUuid], rules: Rules, now_ms: u64) {
        self.returns.entry(token).or_insert_with(|| {
            let one = |card: &DeviceUuid| {
                (card.clone(), Reclaim::new(token, vec![card.clone()], rules.scrubs, now_ms))
            };
            let cards = cards.iter().map(one).collect();
            Returning { cards, clean: Vec::new(), openers: BTreeMap::new(), told: false }
        });
    }

    /// Whether cards are on their way back: then looks come closer.
    #[must_use]
    pub fn is_hurried(&self) -> bool {
        self.returns.values().any(|returning| !returning.told)
    }

    /// Cards that must not be granted, and why.
    #[must_use]
    pub fn marks(&self, rules: Rules) -> BTreeMap<DeviceUuid, String> {
        let mut marks = self.marks.clone();
        if !rules.outside_allowed {
            for (uuid, reason) in self.strangers.marks() {
                marks.entry(uuid.clone()).or_insert_with(|| reason.to_owned());
            }
        }
        marks
    }

    /// Who has a card's node open, as it was looked for.
    pub fn opened(&mut self, token: Token, found: BTreeMap<DeviceUuid, Vec<Left>>) {
        if let Some(returning) = self.returns.get_mut(&token) {
            returning.openers.extend(found);
        }
    }

    /// A scrub has ended.
    pub fn scrubbed(&mut self, token: Token, card: &DeviceUuid, result: Result<(), String>, now_ms: u64) {
        let reclaim = self.returns.get_mut(&token).and_then(|returning| returning.cards.get_mut(card));
        if let Some(Next::Dirty(why)) = reclaim.map(|reclaim| reclaim.scrubbed(result, now_ms)) {
            self.marks.insert(card.clone(), why);
        }
    }

    /// Takes in one look. `closed` are the devices that the log knows not to grant.
    pub fn looked(
        &mut self,
        cards: &BTreeMap<DeviceUuid, CardSeen>,
        log: &BTreeMap<Token, Granted>,
        closed: &BTreeSet<DeviceUuid>,
        rules: Rules,
        (now_ms, wall_ms): (u64, u64),
    ) -> Vec<Do> {
        let mut todo = self.look_for_strangers(cards, log, now_ms);
        todo.extend(self.look_for_returns(cards, log, closed, rules, now_ms));
        todo.extend(self.look_at_shares(cards, log, rules, now_ms));
        let holders: BTreeMap<Token, Holder> = log
            .iter()
            .filter_map(|(token, granted)| Some((*token, holder(*token, granted, cards)?)))
            .collect();
        let acts = self.idle.looked(&holders, now_ms, wall_ms).into_iter();
        todo.extend(acts.map(|(token, act)| match act {
            Act::Warn(text) => Do::Note(token, text),
            Act::End(cause) => Do::End(token, cause),
            Act::Count(gpu_ms) => Do::Idle(token, gpu_ms),
        }));
        todo
    }

    fn look_for_strangers(
        &mut self,
        cards: &BTreeMap<DeviceUuid, CardSeen>,
        log: &BTreeMap<Token, Granted>,
        now_ms: u64,
    ) -> Vec<Do> {
        let sight = |(uuid, card): (&DeviceUuid, &CardSeen)| {
            let granted = log.iter().filter(|(_, granted)| granted.devices.contains(uuid));
            // What is on its way back is judged there.
            let returning = self.returns.iter().filter(|(_, returning)| returning.cards.contains_key(uuid));
            let held = granted.map(|(token, _)| *token).chain(returning.map(|(token, _)| *token)).collect();
            (uuid.clone(), Sight { card: card.clone(), held })
        };
        let sights = cards.iter().map(sight).collect();
        let own = |token: &Token| {
            let devices = log.get(token).map(|granted| granted.devices.as_slice()).unwrap_or_default();
            devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let trespasses = self.strangers.looked(&sights, now_ms).into_iter();
        let words = trespasses.map(|one| {
            let granted = own(&one.token);
            let granted = if granted.is_empty() { "no card".to_owned() } else { granted };
            let text = format!("its process {} is on {}, and it was granted {granted}", one.pid, one.on);
            Do::Note(one.token, text)
        });
        words.collect()
    }

    /// Only what is on its way back, over the look that there was: somebody looked at nodes meanwhile.
    pub fn look_for_returns(
        &mut self,
        cards: &BTreeMap<DeviceUuid, CardSeen>,
        log: &BTreeMap<Token, Granted>,
        closed: &BTreeSet<DeviceUuid>,
        rules: Rules,
        now_ms: u64,
    ) -> Vec<Do> {
        let mut todo = Vec::new();
        for (token, returning) in &mut self.returns {
            let mut back = Vec::new();
            for (uuid, reclaim) in &mut returning.cards {
                let mut look = cards.get(uuid).map_or_else(CardLook::default, |card| {
                    let shared = log.iter().any(|(other, g)| other != token && g.devices.contains(uuid));
                    card_look(*token, uuid, card, shared, &self.strangers, rules)
                });
                look.openers = returning.openers.remove(uuid);
                match reclaim.looked(&BTreeMap::from([(uuid.clone(), look)]), now_ms) {
                    Next::Look => {}
                    Next::LookAtNodes => todo.push(Do::LookAtNodes(*token, uuid.clone())),
                    Next::Scrub(_) => todo.push(Do::Scrub(*token, uuid.clone())),
                    Next::Dirty(why) => drop(self.marks.insert(uuid.clone(), why)),
                    Next::Clean => {
                        returning.clean.push(reclaim.release());
                        back.push(uuid.clone());
                    }
                }
            }
            for uuid in back {
                returning.cards.remove(&uuid);
                self.marks.remove(&uuid);
            }
            todo.extend(returning.returned(*token, closed));
        }
        self.returns.retain(|_, returning| !(returning.told && returning.cards.is_empty()));
        todo
    }

    fn look_at_shares(
        &mut self,
        cards: &BTreeMap<DeviceUuid, CardSeen>,
        log: &BTreeMap<Token, Granted>,
        rules: Rules,
        now_ms: u64,
    ) -> Vec<Do> {
        let uses = log.iter().filter(|(_, granted)| granted.running).filter_map(|(token, granted)| {
            let asked_mib = granted.share_mib?;
            let card = cards.get(granted.devices.first()?)?;
            let used_mib = memory_of(*token, card)?;
            Some((*token, Use { asked_mib, used_mib }))
        });
        let offenders = self.vram.looked(&uses.collect(), rules.vram_slack_mib, now_ms).into_iter();
        let acts = offenders.map(|(token, cause)| match rules.vram_warns {
            true => Do::Note(token, cause.end().to_string()),
            false => Do::End(token, cause),
        });
        acts.collect()
    }
}

impl Returning {
    /// The end may be told once every card is clean, or dirty and closed in the log.
    fn returned(&mut self, token: Token, closed: &BTreeSet<DeviceUuid>) -> Option<Do> {
        if self.told {
            return self.cards.is_empty().then_some(Do::Back(token));
        }
        if !self.cards.iter().all(|(uuid, reclaim)| reclaim.is_dirty() && closed.contains(uuid)) {
            return None;
        }
        self.told = true;
        let dirty: Vec<Release> = self.cards.values().map(Reclaim::release).collect();
        let reasons: Vec<String> = dirty.iter().filter_map(|release| release.dirty.clone()).collect();
        let took_ms = self.clean.iter().map(|release| release.took_ms).max().unwrap_or(0);
        let all = || self.clean.iter().chain(&dirty);
        let mut steps = all().next().map(|release| release.steps.clone()).unwrap_or_default();
        steps.retain(|step| all().all(|release| release.steps.contains(step)));
        let dirty = (!reasons.is_empty()).then(|| reasons.join("; "));
        Some(Do::Returned(token, Release { steps, took_ms, dirty }, self.cards.keys().cloned().collect()))
    }
}

/// What a look says of a card that is on its way back from `token`. Where others have it too, only the attempt's own
/// processes count.
fn card_look(
    token: Token,
    uuid: &DeviceUuid,
    card: &CardSeen,
    shared: bool,
    strangers: &Strangers,
    rules: Rules,
) -> CardLook {
    let outside = |process: &Seen| matches!(process.whose, Whose::Stranger(_) | Whose::Unreadable);
    let counts = |process: &&Seen| match &process.whose {
        Whose::Attempt(owner) => *owner == token,
        Whose::Ours => false,
        Whose::Absent => !shared,
        Whose::Stranger(_) | Whose::Unreadable => !shared && !rules.outside_allowed,
    };
    let left = |process: &Seen| Left {
        pid: process.pid,
        user: match &process.whose {
            Whose::Stranger(user) => Some(user.clone()),
            _ => None,
        },
        mib: process.mib,
    };
    let beside = rules.outside_allowed && card.processes.iter().flatten().any(outside);
    CardLook {
        processes: card.processes.as_ref().map(|all| all.iter().filter(counts).map(left).collect()),
        openers: None,
        over_mib: card.used_mib.map(|used| strangers.over_mib(uuid, used)),
        shared: shared || beside,
    }
}

/// Memory of an attempt's own processes on a card; none if the driver does not tell.
#[must_use]
pub fn memory_of(token: Token, card: &CardSeen) -> Option<u64> {
    let own = card.processes.as_ref()?.iter().filter(|process| process.whose == Whose::Attempt(token));
    own.map(|process| process.mib).sum()
}

/// An attempt that holds cards of which something can be told.
fn holder(token: Token, granted: &Granted, cards: &BTreeMap<DeviceUuid, CardSeen>) -> Option<Holder> {
    let own: Vec<&CardSeen> = granted.devices.iter().filter_map(|uuid| cards.get(uuid)).collect();
    if own.is_empty() || !granted.running {
        return None;
    }
    let on_card = own
        .iter()
        .any(|card| card.processes.iter().flatten().any(|process| process.whose == Whose::Attempt(token)));
    let signs = Signs {
        on_card,
        busy_permille: own.iter().filter_map(|card| card.busy_permille).max(),
        memory_mib: own.iter().map(|card| memory_of(token, card)).sum(),
        cpu_ms: granted.cpu_ms,
        io_bytes: granted.io_bytes,
    };
    let (gpu_milli, rule, until_ms) = (granted.gpu_milli, granted.idle, granted.idle_until_ms);
    Some(Holder { gpu_milli, rule, until_ms, signs })
}

#[cfg(test)]
#[path = "duty_tests.rs"]
mod tests;
