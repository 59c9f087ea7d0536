//! What must hold after each phase of a round. Runs in debug builds and so in every test; a round of a release does
//! not pay for it. What must hold of the whole plan is in `check.rs`.

use super::promise::Guards;
use super::round::Round;
use super::sites::Ground;
use super::view::View;
use crate::state::host::Used;
use rota_protocol::Token;
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::device::HostFacts;
use rota_protocol::job::AttemptState;
use rota_protocol::plan::Move;
use std::collections::BTreeSet;

/// Ground: every host of the view is a site in its place and in exactly one group, the one of its kind and fill.
pub(super) fn ground(ground: &Ground, view: &View) -> Vec<String> {
    let mut wrong = Vec::new();
    if ground.sites.len() != view.hosts.len() {
        wrong.push(format!("{} sites for {} hosts", ground.sites.len(), view.hosts.len()));
    }
    for (site, row) in ground.sites.iter().zip(&view.hosts) {
        if site.id() != row.host.id || *site.used() != row.host.used {
            wrong.push(format!("the site of host {} is not as the view says", row.host.id));
        }
    }
    wrong.extend(ground.misgrouped());
    wrong
}

/// Promise: when each promise falls due its slots are there, beside those of all others on the same host.
pub(super) fn promises(guards: &Guards, ground: &Ground) -> Vec<String> {
    let mut wrong = Vec::new();
    for guard in guards.list.iter().filter(|guard| !guard.outranked) {
        for (at, used) in guard.later() {
            if !fits_on(ground, *at, used) {
                let host = ground.sites[*at].id();
                wrong.push(format!("host {host} cannot keep its promise to job {}", guard.job.id));
            }
        }
    }
    wrong
}

/// Order, start, gang: nothing that was placed is more than a host has, and no gang is split.
pub(super) fn placements(round: &Round<'_>) -> Vec<String> {
    let sites = 0..round.ground.sites.len();
    let over = sites.filter(|at| !fits_on(round.ground, *at, round.ground.sites[*at].used()));
    let mut wrong: Vec<String> =
        over.map(|at| format!("host {} is overfull", round.ground.sites[at].id())).collect();
    for one in &round.moves {
        let Move::Start { job: id, parts, .. } = one else {
            continue;
        };
        let job = round.view.classes.iter().flatten().find(|job| job.id == *id);
        let fewest = job.map_or(1, |job| job.start_range().0);
        if parts.len() < fewest as usize {
            wrong.push(format!("gang {id} would start with {} of {fewest} parts", parts.len()));
        }
    }
    wrong
}

/// Evict: nobody is asked to end twice, and only what lives and is not ending already.
pub(super) fn evictions(round: &Round<'_>) -> Vec<String> {
    let rows = round.view.hosts.iter().flat_map(|row| row.attempts.iter());
    let live: BTreeSet<Token> =
        rows.filter(|attempt| attempt.state != AttemptState::Ending).map(|attempt| attempt.token).collect();
    let mut asked: BTreeSet<Token> = BTreeSet::new();
    let mut wrong = Vec::new();
    for one in &round.moves {
        let Move::Evict { victims, .. } = one else {
            continue;
        };
        for victim in victims {
            if !live.contains(victim) || !asked.insert(*victim) {
                wrong.push(format!("{victim} is ended twice, or does not live"));
            }
        }
    }
    wrong
}

/// No more is used than there is; a host that registered less than what runs on it was overfull before.
pub(super) fn fits_on(ground: &Ground, at: usize, used: &Used) -> bool {
    let host = &ground.sites[at].row.host;
    is_within(&host.facts, used) || !is_within(&host.facts, &host.used)
}

fn is_within(facts: &HostFacts, used: &Used) -> bool {
    used.cpus_milli <= u64::from(facts.cpus_milli)
        && used.mem_mib <= facts.mem_mib
        && used.devices.values().all(|held| held.milli() <= CARD_MILLI)
}
