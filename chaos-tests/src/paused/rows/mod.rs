//! The rows of the catalogue that this rung can try: each a function that makes a cluster, does the fault, measures how long
//! recovery takes in virtual time, and says what did not hold. A new row is one line in [`ROWS`].

mod address;
mod clock;
mod copies;
mod crash;
mod disk;
mod gossip;
mod members;
mod net;
mod raft;
mod snapshots;

use super::lab::{Failure, Lab, Plan, in_virtual_time};
use super::peer::Way;
use super::plant::Plant;
use super::verdict;
use std::collections::BTreeMap;
use std::pin::Pin;

/// A row at work.
type Trying<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;
type Try = for<'a> fn(&'a mut Attempt) -> Trying<'a>;

/// What a row is.
#[derive(Clone, Copy)]
pub struct RowSpec {
    /// Its id in the catalogue, with a letter where one fault has several.
    pub id: &'static str,
    /// What is measured, for people.
    pub what: &'static str,
    /// The stated bound, in virtual ms.
    pub stated_ms: Option<u64>,
    pub(super) attempt: Try,
}

/// One try of a row.
pub(super) struct Attempt {
    pub(super) seed: u64,
    pub(super) way: Way,
    pub(super) talks: bool,
    pub(super) plant: Option<Plant>,
    /// What was measured, in virtual ms.
    pub(super) measured: Vec<u64>,
    /// What did not hold.
    pub(super) wrong: Vec<String>,
    /// The fault was really met; a row that never met it is no success.
    pub(super) exercised: bool,
    trace: u64,
    lines: Vec<String>,
}

/// What became of one try.
#[derive(Debug, Clone)]
pub struct Tried {
    /// In virtual ms.
    pub measured: Vec<u64>,
    /// What did not hold.
    pub wrong: Vec<String>,
    /// The fault was met.
    pub exercised: bool,
    /// Equal for equal runs.
    pub trace: u64,
    /// Lines, if it was asked to talk.
    pub lines: Vec<String>,
}

macro_rules! rows {
    ($($id:literal, $stated:expr, $attempt:path, $what:literal;)*) => {
        /// All rows, in the order of the table.
        pub const ROWS: &[RowSpec] = &[$(RowSpec {
            id: $id,
            what: $what,
            stated_ms: $stated,
            attempt: |attempt| Box::pin($attempt(attempt)),
        },)*];
    };
}

rows! {
    "N1", Some(2_500), net::leader_cut_off, "leader cut off: until the rest commits";
    "N1b", Some(1_200), net::old_leader_refuses, "leader cut off: until it refuses writes and reads";
    "N1c", Some(1_000), net::old_leader_rejoins, "leader cut off, then healed: until it follows";
    "N2", Some(1_500), net::minority_refuses, "leader in a minority of 5: longest wait of its clients for a refusal";
    "N3", Some(2_500), net::followers_hear_nothing, "leader unheard: until the rest commits";
    "N3b", Some(4_000), net::leader_hears_nothing, "leader deaf: until writes are acknowledged again";
    "N4", Some(2_500), net::bridge, "two cut apart, both see the third: longest gap of writes";
    "N5", Some(2_500), net::lossy, "20 % of datagrams lost for 10 s: longest gap of writes";
    "N5b", None, net::very_lossy, "50 % of datagrams lost for 10 s: longest gap of writes";
    "N6", None, net::slow, "25 to 125 ms of delay: longest gap of writes, and no election";
    "N6b", None, net::very_slow, "500 ms there and back: longest gap of writes";
    "N7", Some(1_000), net::disordered, "25 % late, 50 % twice: longest gap of writes";
    "N8", Some(1_000), net::flipped, "1 % of datagrams with a turned bit: longest gap of writes";
    "N9", Some(3_000), net::narrow, "datagrams above 1,200 bytes vanish: until a write is acknowledged";
    "N10", Some(5_000), net::clogged, "all links cut one by one, mended one by one: until all is even";
    "N12", Some(6_500), gossip::alone, "gossip is cut and agreement is not: until nobody's news count any more; writes go on";
    "N12b", Some(2_500), gossip::only, "agreement is cut and gossip is not: from the healing until a write is acknowledged";
    "N13", Some(10_000), net::capped_snapshot, "64 kB/s to one host that needs a snapshot: until it is up to date";
    "N14", Some(1_000), address::of_another, "another host at the address of one that is off: longest gap of writes";
    "N14b", Some(3_000), address::back, "and back at an address of its own: until it follows";
    "P1", Some(2_500), crash::leader_again_and_again, "leader off, 6 times: gaps of writes";
    "P2", Some(200), crash::follower, "follower off: longest gap of writes";
    "P2b", Some(3_000), crash::everybody, "all off at once: until writes are acknowledged";
    "P2c", Some(2_500), crash::two_of_five, "two of five off: longest gap of writes";
    "P9", Some(3_000), crash::at_each_step, "off at each step of the disk: until it follows again";
    "C1", Some(1_000), clock::wall_jumps, "wall clocks jump by hours and years: longest gap of writes, and no election";
    "D1", Some(3_000), disk::torn_tails, "last record torn at each byte: until the host follows again";
    "D2", None, disk::bit_flips, "a turned bit in log, snapshot or header: the host refuses to start";
    "D3", None, disk::majority_damaged, "damage on a majority: nobody serves";
    "D4", Some(3_000), disk::forgetful, "all off with unsynced writes lost: until writes are acknowledged";
    "D5", Some(2_500), disk::sync_fails, "a failed sync at the leader: until the rest commits";
    "D6", Some(2_000), disk::full, "leader's disk full: from room until writes are acknowledged";
    "D7", Some(2_500), disk::read_only, "leader's disk read-only: until the rest commits";
    "D8", Some(5_000), disk::slow_leader, "leader's syncs take 200 ms, then stall 5 s: longest gap of writes";
    "D8b", Some(200), disk::slow_follower, "a follower's syncs take 2 s: longest gap of writes";
    "D10", None, disk::stale_block, "an old block in the middle of the log: the host refuses to start";
    "D11", Some(10_000), disk::damaged_snapshots, "pieces of snapshots damaged on their way: until the host is even";
    "D11b", Some(2_500), snapshots::forged, "snapshots cut short, damaged, old, foreign, of monstrous lengths: until a write after them";
    "R1", Some(2_500), members::churn, "grow 3 to 7 under faults: longest gap of writes";
    "R2", None, members::far_behind, "a learner that is far behind is not made a voter";
    "R4", Some(10_000), members::behind_a_purge, "a follower behind a purged log, snapshot cut off: until it is even";
    "R5", Some(10_000), members::purge_and_restart, "snapshots, purges and restarts in turns: until all is even";
    "R7", None, raft::unknown_command, "an entry of a newer format halts the peer, and is not skipped";
    "R8", Some(2_500), copies::part, "one host applies in another order: from the first difference until that host stops";
    "R9", Some(2_500), raft::answer_lost, "the answer lost and the leader changed: until the same answer is given";
    "R9b", Some(100), raft::lead_goes_round, "the lead handed over, 4 times: longest gaps of writes";
    "R10", None, raft::largest_entry, "an entry of the greatest size passes, one byte more is refused";
}

