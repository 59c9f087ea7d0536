//! One shim, several tenants: whoever comes after somebody else in the same shim is made exactly as if the shim were
//! new, whatever the one before was or did, and the shim itself is as it was. As root; without, tasks have no users of
//! their own, and that is said.
#![allow(clippy::unwrap_used, reason = "what cannot be set up should stop the test where it stands")]

mod shim_lab;

use rota_node::io::ffi;
use rota_node::shim::cage::{CageAsk, CageSettings, Offer};
use rota_protocol::Token;
use rota_protocol::api::OutputStream::Stdout;
use rota_protocol::cage::{Cage, Isolation};
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::spool::LaunchOrder;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use shim_lab::{Lab, alive, wait_until};
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Users that exist nowhere.
const USER: u32 = 61_021;
const OTHER_USER: u32 = 61_022;
/// How often a shim may have left before the next came: the machine is busy.
const TRIES: u64 = 40;
/// Numbers that stand in nothing else that is compared.
const FIRST_TOKEN: u64 = 700_001;

/// All that a program has from whoever made it. The first line is its shim.
const WHO: &str = r#"echo $PPID
pwd; umask; nice; id; cat /proc/self/limits /proc/self/oom_score_adj /proc/self/timerslack_ns
grep -E '^(Umask|Uid|Gid|Groups|Sig[PBIC]|Shd|Cap|NoNew|Seccomp|Speculation|Cpus_allowed:|Mems_allowed:)' /proc/self/status
ls -l /proc/self/fd | sed 's/.* \([0-9]* -> \)/\1/; s/:\[[0-9]*\]//; s,/proc/[0-9]*,/proc/N,'
cat /proc/self/cgroup
readlink /proc/self/ns/cgroup /proc/self/ns/net /proc/self/ns/pid /proc/self/ns/user /proc/self/ns/uts
grep -E ' (/tmp|/dev/shm|/proc|/sys) ' /proc/self/mountinfo | cut -d' ' -f4-
ls -A /tmp /dev/shm; ls /proc | grep -c '^[0-9]*$' | sed 's/.*[0-9]/some/'
tail -n +2 /proc/sysvipc/shm; tail -n +2 /proc/sysvipc/msg
env | grep -v ^ROTA | sort; env | grep ^ROTA | cut -d= -f1 | sort; wc -c"#;

/// Whatever a program can do to itself and to what is around it.
const DIRT: &str = r"echo $PPID
umask 0; ulimit -n 32; ulimit -c 0; ulimit -s 512; trap '' TERM INT HUP PIPE CHLD USR1; renice 19 $$
echo x > /tmp/left; echo x > /dev/shm/left; cd /; exec 7</dev/null 8</dev/zero
export LEFT=1 LAB=2; (setsid sleep 600 &); kill -USR1 $PPID; kill -WINCH $PPID; exit 0";

struct Site {
    lab: Lab,
    work: tempfile::TempDir,
    last: u64,
}

impl Site {
    async fn new() -> Option<Self> {
        let folder = || tempfile::tempdir_in("/var/tmp").unwrap();
        let lab = Lab::bounded(&CageSettings::default(), Offer::default(), folder()).await;
        let place = lab.host.place();
        if !rustix::process::geteuid().is_root() || !place.is_whole() {
            println!("NOT EXERCISED: tasks of several users: {place}");
            return None;
        }
        let work = folder();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(work.path(), everybody).unwrap();
        Some(Self { lab, work, last: FIRST_TOKEN })
    }

    fn order(&mut self, uid: Option<u32>, script: &str) -> LaunchOrder {
        self.last += 1;
        let (token, workdir) = (Token(self.last), PathBuf::from(self.work.path()));
        let ask = CageAsk { as_agent: uid.is_none(), mem_mib: 64, workdir, ..CageAsk::default() };
        LaunchOrder {
            workdir: self.work.path().as_os_str().as_encoded_bytes().to_vec(),
            uid_gid: uid.map(|uid| (uid, uid)),
            cage: self.lab.host.cage(token, ask),
            ..self.lab.order(token.0, &["sh", "-c", script])
        }
    }

