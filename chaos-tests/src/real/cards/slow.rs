//! Slow cards and bad links (faults G8, G9): what the driver says is read through the real wrapper; the agent's decider, the
//! state and the planner are the production ones, under a clock that is moved on by hand, so that minutes take no time.

use super::driver::Driver;
use super::{Bench, NAMES, eight};
use crate::real::row::Row;
use fake_nvml::script::{Card, Links, throttle};
use rota_core::placement::PlanConfig;
use rota_node::devices::{Inventory, Signs};
use rota_node::lab::LabError;
use rota_node::lab_work::{shell_job, with_gpus};
use rota_node::logic::health::{Health, Rules, Seen, TRIAL_MS, own, teams, xid::XidTable};
use rota_protocol::command::Command;
use rota_protocol::device::{DeviceReading, HostFacts, HostRegistration};
use rota_protocol::health::{Cause, Finding, HealthReport, Source, Stage};
use rota_protocol::job::{AttemptEnd, EndReason, JobSpec};
use rota_protocol::work::{GangSpec, Layout};
use rota_protocol::{BootId, DeviceUuid, HostId, JobId, Token};
use rota_sim::cluster::{Cluster, HostKind};
use std::collections::{BTreeMap, BTreeSet};

/// How often the agent looks.
const LOOK_MS: u64 = 2_000;
/// G8: 0.6 events a minute over ten minutes.
const DEGRADED_MS_MAX: u64 = 600_000;
/// G9: a straggler, or a link, is found within this.
const FLAGGED_MS_MAX: u64 = 300_000;
const MODEL: &str = "NVIDIA H100 80GB HBM3";

/// A host with eight scripted cards and another with eight of the same model, in virtual time.
struct Virtual {
    driver: Driver,
    inventory: Inventory,
    facts: HostFacts,
    signs: Signs,
    readings: BTreeMap<DeviceUuid, DeviceReading>,
    health: Health,
    cluster: Cluster,
    /// The host with the scripted cards, and the other.
    hosts: [HostId; 2],
}

impl Virtual {
    async fn new(bench: &Bench, name: &str) -> Result<Self, LabError> {
        let driver = Driver::new(bench, name, working())?;
        let inventory = driver.inventory();
        let kind = HostKind {
            cpus_milli: 64_000,
            mem_mib: 256 << 10,
            cards: 8,
            model: MODEL.into(),
            vram_mib: Some(80 << 10),
        };
        let mut cluster = Cluster::new(std::slice::from_ref(&kind), PlanConfig::default())?;
        let scripted = cluster.state().hosts().map(|host| host.id).max().unwrap_or(HostId(2));
        let other = cluster.add_host(1, &kind)?;
        let rules = Rules { table: XidTable::built_in(), trial_ms: TRIAL_MS };
        let mut lab = Self {
            driver,
            inventory,
            facts: cluster.state().host(scripted).map(|host| (*host.facts).clone()).unwrap_or_else(no_facts),
            signs: Signs::new(),
            readings: BTreeMap::new(),
            health: Health::new(rules),
            cluster,
            hosts: [scripted, other],
        };
        let addr = lab.cluster.state().host(scripted).map(|host| host.addr.clone()).unwrap_or_default();
        lab.read().await;
        let registration = HostRegistration { boot: BootId(1), addr, facts: lab.facts.clone() };
        lab.cluster.system(Command::RegisterHost { host: scripted, registration })?;
        Ok(lab)
    }

    /// What the driver says now, through the wrapper.
    async fn read(&mut self) {
        let seen = self.inventory.refresh().await;
        self.facts.devices =
            seen.devices.into_iter().filter(|d| NAMES.contains(&d.uuid.0.as_str())).collect();
        self.signs = self.inventory.signs().clone();
        let readings = self.inventory.readings().await;
        self.readings = readings.into_iter().map(|reading| (reading.uuid.clone(), reading)).collect();
    }

