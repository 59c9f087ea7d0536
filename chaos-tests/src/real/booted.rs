//! A systemd of its own with the shipped unit (fault G11; field report R019): the unit starts the agent, its restart, its
//! death and its stop leave tasks running, and what systemd does when it reads its files anew takes no device away from a task.
//!
//! The host is this machine in new namespaces, over a copy of its files that is thrown away. Where none can be made, or no
//! systemd is installed, the row says so.

use super::Bench;
use super::row::Row;
use rota_node::io::proc;
use rota_node::lab::{LabError, io, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The first process there.
const BOOT: &str = include_str!("boot.sh");
/// What is shipped.
const UNIT: &str = include_str!("../../../deploy/rota.service");
/// From systemd reading its files anew to a look that says that all is as before, or the alarm, in ms.
const LOOKED_MS_MAX: u64 = 10_000;
/// From the start of the unit to an agent that answers with its tasks, in ms (P6).
const ADOPTED_MS_MAX: u64 = 1_000;
/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);
const DEVICES: &str = "[[device]]\nuuid = \"CARD-0\"\nkind = \"other\"\nmodel = \"card\"\nnodes = [\"/dev/card0\"]\n\
                       [[device]]\nuuid = \"CARD-1\"\nkind = \"other\"\nmodel = \"card\"\nnodes = [\"/dev/card1\"]\n";
const SETTINGS: &str = "listen = \"127.0.0.1:7420\"\n[devices]\ndescribed = \"/etc/rota/devices.toml\"\n";
/// Which of the cards opens, again and again; the task holds one of them.
const LOOKS: &str = "while :; do a=0; b=0; ( : < /dev/card0 ) 2>/dev/null && a=1; ( : < /dev/card1 ) 2>/dev/null && b=1\n\
                     echo \"$ROTA_TOKEN $a$b\" >> /var/lib/looks/looks; sleep 0.05; done\n";

/// Groups that the host lives in, one for each hierarchy.
struct Groups(Vec<PathBuf>);

