//! Gang: all parts in one move, or none. What a gang has taken of the round is given back if it does not come
//! together.

use super::choose::choose;
use super::round::{Round, Tried, at_least};
use super::sites::Ground;
use crate::fit::{self, Want};
use crate::state::attempt::GANG_PORT_BLOCKS;
use crate::state::host::Used;
use crate::state::job::Job;
use rota_protocol::DeviceUuid;
use rota_protocol::Token;
use rota_protocol::ask::Ask;
use rota_protocol::plan::{Move, Part};
use rota_protocol::work::Layout;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One part that has found its place.
struct Seat {
    at: usize,
    devices: Vec<DeviceUuid>,
}

impl<'p> Round<'p> {
    /// Starts a gang with as many parts as fit, at least its fewest.
    pub(super) fn start_gang(&mut self, job: &Arc<Job>, choice: u8, ask: &Ask) -> Tried {
        let (fewest, most) = job.start_range();
        if most < fewest {
            return Tried::Waits;
        }
        if !self.shares.admits(self.view, job, &at_least(ask).times(u64::from(fewest))) {
            return Tried::OverCeiling;
        }
        if !self.ground.may_fit(ask) {
            return Tried::NoRoom;
        }
        let before = Before::default();
        let mut seats = Seats { seats: Vec::new(), before, held_back: false };
        self.seat(job, ask, most as usize, &mut seats);
        let meets = seats.seats.first().is_none_or(|seat| self.has_ports(seat.at));
        seats.held_back |= !meets;
        if seats.seats.len() < fewest as usize || !meets {
            self.unseat(job, ask, &mut seats);
            return if seats.held_back { Tried::HeldBack } else { Tried::NoRoom };
        }
        self.guards.unbind(job.id);
        let ordinals = job.pending.first(seats.seats.len() as u32).into_iter().flat_map(|(a, b)| a..b);
        let devices: usize = seats.seats.iter().map(|seat| seat.devices.len() + 1).sum();
        let parts = ordinals.zip(seats.seats).map(|(ordinal, seat)| {
            let host = &self.ground.sites[seat.at].row.host;
            let index = job.task(ordinal).index;
            Part { index, host: host.id, epoch: host.epoch, devices: seat.devices }
        });
        let parts = parts.collect();
        self.emit(Move::Start { job: job.id, choice, parts }, devices);
        Tried::Started
    }

    /// The host of the first part has a block of ports left for the gang to meet at.
    fn has_ports(&self, at: usize) -> bool {
        self.ground.sites[at].row.host.used.ports.len() < usize::from(GANG_PORT_BLOCKS)
    }

    /// Finds seats by the gang's layout.
    fn seat(&mut self, job: &Arc<Job>, ask: &Ask, most: usize, seats: &mut Seats) {
        if self.guards.owns(job.id) {
            self.seat_one_by_one(job, ask, most, seats, &|_, _| true);
            return;
        }
        match job.spec.layout {
            Layout::Spread => {
                // A second part on a host only when every host has one.
                let mut last = usize::MAX;
                while seats.seats.len() < most && seats.seats.len() != last {
                    last = seats.seats.len();
                    let round = seats.seats.len();
                    let fresh = move |at: usize, taken: &[usize]| !taken[round..].contains(&at);
                    self.seat_one_by_one(job, ask, most, seats, &fresh);
                }
            }
            Layout::SameHost => self.seat_packed(job, ask, most, seats, &|_| true, true),
            Layout::SameRack => self.seat_in_rack(job, ask, most, seats),
            Layout::Any | Layout::Pack | Layout::SameIsland => {
                self.seat_packed(job, ask, most, seats, &|_| true, false);
            }
        }
    }

    /// Each part on the best site that is left.
    fn seat_one_by_one(
        &mut self,
        job: &Arc<Job>,
        ask: &Ask,
        most: usize,
        seats: &mut Seats,
        wanted: &dyn Fn(usize, &[usize]) -> bool,
    ) {
        while seats.seats.len() < most {
            let taken: Vec<usize> = seats.seats.iter().map(|seat| seat.at).collect();
            match self.find(job, ask, &|at| wanted(at, &taken)) {
                Ok((at, devices)) if self.take_seat(job, ask, at, &devices, seats) => {}
                Ok(_) => return,
                Err(tried) => {
                    seats.held_back |= tried == Tried::HeldBack;
                    return;
                }
            }
        }
    }