    async fn shows(&mut self, cards: Vec<Card>) -> Result<(), LabError> {
        self.driver.shows(cards)?;
        self.read().await;
        Ok(())
    }

    /// Looks for so long, or until a card is at this stage; how long that took.
    fn until(&mut self, stage: Stage, card: &str, limit_ms: u64) -> Result<Option<u64>, LabError> {
        let began_ms = self.cluster.now_ms();
        while self.cluster.now_ms() < began_ms + limit_ms {
            self.look()?;
            if self.stage(card) == stage {
                return Ok(Some(self.cluster.now_ms() - began_ms));
            }
        }
        Ok(None)
    }

    fn look(&mut self) -> Result<(), LabError> {
        self.cluster.advance_to(self.cluster.now_ms() + LOOK_MS);
        let state = self.cluster.state();
        let own = own(state, self.hosts[0], &self.facts.devices);
        let teams = teams(state, &own, &self.readings);
        let (facts, signs, now_ms) = (&self.facts.devices, &self.signs, self.cluster.now_ms());
        let looked = self.health.look(&Seen { facts, signs, own: &own, teams: &teams, now_ms });
        if !looked.findings.is_empty() {
            let report = HealthReport { findings: looked.findings, stopping: false };
            self.cluster.system(Command::Health { host: self.hosts[0], report })?;
        }
        Ok(())
    }

    fn stage(&self, card: &str) -> Stage {
        let mark = self.cluster.state().care().mark(&DeviceUuid(card.into()));
        mark.map(|mark| mark.stage).unwrap_or_default()
    }

    fn submit(&mut self, spec: JobSpec) -> Result<JobId, LabError> {
        Ok(self.cluster.submit("t", "u", spec)?)
    }

    fn attempts(&self, job: JobId) -> Vec<(Token, HostId, Option<EndReason>)> {
        self.cluster.state().attempts_of(job).map(|a| (a.token, a.host, a.end_reason)).collect()
    }

    /// Plans, and starts what was granted.
    fn round(&mut self) -> Result<(), LabError> {
        self.cluster.round()?;
        let granted: Vec<Token> = self.cluster.state().attempts().map(|attempt| attempt.token).collect();
        for token in granted {
            self.cluster.started(token)?;
        }
        Ok(())
    }

    fn end(&mut self, job: JobId, end: &AttemptEnd) -> Result<(), LabError> {
        for (token, ..) in self.attempts(job) {
            self.cluster.end(token, end.clone(), 1_000)?;
        }
        Ok(())
    }

    /// Every attempt that was asked to end does, as its host would tell.
    fn end_as_asked(&mut self, job: JobId) -> Result<(), LabError> {
        let asked =
            |lab: &Self| lab.attempts(job).into_iter().find_map(|(token, _, why)| Some((token, why?)));
        while let Some((token, why)) = asked(self) {
            self.cluster.end(token, why.end(), 1_000)?;
        }
        Ok(())
    }

    /// A gang of four cards that runs on the scripted host, with the other host free.
    fn gang(&mut self) -> Result<JobId, LabError> {
        let blocker = self.submit(with_gpus(shell_job("blocker", "x"), 8))?;
        self.round()?;
        let on = self.attempts(blocker).first().map(|(_, host, _)| *host);
        let gang = self.submit(gang())?;
        self.round()?;
        if on == Some(self.hosts[0]) {
            // It must be the other way round.
            self.end(gang, &AttemptEnd::Exited { code: 0 })?;
            let blocked = self.submit(with_gpus(shell_job("blocker", "x"), 8))?;
            self.round()?;
            self.end(blocker, &AttemptEnd::Exited { code: 0 })?;
            let gang = self.submit(self::gang())?;
            self.round()?;
            self.end(blocked, &AttemptEnd::Exited { code: 0 })?;
            return Ok(gang);
        }
        self.end(blocker, &AttemptEnd::Exited { code: 0 })?;
        Ok(gang)
    }
}