impl Groups {
    fn new(name: &str) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let own: Vec<PathBuf> = match root.join("cgroup.controllers").exists() {
            true => vec![root.join(name)],
            false => ["systemd", "cpu", "memory", "devices", "pids", "freezer", "unified"]
                .iter()
                .map(|group| root.join(group).join(name))
                .collect(),
        };
        Self(own.into_iter().filter(|path| std::fs::create_dir_all(path).is_ok()).collect())
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            for _ in 0..100 {
                remove_tree(group);
                if !group.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Removes a group and those below it, as far as nothing lives in them.
fn remove_tree(group: &Path) {
    for below in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&below.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}

/// A booted host.
struct Host {
    unshare: Child,
    /// Its first process, as seen from here.
    first: i32,
    _groups: Groups,
}

impl Drop for Host {
    fn drop(&mut self) {
        // With the first process of their namespace all others end.
        if let Some(first) = Pid::from_raw(self.first) {
            let _ = kill_process(first, Signal::KILL);
        }
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

impl Host {
    /// Boots; why it cannot, in words.
    async fn boot(bench: &Bench) -> Result<Result<Self, String>, LabError> {
        if !rustix::process::geteuid().is_root() || !Path::new("/lib/systemd/systemd").exists() {
            return Ok(Err("a systemd of its own needs root, and systemd installed".into()));
        }
        let (space, boot) = (bench.dir.join("G11"), bench.dir.join("boot.sh"));
        std::fs::create_dir_all(&space).map_err(io("a folder"))?;
        std::fs::write(&boot, BOOT).map_err(io("the boot script"))?;
        let groups = Groups::new(&format!("rota-boot-{}", std::process::id()));
        let go = "space=$1 program=$2 boot=$3; shift 3; for group in \"$@\"; do echo $$ > \"$group/cgroup.procs\"; done\n\
                  exec unshare -m -p -f -u -i -n -C --kill-child sh \"$boot\" \"$space\" \"$program\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", go, "sh"]).arg(&space).arg(&bench.exe).arg(&boot).args(&groups.0);
        let log = std::fs::File::create(bench.dir.join("boot.log")).map_err(io("a file"))?;
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let unshare = shell.spawn().map_err(io("a shell"))?;
        let parent = i32::try_from(unshare.id()).unwrap_or_default();
        let mut host = Self { unshare, first: 0, _groups: groups };
        let first = wait_for("a first process", LIMIT, async || {
            let below = proc::descendants(parent).ok()?;
            below.into_iter().find(|pid| proc::stat(*pid).is_ok_and(|stat| stat.ppid == parent))
        });
        let said = || std::fs::read_to_string(bench.dir.join("boot.log")).unwrap_or_default();
        let Ok(first) = first.await else { return Ok(Err(format!("no namespaces here: {}", said()))) };
        host.first = first;
        let up = wait_for("a systemd that is up", LIMIT, async || {
            // It ends with 1 where a unit of the machine has failed, which is nothing to us.
            let said = host.command(&["systemctl", "is-system-running"]).output().ok()?.stdout;
            matches!(String::from_utf8_lossy(&said).trim(), "running" | "degraded").then_some(())
        });
        Ok(match up.await {
            Ok(()) => Ok(host),
            Err(_) => Err(format!("systemd does not boot here: {}", said().trim())),
        })
    }

    fn command(&self, args: &[&str]) -> Command {
        let (pid, root) = (self.first.to_string(), self.path(""));
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-m", "-p", "-u", "-i", "-n", "-C"]);
        command.arg(format!("--root={}", root.display())).arg(format!("--wd={}", root.display())).args(args);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command there to its end.
    fn run(&self, args: &[&str]) -> Result<String, LabError> {
        let output = self.command(args).output().map_err(io("nsenter"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(text),
            false => {
                let output = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
                Err(LabError::Command { command: args.join(" "), output })
            }
        }
    }

    /// A file there, as seen from here.
    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/{path}", self.first))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), LabError> {
        std::fs::write(self.path(path), text).map_err(io("a file of the host"))
    }

    /// What the task saw so far: its token, and which cards opened.
    fn looks(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("var/lib/looks/looks")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for further looks of the task; how long that took, in ms.
    async fn three_more(&self) -> Result<u64, LabError> {
        let (before, began) = (self.looks().len(), Instant::now());
        wait_for("three more looks of the task", LIMIT, async || {
            (self.looks().len() >= before + 3).then_some(())
        })
        .await?;
        Ok(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Waits until the agent answers and its job runs.
    async fn until_runs(&self) -> Result<(), LabError> {
        wait_for("an agent with its running job", LIMIT, async || {
            let queue = self.run(&["rota", "queue"]).ok()?;
            queue.lines().any(|line| line.split_whitespace().nth(3) == Some("R")).then_some(())
        })
        .await
    }
}

/// G11: the shipped unit under a systemd of its own.
pub(super) async fn unit_under_systemd(bench: &Bench) -> Result<Row, LabError> {
    let what = "systemd reads its files anew under a task: from then to a look at its devices, which stay; restarts, a kill, a stop";
    let mut row = Row::new("G11", what, Some(LOOKED_MS_MAX));
    let host = match Host::boot(bench).await? {
        Ok(host) => host,
        Err(why) => return Ok(row.skip(&why)),
    };
    host.write("usr/bin/rota", "#!/bin/sh\nexec /usr/local/bin/rota-program rota \"$@\"\n")?;
    host.run(&["chmod", "755", "/usr/bin/rota"])?;
    host.run(&["mkdir", "-p", "/var/lib/looks"])?;
    host.write("usr/local/bin/looks", LOOKS)?;
    host.write("etc/rota/devices.toml", DEVICES)?;
    host.write("etc/rota/rota.toml", SETTINGS)?;
    host.write("etc/systemd/system/rota.service", UNIT)?;
    host.run(&["systemctl", "daemon-reload"])?;
    let listen = ["--listen", "127.0.0.1:7420"];
    let init = ["rota", "init", "--data-dir", "/var/lib/rota", "--name", "n1", "--cluster-name", "lab"];
    host.run(&[&init[..], &listen].concat())?;
    let began = Instant::now();
    host.run(&["systemctl", "start", "rota"])?;
    row.also("unit_start_ms", u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX), None);
    host.run(&["rota", "submit", "--device", "other:card=1", "--", "sh", "/usr/local/bin/looks"])?;
    host.until_runs().await?;
    host.three_more().await?;
    for _ in 0..bench.rounds.min(4) {
        for anew in ["daemon-reload", "daemon-reexec"] {
            host.run(&["systemctl", anew])?;
            row.ran(host.three_more().await?);
        }
    }
    let began = Instant::now();
    host.run(&["systemctl", "restart", "rota"])?;
    host.until_runs().await?;
    let restarted_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    row.also("restart_to_adopted_ms", restarted_ms, Some(ADOPTED_MS_MAX));
    row.ran(host.three_more().await?);
    killed_and_stopped(&host, &mut row).await?;
    let looks = host.looks();
    let (first, others) =
        (looks.first().cloned().unwrap_or_default(), looks.iter().filter(|l| **l != looks[0]));
    row.must(first.ends_with(" 10") || first.ends_with(" 01"), || format!("the task opened {first:?}"));
    let others: Vec<&String> = others.take(3).collect();
    row.must(others.is_empty(), || {
        format!("of {} looks some differ from {first:?}: {others:?}", looks.len())
    });
    Ok(row)
}

/// The agent is killed, and systemd starts it again; it is stopped, and its task goes on.
async fn killed_and_stopped(host: &Host, row: &mut Row) -> Result<(), LabError> {
    let began = Instant::now();
    host.run(&["systemctl", "kill", "-s", "KILL", "--kill-whom=main", "rota"])?;
    wait_for("another start by systemd", LIMIT, async || {
        let said = host.run(&["systemctl", "show", "rota", "-p", "NRestarts", "--value"]).ok()?;
        (said.trim() != "0").then_some(())
    })
    .await?;
    host.until_runs().await?;
    // The unit waits a second before it starts the agent again.
    row.also("killed_to_back_ms", u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX), None);
    host.run(&["systemctl", "stop", "rota"])?;
    row.ran(host.three_more().await?);
    host.run(&["systemctl", "start", "rota"])?;
    host.until_runs().await?;
    row.ran(host.three_more().await?);
    let state = host.run(&["systemctl", "is-active", "rota"])?;
    row.must(state.trim() == "active", || format!("the unit is {state}"));
    host.run(&["rota", "cancel", "1"])?;
    Ok(())
}
