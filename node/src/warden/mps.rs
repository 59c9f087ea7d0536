//! The daemons of NVIDIA's sharing service (MPS): one for each card whose jobs asked for it, kept by the agent. They live
//! in a folder of their own, `<data>/mps/<uuid>`, with a file that names the process, so that the next agent finds them.
//!
//! One client's fault ends all clients of a card, so only jobs of one tenant share through it, and the death of a daemon
//! ends the jobs on its card and no others (fault G10, report R035).

use crate::io::{durable, proc};
use rota_core::State;
use rota_core::state::attempt::Attempt;
use rota_protocol::DeviceUuid;
use rota_protocol::ask::Ask;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// The label that hosts with MPS have, and jobs that want it ask for.
pub const LABEL: (&str, &str) = ("rota.share", "mps");
/// How long a daemon may take until it listens.
const READY_MAX: Duration = Duration::from_secs(5);
/// Between two looks whether it does.
const READY_LOOK: Duration = Duration::from_millis(20);
/// What a daemon puts into its pipe folder when it listens.
const READY_FILE: &str = "control";
/// Names the process.
const PID_FILE: &str = "daemon";

/// Where a card's clients find its daemon: the value of `CUDA_MPS_PIPE_DIRECTORY`.
#[must_use]
pub fn pipe_folder(data_dir: &Path, card: &DeviceUuid) -> PathBuf {
    folder(data_dir, card).join("pipe")
}

fn folder(data_dir: &Path, card: &DeviceUuid) -> PathBuf {
    // A UUID is visible ASCII; a slash in one would be a driver's joke.
    data_dir.join("mps").join(card.0.replace('/', "_"))
}

/// The card that an attempt shares through MPS: a share whose ask names the label.
#[must_use]
pub fn card_of(replica: &State, attempt: &Attempt) -> Option<DeviceUuid> {
    let job = replica.job(attempt.task.job)?;
    attempt.devices.first().filter(|_| is_asked(attempt, job.spec.ask_at(attempt.choice))).cloned()
}

/// Whether an attempt shares its card through MPS, and not merely by turns.
#[must_use]
pub fn is_asked(attempt: &Attempt, ask: Option<&Ask>) -> bool {
    let named = |ask: &Ask| ask.labels.get(LABEL.0).map(String::as_str) == Some(LABEL.1);
    attempt.shares_card() && ask.is_some_and(named)
}

/// The daemons of this host.
#[derive(Debug, Default)]
pub struct Mps {
    data_dir: PathBuf,
    control: PathBuf,
    daemons: BTreeMap<DeviceUuid, Daemon>,
}

#[derive(Debug)]
struct Daemon {
    pid: i32,
    start_ticks: u64,
    /// Absent for one that an earlier agent started.
    child: Option<Child>,
}

impl Daemon {
    fn lives(&mut self) -> bool {
        if let Some(child) = &mut self.child
            && !matches!(child.try_wait(), Ok(None))
        {
            return false;
        }
        proc::stat(self.pid).is_ok_and(|stat| stat.start_ticks == self.start_ticks && stat.state != b'Z')
    }
}

impl Mps {
    /// No daemon yet; finds those of an earlier agent when they are asked for.
    #[must_use]
    pub fn new(data_dir: &Path, control: &Path) -> Self {
        Self { data_dir: data_dir.to_owned(), control: control.to_owned(), daemons: BTreeMap::new() }
    }

