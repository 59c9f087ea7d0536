//! What a task can reach beyond what it was granted: each attempt is made inside the cage, where it must fail, and
//! outside, where the same words must succeed, so that the attempt itself is known to be good. Real processes, real
//! control groups and namespaces; device nodes of harmless drivers stand for cards. As root; without, nothing of this can
//! be tried, and that is said.
#![allow(clippy::unwrap_used, reason = "what cannot be set up should stop the test where it stands")]

mod shim_lab;

use rota_node::shim::cage::{CageAsk, CageSettings, Granted, Means, Offer, of_grant};
use rota_protocol::Token;
use rota_protocol::cage::Controller;
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::spool::LaunchOrder;
use shim_lab::{Lab, alive, kill, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Users that exist nowhere.
const USER: u32 = 61_001;
const NEIGHBOUR: u32 = 61_002;
/// Drivers that open for anybody and do nothing by that: they stand for cards 0 to 3.
const DRIVERS: [(u32, u32); 4] = [(10, 229), (10, 237), (10, 234), (10, 235)];
/// The task's token, and that of a neighbour.
const OWN: u64 = 7;
const OTHER: u64 = 5;

/// False, and said so, where nothing can be tried.
fn exercised(lab: &Lab) -> bool {
    let place = lab.host.place();
    let whole = rustix::process::geteuid().is_root() && place.is_whole();
    println!("{}isolation of tasks: {place}", if whole { "" } else { "NOT EXERCISED: " });
    whole
}

/// A place that is not below `/tmp`, with a folder for everybody and fake cards.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let site = Self { dir };
        open_up(site.dir.path(), 0o755);
        for (folder, mode) in [("work", 0o777), ("dev", 0o755)] {
            std::fs::create_dir(site.path(folder)).unwrap();
            open_up(&site.path(folder), mode);
        }
        for (card, (major, minor)) in DRIVERS.iter().enumerate() {
            let path = site.path(&format!("dev/nvidia{card}"));
            let (major, minor) = (major.to_string(), minor.to_string());
            let made = Command::new("mknod").arg(&path).args(["c", &major, &minor]).status();
            if made.is_ok_and(|status| status.success()) {
                open_up(&path, 0o666);
            }
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn cards(&self, granted: &[u32]) -> Vec<PathBuf> {
        let granted: Vec<_> = granted.iter().map(|minor| Granted::Card { minor: *minor }).collect();
        of_grant(&self.path("dev"), &granted)
    }

    fn settings(&self) -> CageSettings {
        CageSettings { device_dir: self.path("dev"), pids_max: 64, ..CageSettings::default() }
    }
}

fn open_up(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

async fn lab(settings: &CageSettings, offer: Offer) -> Lab {
    Lab::bounded(settings, offer, tempfile::tempdir_in("/var/tmp").unwrap()).await
}

fn order(lab: &Lab, token: u64, uid: Option<u32>, script: &str, ask: CageAsk) -> LaunchOrder {
    let workdir = ask.workdir.clone().into_os_string().into_encoded_bytes();
    let ask = CageAsk { as_agent: uid.is_none(), ..ask };
    LaunchOrder {
        workdir,
        uid_gid: uid.map(|uid| (uid, uid)),
        cage: lab.host.cage(Token(token), ask),
        ..lab.order(token, &["sh", "-c", script])
    }
}

/// What is tried: a name, the words, and whether root inside may do it, because the file is root's.
struct Try {
    name: &'static str,
    script: String,
    root_may: bool,
}

fn tries(lab: &Lab, site: &Site, neighbour: i32) -> Vec<Try> {
    let groups = |controller| {
        // The task's own group, in which it would be with the same token.
        let own = lab.host.groups_of(Token(OTHER)).path(controller).unwrap().to_owned();
        own.with_file_name(OWN.to_string()).display().to_string()
    };
    let (memory, pids) = (groups(Controller::Memory), groups(Controller::Pids));
    let (dev, work) = (site.path("dev").display().to_string(), site.path("work").display().to_string());
    let data = lab.data.display();
    let of = |name, script: String| Try { name, script, root_may: false };
    let mut tries = vec![
        of("open card 0, not granted", format!(": < {dev}/nvidia0")),
        of("open card 3, not granted", format!(": < {dev}/nvidia3")),
        of("make a node of card 0 and open it", format!("mknod {work}/n$$ c 10 229 && : < {work}/n$$")),
        of("read the kernel's log", ": < /dev/kmsg".into()),
        of("read a neighbour's environment", format!("grep -q LAB /proc/{neighbour}/environ")),
        of("look into a neighbour's memory", format!(": < /proc/{neighbour}/mem")),
        of("see a neighbour", format!("test -d /proc/{neighbour}")),
        of("signal a neighbour", format!("kill -0 {neighbour}")),
        of("make a control group", "mkdir /sys/fs/cgroup/pids/s$$ && rmdir /sys/fs/cgroup/pids/s$$".into()),
        of("raise the own memory limit", format!("echo 1G > {memory}/memory.limit_in_bytes")),
        of("raise the own process limit", format!("echo max > {pids}/pids.max")),
        of("move to the group above", format!("echo 0 > {pids}/../tasks")),
        of("read the agent's key", format!("cat {data}/identity/key")),
        of("list the attempts", format!("ls {data}/attempts")),
        of("find what others have in /tmp", "test -e /tmp/rota-isolation-witness".into()),
        of("find what others have in /dev/shm", "test -e /dev/shm/rota-isolation-witness".into()),
        of("mount", format!("mkdir -p {work}/m$$ && mount -t tmpfs none {work}/m$$ && umount {work}/m$$")),
        of("take a mount away", format!("mount --bind {work} {work} 2>&-; umount {work}")),
        of("change the root", "chroot / true".into()),
        of("be root in a user namespace", "unshare -U -r true".into()),
        of("have mounts of its own", "unshare -m true".into()),
        of("enter the host's mounts", "nsenter -t $$ -m true".into()),
        of("raise the core limit", "ulimit -c unlimited".into()),
        of("run 100 processes", "for i in $(seq 100); do sleep 1 & done".into()),
    ];
    tries.push(Try {
        root_may: true,
        ..of("write into /etc", "touch /etc/rota-iso$$ && rm /etc/rota-iso$$".into())
    });
    tries
}

/// The same words by a plain shell of root: outside any cage.
fn outside(script: &str, groups: &[PathBuf]) -> bool {
    let made: Vec<_> = groups.iter().filter(|group| std::fs::create_dir(group).is_ok()).collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
    let worked = shell.status().unwrap().success();
    for group in made {
        let _ = std::fs::remove_dir(group);
    }
    worked
}

#[tokio::test]
async fn what_was_not_granted_cannot_be_reached() {
    let site = Site::new();
    let mut lab = lab(&site.settings(), Offer::default()).await;
    if !exercised(&lab) {
        return;
    }
    std::fs::create_dir(lab.data.join("identity")).unwrap();
    std::fs::write(lab.data.join("identity/key"), "secret").unwrap();
    open_up(&lab.data.join("identity/key"), 0o600);
    // The folder above can be passed, as an installed agent's can.
    open_up(&lab.data, 0o755);
    for folder in ["/tmp", "/dev/shm"] {
        std::fs::write(format!("{folder}/rota-isolation-witness"), "x").unwrap();
    }
    let ask = || CageAsk {
        workdir: site.path("work"),
        mem_mib: 256,
        nodes: site.cards(&[1]),
        probe: Some(site.path("dev/nvidia2")),
        ..CageAsk::default()
    };
    lab.host.launch(order(&lab, OTHER, Some(NEIGHBOUR), "sleep 600", ask())).await.unwrap();
    let neighbour = lab.started(OTHER).await;
    let groups: Vec<PathBuf> = [Controller::Memory, Controller::Pids]
        .map(|controller| {
            lab.host.groups_of(Token(OTHER)).path(controller).unwrap().with_file_name(OWN.to_string())
        })
        .to_vec();
    println!("{:<36} {:>8} {:>8} {:>8}", "", "outside", "user", "root");
    let mut wrong = Vec::new();
    let mut token = 100;
    for one in tries(&lab, &site, neighbour) {
        let mut inside = Vec::new();
        for uid in [Some(USER), None] {
            token += 1;
            // Each has its own group; the words name it by its token.
            let script = one.script.replace(&format!("/{OWN}/"), &format!("/{token}/"));
            lab.host
                .launch(order(&lab, token, uid, &format!("({script}) >/dev/null 2>&1"), ask()))
                .await
                .unwrap();
            let end = lab.ended(token).await.end;
            assert!(!matches!(end, AttemptEnd::LaunchFailed { .. }), "{}: {end}", one.name);
            inside.push(end.is_success());
        }
        let outside = outside(&one.script, &groups);
        let word = |worked: bool| if worked { "works" } else { "fails" };
        println!("{:<36} {:>8} {:>8} {:>8}", one.name, word(outside), word(inside[0]), word(inside[1]));
        if !outside || inside[0] || (inside[1] && !one.root_may) {
            wrong.push(one.name);
        }
    }
    let granted = order(&lab, 90, Some(USER), &format!(": < {}", site.path("dev/nvidia1").display()), ask());
    lab.host.launch(granted).await.unwrap();
    assert!(lab.ended(90).await.end.is_success(), "the granted card cannot be opened");
    for folder in ["/tmp", "/dev/shm"] {
        std::fs::remove_file(format!("{folder}/rota-isolation-witness")).unwrap();
    }
    lab.host.end(Token(OTHER), EndReason::Cancel).await;
    lab.ended(OTHER).await;
    assert!(wrong.is_empty(), "not as it should be: {wrong:?}");
}

/// A program with the set-user-id bit, and the agent's socket: tried by somebody without a cage and by a task.
#[tokio::test]
async fn neither_a_setuid_program_nor_the_agents_socket_gives_more() {
    let site = Site::new();
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    open_up(data.path(), 0o755);
    let socket = data.path().join("api.sock");
    let offer = Offer { socket: socket.clone(), ..Offer::default() };
    let mut lab = Lab::bounded(&site.settings(), offer, data).await;
    if !exercised(&lab) {
        return;
    }
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    open_up(&socket, 0o666);
    let suid = site.path("id");
    std::fs::copy("/usr/bin/id", &suid).unwrap();
    open_up(&suid, 0o4755);
    let words = format!("test $({} -u) = 0", suid.display());
    let mut plain = Command::new("sh");
    assert!(
        plain.args(["-c", &words]).uid(USER).gid(USER).status().unwrap().success(),
        "the bit works outside"
    );
    // Without arguments that a server would have to answer: only whether the kernel lets it connect.
    let me = std::env::current_exe().unwrap();
    let call = format!("CONNECT={} {} --exact connects", socket.display(), me.display());
    let ask = |as_dynamic| CageAsk { workdir: site.path("work"), as_dynamic, ..CageAsk::default() };
    for (token, script, dynamic, works) in
        [(1, &words, false, false), (2, &call, false, true), (3, &call, true, false)]
    {
        lab.host.launch(order(&lab, token, Some(USER), script, ask(dynamic))).await.unwrap();
        let end = lab.ended(token).await.end;
        assert_eq!(end.is_success(), works, "{script}, dynamic: {dynamic}: {end}");
    }
}

/// Run by the test above inside a cage; by itself it does nothing.
#[test]
fn connects() {
    let Some(socket) = std::env::var_os("CONNECT") else { return };
    std::os::unix::net::UnixStream::connect(socket).unwrap();
}

/// R012.
#[tokio::test]
async fn without_a_grant_no_card_opens_by_any_of_the_ways_to_hold_them_back() {
    use Means::{DevicesGroup, DevicesProgram, Freezer, Unified};
    let site = Site::new();
    let open = |card: u32| format!(": < {}", site.path(&format!("dev/nvidia{card}")).display());
    for without in [vec![], vec![DevicesGroup], vec![Unified], vec![Freezer, Unified]] {
        let settings = CageSettings { without: without.clone(), ..site.settings() };
        let mut lab = lab(&settings, Offer::default()).await;
        if !exercised(&lab) {
            return;
        }
        let ask = |granted: &[u32]| CageAsk {
            workdir: site.path("work"),
            nodes: site.cards(granted),
            ..CageAsk::default()
        };
        let tried = [(1, 0, &[][..], false), (2, 1, &[1][..], true), (3, 2, &[1, 3][..], false)];
        for (token, card, granted, works) in tried {
            for (uid, token) in [(Some(USER), token), (None, token + 10)] {
                lab.host.launch(order(&lab, token, uid, &open(card), ask(granted))).await.unwrap();
                let end = lab.ended(token).await.end;
                assert_eq!(end.is_success(), works, "without {without:?}: card {card} of {granted:?}: {end}");
            }
        }
    }
    // A folder of its own can only hide what lies in /dev.
    let settings = CageSettings { without: vec![DevicesGroup, DevicesProgram], ..site.settings() };
    let mut lab = lab(&settings, Offer::default()).await;
    let ask = CageAsk { workdir: site.path("work"), ..CageAsk::default() };
    let words =
        "test -c /dev/null && : > /dev/null && test -d /dev/pts && ! test -e /dev/kmsg && : < /dev/urandom";
    lab.host.launch(order(&lab, 1, None, words, ask)).await.unwrap();
    assert!(lab.ended(1).await.end.is_success(), "{}", lab.host.place());
}

#[tokio::test]
async fn a_cage_that_leaks_starts_nothing_and_says_what_leaks() {
    let site = Site::new();
    let mut lab = lab(&site.settings(), Offer::default()).await;
    if !exercised(&lab) {
        return;
    }
    let probe = site.path("dev/nvidia1");
    let ask = CageAsk {
        workdir: site.path("work"),
        nodes: site.cards(&[1]),
        probe: Some(probe),
        ..CageAsk::default()
    };
    lab.host.launch(order(&lab, 1, Some(USER), "touch ran", ask)).await.unwrap();
    let AttemptEnd::LaunchFailed { reason } = lab.ended(1).await.end else { panic!("it was started") };
    assert!(reason.contains("nvidia1 can be opened although it was not granted"), "{reason}");
    assert!(!site.path("work/ran").exists());
    assert!(lab.host.groups_of(Token(1)).paths().next().is_none(), "its groups are left");
}

/// R049.
#[tokio::test]
async fn out_of_memory_is_told_by_the_kernels_count() {
    let site = Site::new();
    let mut lab = lab(&site.settings(), Offer::default()).await;
    if !exercised(&lab) {
        return;
    }
    // `tail` keeps what has no line ends.
    let hog = "tail /dev/zero";
    for (token, script, expected) in [
        (1, hog.to_owned(), None),
        (2, format!("{hog}; exit 3"), None),
        (3, format!("{hog}; exit 0"), Some(AttemptEnd::Exited { code: 0 })),
        (4, "head -c 400M /dev/zero > /dev/shm/f".to_owned(), None),
        (5, "head -c 400M /dev/zero > /tmp/f".to_owned(), None),
    ] {
        let ask = CageAsk { mem_mib: 64, workdir: site.path("work"), ..CageAsk::default() };
        lab.host.launch(order(&lab, token, Some(USER), &script, ask)).await.unwrap();
        let record = lab.ended(token).await;
        println!("{script}: {}, {:?}", record.end, record.used);
        assert!(record.used.oom_kills > 0 && record.used.limit_mib == 64, "{script}: {:?}", record.used);
        assert!((32..=64).contains(&record.used.peak_mib), "{script}: {:?}", record.used);
        let (limit_mib, peak_mib) = (64, record.used.peak_mib);
        assert_eq!(
            record.end,
            expected.unwrap_or(AttemptEnd::OutOfMemory { limit_mib, peak_mib }),
            "{script}"
        );
        assert!(token == 3 || record.end.is_users(), "{script}");
    }
    let calm = CageAsk { mem_mib: 256, workdir: site.path("work"), ..CageAsk::default() };
    lab.host
        .launch(order(&lab, 9, Some(USER), "head -c 20M /dev/zero | tail -c 20M | wc -c", calm))
        .await
        .unwrap();
    let record = lab.ended(9).await;
    assert!(record.end.is_success() && record.used.oom_kills == 0, "{record:?}");
    assert!((10..200).contains(&record.used.peak_mib), "{:?}", record.used);
}

/// R050.
#[tokio::test]
async fn a_hog_without_an_ask_is_held_by_the_hosts_reserve_and_its_neighbour_lives() {
    let site = Site::new();
    let offer = Offer { mem_mib: 192, cpus_milli: 2_000, ..Offer::default() };
    let mut lab = lab(&site.settings(), offer).await;
    if !exercised(&lab) {
        return;
    }
    let ask = || CageAsk { workdir: site.path("work"), cpus_milli: 1_000, ..CageAsk::default() };
    lab.host.launch(order(&lab, 1, Some(NEIGHBOUR), "sleep 600", ask())).await.unwrap();
    let neighbour = lab.started(1).await;
    lab.host.launch(order(&lab, 2, Some(USER), "tail /dev/zero", ask())).await.unwrap();
    let record = lab.ended(2).await;
    assert!(matches!(record.end, AttemptEnd::OutOfMemory { .. }), "{record:?}");
    assert!(alive(neighbour));
    lab.host.end(Token(1), EndReason::Cancel).await;
    lab.ended(1).await;
}

/// Everything that held it is gone at once: agent, fork server, shim. What it made before left its session, its parent and
/// its environment behind.
#[tokio::test]
async fn what_forgot_who_it_is_is_found_by_its_group() {
    let site = Site::new();
    for without in [vec![], vec![Means::Unified]] {
        let settings = CageSettings { without, ..site.settings() };
        let mut lab = lab(&settings, Offer::default()).await;
        if !exercised(&lab) {
            return;
        }
        let pid_file = site.path("work/escaped");
        let _ = std::fs::remove_file(&pid_file);
        let script = format!(
            "(setsid env -i sh -c 'trap \"\" TERM; echo $$ > {0}.new; mv {0}.new {0}; sleep 600; sleep 600' &) ; sleep 600",
            pid_file.display()
        );
        let ask = CageAsk { workdir: site.path("work"), ..CageAsk::default() };
        lab.host.launch(order(&lab, 1, Some(USER), &script, ask)).await.unwrap();
        let main = lab.started(1).await;
        wait_until("it has escaped", || pid_file.exists()).await;
        let escaped: i32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        assert_eq!(lab.host.place().token_of(escaped), Some(Token(1)));
        assert!(lab.host.place().pids(Token(1)).contains(&escaped));
        let (shim, servers) = (shim_lab::parent(main), lab.servers());
        for pid in servers.iter().copied().chain([shim]) {
            kill(pid);
        }
        assert!(!lab.processes(1).contains(&escaped), "the marks in its environment are gone");
        let remains = lab.kill_agent().await;
        assert!(alive(escaped));
        let lab = Lab::open(remains, shim_lab::LEASE_MS).await;
        wait_until("it is ended", || !alive(escaped)).await;
        wait_until("its groups are gone", || lab.host.groups_of(Token(1)).paths().next().is_none()).await;
        assert!(lab.adopted.contains_key(&Token(1)));
    }
}
