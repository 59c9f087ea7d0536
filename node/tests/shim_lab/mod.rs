//! A host of shims in a temporary folder, with real processes, for the tests of `shim_*.rs`.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of the lab")]
#![allow(clippy::unwrap_used, reason = "what cannot be set up should stop the test where it stands")]

use rota_node::io::{clock::boottime_ms, proc};
use rota_node::logic::env::{TaskEnv, markers, task_env};
use rota_node::logic::reconcile::LocalState;
use rota_node::shim::cage::{CageAsk, CageSettings, Offer};
use rota_node::shim::{Adopted, LeaseFile, ShimHost, ShimNote};
use rota_protocol::api::OutputStream;
use rota_protocol::job::AttemptEnd;
use rota_protocol::session::LifeOrder;
use rota_protocol::spool::{ExitRecord, LaunchOrder, ShimRecord};
use rota_protocol::{BootId, ClusterId, HostId, JobId, LeaseEpoch, TaskId, Token};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// A hang is a failure; nothing here is timed otherwise.
pub const HANG: Duration = Duration::from_secs(60);
/// Long enough for any test, short enough that what a failed test leaves is gone soon.
pub const LEASE_MS: u64 = 120_000;
pub const EPOCH: LeaseEpoch = LeaseEpoch(3);
pub const KILL_BUDGET_MS: u64 = 600;

/// Each lab is a cluster of its own, so that tests in parallel do not find each other's processes.
static NEXT_CLUSTER: AtomicU64 = AtomicU64::new(1);

pub struct Lab {
    pub data: PathBuf,
    pub cluster: ClusterId,
    pub lease: LeaseFile,
    pub host: ShimHost,
    pub adopted: BTreeMap<Token, LocalState>,
    notes: mpsc::Receiver<ShimNote>,
    cages: (CageSettings, Offer),
    /// Held as an agent holds it.
    _lock: std::fs::File,
    _dir: Option<tempfile::TempDir>,
}

/// What stays when an agent dies.
pub struct Remains {
    data: PathBuf,
    pub cluster: ClusterId,
    dir: Option<tempfile::TempDir>,
    cages: (CageSettings, Offer),
}

impl Lab {
    pub async fn new() -> Self {
        Self::bounded(&CageSettings::default(), Offer::default(), tempfile::tempdir().unwrap()).await
    }

    /// One whose tasks are bounded otherwise. Below `/tmp` they have no `/tmp` of their own.
    pub async fn bounded(cages: &CageSettings, offer: Offer, dir: tempfile::TempDir) -> Self {
        let data = dir.path().to_owned();
        let number = NEXT_CLUSTER.fetch_add(1, Ordering::Relaxed);
        let cluster = ClusterId(u128::from(std::process::id()) << 64 | u128::from(number));
        let remains = Remains { data, cluster, dir: Some(dir), cages: (cages.clone(), offer) };
        Self::open(remains, LEASE_MS).await
    }