    /// Runs one until its shim sits. That, and the rest of what it said.
    async fn run(&mut self, order: LaunchOrder) -> (i32, String) {
        let token = order.token.0;
        self.lab.host.launch(order).await.unwrap();
        let record = self.lab.ended(token).await;
        assert_eq!(record.end, AttemptEnd::Exited { code: 0 });
        let said = String::from_utf8(self.lab.output(token, Stdout).await).unwrap();
        let (shim, rest) = said.split_once('\n').unwrap();
        let shim = shim.parse().unwrap();
        self.lab.sits(token, shim).await;
        self.lab.host.release(Token(token)).await;
        (shim, rest.replace(&token.to_string(), "TOKEN"))
    }

    /// What a tenant is in a shim that nobody had before, and what that shim is then.
    async fn in_a_new_shim(&mut self, uid: Option<u32>, but: &[i32]) -> (String, Option<String>) {
        let order = self.order(uid, WHO);
        let (shim, who) = self.run(order).await;
        assert!(!but.contains(&shim), "it is not new");
        let is = state_of(shim);
        wait_until("the shim is gone", || !alive(shim)).await;
        (who, is)
    }
}

/// What a shim is, as far as its tasks could have it from it; none if it has left.
fn state_of(shim: i32) -> Option<String> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{shim}/{name}")).ok();
    let link =
        |name: &str| Some(std::fs::read_link(format!("/proc/{shim}/{name}")).ok()?.display().to_string());
    let kept =
        ["Name", "Umask", "State", "Uid", "Gid", "Groups", "Threads", "SigBlk", "SigIgn", "SigCgt", "Cap"];
    let kept: Vec<_> =
        kept.into_iter().chain(["NoNew", "Seccomp", "Cpus_allowed:", "Mems_allowed:"]).collect();
    let mut all: Vec<String> = read("status")?
        .lines()
        .filter(|line| kept.iter().any(|name| line.starts_with(name)))
        .map(str::to_owned)
        .collect();
    all.extend(
        ["limits", "oom_score_adj", "timerslack_ns", "cgroup", "environ"].map(read).into_iter().flatten(),
    );
    all.extend(["cwd", "root"].map(link).into_iter().flatten());
    for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        all.push(link(&format!("ns/{name}"))?);
    }
    // Groups are kept open (`held`), whichever they are; a new socket or pipe has another number.
    let fds = std::fs::read_dir(format!("/proc/{shim}/fd")).ok()?;
    let mut fds: Vec<String> = fds
        .filter_map(|fd| Some(std::fs::read_link(fd.ok()?.path()).ok()?.display().to_string()))
        .filter(|target| !target.starts_with("/sys/fs/cgroup/"))
        .map(|target| target.replace(|c: char| c.is_ascii_digit(), ""))
        .collect();
    fds.sort();
    all.extend(fds);
    (alive(shim)).then(|| all.join("\n"))
}

/// Those who come first, by name: each dirties what it can.
fn dirty_orders(site: &mut Site) -> Vec<(&'static str, LaunchOrder)> {
    let mut of = |name, uid, change: fn(&mut LaunchOrder)| {
        let mut order = site.order(uid, DIRT);
        order.env.push((b"SECRET".to_vec(), b"of another tenant".to_vec()));
        change(&mut order);
        (name, order)
    };
    vec![
        of("a user", Some(USER), |_| ()),
        of("a user with other limits", Some(USER), |order| {
            (order.cage.nofile, order.cage.nproc, order.cage.pids, order.cage.mem_mib) = (99, 77, 55, 256);
            order.workdir = b"/".to_vec();
        }),
        of("a user whose processor time has a ceiling", Some(USER), |order| {
            (order.cage.cpus_hard, order.cage.cpus_milli) = (true, 500);
        }),
        of("a user who sees the host", Some(USER), |order| {
            order.cage.isolation = Isolation::Basic;
            order.cage.private_tmp = false;
        }),
        of("root", None, |_| ()),
        of("root with all capabilities", None, |order| order.cage.keep_caps = true),
        of("root in no cage", None, |order| order.cage = Cage::default()),
    ]
}