    /// On few sites: one that takes all that are left before one that takes some; of those the preferred and the faster
    /// models first; then the tightest, or the one that takes the most.
    fn seat_packed(
        &mut self,
        job: &Arc<Job>,
        ask: &Ask,
        most: usize,
        seats: &mut Seats,
        wanted: &dyn Fn(usize) -> bool,
        on_one: bool,
    ) {
        let want = Want::of(job, ask);
        let pace = self.pace(job, ask);
        let mut full: BTreeSet<usize> = BTreeSet::new();
        while seats.seats.len() < most {
            let left = most - seats.seats.len();
            let mut groups = self.ground.groups_fitting(want, &pace);
            for (_, group) in &mut groups {
                group.retain(|at| wanted(*at) && !full.contains(at));
            }
            groups.retain(|(_, group)| !group.is_empty());
            let sized = groups.into_iter().enumerate().map(|(place, ((liking, slowness, _), group))| {
                let room = room_on(self.ground, group[0], job, want, left);
                let short = room < left;
                ((short, liking, slowness, Reverse(if short { room } else { 0 }), room, place), group)
            });
            let Some((_, group)) = sized.min_by_key(|(rank, _)| *rank) else {
                return;
            };
            for at in group {
                let before = seats.seats.len();
                self.fill_site(job, ask, at, most, seats);
                full.insert(at);
                if seats.seats.len() >= most {
                    return;
                }
                if seats.seats.len() > before {
                    if on_one {
                        // One host must do for all; one that turns out too small (a promise is in the way) does not.
                        if seats.seats.len() >= job.start_range().0 as usize {
                            return;
                        }
                        self.unseat(job, ask, seats);
                        continue;
                    }
                    // The site's group has changed: look again, the rest may fit on a tighter one.
                    if most - seats.seats.len() < left {
                        break;
                    }
                }
            }
        }
    }

    /// As many parts on one site as fit.
    fn fill_site(&mut self, job: &Arc<Job>, ask: &Ask, at: usize, most: usize, seats: &mut Seats) {
        let want = Want::of(job, ask);
        while seats.seats.len() < most {
            match self.devices_on(at, job, want) {
                Ok(devices) if self.take_seat(job, ask, at, &devices, seats) => {}
                Ok(_) => return,
                Err(tried) => {
                    seats.held_back |= tried == Tried::HeldBack;
                    return;
                }
            }
        }
    }

    /// All in one rack: the rack with the least room that is enough.
    fn seat_in_rack(&mut self, job: &Arc<Job>, ask: &Ask, most: usize, seats: &mut Seats) {
        let want = Want::of(job, ask);
        let (fewest, _) = job.start_range();
        let mut racks: BTreeMap<String, usize> = BTreeMap::new();
        let groups = self.ground.groups_fitting(want, &self.pace(job, ask));
        for at in groups.into_iter().flat_map(|(_, group)| group) {
            if let Some(rack) = self.ground.sites[at].row.host.facts.labels.get(fit::RACK_LABEL) {
                let room = room_on(self.ground, at, job, want, most);
                *racks.entry(rack.clone()).or_default() += room;
            }
        }
        let mut racks: Vec<(bool, usize, String)> =
            racks.into_iter().map(|(rack, room)| (room < most, room, rack)).collect();
        racks.retain(|(_, room, _)| *room >= fewest as usize);
        racks.sort();
        for (_, _, rack) in racks {
            let members: BTreeSet<usize> = (0..self.ground.sites.len())
                .filter(|at| self.ground.sites[*at].row.host.facts.labels.get(fit::RACK_LABEL) == Some(&rack))
                .collect();
            self.seat_packed(job, ask, most, seats, &|at| members.contains(&at), false);
            if seats.seats.len() >= fewest as usize {
                return;
            }
            self.unseat(job, ask, seats);
        }
    }

    fn take_seat(
        &mut self,
        job: &Arc<Job>,
        ask: &Ask,
        at: usize,
        devices: &[DeviceUuid],
        seats: &mut Seats,
    ) -> bool {
        let before = self.ground.taken(at);
        if !self.hold(job, ask, at, devices) {
            return false;
        }
        seats.before.0.entry(at).or_insert(before);
        seats.seats.push(Seat { at, devices: devices.to_vec() });
        true
    }

    fn unseat(&mut self, job: &Arc<Job>, ask: &Ask, seats: &mut Seats) {
        for seat in seats.seats.drain(..).rev() {
            self.release(job, ask, seat.at, &seat.devices);
        }
        for (at, taken) in std::mem::take(&mut seats.before.0) {
            self.ground.restore(at, taken);
        }
    }
}

/// The seats of a gang under way.
struct Seats {
    seats: Vec<Seat>,
    before: Before,
    held_back: bool,
}

/// What the round had taken of each site before the gang came.
#[derive(Default)]
struct Before(BTreeMap<usize, Option<Box<Used>>>);

/// How many tasks of an ask a site takes now, up to `most`.
fn room_on(ground: &Ground, at: usize, job: &Job, want: Want<'_>, most: usize) -> usize {
    let host = &ground.sites[at].row.host;
    let mut used = ground.sites[at].used().clone();
    let now_ms = ground.now_ms();
    let mut room = 0;
    while room < most
        && let Ok(eligible) = fit::fits(host, &used, want, now_ms)
        && let Some(devices) = choose(ground, at, want, job.spec.layout, &eligible)
    {
        fit::take(host, &mut used, want, &devices, Token(room as u64));
        room += 1;
    }
    room
}
