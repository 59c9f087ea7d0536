//! A gang of `2..4` parts that loses hosts and gets them back (field report R041): it goes on, hears of its new size by
//! its file and a signal, and finds replacements by itself.

use super::Bench;
use super::gang_loss::{cancel, gang, show};
use super::report::Report;
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::Stubborn;
use rota_protocol::ids::{JobId, Token};
use rota_protocol::job::AttemptState;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// From a host's silence to the new size in every part's hands: the lease with its drift, the entry, the file, the
/// signal, and a machine of two cores with five agents.
const SHRINKS_MS: u64 = 8_000;
/// From a host's return to the full size in every part's hands.
const GROWS_MS: u64 = 8_000;
const LIMIT: Duration = Duration::from_secs(40);

/// Says its size at the start and whenever it is told of another.
fn script(told: &Path) -> String {
    format!(
        "say() {{ echo \"$ROTA_TOKEN $1 $(sed -n 's/^size=//p' \"$ROTA_GANG_FILE\")\" >> {}; }}; \
         trap 'say told' WINCH; say start; while :; do sleep 0.05; done",
        told.display()
    )
}

/// What each attempt said last: by a signal or at its start, and the size.
fn sizes(told: &Path) -> BTreeMap<Token, u32> {
    let text = std::fs::read_to_string(told).unwrap_or_default();
    let of = |line: &str| {
        let mut words = line.split(' ');
        let token = words.next()?.parse().ok()?;
        Some((Token(token), words.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(of).collect()
}

async fn live(client: &mut Stubborn, job: JobId) -> Result<BTreeSet<Token>, LabError> {
    let view = show(client, job).await?;
    let runs = view.attempts.iter().filter(|a| a.end.is_none() && a.state == Some(AttemptState::Running));
    Ok(runs.map(|attempt| attempt.token).collect())
}

/// Waits until `count` parts run and all of them were told so. Gives the parts, and how long it took in ms.
async fn until_size(
    client: &mut Stubborn,
    job: JobId,
    told: &Path,
    count: u32,
) -> Result<(BTreeSet<Token>, u64), LabError> {
    let began = Instant::now();
    let parts = wait_for(&format!("a gang of {count} that knows it"), LIMIT, async || {
        let parts = live(client, job).await.ok()?;
        let said = sizes(told);
        let know = parts.iter().all(|part| said.get(part) == Some(&count));
        (parts.len() == count as usize && know).then_some(parts)
    })
    .await?;
    Ok((parts, began.elapsed().as_millis() as u64))
}

/// Kills the agents at these places; the others go on.
fn lose(lab: &mut Lab, places: &[usize]) -> Result<(), LabError> {
    places.iter().try_for_each(|at| lab.signal(*at, Signal::KILL))
}

/// R041: one host is lost and comes back, then two at once.
pub(super) async fn shrinks_and_grows(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("R041", 4, |_| {}).await?;
    let (mut violations, mut shrinks, mut grows) = (Vec::new(), 0, 0);
    for round in 0..bench.rounds {
        let told = bench.dir.join("R041").join(format!("told-{round}"));
        let job = Stubborn::new(&lab, 0).submit(gang("elastic", &script(&told), 2, 4)).await?;
        let (mut before, _) = until_size(&mut Stubborn::new(&lab, 0), job, &told, 4).await?;
        // The first two of three voters stay.
        for gone in [vec![3], vec![2, 3]] {
            lose(&mut lab, &gone)?;
            let mut client = Stubborn::new(&lab, 0);
            client.patience = Duration::from_millis(1_000);
            let left = u32::try_from(4 - gone.len()).unwrap_or(0);
            let (stayed, ms) = until_size(&mut client, job, &told, left).await?;
            shrinks = shrinks.max(ms);
            if !stayed.is_subset(&before) {
                violations.push(format!("round {round}: parts on living hosts were started anew"));
            }
            for at in &gone {
                lab.spawn(*at)?;
            }
            let (after, ms) = until_size(&mut client, job, &told, 4).await?;
            grows = grows.max(ms);
            if !stayed.is_subset(&after) {
                violations.push(format!("round {round}: replacements ended those that had stayed"));
            }
            before = after;
        }
        cancel(&mut Stubborn::new(&lab, 0), job).await?;
    }
    Ok(Report::of("R041", bench.rounds, &violations)
        .figure("new_size_told_after_loss_ms", shrinks, Some(SHRINKS_MS))
        .figure("full_size_told_after_return_ms", grows, Some(GROWS_MS)))
}
