//! Rows of what is proposed, and of who leads: R7, R9, R10.

use super::super::client::spec;
use super::super::lab::{Failure, Lab};
use super::super::linear::{Ask, Got};
use super::Attempt;
use super::net::at_work;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::job::Actor;
use rota_protocol::limits::ENTRY_BYTES_MAX;
use rota_protocol::{ErrorCode, RequestId};
use std::time::Duration;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);

/// The submission of a key that no client uses.
pub(super) fn submission(key: u64) -> Proposal {
    Proposal {
        request: RequestId(u128::from(key) << 64 | 1),
        actor: Actor::system(),
        command: Command::Submit { spec: spec(key) },
    }
}

pub(super) async fn unknown_command(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 3, 2).await?;
    lab.rest().await;
    lab.settled(PATIENCE).await?;
    let door = lab.door(leader)?;
    let before = door.peer.fingerprint();
    let newer =
        rota_protocol::codec::encode(&(rota_protocol::version::NEWEST + 1, 1_u64, 0_u64)).unwrap_or_default();
    door.chance.scope(door.peer.write_raw(newer)).await;
    for host in lab.ids() {
        let door = lab.door(host)?;
        let failed = || door.peer.failed().borrow().is_some().then_some(());
        lab.until(PATIENCE, "halt", failed).await?;
        let after = door.peer.fingerprint();
        attempt.must(after == before, || format!("R7: host {host} skipped an entry: {before:?} {after:?}"));
    }
    attempt.exercised = true;
    attempt.judge(lab);
    Ok(())
}

pub(super) async fn answer_lost(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 3, 2).await?;
    let rest = lab.others(leader);
    let key = 4_000_000;
    let (door, clients) = (lab.door(leader)?, lab.clients.clone());
    // The leader carries it out; whoever asked hears nothing, because the leader is gone before it can tell.
    let asked = tokio::spawn(async move { clients.once(&door, key, Ask::Submit).await });
    let jobs = |lab: &Lab| {
        let doors = lab.ground.doors.all();
        doors.iter().any(|door| door.peer.read(|state| !super::super::client::views(state, key).is_empty()))
    };
    lab.until(PATIENCE, "job that was carried out", || jobs(&lab).then_some(())).await?;
    lab.crash(leader)?;
    let _ = asked.await;
    let began = lab.now_ms();
    let mut answers = Vec::new();
    for host in rest.iter().cycle().take(40) {
        let door = lab.door(*host)?;
        if let Some(Got::Job(job)) = lab.clients.once(&door, key, Ask::Submit).await {
            answers.push(job);
            if answers.len() == 1 {
                attempt.took(lab.now_ms() - began);
            }
        }
        if answers.len() == 3 {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    attempt.must(answers.len() == 3, || format!("R9: only {} answers", answers.len()));
    answers.dedup();
    attempt.must(answers.len() <= 1, || format!("R9: one request was answered by {answers:?}"));
    lab.start(leader).await.map_err(|error| error.to_string())?;
    attempt.close(lab).await.map(|_| ())
}

/// The lead goes round by plan under load, behind a log in which a new leader has to look for where the others agree with it.
pub(super) async fn lead_goes_round(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, _) = at_work(attempt, 3, 5).await?;
    sleep(Duration::from_secs(3)).await;
    for _ in 0..4 {
        let leader = lab.leader(PATIENCE).await?;
        let door = lab.door(leader)?;
        let last = door.peer.status().last_log;
        attempt.must(last > 300, || format!("not exercised: the log has only {last} entries"));
        let from = lab.now_ms();
        let moved = door.chance.scope(door.peer.transfer_leader(None)).await;
        attempt.must(moved.is_ok(), || format!("R9: the lead stays with {leader}: {moved:?}"));
        sleep(Duration::from_millis(500)).await;
        let gap = lab.clients.history.longest_gap(from, lab.now_ms());
        // Half of the stated bound would do; a wait in the search takes all of it.
        attempt
            .must(gap <= 70, || format!("R9: the lead left {leader}, and nothing was answered for {gap} ms"));
        attempt.took(gap);
    }
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn largest_entry(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut plan = attempt.plan(3);
    plan.segment_bytes = 4 << 20;
    let lab = Lab::of(&plan).await?;
    let leader = lab.leader(PATIENCE).await?;
    let sized = |key: u64, bytes: usize| {
        let mut proposal = submission(key);
        if let Command::Submit { spec } = &mut proposal.command {
            // Several variables, each within its own limit.
            let piece = 120 << 10;
            let whole = bytes / piece;
            spec.env = (0..=whole)
                .map(|n| {
                    (format!("V{n}").into_bytes(), vec![b'x'; if n < whole { piece } else { bytes % piece }])
                })
                .collect();
        }
        proposal
    };
    let len = |proposal: &Proposal| rota_protocol::codec::encode(proposal).map_or(0, |bytes| bytes.len());
    // What the proposer itself adds before the proposals.
    let limit = ENTRY_BYTES_MAX - 32;
    let mut fill = limit - len(&sized(5_000_001, 0));
    while len(&sized(5_000_001, fill)) > limit {
        fill -= 1;
    }
    for host in [leader, lab.others(leader)[0]] {
        let largest = sized(5_000_001 + host.0, fill);
        let size = len(&largest);
        let outcome = lab.propose(host, vec![largest]).await;
        let taken = matches!(outcome.as_deref(), Ok([Outcome::Submitted { .. } | Outcome::Refused(_)]));
        attempt.must(taken, || format!("R10: an entry of {size} bytes at host {host}: {outcome:?}"));
        let more = lab.propose(host, vec![sized(6_000_001, fill + 64)]).await;
        let code = more.err().map(|error| error.code);
        attempt.must(code == Some(ErrorCode::TooLarge), || format!("R10: 64 bytes more: {code:?}"));
    }
    attempt.exercised = true;
    attempt.close(lab).await.map(|_| ())
}
