//! Cards through the real wrapper and a scripted library, with real agents and real tasks (faults G6, G10, S13; reports
//! R025, R026, R029, R035, R052). Each measured time stands beside its bound.
//!
//! The scripted driver shows the processes that a test says: the tasks' real ones, and strangers.

// Helpers of tests: what cannot be set up should stop the test where it stands.
#![allow(clippy::unwrap_used)]

use fake_nvml::script::Card;
use fake_nvml::stage::Stage;
use rota_chaos::real::report::{Report, Verdict};
use rota_node::lab::{Lab, LabOptions, new_request, violations, wait_for};
use rota_node::lab_work::{as_array, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, QueueFilter};
use rota_protocol::device::DeviceHealth;
use rota_protocol::job::{AttemptEnd, JobSpec, JobState};
use rota_protocol::view::{AttemptRow, DeviceRow, JobView};
use rota_protocol::{JobId, Token};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// One cluster at a time.
static MACHINE: Mutex<()> = Mutex::new(());
const GIB: u64 = 1 << 30;
const LONG: Duration = Duration::from_secs(60);

/// One host with scripted cards.
struct Host {
    lab: Lab,
    stage: Stage,
    dir: TempDir,
}

impl Host {
    async fn with(cards: Vec<Card>, sharing: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::in_dir(dir, cards, sharing).await
    }

    async fn in_dir(dir: TempDir, cards: Vec<Card>, sharing: &str) -> Self {
        let stage = Stage::in_folder(dir.path(), cards).unwrap();
        let library = stage.library();
        let text = format!(
            "nvml_library = {library:?}\n[sharing]\n{}",
            sharing.replace("DIR", &dir.path().to_string_lossy())
        );
        let mut options = LabOptions::new(1, &dir.path().join("lab")).unwrap();
        options.exe = env!("CARGO_BIN_EXE_rota-chaos").into();
        options.exe_args = vec!["rota".into()];
        options.profile = "chaos".into();
        options.sim_gpus = None;
        options.cpus = Some("16".into());
        options.mem = Some("64GiB".into());
        options.config = Some(text);
        let lab = Lab::start(options).await.unwrap();
        let host = Self { lab, stage, dir };
        host.until("the cards are offered", async |host| {
            let cards = host.devices().await;
            (!cards.is_empty()).then_some(())
        })
        .await;
        host
    }

    async fn until<T>(&self, what: &str, probe: impl AsyncFn(&Self) -> Option<T>) -> T {
        wait_for(what, LONG, async || probe(self).await).await.unwrap_or_else(|error| {
            let log = std::fs::read_to_string(self.dir.path().join("lab/n1/agent.log")).unwrap_or_default();
            let from = log.len().saturating_sub(4_000);
            panic!("{error}\n{}", log.get(from..).unwrap_or_default())
        })
    }

    async fn devices(&self) -> Vec<DeviceRow> {
        match self.lab.ask(ApiRequest::Devices { freshness: Freshness::Linearizable }).await.unwrap() {
            ApiReply::Devices { rows, .. } => rows,
            other => panic!("{other:?}"),
        }
    }

    /// Why a card may not be granted; none for a healthy one.
    async fn reason(&self, uuid: &str) -> Option<String> {
        let rows = self.devices().await;
        let row = rows.into_iter().find(|row| row.facts.uuid.0 == uuid).unwrap();
        row.facts.health.reason().map(str::to_owned)
    }

