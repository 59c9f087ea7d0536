//! One host of three refuses every launch (field report R054): all jobs succeed elsewhere, few launches hit it, and
//! it takes work again by itself once repaired.

use super::Bench;
use super::report::Report;
use rota_node::lab::{LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::job::{AttemptEnd, JobState};
use rota_protocol::view::HostState;
use rustix::fs::IFlags;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// Most launches that may hit the bad host.
const HITS_MAX: u64 = 10;
/// How long the repaired host may stay out of use.
const BACK_LIMIT: Duration = Duration::from_secs(300);

/// R054: nothing can be made in the second host's folder for attempts.
pub(super) async fn one_of_three(bench: &Bench) -> Result<Report, LabError> {
    let lab = bench.lab("R054", 3, |_| {}).await?;
    let attempts = lab.peers[1].dir.join("attempts");
    lock_folder(&attempts, true).map_err(|e| LabError::Io("cannot break the host".into(), e))?;
    let mut client = Stubborn::new(&lab, 0);
    let mut jobs = Vec::new();
    // Long enough that the good hosts are full before all are submitted: the bad one must be tried.
    for _ in 0..100 {
        jobs.push(client.submit(with_gpus(shell_job("short", "sleep 0.3"), 1)).await?);
    }
    let rows = client.until_done(&jobs, Duration::from_secs(120), |_, _| {}).await?;
    let succeeded = rows.iter().filter(|row| row.state == JobState::Succeeded).count();
    let mut violations = Vec::new();
    if succeeded != jobs.len() {
        violations.push(format!("{succeeded} of {} jobs succeeded", jobs.len()));
    }
    let mut hits = 0;
    for job in &jobs {
        let show = ApiRequest::Show { job: *job, freshness: Freshness::Linearizable };
        if let ApiReply::Job(view) = client.ask(show, Duration::from_secs(10)).await? {
            let failed = |end: &Option<AttemptEnd>| matches!(end, Some(AttemptEnd::LaunchFailed { .. }));
            hits += view.attempts.iter().filter(|attempt| failed(&attempt.end)).count() as u64;
        }
    }
    if hits == 0 {
        violations.push("not exercised: no launch hit the bad host".into());
    }
    lock_folder(&attempts, false).map_err(|e| LabError::Io("cannot repair the host".into(), e))?;
    let bad = lab.peers[1].host;
    let back = wait_for("the repaired host's return", BACK_LIMIT, async || {
        let hosts = lab.hosts().await.ok()?;
        hosts.iter().any(|host| host.host == bad && host.state == HostState::Up).then_some(())
    });
    if back.await.is_err() {
        violations.push("the repaired host does not take work again".into());
    }
    Ok(Report::of("R054", 1, &violations).figure("launches_on_bad_host", hits, Some(HITS_MAX)))
}

/// Lets nobody make files in a folder, or lets them again. Root passes over permissions, so the folder is made
/// immutable where the file system can; elsewhere its permissions must do.
pub(super) fn lock_folder(path: &Path, locked: bool) -> std::io::Result<()> {
    let folder = std::fs::File::open(path)?;
    let flags = rustix::fs::ioctl_getflags(&folder).unwrap_or(IFlags::empty());
    let flags = if locked { flags | IFlags::IMMUTABLE } else { flags - IFlags::IMMUTABLE };
    if rustix::fs::ioctl_setflags(&folder, flags).is_ok() {
        return Ok(());
    }
    folder.set_permissions(std::fs::Permissions::from_mode(if locked { 0o500 } else { 0o700 }))
}
