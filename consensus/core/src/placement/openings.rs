//! When and where a job will find room, computed from limits alone.

use super::choose::choose;
use super::promise::{Guards, slot_token};
use super::sites::Ground;
use super::view::View;
use crate::fit::{self, Want};
use crate::state::host::Used;
use crate::state::job::Job;
use rota_protocol::plan::Slot;
use rota_protocol::work::Layout;
use rota_protocol::{DeviceUuid, HostId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// When and where a job finds room.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    pub(super) at_ms: u64,
    pub(super) slots: Vec<(usize, Slot)>,
}

impl Guards {
    /// The earliest time at which `parts` tasks of an ask find room together, and where. Sites under another promise
    /// are left out. `opens_ms` says from when on a host takes the job, if it could come at a time.
    pub(super) fn opening(
        &self,
        ground: &Ground,
        view: &View,
        job: &Job,
        want: Want<'_>,
        parts: usize,
        opens_ms: &dyn Fn(HostId, u64) -> Option<u64>,
    ) -> Option<Opening> {
        let per_site = match job.spec.layout {
            Layout::Spread => 1,
            _ => parts,
        };
        let mut found: BinaryHeap<(u64, usize, usize)> = BinaryHeap::new();
        let mut rooms: BTreeMap<usize, Vec<Room>> = BTreeMap::new();
        for Reverse((bound_ms, at)) in self.bounds(ground, view, want).into_sorted_vec().into_iter().rev() {
            if found.len() >= parts && found.peek().is_some_and(|(worst_ms, _, _)| bound_ms >= *worst_ms) {
                break;
            }
            let mut site = self.rooms(ground, at, job, want, per_site);
            // What runs is not all that is in the way. Later rooms open no sooner, so the rest of them is none either.
            for n in 0..site.len() {
                let Some(at_ms) = opens_ms(ground.sites[at].id(), site[n].at_ms) else {
                    site.truncate(n);
                    break;
                };
                site[n].at_ms = at_ms;
            }
            if job.spec.layout == Layout::SameHost {
                if let Some(last) = site.get(parts - 1) {
                    let better = found.peek().is_none_or(|(worst_ms, _, _)| last.at_ms < *worst_ms);
                    if better {
                        found = site.iter().enumerate().map(|(n, room)| (room.at_ms, at, n)).collect();
                        rooms = BTreeMap::from([(at, site)]);
                    }
                }
                continue;
            }
            for (n, room) in site.iter().enumerate() {
                found.push((room.at_ms, at, n));
                if found.len() > parts {
                    found.pop();
                }
            }
            rooms.insert(at, site);
        }
        if found.len() < parts {
            return None;
        }
        let at_ms = found.peek().map_or(self.now_ms, |(worst_ms, _, _)| *worst_ms);
        let mut chosen: Vec<(u64, usize, usize)> = found.into_vec();
        chosen.sort_unstable();
        let slots = chosen.into_iter().filter_map(|(_, at, n)| {
            let room = rooms.get(&at)?.get(n)?;
            let slot = Slot { host: ground.sites[at].id(), devices: room.devices.clone() };
            Some((at, slot))
        });
        Some(Opening { at_ms, slots: slots.collect() })
    }

    /// Sites that could run the ask, each with a time before which it surely cannot: until then too few cards are
    /// free. Smallest first when popped.
    fn bounds(&self, ground: &Ground, view: &View, want: Want<'_>) -> BinaryHeap<Reverse<(u64, usize)>> {
        let mut bounds = Vec::new();
        for (at, site) in ground.sites.iter().enumerate().take(view.hosts.len()) {
            let host = &site.row.host;
            if self.is_promised(at)
                || fit::open(host, &Used::default(), self.now_ms).is_err()
                || fit::capable(host, want.ask).is_err()
            {
                continue;
            }
            bounds.push(Reverse((self.bound_ms(ground, at, want), at)));
        }
        BinaryHeap::from(bounds)
    }

    fn bound_ms(&self, ground: &Ground, at: usize, want: Want<'_>) -> u64 {
        let needed = want.ask.gpus().saturating_sub(ground.cards_free(at)) as usize;
        if needed == 0 || want.ask.share_milli().is_some() {
            return self.now_ms;
        }
        let live = ground.sites[at].row.attempts.iter();
        let mut ends: Vec<(u64, usize)> =
            live.map(|attempt| (self.attempt_ends_ms(attempt), attempt.devices.len())).collect();
        let placed = self.placed.get(&at).into_iter().flatten();
        ends.extend(placed.map(|one| (one.ends_ms, one.devices.len())));
        ends.sort_unstable();
        let mut freed = 0;
        for (ends_ms, cards) in ends {
            freed += cards;
            if freed >= needed {
                return ends_ms;
            }
        }
        // Sick cards or foreign holders: the exact look decides.
        self.now_ms
    }

    /// When one task after the other finds room on a site, up to `parts`.
    fn rooms(&self, ground: &Ground, at: usize, job: &Job, want: Want<'_>, parts: usize) -> Vec<Room> {
        let host = &ground.sites[at].row.host;
        let mut used = ground.sites[at].used().clone();
        used.launching = 0;
        let mut rooms = Vec::new();
        let mut at_ms = self.now_ms;
        let ends = self.ends(ground, at);
        let mut ends = ends.iter().peekable();
        loop {
            while rooms.len() < parts
                && let Ok(eligible) = fit::fits(host, &used, want, self.now_ms)
                && let Some(devices) = choose(ground, at, want, job.spec.layout, &eligible)
            {
                fit::take(host, &mut used, want, &devices, slot_token(0, rooms.len() as u64));
                used.launching = 0;
                rooms.push(Room { at_ms, devices });
            }
            let Some(end) = ends.next().filter(|_| rooms.len() < parts) else {
                return rooms;
            };
            at_ms = at_ms.max(end.at_ms);
            used.subtract(end.token, end.cpus_milli, end.mem_mib, end.devices);
        }
    }
}

/// Room for one task on one site.
#[derive(Debug, Clone)]
struct Room {
    at_ms: u64,
    devices: Vec<DeviceUuid>,
}