#[tokio::test]
async fn nothing_of_one_tenant_is_there_for_the_next() {
    let Some(mut site) = Site::new().await else { return };
    for uid in [Some(OTHER_USER), None] {
        let (fresh, is) = site.in_a_new_shim(uid, &[]).await;
        let (again, _) = site.in_a_new_shim(uid, &[]).await;
        assert_eq!(fresh, again, "what is compared is not the same of itself");
        for at in 0..dirty_orders(&mut site).len() {
            let mut shared = false;
            for _ in 0..TRIES {
                let (name, order) = dirty_orders(&mut site).swap_remove(at);
                let before = site.run(order).await.0;
                let order = site.order(uid, WHO);
                let (shim, who) = site.run(order).await;
                let state = state_of(shim);
                let _ = [std::fs::remove_file("/tmp/left"), std::fs::remove_file("/dev/shm/left")];
                assert_eq!(
                    who,
                    fresh,
                    "after {name}, {}",
                    if shim == before { "same shim" } else { "new shim" }
                );
                if let Some((state, is)) = state.as_ref().zip(is.as_ref()) {
                    assert_eq!(state, is, "the shim, after {name}");
                }
                shared = shim == before && state.is_some();
                if shared {
                    break;
                }
            }
            assert!(shared, "no shim served number {at} and then another user in {TRIES} tries");
        }
    }
}

/// A call that was meant for the attempt before comes when the next one runs.
#[tokio::test]
async fn a_call_to_the_attempt_before_does_not_reach_the_next() {
    let Some(mut site) = Site::new().await else { return };
    // As `wire` lays it out: the attempt's mark in the upper half, "end: cancelled" in the lower.
    let cancel = |token: u64| (token | 1 << 31) << 32 | 0x100;
    for _ in 0..TRIES {
        let order = site.order(Some(USER), "echo $PPID");
        let (first, before) = (order.token.0, site.run(order).await.0);
        let order = site.order(Some(OTHER_USER), "echo $PPID; while ! test -e go; do sleep 0.02; done");
        let second = order.token.0;
        site.lab.host.launch(order).await.unwrap();
        let shim = shim_lab::parent(site.lab.started(second).await);
        let pidfd = pidfd_open(Pid::from_raw(shim).unwrap(), PidfdFlags::empty()).unwrap();
        if shim == before {
            ffi::queue_call(pidfd.as_fd(), cancel(first)).unwrap();
            std::fs::write(site.work.path().join("go"), "").unwrap();
            assert_eq!(site.lab.ended(second).await.end, AttemptEnd::Exited { code: 0 });
            std::fs::remove_file(site.work.path().join("go")).unwrap();
            // The same words to the one that is meant do end it: they are the right ones.
            let order = site.order(Some(OTHER_USER), "exec sleep 600");
            let third = order.token.0;
            site.lab.host.launch(order).await.unwrap();
            let shim = shim_lab::parent(site.lab.started(third).await);
            let pidfd = pidfd_open(Pid::from_raw(shim).unwrap(), PidfdFlags::empty()).unwrap();
            ffi::queue_call(pidfd.as_fd(), cancel(third)).unwrap();
            assert_eq!(site.lab.ended(third).await.end, AttemptEnd::Cancelled);
            wait_until("who was cancelled has no successor", || !alive(shim)).await;
            return;
        }
        site.lab.host.end(Token(second), EndReason::Cancel).await;
        site.lab.ended(second).await;
    }
    panic!("no shim served two attempts in {TRIES} tries");
}