    /// The card's daemon listens when this returns: it did before, or it was started.
    ///
    /// # Errors
    /// Why it does not, in words for a person.
    pub async fn ensure(&mut self, card: &DeviceUuid) -> Result<(), String> {
        if self.lives(card) {
            return Ok(());
        }
        let (folder, pipe) = (folder(&self.data_dir, card), pipe_folder(&self.data_dir, card));
        let log = folder.join("log");
        let _ = fs::remove_dir_all(&folder);
        for dir in [&folder, &pipe, &log] {
            // Clients of other users pass through; what they may do there is the daemon's to say.
            let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(dir);
            made.map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        }
        let mut child = Command::new(&self.control)
            .arg("-f")
            .env("CUDA_VISIBLE_DEVICES", &card.0)
            .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", self.control.display()))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or("the MPS daemon ended at once")?;
        let start_ticks = proc::stat(pid).map_err(|_| "the MPS daemon ended at once")?.start_ticks;
        let began = Instant::now();
        while !pipe.join(READY_FILE).exists() {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("the MPS daemon ended with {status}"));
            }
            if began.elapsed() > READY_MAX {
                let _ = child.start_kill();
                return Err(format!("the MPS daemon did not listen within {} s", READY_MAX.as_secs()));
            }
            tokio::time::sleep(READY_LOOK).await;
        }
        durable::write_atomic(&folder.join(PID_FILE), format!("{pid} {start_ticks}").as_bytes(), 0o600)
            .map_err(|error| format!("cannot note the MPS daemon: {error}"))?;
        tracing::info!(%card, pid, "an MPS daemon was started");
        self.daemons.insert(card.clone(), Daemon { pid, start_ticks, child: Some(child) });
        Ok(())
    }

    /// Whether the card's daemon lives.
    pub fn lives(&mut self, card: &DeviceUuid) -> bool {
        if !self.daemons.contains_key(card) {
            let Some(found) = self.noted(card) else { return false };
            self.daemons.insert(card.clone(), found);
        }
        self.daemons.get_mut(card).is_some_and(Daemon::lives)
    }

    /// Processes of daemons: what hangs below them is no stranger.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.daemons.values().map(|daemon| daemon.pid).collect()
    }

    /// Ends daemons of cards that nobody shares through them.
    pub fn keep_only(&mut self, wanted: &BTreeSet<DeviceUuid>) {
        let unwanted = |card: &&DeviceUuid| !wanted.contains(*card);
        let cards: Vec<DeviceUuid> = self.daemons.keys().filter(unwanted).cloned().collect();
        for card in cards {
            let Some(mut daemon) = self.daemons.remove(&card) else { continue };
            if daemon.lives()
                && let Some(pid) = Pid::from_raw(daemon.pid)
            {
                // It may go between the look and the signal; its number is not reused within that.
                let _ = kill_process(pid, Signal::TERM);
                tracing::info!(%card, "an MPS daemon was ended");
            }
            let _ = fs::remove_file(folder(&self.data_dir, &card).join(PID_FILE));
            if let Some(mut child) = daemon.child {
                // Reaped whenever it goes.
                tokio::spawn(async move { child.wait().await });
            }
        }
    }

    fn noted(&self, card: &DeviceUuid) -> Option<Daemon> {
        let text = fs::read_to_string(folder(&self.data_dir, card).join(PID_FILE)).ok()?;
        let (pid, start_ticks) = text.trim().split_once(' ')?;
        let mut daemon =
            Daemon { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()?, child: None };
        daemon.lives().then_some(daemon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A control program that notes its arguments and cards and then serves until it is ended.
    fn control(dir: &Path, script: &str) -> PathBuf {
        let path = dir.join("nvidia-cuda-mps-control");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own");
        path
    }

    const SERVES: &str = "echo \"$@ $CUDA_VISIBLE_DEVICES\" >> \"${0%/*}/calls\"\n\
                          : > \"$CUDA_MPS_PIPE_DIRECTORY/control\"\nexec sleep 300";

    async fn gone(mps: &mut Mps, card: &DeviceUuid) {
        for _ in 0..500 {
            if !mps.lives(card) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the daemon of {card} lives on");
    }

    #[tokio::test]
    async fn a_daemon_serves_one_card_outlives_its_agent_and_is_missed_when_it_dies() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = control(dir.path(), SERVES);
        let (a, b) = (DeviceUuid("GPU-a".into()), DeviceUuid("GPU-b".into()));
        let mut mps = Mps::new(dir.path(), &program);
        for card in [&a, &b, &a] {
            mps.ensure(card).await.expect("it serves");
        }
        let calls = fs::read_to_string(dir.path().join("calls")).expect("it was called");
        assert_eq!(calls, "-f GPU-a\n-f GPU-b\n", "one for each card");
        let mut next = Mps::new(dir.path(), &program);
        assert!(next.lives(&a) && next.lives(&b), "the next agent finds them");
        let pid = next.daemons[&a].pid;
        kill_process(Pid::from_raw(pid).expect("not zero"), Signal::KILL).expect("it lived");
        gone(&mut mps, &a).await;
        assert!(mps.lives(&b), "the other card's lives on");
        mps.ensure(&a).await.expect("started again");
        assert_ne!(mps.pids()[0], pid);
        let other = mps.daemons[&b].pid;
        mps.keep_only(&BTreeSet::from([a.clone()]));
        for _ in 0..500 {
            if proc::stat(other).is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(proc::stat(other).is_err() && mps.lives(&a));
        mps.keep_only(&BTreeSet::new());
        gone(&mut mps, &a).await;
    }

    #[tokio::test]
    async fn a_daemon_that_does_not_start_is_told() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let card = DeviceUuid("GPU-a".into());
        let mut mps = Mps::new(dir.path(), &control(dir.path(), "exit 3"));
        let told = mps.ensure(&card).await.expect_err("it ends");
        assert!(told.contains("exit status: 3") || told.contains("ended at once"), "{told}");
        let mut absent = Mps::new(dir.path(), Path::new("/nonexistent/mps"));
        assert!(absent.ensure(&card).await.is_err_and(|told| told.contains("/nonexistent/mps")));
    }
}
