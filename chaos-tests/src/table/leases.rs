//! Rows of clocks and leases (C2, C4, C5, C6): the product's own deciders of both sides, each on a clock of its own, and
//! true time in a loop. Nothing waits, and a seed is a run.
//!
//! Not here: C3, clocks beyond the bound, which is `drift.rs`.

use crate::real::row::Row;
use crate::world::clock::{Clock, RATE_TRUE};
use crate::world::rng::Rng;
use rota_node::logic::lease::{LeaseHolder, LeaseParams, Renewal};
use rota_node::logic::lease_book::{EXPIRIES_MAX, LeaseBook, Receipt, RoundEnd};
use rota_node::shim::{LeaseFile, LeaseReader};
use rota_protocol::{BootId, HostId, LeaseEpoch};
use std::time::Instant;

/// The rows.
pub(super) const ROWS: [(&str, &str); 4] = [
    ("C2", "clocks half a percent apart: from the last renewal until the lease is let go"),
    ("C4", "a lease of another boot or epoch, whatever its clock says: never honoured"),
    ("C5", "a clock that stands still and steps back: from the last renewal until the lease is let go"),
    ("C6", "10,000 leases due at once: longest look of the leader"),
];
/// From the last contact until a lease is let go, in ms: `L (1 + rho)` and half a second, by the slowest clock.
const LET_GO_MS: u64 = 5_600;
/// Longest that the event loop may be held up, in ms.
const STALL_MS: u64 = 100;
const EPOCH: LeaseEpoch = LeaseEpoch(1);
const HOST: HostId = HostId(7);
/// Steps of true time, and of the leader's looks, in ms.
const STEP_MS: u64 = 10;
const LOOK_MS: u64 = 50;
/// A host is cut off at some time within this, in ms.
const CUT_MS: u64 = 30_000;

/// Tries a row once.
pub(super) fn row(id: &str, what: &str, seed: u64) -> Row {
    let mut rng = Rng::new(seed);
    match id {
        "C2" => apart(Row::new(id, what, Some(LET_GO_MS)), &mut rng, false),
        "C5" => apart(Row::new(id, what, Some(LET_GO_MS + STOPS_MS)), &mut rng, true),
        "C4" => foreign(Row::new(id, what, None)),
        _ => storm(Row::new(id, what, Some(STALL_MS))),
    }
}

/// How long a clock stands still, in ms; that much longer a lease may last.
const STOPS_MS: u64 = 2_000;

/// A clock that may stand still once, and then be a millisecond behind.
struct Watch {
    clock: Clock,
    stops_ms: Option<u64>,
}

impl Watch {
    fn draw(rng: &mut Rng, stops: bool) -> Self {
        let rate = rng.range(RATE_TRUE - 50, RATE_TRUE + 50);
        let clock = Clock { since_ms: 0, origin_ms: rng.range(0, 1_000_000), rate };
        Self { clock, stops_ms: stops.then(|| rng.range(0, CUT_MS)) }
    }

    fn at(&self, true_ms: u64) -> u64 {
        match self.stops_ms {
            Some(stops) if true_ms > stops + STOPS_MS => {
                self.clock.local(true_ms - STOPS_MS).saturating_sub(1)
            }
            Some(stops) if true_ms > stops => self.clock.local(stops),
            _ => self.clock.local(true_ms),
        }
    }
}

/// A renewal or its acknowledgement on its way.
struct Way {
    at_ms: u64,
    renewal: Renewal,
    back: bool,
}