    /// A new agent on what an earlier one left.
    pub async fn open(remains: Remains, lease_ms: u64) -> Self {
        let Remains { data, cluster, dir, cages } = remains;
        let lease = LeaseFile::open(&data.join("lease"), &proc::boot_id().unwrap(), EPOCH).unwrap();
        lease.extend(boottime_ms() + lease_ms).unwrap();
        let (sender, notes) = mpsc::channel(64);
        let lock = std::fs::File::create(data.join("lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let exe = Path::new(env!("CARGO_BIN_EXE_rota"));
        let caging = (&cages.0, cages.1.clone());
        let (host, adopted) = ShimHost::start_caged(exe, &data, caging, sender).await.unwrap();
        let adopted = adopted.into_iter().map(|Adopted { token, state }| (token, state)).collect();
        Self { data, cluster, lease, host, adopted, notes, cages, _lock: lock, _dir: dir }
    }

    /// The agent dies: its end of every socket closes. The fork server sees it and goes; shims and tasks stay.
    pub async fn kill_agent(mut self) -> Remains {
        let servers = self.servers();
        drop(self.host);
        wait_until("the fork server is gone", || servers.iter().all(|pid| !alive(*pid))).await;
        Remains { data: self.data, cluster: self.cluster, dir: self._dir.take(), cages: self.cages }
    }

    pub fn order(&self, token: u64, argv: &[&str]) -> LaunchOrder {
        let user = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LAB", "1")];
        let user: Vec<_> = user.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        let task = TaskId { job: JobId(token), index: 0 };
        let notes_base = self.host.draw_notes_base(Token(token));
        let env = TaskEnv::plain(self.cluster, HostId(1), Token(token), task, &notes_base);
        LaunchOrder {
            cluster: self.cluster,
            host: HostId(1),
            epoch: EPOCH,
            token: Token(token),
            task,
            argv: argv.iter().map(|a| a.as_bytes().to_vec()).collect(),
            env: task_env(&user, env),
            workdir: b"/tmp".to_vec(),
            uid_gid: None,
            devices: Vec::new(),
            time_limit_ms: None,
            grace_ms: 200,
            kill_budget_ms: u32::try_from(KILL_BUDGET_MS).unwrap(),
            lease_path: self.lease.path().as_os_str().as_encoded_bytes().to_vec(),
            notes_base,
            warning: None,
            requeue_status: None,
            gang: Vec::new(),
            output: rota_protocol::output::OutputOrder::default(),
            life: LifeOrder::default(),
            around: rota_protocol::around::Around::default(),
            inputs: Vec::new(),
            cage: self
                .host
                .cage(Token(token), CageAsk { workdir: "/tmp".into(), as_agent: true, ..CageAsk::default() }),
        }
    }

    pub async fn sh(&self, token: u64, script: &str) {
        self.host.launch(self.order(token, &["sh", "-c", script])).await.unwrap();
    }

    pub async fn note(&mut self) -> ShimNote {
        tokio::time::timeout(HANG, self.notes.recv()).await.expect("no note came").unwrap()
    }

    /// The first process of an attempt, once told.
    pub async fn started(&mut self, token: u64) -> i32 {
        loop {
            match self.note().await {
                ShimNote::Started { token: t, pid } if t == Token(token) => {
                    return i32::try_from(pid).unwrap();
                }
                ShimNote::Started { .. } => {}
                other => panic!("expected the start of {token}, got {other:?}"),
            }
        }
    }

    /// The first process of an attempt whose start may have been heard already.
    pub async fn started_or_local(&mut self, token: u64) -> i32 {
        match self.host.locals().get(&Token(token)).map(|local| local.state.clone()) {
            Some(LocalState::Running { pid }) => i32::try_from(pid).unwrap(),
            _ => self.started(token).await,
        }
    }

    /// The end of an attempt.
    pub async fn ended(&mut self, token: u64) -> ExitRecord {
        loop {
            match self.note().await {
                ShimNote::Ended { record } if record.token == Token(token) => return record,
                ShimNote::LaunchFailed { token: t, reason } if t == Token(token) => {
                    return ExitRecord::never_ran(t, AttemptEnd::LaunchFailed { reason });
                }
                _ => {}
            }
        }
    }

    pub async fn run(&mut self, token: u64, script: &str) -> AttemptEnd {
        self.sh(token, script).await;
        self.ended(token).await.end
    }

    /// All output of an attempt, read as a follower reads it, until its last piece.
    pub async fn output(&self, token: u64, stream: OutputStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let read = self.host.read_log(Token(token), stream, bytes.len() as u64, HANG);
            let chunk = read.await.unwrap();
            assert_eq!(chunk.offset, bytes.len() as u64);
            bytes.extend_from_slice(&chunk.bytes);
            if chunk.last {
                return bytes;
            }
            assert!(!chunk.bytes.is_empty(), "no byte and no end came");
        }
    }

    /// Waits until standard output of an attempt begins with these bytes.
    pub async fn says(&self, token: u64, wanted: &[u8]) {
        let mut bytes = Vec::new();
        while bytes.len() < wanted.len() {
            let read = self.host.read_log(Token(token), OutputStream::Stdout, bytes.len() as u64, HANG);
            let chunk = read.await.unwrap();
            assert!(!chunk.bytes.is_empty(), "it said only {:?}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&chunk.bytes);
        }
        assert!(bytes.starts_with(wanted), "{:?}", String::from_utf8_lossy(&bytes));
    }

    /// Waits until the shim of an attempt that has ended sits: it has let go of the record, and sleeps.
    pub async fn sits(&self, token: u64, shim: i32) {
        let record = self.data.join(format!("attempts/{token}.record"));
        let is_free = || {
            let record = std::fs::File::open(&record).unwrap();
            rustix::fs::flock(&record, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok()
        };
        let sleeps = || proc::stat(shim).is_ok_and(|stat| stat.state == b'S');
        wait_until("the shim sits, or is gone", || is_free() && (sleeps() || !alive(shim))).await;
    }

    /// Living processes of an attempt, by the marks in their environment.
    pub fn processes(&self, token: u64) -> Vec<i32> {
        marked(self.cluster, token)
    }

    /// This lab's fork servers.
    pub fn servers(&self) -> Vec<i32> {
        let dir = self.data.join("attempts").canonicalize().unwrap();
        let dir = dir.as_os_str().as_encoded_bytes();
        let is_server = |pid: &i32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                line.split(|b| *b == 0).nth(1) == Some(b"shimd")
                    && line.split(|b| *b == 0).nth(2) == Some(dir)
            }) && std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == "rota-shimd")
        };
        proc::pids().unwrap().into_iter().filter(is_server).collect()
    }
}

pub fn marked(cluster: ClusterId, token: u64) -> Vec<i32> {
    proc::marked(&markers(cluster, Token(token))).unwrap()
}

pub fn alive(pid: i32) -> bool {
    proc::stat(pid).is_ok_and(|stat| stat.state != b'Z')
}

pub fn parent(pid: i32) -> i32 {
    proc::stat(pid).unwrap().ppid
}

/// How many `sleep`s run below a process.
pub fn sleeps_below(root: i32) -> usize {
    let name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    proc::descendants(root).unwrap().into_iter().filter(|pid| name(*pid).trim() == "sleep").count()
}

pub fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

pub async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = tokio::time::Instant::now() + HANG;
    while !holds() {
        assert!(tokio::time::Instant::now() < until, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A record as a shim of another boot left it.
pub fn forge_record(remains: &Remains, token: u64, boot: BootId, shim_pid: u32) {
    #[derive(serde::Serialize)]
    enum Body {
        Shim(ShimRecord),
    }
    let record = ShimRecord { cluster: remains.cluster, token: Token(token), epoch: EPOCH, boot, shim_pid };
    let body = rota_protocol::codec::encode(&Body::Shim(record)).unwrap();
    let mut bytes = b"RTAREC1\n".to_vec();
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    std::fs::write(remains.data.join(format!("attempts/{token}.record")), bytes).unwrap();
}