    async fn submit(&self, spec: JobSpec) -> JobId {
        let jobs = vec![(new_request(), spec)];
        match self.lab.ask(ApiRequest::Submit { jobs }).await.unwrap() {
            ApiReply::Submitted(mut results) => results.remove(0).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn show(&self, job: JobId) -> JobView {
        match self.lab.ask(ApiRequest::Show { job, freshness: Freshness::Linearizable }).await.unwrap() {
            ApiReply::Job(view) => *view,
            other => panic!("{other:?}"),
        }
    }

    /// The process of a job's live attempt, other than `not`.
    async fn running(&self, job: JobId, not: Option<Token>) -> AttemptRow {
        self.until(&format!("job {job} runs"), async |host| {
            let view = host.show(job).await;
            let live = view.attempts.into_iter().find(|row| row.end.is_none() && Some(row.token) != not);
            live.filter(|row| row.pid.is_some())
        })
        .await
    }

    async fn over(&self, job: JobId) -> JobView {
        self.until(&format!("job {job} is over"), async |host| {
            Some(host.show(job).await).filter(|view| view.row.state.is_terminal())
        })
        .await
    }

    /// What the agent itself found broken: nothing.
    fn is_sound(&self) {
        assert_eq!(violations(&self.dir.path().join("lab")), Vec::<String>::new());
    }
}

fn block<T>(future: impl Future<Output = T>) -> T {
    let _alone = MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

fn card(uuid: &str, bus: &str) -> Card {
    Card { bus: bus.as_bytes().to_vec(), used: GIB / 2, ..Card::new(uuid) }
}

fn two() -> Vec<Card> {
    vec![card("GPU-a", "00000000:3B:00.0"), card("GPU-b", "00000000:5E:00.0")]
}

/// A process that is nobody's job.
fn stranger() -> Child {
    Command::new("sleep").arg("600").spawn().unwrap()
}

fn program(path: &Path, script: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn share(name: &str, milli: u32, vram_mib: u64) -> JobSpec {
    let mut spec = shell_job(name, "exec sleep 600");
    (spec.ask.gpu_milli, spec.ask.vram_mib) = (milli, vram_mib);
    spec
}

fn passes(report: &Report) {
    println!("{}", report.line());
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.line());
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap()
}

/// G6, S13, R052: a card is not free until it is clean; after 30 s it is dirty with the reason, its attempt ends, the
/// other card stays in use, and it comes back by itself. The steps are on the attempt, in their order.
#[test]
fn g6_a_card_is_free_when_it_is_clean_and_dirty_after_30_s() {
    block(async {
        let dir = tempfile::tempdir().unwrap();
        program(&dir.path().join("scrub"), "echo \"$ROTA_DEVICES\" >> \"${0%/*}/scrubbed\"");
        let host = Host::in_dir(dir, two(), "scrub = [\"DIR/scrub\"]").await;
        // A clean card first: what giving it back costs.
        let clean = host.submit(with_gpus(shell_job("clean", "true"), 1)).await;
        let care = host.over(clean).await.attempts.remove(0).care.unwrap();
        let release = care.release.unwrap();
        let clean_ms = release.took_ms;
        let steps: Vec<String> = release.steps.iter().map(ToString::to_string).collect();
        assert_eq!(steps, ["processes gone", "nodes closed", "memory back", "scrubbed", "verified"]);
        let scrubbed = std::fs::read_to_string(host.dir.path().join("scrubbed")).unwrap();
        assert!(scrubbed.starts_with("GPU-"), "the scrub is told the card: {scrubbed:?}");
        // Now something is left on the card of the next one.
        let job = host.submit(with_gpus(shell_job("leaves", "exec sleep 2"), 1)).await;
        let on = host.running(job, None).await.devices[0].uuid.0.clone();
        let mut left = stranger();
        let mut cards = two();
        let at = usize::from(on == "GPU-b");
        cards[at] = cards[at].clone().used_by(left.id(), 10 * GIB);
        cards[at].used = 11 * GIB;
        host.stage.shows(cards).unwrap();
        let began = Instant::now();
        let view = host.over(job).await;
        let dirty_ms = ms(began);
        let release = view.attempts[0].care.clone().unwrap().release.unwrap();
        let why = release.dirty.unwrap();
        let named = format!("pid {} of ", left.id());
        assert!(why.contains(&named) && why.contains("10240 MiB"), "{why}");
        assert_eq!(view.row.state, JobState::Succeeded, "its end is its own");
        let shown = host.reason(&on).await.unwrap();
        assert!(shown.contains(&named), "{shown}");
        // The other card is in use meanwhile, and only that one.
        let both = host.submit(with_gpus(shell_job("both", "true"), 2)).await;
        let other = host.submit(with_gpus(shell_job("other", "true"), 1)).await;
        assert_ne!(host.over(other).await.attempts[0].devices[0].uuid.0, on);
        assert_eq!(host.show(both).await.row.state, JobState::Pending);
        left.kill().unwrap();
        left.wait().unwrap();
        host.stage.shows(two()).unwrap();
        let began = Instant::now();
        host.over(both).await;
        let back_ms = ms(began);
        host.is_sound();
        passes(
            &Report::of("G6", 1, &[])
                .figure("clean_release_ms", clean_ms, Some(5_000))
                .figure("dirty_after_ms", dirty_ms, Some(36_000))
                .figure("back_after_ms", back_ms, Some(30_000)),
        );
        assert!(dirty_ms >= 28_000, "not declared before its time: {dirty_ms} ms");
    });
}

/// R026, R025: a stranger's card is not granted, and a job on a card of another is told; memory above the ask ends the
/// offender and not its neighbour (R032).
#[test]
fn strangers_trespassers_and_takers_are_seen_by_their_processes() {
    block(async {
        let host = Host::with(two(), "").await;
        let mut bob = stranger();
        let mut cards = two();
        cards[1] = cards[1].clone().used_by(bob.id(), 10 * GIB);
        cards[1].used = 11 * GIB;
        host.stage.shows(cards).unwrap();
        let began = Instant::now();
        let why = host.until("the card is marked", async |host| host.reason("GPU-b").await).await;
        let marked_ms = ms(began);
        assert!(
            why.contains(&format!("used outside: pid {}", bob.id())) && why.contains("10240 MiB"),
            "{why}"
        );
        let pair = host.submit(with_gpus(shell_job("pair", "true"), 2)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(host.show(pair).await.row.state, JobState::Pending);
        bob.kill().unwrap();
        bob.wait().unwrap();
        host.stage.shows(two()).unwrap();
        let began = Instant::now();
        host.over(pair).await;
        let back_ms = ms(began);
        // A job of card a whose process is on card b; then two shares of one card, one of which takes too much.
        let fat = host.submit(share("fat", 500, 20 << 10)).await;
        let thin = host.submit(share("thin", 500, 20 << 10)).await;
        let (fat_row, thin_row) = (host.running(fat, None).await, host.running(thin, None).await);
        let own = fat_row.devices[0].uuid.0.clone();
        assert_eq!(own, thin_row.devices[0].uuid.0, "they share one card");
        let (own, other) = if own == "GPU-a" { (0, 1) } else { (1, 0) };
        let mut cards = two();
        cards[other] = cards[other].clone().used_by(thin_row.pid.unwrap(), GIB);
        cards[own] = cards[own].clone().used_by(fat_row.pid.unwrap(), 31 * GIB);
        cards[own].used = 32 * GIB;
        host.stage.shows(cards).unwrap();
        let began = Instant::now();
        host.until("the taker ends", async |host| {
            let end = host.show(fat).await.attempts.into_iter().find_map(|row| row.end);
            end.filter(|end| *end == AttemptEnd::VramLimit { asked_mib: 20 << 10, used_mib: 31 << 10 })
        })
        .await;
        let ended_ms = ms(began);
        let note = host
            .until("the owner is told of the other card", async |host| {
                host.show(thin).await.attempts[0].care.clone()?.notes.first().cloned()
            })
            .await;
        assert!(note.contains("GPU-a") && note.contains("GPU-b"), "{note}");
        assert_eq!(host.show(thin).await.row.state, JobState::Running);
        let table =
            host.lab.rota(&["devices", "--socket", &host.lab.peers[0].socket().to_string_lossy()]).await;
        println!("{}", table.unwrap_or_else(|error| error.to_string()));
        passes(
            &Report::of("R026", 1, &[])
                .figure("marked_ms", marked_ms, Some(30_000))
                .figure("back_ms", back_ms, Some(30_000))
                .figure("taker_ended_ms", ended_ms, Some(15_000)),
        );
    });
}

/// G10, R035: the daemon of one card dies: only the jobs on that card end, with the reason, are queued again on no one's
/// account, and run again through a new daemon.
#[test]
fn g10_the_death_of_a_sharing_daemon_ends_the_jobs_of_its_card_only() {
    const CONTROL: &str = "echo $$ > \"${0%/*}/daemon-$CUDA_VISIBLE_DEVICES\"\n\
                           : > \"$CUDA_MPS_PIPE_DIRECTORY/control\"\nexec sleep 600";
    block(async {
        let dir = tempfile::tempdir().unwrap();
        program(&dir.path().join("mps-control"), CONTROL);
        let host = Host::in_dir(dir, two(), "mps = true\nmps_control = \"DIR/mps-control\"").await;
        let through_mps = |name: &str| {
            let mut spec = share(name, 400, 10 << 10);
            spec.ask.labels.insert("rota.share".into(), "mps".into());
            let seen = "test -e \"$CUDA_MPS_PIPE_DIRECTORY/control\" || exit 9; exec sleep 600";
            JobSpec { argv: shell_job(name, seen).argv, ..spec }
        };
        let (one, two) = (host.submit(through_mps("one")).await, host.submit(through_mps("two")).await);
        let whole = host.submit(with_gpus(shell_job("whole", "exec sleep 600"), 1)).await;
        let rows = [host.running(one, None).await, host.running(two, None).await];
        let whole_row = host.running(whole, None).await;
        let card = rows[0].devices[0].uuid.0.clone();
        let daemon = host.dir.path().join(format!("daemon-{card}"));
        let pid = std::fs::read_to_string(&daemon).unwrap();
        let killed = Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
        assert!(killed.success());
        let began = Instant::now();
        for (job, row) in [(one, &rows[0]), (two, &rows[1])] {
            host.until("the attempt ends", async |host| {
                let attempts = host.show(job).await.attempts;
                let old = attempts.into_iter().find(|other| other.token == row.token)?;
                old.end.filter(|end| *end == AttemptEnd::SharedFault)
            })
            .await;
        }
        let ended_ms = ms(began);
        for (job, row) in [(one, &rows[0]), (two, &rows[1])] {
            host.running(job, Some(row.token)).await;
        }
        let again_ms = ms(began);
        assert_ne!(std::fs::read_to_string(&daemon).unwrap(), pid, "another daemon");
        assert_eq!(host.running(whole, None).await.token, whole_row.token, "the other card's job runs on");
        for job in [one, two, whole] {
            host.lab.ask(ApiRequest::Cancel { request: new_request(), job, index: None }).await.unwrap();
        }
        for job in [one, two, whole] {
            host.over(job).await;
        }
        host.is_sound();
        passes(&Report::of("G10", 1, &[]).figure("fault_seen_and_ended_ms", ended_ms, Some(5_000)).figure(
            "running_again_ms",
            again_ms,
            Some(15_000),
        ));
    });
}

/// R029: declared slices that are gone are made again before the card is offered, and until then jobs wait with the
/// reason.
#[test]
fn r029_declared_slices_are_made_again() {
    block(async {
        let dir = tempfile::tempdir().unwrap();
        let empty = || card("GPU-a", "00000000:3B:00.0").cut(&[]);
        // Makes the slices in the scripted driver, and takes as long as the test wants.
        program(
            &dir.path().join("nvidia-smi"),
            "cd \"${0%/*}\"\necho \"$@\" >> calls\nwhile [ ! -e full ]; do sleep 0.1; done\n\
             cp full new && mv new fake-nvml.state",
        );
        let sharing =
            "nvidia_smi = \"DIR/nvidia-smi\"\n[sharing.mig]\n\"0000:3b:00.0\" = [\"1g.10gb\", \"1g.10gb\"]";
        let full =
            Stage::in_folder(dir.path(), vec![empty().cut(&[("MIG-1", "1g.10gb"), ("MIG-2", "1g.10gb")])])
                .unwrap();
        let text = std::fs::read(full.script()).unwrap();
        let host = Host::in_dir(dir, vec![empty()], sharing).await;
        let job = {
            let mut spec = shell_job("slice", "true");
            spec.ask.devices.insert("mig:1g.10gb".into(), 1);
            host.submit(spec).await
        };
        let rows = host.devices().await;
        let reasons: Vec<_> = rows.iter().filter_map(|row| row.facts.health.reason()).collect();
        assert!(reasons.contains(&"slices missing: declared 2, found 0"), "{reasons:?}");
        assert!(
            rows.iter().all(|row| row.facts.health != DeviceHealth::Healthy),
            "nothing is offered as whole"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(host.show(job).await.row.state, JobState::Pending);
        std::fs::write(host.dir.path().join("full.new"), text).unwrap();
        std::fs::rename(host.dir.path().join("full.new"), host.dir.path().join("full")).unwrap();
        let began = Instant::now();
        let view = host.over(job).await;
        let back_ms = ms(began);
        assert_eq!(view.row.state, JobState::Succeeded);
        let calls = std::fs::read_to_string(host.dir.path().join("calls")).unwrap();
        assert!(calls.starts_with("mig -i 0000:3b:00.0 -cgi 1g.10gb,1g.10gb -C"), "{calls}");
        passes(&Report::of("R029", 1, &[]).figure("offered_ms", back_ms, Some(30_000)));
    });
}

/// R091: a task that holds a card and does nothing with it is told so, and the report counts it by user.
#[test]
fn r091_an_idle_holder_is_warned_and_counted() {
    block(async {
        let host = Host::with(two(), "").await;
        let socket = host.lab.peers[0].socket().to_string_lossy().into_owned();
        let job = host.submit(with_gpus(shell_job("idle", "exec sleep 600"), 1)).await;
        // The queue of its tenant's name, which is there with its first job.
        let queue = host.show(job).await.row.tenant;
        let rules = ["--idle", "warn", "--idle-window", "60s", "--socket", &socket];
        let told = host.lab.rota(&[&["queues", "set", &queue], &rules[..]].concat()).await.unwrap();
        assert!(told.contains("idle: 2 warnings, one each 1m"), "{told}");
        let row = host.running(job, None).await;
        let mut cards = two();
        let at = usize::from(row.devices[0].uuid.0 == "GPU-b");
        cards[at] = cards[at].clone().used_by(row.pid.unwrap(), GIB);
        (cards[at].used, cards[at].busy) = (2 * GIB, 0);
        host.stage.shows(cards).unwrap();
        let began = Instant::now();
        let care = wait_for("the warning", 3 * LONG, async || {
            host.show(job).await.attempts[0].care.clone().filter(|care| care.idle_gpu_ms > 0)
        })
        .await
        .unwrap();
        let warned_ms = ms(began);
        assert!(care.notes[0].contains("holds its cards idle for 1 min"), "{:?}", care.notes);
        let report = host.lab.rota(&["usage", "--idle", "--socket", &socket]).await.unwrap();
        println!("{report}");
        assert!(report.contains(&job.to_string()), "{report}");
        passes(&Report::of("R091", 1, &[]).figure("warned_ms", warned_ms, Some(90_000)));
    });
}

/// R032, R034: shares of random size, submitted to three peers at once. No card ever holds more than it has, and no host
/// bounces what the leader grants.
#[test]
fn random_shares_never_overfill_a_card_and_none_bounces() {
    const JOBS: u32 = 100;
    // `ROTA_CARDS_TASKS=100` makes it ten thousand: minutes on two cores.
    let tasks = std::env::var("ROTA_CARDS_TASKS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_u32);
    block(async {
        let dir = tempfile::tempdir().unwrap();
        let mut options = LabOptions::new(3, &dir.path().join("lab")).unwrap();
        options.exe = env!("CARGO_BIN_EXE_rota-chaos").into();
        options.exe_args = vec!["rota".into()];
        options.profile = "chaos".into();
        options.sim_gpus = Some("4xH100:80GiB".into());
        (options.cpus, options.mem) = (Some("64".into()), Some("64GiB".into()));
        let lab = Lab::start(options).await.unwrap();
        let mut jobs = Vec::new();
        for n in 0..JOBS {
            // Multiples of primes: every size of share and memory in no order, and no two runs differ.
            let (milli, gib) = ([50, 125, 250, 333, 500, 1_000][n as usize * 7 % 6], u64::from(n * 13 % 31));
            let mut spec = as_array(shell_job("share", "exit 0"), tasks);
            (spec.ask.gpu_milli, spec.ask.vram_mib) = (milli, gib << 10);
            spec.ask.cpus_milli = 100;
            let client = lab.peers[n as usize % 3].client().await.unwrap();
            match client.call(ApiRequest::Submit { jobs: vec![(new_request(), spec)] }).await.unwrap() {
                ApiReply::Submitted(mut results) => jobs.push(results.remove(0).unwrap()),
                other => panic!("{other:?}"),
            }
        }
        let began = Instant::now();
        let (mut samples, mut fullest) = (0_u64, (0, 0));
        loop {
            let reply = lab.ask(ApiRequest::Devices { freshness: Freshness::Stale }).await.unwrap();
            let ApiReply::Devices { rows, .. } = reply else { panic!("{reply:?}") };
            for row in rows {
                let milli: u32 = row.held_by.iter().map(|hold| hold.milli).sum();
                let vram_mib: u64 = row.held_by.iter().map(|hold| hold.vram_mib).sum();
                assert!(milli <= 1_000 && vram_mib <= 80 << 10, "{row:?}");
                fullest = (fullest.0.max(milli), fullest.1.max(vram_mib));
            }
            samples += 1;
            let filter = QueueFilter::default();
            let reply = lab.ask(ApiRequest::Queue { filter, freshness: Freshness::Stale }).await.unwrap();
            let ApiReply::Queue { rows, .. } = reply else { panic!("{reply:?}") };
            if rows.is_empty() {
                break;
            }
            assert!(began.elapsed() < 5 * LONG, "{} jobs are still open", rows.len());
        }
        let mut succeeded = 0;
        for job in jobs {
            let reply = lab.ask(ApiRequest::Show { job, freshness: Freshness::Stale }).await.unwrap();
            let ApiReply::Job(view) = reply else { panic!("{reply:?}") };
            succeeded += view.row.tasks.succeeded;
        }
        assert_eq!(succeeded, JOBS * tasks);
        let bounced = violations(&dir.path().join("lab"));
        assert_eq!(bounced, Vec::<String>::new());
        passes(
            &Report::of("R034", 1, &[])
                .figure("tasks", succeeded.into(), None)
                .figure("bounced", bounced.len() as u64, Some(0))
                .figure("samples", samples, None)
                .figure("fullest_milli", fullest.0.into(), Some(1_000))
                .figure("fullest_mib", fullest.1, Some(80 << 10))
                .figure("took_ms", ms(began), None),
        );
    });
}
