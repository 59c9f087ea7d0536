//! The row of long logs: D14. One peer on a real disk writes entries by the thousand: without snapshots, to see how long it then
//! takes to start; and as the product does, to see that the log does not grow with them.

use crate::real::row::Row;
use rota_consensus::memory_link::Hub;
use rota_consensus::{Consensus, ConsensusConfig, Timings, Tuning};
use rota_protocol::command::{Command, JobChange, Proposal};
use rota_protocol::job::{Actor, JobSpec};
use rota_protocol::{ClusterId, HostId, JobId, RequestId};
use std::path::Path;
use std::time::{Duration, Instant};

/// The row.
pub(super) const ROW: (&str, &str) =
    ("D14", "a log of many entries and no snapshot: until the peer has started, for a million");
/// How many entries: a million is what is stated; by default so many that it takes a moment.
const ENTRIES: &str = "ROTA_CHAOS_ENTRIES";
const ENTRIES_DEFAULT: u64 = 20_000;
const MILLION: u64 = 1_000_000;
/// For a million entries, in ms.
const START_MS: u64 = 10_000;
/// Calls at once: each is an entry of its own, and the log writes what waits together.
const AT_ONCE: u64 = 256;
/// One job for so many changes of it.
const CHANGES: u64 = 50;
const HOST: HostId = HostId(1);
const CLUSTER: ClusterId = ClusterId(0xd14);

fn by_rota(command: Command) -> Proposal {
    Proposal { request: RequestId::NONE, actor: Actor::system(), command }
}

fn change(number: u64) -> Proposal {
    if number.is_multiple_of(CHANGES) {
        let spec = JobSpec {
            name: "many".into(),
            argv: vec![b"true".to_vec()],
            workdir: b"/".to_vec(),
            ..JobSpec::default()
        };
        return by_rota(Command::Submit { spec });
    }
    let job = JobId(number / CHANGES + 1);
    by_rota(Command::Adjust { job, change: JobChange::Priority((number % 90) as u16) })
}

async fn started(dir: &Path, tuning: Tuning) -> Result<Consensus, String> {
    let config =
        ConsensusConfig { host: HOST, cluster: CLUSTER, dir: dir.to_owned(), timings: Timings::PRODUCTION };
    Consensus::start_in(config, tuning, Hub::new().link(HOST)).await.map_err(|error| error.to_string())
}

/// Writes so many entries, and waits until all are applied.
async fn filled(peer: &Consensus, entries: u64) -> Result<u64, String> {
    let create = Command::CreateCluster {
        cluster: CLUSTER,
        name: "long".into(),
        host_name: "h1".into(),
        addr: "127.0.0.1:4600".into(),
    };
    peer.found(by_rota(create)).await.map_err(|error| error.to_string())?;
    let mut number = 0;
    while number < entries {
        let upto = (number + AT_ONCE).min(entries);
        let calls = (number..upto).map(|number| peer.write_entry(change(number)));
        futures_util::future::join_all(calls).await;
        number = upto;
    }
    Ok(peer.status().applied)
}

async fn tried(row: &mut Row, entries: u64) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let never = Tuning { snapshot_entries: 1 << 40, snapshot_log_bytes: usize::MAX, ..Tuning::default() };
    let peer = started(&folder.path().join("long"), never.clone()).await?;
    let applied = filled(&peer, entries).await?;
    let before = peer.fingerprint();
    row.must(applied >= entries && peer.status().snapshot == 0, || {
        format!("not exercised: {applied} entries, a snapshot at {}", peer.status().snapshot)
    });
    peer.shutdown().await;
    drop(peer);
    let began = Instant::now();
    let peer = started(&folder.path().join("long"), never).await?;
    let served = peer.read_barrier(Duration::from_secs(120)).await;
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    row.must(served.is_ok(), || format!("it does not serve: {served:?}"));
    row.must(peer.read(|state| state.jobs().count() as u64) == entries.div_ceil(CHANGES), || {
        "jobs were lost over the start".into()
    });
    row.must(peer.fingerprint().0 > before.0, || "the state went back over the start".into());
    peer.shutdown().await;
    // An election is in it whatever the length of the log.
    let election_ms = Timings::PRODUCTION.leader_gap_ms_max();
    row.ran(took_ms.saturating_sub(election_ms) * MILLION / entries.max(1));
    row.also("started_after_ms", took_ms, Some(election_ms + START_MS.max(START_MS * entries / MILLION)));
    row.also("entries_count", entries, None);
    let tuning = Tuning { snapshot_entries: 1_000, keep_entries: 200, ..Tuning::default() };
    let peer = started(&folder.path().join("short"), tuning.clone()).await?;
    filled(&peer, entries).await?;
    let status = peer.status();
    let limit = tuning.snapshot_entries * 20 + tuning.keep_entries + AT_ONCE;
    row.must(status.snapshot > 0, || "not exercised: no snapshot was taken".into());
    row.must(status.applied - status.snapshot <= limit, || {
        format!("{} entries behind a snapshot at {}, {limit} are the limit", status.applied, status.snapshot)
    });
    row.also("log_memory_kib", status.log_memory_bytes >> 10, Some(32 << 10));
    peer.shutdown().await;
    Ok(())
}

/// Tries it once.
pub(super) async fn row() -> Row {
    let mut row = Row::new(ROW.0, ROW.1, Some(START_MS));
    let set = std::env::var(ENTRIES).ok();
    let entries = match set.as_deref().map(str::parse::<u64>) {
        None => ENTRIES_DEFAULT,
        Some(Ok(entries @ 2_000..=10_000_000)) => entries,
        Some(_) => {
            return row.skip(&format!(
                "{ENTRIES} is `{}`, not a number of 2000 to 10000000, such as 1000000",
                set.unwrap_or_default()
            ));
        }
    };
    if let Err(why) = tried(&mut row, entries).await {
        row.wrong(why);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_log_is_read_again_and_a_short_one_stays_short() {
        let mut row = Row::new(ROW.0, ROW.1, None);
        tried(&mut row, 2_500).await.expect("tried");
        // How long it takes is for the table, from a release build.
        assert_eq!((row.violations.clone(), row.runs), (Vec::new(), 1), "{}", row.lines());
    }
}