/// One holder and one leader: renewals go on until the host is cut off for good.
fn apart(mut row: Row, rng: &mut Rng, stops: bool) -> Row {
    let params = LeaseParams::CHAOS;
    // A stopped clock is the leader's: a holder's that stops is beyond the bound of drift, and so beyond the rule.
    let (holder_clock, leader_clock) = (Watch::draw(rng, false), Watch::draw(rng, stops));
    let (mut holder, mut book) = (LeaseHolder::new(params), LeaseBook::new(params));
    holder.set_epoch(EPOCH);
    book.on_elected([(HOST, EPOCH)], leader_clock.at(0));
    let (loss, cut_ms) = (rng.range(0, 200), rng.range(CUT_MS / 2, CUT_MS));
    let (mut ways, mut heard_ms, mut ticket): (Vec<Way>, u64, u64) = (Vec::new(), 0, 0);
    let (mut stop_ms, mut deadline_ms) = (0, 0);
    for now_ms in (0..CUT_MS + 4 * LET_GO_MS).step_by(STEP_MS as usize) {
        let local_ms = holder_clock.at(now_ms);
        if now_ms < cut_ms
            && holder.next_send_ms().is_some_and(|due| due <= local_ms)
            && let Some(renewal) = holder.send(local_ms)
            && !rng.chance(loss)
        {
            ways.push(Way { at_ms: now_ms + rng.range(1, 200), renewal, back: false });
        }
        let (due, rest): (Vec<Way>, Vec<Way>) = ways.into_iter().partition(|way| way.at_ms <= now_ms);
        ways = rest;
        for way in due {
            if way.back {
                if let Some(deadline) = holder.ack(way.renewal, local_ms) {
                    row.must(deadline >= deadline_ms, || {
                        format!("I11: deadline {deadline_ms} became {deadline}")
                    });
                    deadline_ms = deadline;
                    // The first true time at which the holder's clock shows it: by then all is gone.
                    stop_ms = holder_clock.clock.true_at(deadline);
                }
                continue;
            }
            ticket += 1;
            if book.on_receipt(HOST, EPOCH, ticket, leader_clock.at(now_ms)) == Receipt::Waits {
                heard_ms = now_ms;
                let round = book.round_begin();
                let answered = round.map(|round| book.round_end(round, true));
                if matches!(answered, Some(RoundEnd::Acknowledge(_))) && !rng.chance(loss) {
                    ways.push(Way { at_ms: now_ms + rng.range(1, 200), renewal: way.renewal, back: true });
                }
            }
        }
        if stop_ms > 0 && now_ms < cut_ms {
            row.must(stop_ms > now_ms, || {
                format!("I11: a host that renews was to stop at {stop_ms}, {now_ms} now")
            });
        }
        if now_ms.is_multiple_of(LOOK_MS) {
            let due = book.due(leader_clock.at(now_ms));
            if !book.still_due(&due, true).is_empty() {
                row.must(now_ms >= cut_ms, || format!("I11: let go at {now_ms} while it was renewed"));
                row.must(now_ms >= stop_ms, || format!("I1: let go at {now_ms}, and it stops at {stop_ms}"));
                row.ran(now_ms - heard_ms);
                return row;
            }
        }
    }
    row.wrong("the lease of a silent host was never let go");
    row
}

/// A file of an earlier boot or epoch, with a deadline that never comes.
fn foreign(mut row: Row) -> Row {
    let Ok(dir) = tempfile::tempdir() else { return row.skip("no folder for temporary files") };
    let boot = BootId(1);
    let written = LeaseFile::open(dir.path(), &boot, EPOCH)
        .and_then(|file| file.extend(u64::MAX).map(|()| file.path().to_owned()));
    let path = match written {
        Ok(path) => path,
        Err(error) => return row.skip(&format!("no lease file: {error}")),
    };
    row.tried();
    for (boot, epoch) in [(BootId(2), EPOCH), (boot, LeaseEpoch(2)), (BootId(0), LeaseEpoch(0))] {
        let read = LeaseReader::open(&path, &boot, epoch).is_err();
        row.must(read, || format!("a lease of boot 1, epoch 1 was honoured for {boot:?}, {epoch:?}"));
    }
    let own = LeaseReader::open(&path, &boot, EPOCH).map(|mut lease| lease.deadline_ms());
    row.must(matches!(own, Ok(u64::MAX)), || format!("its own lease says {own:?}"));
    row
}

/// Ten thousand leases due in one look.
fn storm(mut row: Row) -> Row {
    const HOSTS: u64 = 10_000;
    let hosts = |from: u64| (from..=HOSTS).map(|host| (HostId(host), EPOCH));
    let mut book = LeaseBook::new(LeaseParams::CHAOS);
    book.on_elected(hosts(1), 0);
    let (mut next, mut longest) = (1, 0);
    while next <= HOSTS {
        let began = Instant::now();
        let due = book.due(60_000);
        let gone = book.still_due(&due, true).len();
        next += gone as u64;
        book.set_hosts(hosts(next), 60_000);
        longest = longest.max(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        row.must(gone == EXPIRIES_MAX, || format!("{gone} leases were let go at once"));
        if gone == 0 {
            break;
        }
    }
    row.ran(longest);
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::row::Outcome;

    #[test]
    fn rows_hold_over_many_seeds() {
        for (id, what) in ROWS {
            let seeds = if id.starts_with("C2") || id.starts_with("C5") { 200 } else { 1 };
            let mut all = Row::new(id, what, None);
            (1..=seeds).for_each(|seed| all.merge(row(id, what, seed)));
            assert_eq!(all.violations, Vec::<String>::new(), "{}", all.lines());
            // How long a look takes is for the table: a busy machine may hold it up.
            assert!(id == "C6" || all.outcome() == Outcome::Held, "{}", all.lines());
        }
    }
}