fn no_facts() -> HostFacts {
    HostFacts {
        cpus_milli: 0,
        mem_mib: 0,
        devices: Vec::new(),
        labels: BTreeMap::new(),
        version: String::new(),
        notes: Default::default(),
    }
}

fn gang() -> JobSpec {
    let spec = with_gpus(shell_job("gang", "x"), 1);
    JobSpec { gang: Some(GangSpec { min: 4, max: 4 }), layout: Layout::SameHost, ..spec }
}

/// Eight cards under load, joined by eighteen links each.
fn working() -> Vec<Card> {
    let links = Some(Links { count: 18, up: 18, errors: 0 });
    let work = |card: Card| Card { busy: 98, power: 650_000, links, nvlink: Some(0), ..card };
    eight().into_iter().map(work).collect()
}

fn but(at: usize, change: impl Fn(Card) -> Card) -> Vec<Card> {
    let mut cards = working();
    cards[at] = change(cards[at].clone());
    cards
}

/// G8: heat, a slowdown, a power brake, and a clock that is stuck without a reason: each degrades its card by its rate, keeps
/// it out of work over several cards and no other work.
pub(in crate::real) async fn slowed(bench: &Bench) -> Result<Row, LabError> {
    let what = "heat, slowdown, power brake, a stuck clock: from the first sign (virtual time) to no gangs on that card";
    let mut row = Row::new("G8", what, Some(DEGRADED_MS_MAX));
    let stuck = |card: Card| Card { clock: Some((210, 1_980)), ..card };
    let slowed =
        |bits: u64| move |card: Card| Card { throttle: Some(bits), clock: Some((700, 1_980)), ..card };
    let signs: [(&str, Vec<Card>); 5] = [
        ("hardware slowdown", but(1, slowed(throttle::HW_SLOWDOWN))),
        ("heat, says the driver", but(1, slowed(throttle::SW_THERMAL))),
        ("heat, says the card", but(1, slowed(throttle::HW_THERMAL))),
        ("power brake", but(1, slowed(throttle::POWER_BRAKE))),
        ("stuck clock", but(1, stuck)),
    ];
    for (at, (name, sick)) in signs.into_iter().enumerate() {
        let mut lab = Virtual::new(bench, &format!("G8-{at}")).await?;
        lab.shows(sick).await?;
        let Some(took_ms) = lab.until(Stage::Degraded, NAMES[1], 2 * DEGRADED_MS_MAX)? else {
            row.wrong(format!("{name}: never degraded"));
            continue;
        };
        row.ran(took_ms);
        let others =
            NAMES.iter().filter(|other| **other != NAMES[1] && lab.stage(other) != Stage::Well).count();
        row.must(others == 0, || format!("{name}: {others} other cards too"));
        // Eight cards are only on the other host; the slow one still serves work that needs one.
        let wide = [0, 1].map(|_| lab.submit(with_gpus(shell_job("wide", "x"), 8)));
        lab.round()?;
        for (nth, job) in wide.into_iter().enumerate() {
            let on: Vec<HostId> = lab.attempts(job?).into_iter().map(|(_, host, _)| host).collect();
            row.must(!on.contains(&lab.hosts[0]) && on.len() == usize::from(nth == 0), || {
                format!("{name}: wide job {nth} is on {on:?}")
            });
        }
    }
    Ok(row)
}