/// The row of an id.
#[must_use]
pub fn row(id: &str) -> Option<&'static RowSpec> {
    ROWS.iter().find(|row| row.id == id)
}

impl RowSpec {
    /// Tries it once. Odd seeds go over QUIC, even ones directly, unless the row says otherwise.
    #[must_use]
    pub fn attempt(&self, seed: u64, talks: bool) -> Tried {
        self.attempt_with(seed, None, talks)
    }

    pub(super) fn attempt_with(&self, seed: u64, plant: Option<Plant>, talks: bool) -> Tried {
        let way = if seed.is_multiple_of(2) { Way::Direct } else { Way::Quic };
        let mut attempt = Attempt {
            seed,
            way,
            talks,
            plant,
            measured: Vec::new(),
            wrong: Vec::new(),
            exercised: false,
            trace: 0,
            lines: Vec::new(),
        };
        in_virtual_time(async {
            if let Err(failure) = (self.attempt)(&mut attempt).await {
                attempt.wrong.push(failure);
            }
        });
        let Attempt { measured, wrong, exercised, trace, lines, .. } = attempt;
        Tried { measured, wrong, exercised, trace, lines }
    }
}

impl Attempt {
    pub(super) fn plan(&self, hosts: u64) -> Plan {
        let mut plan = Plan::new(self.seed, hosts, self.way);
        plan.talks = self.talks;
        plan.plant = self.plant;
        plan
    }

    /// It took so long.
    fn took(&mut self, ms: u64) {
        self.exercised = true;
        self.measured.push(ms);
    }

    fn must(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    /// Lets clients finish, waits until all is even, and asks all checkers. Returns what was met.
    async fn close(&mut self, mut lab: Lab) -> Result<BTreeMap<String, u64>, Failure> {
        lab.rest().await;
        lab.heal().await?;
        let even = lab.settled(std::time::Duration::from_secs(10)).await;
        let ended = match even {
            Ok(()) => verdict::final_states(&lab).await,
            Err(failure) => Err(format!("I20: {failure}")),
        };
        self.wrong.extend(ended.err());
        Ok(self.judge(lab))
    }

    /// Asks all checkers, as things are.
    fn judge(&mut self, lab: Lab) -> BTreeMap<String, u64> {
        let mut reach = BTreeMap::new();
        verdict::judge(&lab, &mut self.wrong, &mut reach);
        self.trace = lab.ground.trace.hash();
        self.lines = lab.ground.trace.lines();
        lab.end();
        reach
    }
}
