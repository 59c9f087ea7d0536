//! Control groups that are used again: what the next attempt finds in one, which are not kept, and what becomes of them
//! when agent and fork server die. Real processes and groups, as root; without, nothing of this can be tried, and that
//! is said.
#![allow(clippy::unwrap_used, reason = "what cannot be set up should stop the test where it stands")]

mod shim_lab;

use rota_node::io::proc;
use rota_node::shim::cage::{CageAsk, CageSettings, Offer};
use rota_protocol::Token;
use rota_protocol::cage::Controller::{self, Cpu, Memory, Pids};
use rota_protocol::spool::{ExitRecord, LaunchOrder};
use shim_lab::{Lab, alive, kill, parent, wait_until};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Users that exist nowhere.
const USER: u32 = 61_011;
const OTHER_USER: u32 = 61_012;
/// Those of which groups are kept.
const KEPT: [Controller; 3] = [Memory, Pids, Cpu];

struct Site {
    lab: Lab,
    work: tempfile::TempDir,
}

/// An attempt at work, and the numbers of its groups' folders: a kept group keeps its number, a new one has a new one.
struct Held {
    token: u64,
    shim: i32,
    inodes: BTreeMap<Controller, u64>,
}

impl Site {
    /// None, and said so, where groups are not kept.
    async fn new(settings: &CageSettings) -> Option<Self> {
        read_programs();
        let work = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(work.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let data = tempfile::tempdir_in("/var/tmp").unwrap();
        let lab = Lab::bounded(settings, Offer::default(), data).await;
        let ask = CageAsk { mem_mib: 64, workdir: "/".into(), ..CageAsk::default() };
        let cage = lab.host.cage(Token(1), ask);
        let has = |controller| cage.groups.iter().any(|group| group.controller == controller);
        if lab.host.place().is_whole() && KEPT.into_iter().all(has) {
            return Some(Self { lab, work });
        }
        println!("NOT EXERCISED: no groups of version 1 can be made here: {}", lab.host.place());
        None
    }

    fn order(&self, token: u64, uid: Option<u32>, script: &str, ask: CageAsk) -> LaunchOrder {
        let ask = CageAsk { as_agent: uid.is_none(), workdir: self.work.path().into(), ..ask };
        LaunchOrder {
            workdir: self.work.path().as_os_str().as_encoded_bytes().to_vec(),
            uid_gid: uid.map(|uid| (uid, uid)),
            cage: self.lab.host.cage(Token(token), ask),
            ..self.lab.order(token, &["sh", "-c", script])
        }
    }

    /// Starts one that does `first` and then waits until it may go.
    async fn hold(&mut self, token: u64, uid: Option<u32>, first: &str, ask: CageAsk) -> Held {
        let script = format!("{first}; while ! test -e go-{token}; do sleep 0.02; done");
        self.lab.host.launch(self.order(token, uid, &script, ask)).await.unwrap();
        let main = self.lab.started(token).await;
        let groups = self.lab.host.groups_of(Token(token));
        let inode = |controller| (controller, groups.path(controller).unwrap().metadata().unwrap().ino());
        Held { token, shim: parent(main), inodes: KEPT.into_iter().map(inode).collect() }
    }

    fn group(&self, token: u64, controller: Controller) -> PathBuf {
        self.lab.host.groups_of(Token(token)).path(controller).unwrap().to_owned()
    }

    fn figure(&self, token: u64, controller: Controller, name: &str) -> u64 {
        let text = std::fs::read_to_string(self.group(token, controller).join(name)).unwrap();
        text.trim().parse().unwrap()
    }

    /// Lets it go; then its groups are the next one's, if they are kept.
    async fn end(&mut self, held: &Held) -> ExitRecord {
        std::fs::write(self.work.path().join(format!("go-{}", held.token)), "").unwrap();
        let record = self.lab.ended(held.token).await;
        self.let_go(held.shim).await;
        record
    }

    /// Lets it go, and its shim sit down.
    async fn end_sitting(&mut self, held: &Held) -> ExitRecord {
        std::fs::write(self.work.path().join(format!("go-{}", held.token)), "").unwrap();
        let record = self.lab.ended(held.token).await;
        self.lab.sits(held.token, held.shim).await;
        record
    }

    /// Until the fork server has noticed.
    async fn let_go(&self, shim: i32) {
        wait_until("the shim is gone", || proc::stat(shim).is_err()).await;
    }

    /// The agent's folder in a hierarchy.
    fn base(&self, controller: Controller) -> PathBuf {
        let cage = self.lab.host.cage(Token(1), ask(64));
        let group = cage.groups.into_iter().find(|group| group.controller == controller).unwrap();
        PathBuf::from(String::from_utf8(group.path).unwrap()).parent().unwrap().to_owned()
    }

    fn bases(&self) -> Vec<PathBuf> {
        KEPT.map(|controller| self.base(controller)).to_vec()
    }
}

/// Runs every program of these tests once, outside any attempt. Who reads a program first has its file counted in their
/// own group, and such a group is not kept.
fn read_programs() {
    let all = "head -c 1 /dev/zero | tail -c 1 | wc -c; setsid true; sleep 0; test -e /";
    let output = std::process::Command::new("sh").args(["-c", all]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn ask(mem_mib: u64) -> CageAsk {
    CageAsk { mem_mib, cpus_milli: 1_000, ..CageAsk::default() }
}

fn spares(base: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(base).into_iter().flatten().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("spare-")).collect()
}

#[tokio::test]
async fn a_group_that_is_used_again_shows_nothing_of_the_attempt_before() {
    let Some(mut site) = Site::new(&CageSettings::default()).await else { return };
    // A large limit, much memory, and a child that left its session.
    let hog = "head -c 40M /dev/zero | tail -c 40M | wc -c; (setsid sleep 600 &)";
    let large = CageAsk { cpus_milli: 3_000, ..ask(512) };
    let first = site.hold(1, Some(USER), hog, large).await;
    assert_eq!(site.figure(1, Memory, "memory.limit_in_bytes"), 512 << 20);
    assert_eq!(site.figure(1, Cpu, "cpu.shares"), 3_072);
    let record = site.end(&first).await;
    assert!(record.used.peak_mib >= 40, "{:?}", record.used);
    for spare in site.bases().iter().flat_map(|base| spares(base)) {
        assert_eq!(std::fs::read_to_string(spare.join("cgroup.procs")).unwrap(), "", "{}", spare.display());
    }

    // Somebody else's, smaller in everything, in the very same groups.
    let second = site.hold(2, Some(OTHER_USER), "true", ask(64)).await;
    assert_eq!(second.inodes, first.inodes, "the groups were not used again");
    assert_eq!(site.figure(2, Memory, "memory.limit_in_bytes"), 64 << 20);
    assert_eq!(site.figure(2, Cpu, "cpu.shares"), 1_024);
    assert_eq!(site.figure(2, Pids, "pids.max"), u64::from(CageSettings::default().pids_max));
    assert!(site.figure(2, Memory, "memory.max_usage_in_bytes") < 16 << 20);
    // One that ends meanwhile belongs to nobody.
    let is_own =
        |pid: &i32| std::fs::metadata(format!("/proc/{pid}")).map_or(true, |file| file.uid() == OTHER_USER);
    let inside = site.lab.host.groups_of(Token(2)).pids();
    assert!(!inside.is_empty() && inside.iter().all(is_own), "a stranger is in it: {inside:?}");
    let record = site.end(&second).await;
    assert!(record.used.peak_mib < 16 && record.used.limit_mib == 64, "{:?}", record.used);

    // Larger again, and then without a limit.
    let third = site.hold(3, Some(USER), "true", ask(256)).await;
    assert_eq!(third.inodes, first.inodes);
    assert_eq!(site.figure(3, Memory, "memory.limit_in_bytes"), 256 << 20);
    site.end(&third).await;
    let fourth = site.hold(4, Some(USER), "true", CageAsk::default()).await;
    assert_eq!(fourth.inodes, first.inodes);
    assert!(site.figure(4, Memory, "memory.limit_in_bytes") > 1 << 50);
    assert_eq!(site.figure(4, Cpu, "cpu.shares"), 1_024);
    site.end(&fourth).await;
}

/// The same while the shim itself goes on to the next attempt, with the groups' files open.
#[tokio::test]
async fn a_shim_that_goes_on_has_groups_as_good_as_new() {
    let Some(mut site) = Site::new(&CageSettings::default()).await else { return };
    let hog = "head -c 40M /dev/zero | tail -c 40M | wc -c";
    let first = site.hold(1, Some(USER), hog, CageAsk { cpus_milli: 3_000, ..ask(512) }).await;
    let record = site.end_sitting(&first).await;
    assert!(record.used.peak_mib >= 40 && record.used.limit_mib == 512, "{:?}", record.used);
    let second = site.hold(2, Some(OTHER_USER), "true", ask(64)).await;
    assert_eq!((second.shim, &second.inodes), (first.shim, &first.inodes));
    assert_eq!(site.figure(2, Memory, "memory.limit_in_bytes"), 64 << 20);
    assert_eq!(site.figure(2, Cpu, "cpu.shares"), 1_024);
    assert!(site.figure(2, Memory, "memory.max_usage_in_bytes") < 16 << 20);
    for controller in KEPT {
        let pids = std::fs::read_to_string(site.group(2, controller).join("cgroup.procs")).unwrap();
        assert!(!pids.is_empty(), "nobody joined {controller:?}");
    }
    assert!(site.lab.host.groups_of(Token(1)).paths().next().is_none());
    let record = site.end_sitting(&second).await;
    assert!(record.used.peak_mib < 16 && record.used.limit_mib == 64, "{:?}", record.used);

    // What somebody removes meanwhile is made anew; root's are others.
    for spare in site.bases().iter().flat_map(|base| spares(base)) {
        std::fs::remove_dir(spare).unwrap();
    }
    let third = site.hold(3, Some(USER), "true", ask(128)).await;
    assert_eq!(third.shim, first.shim);
    assert!(third.inodes.iter().all(|(controller, inode)| first.inodes[controller] != *inode));
    assert_eq!(site.figure(3, Memory, "memory.limit_in_bytes"), 128 << 20);
    site.end_sitting(&third).await;
    let root = site.hold(4, None, "true", ask(64)).await;
    assert_eq!(root.shim, first.shim);
    assert!(root.inodes.iter().all(|(controller, inode)| third.inodes[controller] != *inode));
    site.end_sitting(&root).await;
    let last = site.hold(5, Some(USER), "true", ask(64)).await;
    assert_eq!((last.shim, &last.inodes), (first.shim, &third.inodes));
    site.end(&last).await;
}

#[tokio::test]
async fn what_cannot_be_counted_anew_is_not_used_again() {
    let Some(mut site) = Site::new(&CageSettings::default()).await else { return };
    let ooms = "tail /dev/zero; true";
    let caches = "head -c 8M /dev/zero > cached";
    let mut before = None;
    for (token, first, peak_mib) in
        [(1, "true", 0), (2, ooms, 32), (3, "true", 0), (4, caches, 8), (5, "true", 0)]
    {
        let held = site.hold(token, Some(USER), first, ask(64)).await;
        let record = site.end(&held).await;
        assert!(record.used.peak_mib >= peak_mib, "{first}: {:?}", record.used);
        assert_eq!(record.used.oom_kills > 0, first == ooms, "{first}: {:?}", record.used);
        if let Some((previous, inodes)) = before {
            let inodes: &BTreeMap<Controller, u64> = &inodes;
            assert_eq!(held.inodes[&Memory] == inodes[&Memory], previous == "true", "after {previous}");
            // What has counted nothing is as good as new.
            assert_eq!(held.inodes[&Pids], inodes[&Pids], "after {previous}");
        }
        if first == "true" {
            assert!(record.used.peak_mib < 8, "{:?}", record.used);
        }
        before = Some((first, held.inodes));
    }
}

#[tokio::test]
async fn root_has_groups_of_its_own_and_leaves_none_that_it_could_write_to() {
    let settings = CageSettings { root_capabilities: true, ..CageSettings::default() };
    for (settings, kept) in [(CageSettings::default(), true), (settings, false)] {
        let Some(mut site) = Site::new(&settings).await else { return };
        let user = site.hold(1, Some(USER), "true", ask(64)).await;
        site.end(&user).await;
        let root = site.hold(2, None, "true", ask(64)).await;
        site.end(&root).await;
        let again = site.hold(3, None, "true", ask(64)).await;
        site.end(&again).await;
        let last = site.hold(4, Some(USER), "true", ask(64)).await;
        site.end(&last).await;
        for controller in KEPT {
            assert_ne!(root.inodes[&controller], user.inodes[&controller], "{controller:?}");
            assert_eq!(again.inodes[&controller] == root.inodes[&controller], kept, "{controller:?}");
            assert_eq!(last.inodes[&controller], user.inodes[&controller], "{controller:?}");
        }
    }
}

/// The fork server dies under one attempt; its successor lends the same numbers again. Then the agent dies as well.
#[tokio::test]
async fn deaths_leave_no_group_and_mix_up_none() {
    let Some(mut site) = Site::new(&CageSettings::default()).await else { return };
    let spare = site.hold(1, Some(USER), "true", ask(64)).await;
    site.end(&spare).await;
    let first = site.hold(2, Some(USER), "true", ask(64)).await;
    assert_eq!(first.inodes, spare.inodes);
    for server in site.lab.servers() {
        kill(server);
    }
    let second = site.hold(3, Some(USER), "true", ask(128)).await;
    assert!(
        second.inodes.iter().all(|(controller, inode)| first.inodes[controller] != *inode),
        "one has both"
    );
    assert_eq!(site.figure(2, Memory, "memory.limit_in_bytes"), 64 << 20);
    let (bases, go) = (site.bases(), site.work.path().to_owned());
    // A shim that is killed leaves its groups to nobody.
    kill(first.shim);
    site.lab.ended(2).await;
    assert!(site.lab.host.groups_of(Token(2)).paths().next().is_none());
    let third = site.hold(4, Some(USER), "true", ask(64)).await;
    assert!(
        third.inodes.iter().all(|(controller, inode)| second.inodes[controller] != *inode),
        "one has both"
    );
    site.end(&second).await;
    assert!(bases.iter().all(|base| spares(base).len() == 1), "none is kept");
    let Site { lab, work: _work } = site;
    let _remains = lab.kill_agent().await;
    assert!(alive(third.shim));
    std::fs::write(go.join("go-4"), "").unwrap();
    wait_until("all groups are gone", || bases.iter().all(|base| !base.exists())).await;
}