/// G9: a link that is down, one that flaps, and a card that is slower than its equals: the card is out of gangs, and the
/// gang on it is placed anew once.
pub(in crate::real) async fn bad_links_and_stragglers(bench: &Bench) -> Result<Row, LabError> {
    let what = "a straggler in a gang, a link down or flapping: from the first sign (virtual time) to the gang's one new start";
    let mut row = Row::new("G9", what, Some(FLAGGED_MS_MAX));
    let silent = |card: Card| Card { clock: Some((1_400, 1_980)), ..card };
    let weak = |card: Card| Card { power: 200_000, ..card };
    let down = |card: Card| Card { links: Some(Links { count: 18, up: 17, errors: 0 }), ..card };
    type Change = fn(Card) -> Card;
    let signs: [(&str, Change); 3] = [("slow clock", silent), ("little power", weak), ("link down", down)];
    for (at, (name, change)) in signs.into_iter().enumerate() {
        let mut lab = Virtual::new(bench, &format!("G9-{at}")).await?;
        let gang = lab.gang()?;
        lab.look()?;
        let Some((place, card)) = card_of(&lab, gang) else {
            row.wrong(format!("{name}: not exercised: the gang is at {:?}", lab.attempts(gang)));
            continue;
        };
        lab.shows(but(place, change)).await?;
        match lab.until(Stage::Degraded, &card, 2 * FLAGGED_MS_MAX)? {
            Some(took_ms) => row.ran(took_ms),
            None => row.wrong(format!("{name}: never told")),
        }
        once(&mut lab, gang, name, &mut row)?;
    }
    let mut lab = Virtual::new(bench, "G9-flapping").await?;
    lab.look()?;
    let began_ms = lab.cluster.now_ms();
    for _ in 0..3 {
        for cards in [working(), but(2, down)] {
            lab.shows(cards).await?;
            lab.look()?;
        }
    }
    row.must(lab.stage(NAMES[2]) == Stage::Degraded, || "a flapping link was not told".into());
    row.ran(lab.cluster.now_ms() - began_ms);
    Ok(row)
}

/// The first card of the gang on the scripted host, with its place.
fn card_of(lab: &Virtual, gang: JobId) -> Option<(usize, String)> {
    let attempt = lab.cluster.state().attempts_of(gang).find(|attempt| attempt.host == lab.hosts[0])?;
    let card = attempt.devices.first()?.0.clone();
    Some((NAMES.iter().position(|name| *name == card)?, card))
}

/// The gang is ended, starts again as a whole without that host's card, and is then left alone (law I18).
fn once(lab: &mut Virtual, gang: JobId, name: &str, row: &mut Row) -> Result<(), LabError> {
    let asked = lab.attempts(gang).iter().filter(|(_, _, why)| *why == Some(EndReason::Device)).count();
    row.must(asked == 1, || format!("{name}: {asked} parts were asked to end for it"));
    lab.end_as_asked(gang)?;
    lab.round()?;
    let again = lab.attempts(gang);
    row.must(again.len() == 4, || format!("{name}: it started again with {} parts", again.len()));
    let state = lab.cluster.state();
    let cards: Vec<(HostId, DeviceUuid)> = state
        .attempts_of(gang)
        .flat_map(|part| part.devices.iter().map(|uuid| (part.host, uuid.clone())))
        .collect();
    let bad = cards.iter().filter(|(_, uuid)| lab.stage(&uuid.0) != Stage::Well).count();
    row.must(bad == 0, || format!("{name}: {bad} cards of the new start are degraded"));
    for (host, uuid) in cards {
        let (cause, source, text) = (Cause::Slow, Source::Probe, "slow again".to_owned());
        let finding = Finding { uuid, cause, source, text, program: None, trial_ms: TRIAL_MS };
        let report = HealthReport { findings: vec![finding], stopping: false };
        lab.cluster.system(Command::Health { host, report })?;
    }
    let asked = lab.attempts(gang).iter().filter(|(_, _, why)| why.is_some()).count();
    row.must(asked == 0, || format!("{name}: {asked} parts were asked to end a second time"));
    let state = lab.cluster.state();
    let ended = state.job(gang).into_iter().flat_map(|job| job.ended.iter().map(|part| part.token));
    let starts: BTreeSet<u64> =
        state.attempts_of(gang).map(|part| part.token).chain(ended).map(Token::log_index).collect();
    row.also("new_starts_of_a_gang", starts.len() as u64 - 1, Some(1));
    row.must(starts.len() == 2, || format!("{name}: {} starts", starts.len()));
    Ok(())
}
