//! Sick cards on a real agent, from a line of the kernel's log or an answer of the driver to a decision in the state,
//! through the real NVML wrapper and a scripted library (faults G1, G3, G7; reports R014, R018), and hosts on which jobs
//! fail (fault G14). Each test prints its row: what was measured beside its bound.

// Helpers of tests: what cannot be set up should stop the test where it stands.
#![allow(clippy::unwrap_used)]

use fake_nvml::kmsg::Kmsg;
use fake_nvml::script::{Card, Remap, code};
use fake_nvml::stage::Stage as Driver;
use rota_chaos::real::Bench;
use rota_chaos::real::report::{Report, Verdict};
use rota_node::client::Client;
use rota_node::lab::{Lab, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::device::DeviceHealth;
use rota_protocol::health::{Stage, Tending};
use rota_protocol::job::{AttemptEnd, AttemptState, JobSpec, JobState};
use rota_protocol::view::{DeviceRow, HostState, JobView};
use rota_protocol::{DeviceUuid, HostId, JobId};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One cluster at a time: they share the machine.
static MACHINE: Mutex<()> = Mutex::new(());
/// From the line to the decision in the state.
const QUARANTINE_MS_MAX: u64 = 500;
/// A card that stops answering without any code is found within this.
const FOUND_MS_MAX: u64 = 30_000;
/// How long things may take that have no bound of their own, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const NAMES: [&str; 8] = ["GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-e", "GPU-f", "GPU-g", "GPU-h"];

/// Eight cards, each at its own address. None of them gives advice.
fn cards() -> Vec<Card> {
    let card = |(name, at): (&&str, u32)| Card {
        bus: format!("00000000:{:02X}:00.0", 0x3b + at).into_bytes(),
        minor: Some(at),
        recovery: None,
        ..Card::new(name)
    };
    NAMES.iter().zip(0..).map(card).collect()
}

fn bus(at: usize) -> String {
    format!("0000:{:02x}:00", 0x3b + at)
}

/// A cluster of one host with eight cards, its driver and its kernel's log.
struct Site {
    lab: Lab,
    driver: Driver,
    kernel: Kmsg,
    client: Client,
}

impl Site {
    async fn start(bench: &Bench, name: &str, probation: &str) -> Self {
        let folder = bench.dir.join(format!("{name}-driver"));
        std::fs::create_dir_all(&folder).unwrap();
        let driver = Driver::in_folder(&folder, cards()).unwrap();
        let kernel = Kmsg::open(&folder.join("kmsg")).unwrap();
        let config = format!(
            "nvml_library = {:?}\n[devices]\nkmsg_path = {:?}\nprobation = {probation:?}\nreset_command = []\n",
            driver.library(),
            kernel.path()
        );
        let lab = bench
            .lab(name, 1, |options| {
                options.sim_gpus = None;
                options.config = Some(config);
            })
            .await
            .unwrap();
        let client = lab.peers[0].client().await.unwrap();
        let site = Self { lab, driver, kernel, client };
        site.until("all cards are offered", PATIENCE, |rows| {
            rows.iter().all(|row| row.facts.health.is_healthy())
        })
        .await;
        site
    }

    async fn rows(&self) -> Vec<DeviceRow> {
        match self.client.call(ApiRequest::Devices { freshness: Freshness::Stale }).await {
            Ok(ApiReply::Devices { rows, .. }) => rows,
            other => panic!("{other:?}"),
        }
    }

    /// Looks every few ms until the devices are so; gives how long that took.
    async fn until(&self, what: &str, limit: Duration, is: impl Fn(&[DeviceRow]) -> bool) -> u64 {
        let started = Instant::now();
        loop {
            let rows = self.rows().await;
            if rows.len() == NAMES.len() && is(&rows) {
                return u64::try_from(started.elapsed().as_millis()).unwrap();
            }
            assert!(started.elapsed() < limit, "never: {what}; {:#?}", shown(&rows));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_stage(&self, name: &str, stage: Stage, limit: Duration) -> u64 {
        let is = |rows: &[DeviceRow]| stage_in(rows, name) == stage;
        self.until(&format!("{name} is {stage}"), limit, is).await
    }

    async fn stage(&self, name: &str) -> Stage {
        stage_in(&self.rows().await, name)
    }

    async fn host_state(&self) -> HostState {
        self.lab.hosts().await.unwrap()[0].state
    }

    async fn tend(&self, tending: Tending) {
        let request = rota_node::lab::new_request();
        self.client.call(ApiRequest::Tend { request, tending }).await.unwrap();
    }

    async fn show(&self, job: JobId) -> JobView {
        match self.client.call(ApiRequest::Show { job, freshness: Freshness::Linearizable }).await {
            Ok(ApiReply::Job(view)) => *view,
            other => panic!("{other:?}"),
        }
    }

    /// One running job on each of these cards; gives each with its first process.
    async fn occupy(&self, count: usize, spec: &JobSpec) -> Vec<(JobId, String, u32)> {
        let mut client = Stubborn::new(&self.lab, 0);
        let mut jobs = Vec::new();
        for _ in 0..count {
            jobs.push(client.submit(spec.clone()).await.unwrap());
        }
        let mut on = Vec::new();
        for job in jobs {
            let found = wait_for("a start", PATIENCE, async || {
                let view = self.show(job).await;
                let live = view.attempts.iter().find(|a| a.state == Some(AttemptState::Running))?;
                Some((job, live.devices[0].uuid.0.clone(), live.pid?))
            });
            on.push(found.await.unwrap());
        }
        on
    }

    async fn until_ended(&self, job: JobId) -> AttemptEnd {
        wait_for("an end", PATIENCE, async || self.show(job).await.attempts.into_iter().find_map(|a| a.end))
            .await
            .unwrap()
    }
}

fn stage_in(rows: &[DeviceRow], name: &str) -> Stage {
    let row = rows.iter().find(|row| row.facts.uuid.0 == name).expect("listed");
    row.mark.as_ref().map_or(Stage::Well, |mark| mark.stage)
}

fn shown(rows: &[DeviceRow]) -> Vec<String> {
    rows.iter().map(|row| format!("{} {:?} {:?}", row.facts.uuid, row.facts.health, row.mark)).collect()
}

fn place(name: &str) -> usize {
    NAMES.iter().position(|other| *other == name).unwrap()
}

/// Never ended to make room: what a test waits for is what it asked for.
fn sleeper() -> JobSpec {
    JobSpec { preemptible: false, ..with_gpus(shell_job("sleeper", "sleep 600"), 1) }
}

fn on_bench(test: impl AsyncFnOnce(&Bench, &Path) -> Report) {
    let _alone = MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench {
        exe: env!("CARGO_BIN_EXE_rota-chaos").into(),
        exe_args: vec!["rota".into()],
        dir: dir.path().to_owned(),
        rounds: 1,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(test(&bench, dir.path()));
    println!("{}", report.line());
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.line());
}

/// G1: reset class, duplicates, program class with and without a process of ours, an unknown Xid, an overrun, node class;
/// what stands against cards outlives the agent (R018).
#[test]
fn g1_xids_become_decisions_in_time() {
    on_bench(async |bench, _| {
        let mut site = Site::start(bench, "G1", "10m").await;
        let jobs = site.occupy(4, &sleeper()).await;
        let mut slowest_ms = 0;

        // A fault of the card, a thousand times: its job is ended as the card's fault and runs again elsewhere.
        let (job, card, _) = jobs[0].clone();
        for _ in 0..1_000 {
            site.kernel.xid(&bus(place(&card)), 95, None, "Uncontained ECC error").unwrap();
        }
        slowest_ms = site.until_stage(&card, Stage::Quarantined, PATIENCE).await.max(slowest_ms);
        let end = site.until_ended(job).await;
        assert!(matches!(&end, AttemptEnd::DeviceFault { reason } if reason.contains("Xid 95")), "{end:?}");
        let again = wait_for("another start", PATIENCE, async || {
            let view = site.show(job).await;
            let live = view.attempts.iter().find(|a| a.state == Some(AttemptState::Running))?;
            (live.devices[0].uuid.0 != card).then_some(())
        });
        again.await.unwrap();
        let rows = site.rows().await;
        let mark = rows.iter().find(|row| row.facts.uuid.0 == card).unwrap().mark.clone().unwrap();
        assert_eq!(mark.resets, 1, "one fault, however often it is told: {mark:?}");

        // A program's own failure, named by its process: the job fails, the card stays.
        let (job, program_card, pid) = jobs[1].clone();
        site.kernel.xid(&bus(place(&program_card)), 31, Some((pid, "sleep")), "MMU Fault").unwrap();
        let started = Instant::now();
        let end = site.until_ended(job).await;
        let program_ms = u64::try_from(started.elapsed().as_millis()).unwrap();
        let names = |reason: &str| reason.contains("gpu_app_xid31");
        assert!(matches!(&end, AttemptEnd::ProgramFault { reason } if names(reason)), "{end:?}");
        assert_eq!(site.show(job).await.row.state, JobState::Failed);
        assert_eq!(site.stage(&program_card).await, Stage::Well);

        // A stranger's process on a card of ours: nobody pays.
        let (job, other_card, _) = jobs[2].clone();
        let stranger = std::process::id();
        site.kernel.xid(&bus(place(&other_card)), 13, Some((stranger, "x")), "Graphics Exception").unwrap();

        // An Xid that nobody knows takes the card out.
        site.kernel.xid(&bus(7), 9_999, None, "something new").unwrap();
        slowest_ms = site.until_stage(NAMES[7], Stage::Quarantined, PATIENCE).await.max(slowest_ms);
        let view = site.show(job).await;
        assert!(view.attempts.iter().all(|a| a.end.is_none()), "the stranger's failure ended {view:?}");

        // Lines are lost: the driver itself is asked at once.
        let mut sick = cards();
        sick[6] = Card { recovery: Some(1), ..sick[6].clone() };
        site.driver.shows(sick.clone()).unwrap();
        site.kernel.overrun(100);
        site.kernel.line("usb 1-1: new device").unwrap();
        let overrun_ms = site.until_stage(NAMES[6], Stage::Quarantined, PATIENCE).await;

        // An operator clears a card; what else stands outlives the agent.
        site.tend(Tending::Clear { uuid: DeviceUuid(NAMES[7].into()) }).await;
        site.until_stage(NAMES[7], Stage::Well, PATIENCE).await;
        site.lab.stop(0).await.unwrap();
        site.lab.spawn(0).unwrap();
        site.lab.until_answers(0).await.unwrap();
        site.client = site.lab.peers[0].client().await.unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(site.stage(&card).await, Stage::Quarantined, "a restart is no repair");
        assert_eq!(site.stage(NAMES[7]).await, Stage::Well, "old lines are no new faults");

        // The host itself: closed, and what used its cards is ended now.
        let live = site.occupy(1, &sleeper()).await;
        let (job, card, _) = live[0].clone();
        site.kernel.xid(&bus(place(&card)), 79, None, "GPU has fallen off the bus.").unwrap();
        slowest_ms = site.until_stage(&card, Stage::Quarantined, PATIENCE).await.max(slowest_ms);
        assert_eq!(site.host_state().await, HostState::Faulty);
        let end = site.until_ended(job).await;
        assert!(matches!(&end, AttemptEnd::DeviceFault { reason } if reason.contains("Xid 79")), "{end:?}");
        Report::of("G1", 1, &[])
            .figure("line_to_decision_ms", slowest_ms, Some(QUARANTINE_MS_MAX))
            .figure("program_to_end_ms", program_ms, None)
            .figure("overrun_to_decision_ms", overrun_ms, None)
    });
}

/// G3, R014: a card that is gone without a word closes the host, one that is back is on probation; marks follow the UUID
/// when the driver lists cards in another order.
#[test]
fn g3_a_card_is_gone_and_comes_back() {
    on_bench(async |bench, _| {
        let site = Site::start(bench, "G3", "2s").await;
        let mut gone = cards();
        gone.remove(2);
        site.driver.shows(gone).unwrap();
        let found_ms = site.until_stage(NAMES[2], Stage::Quarantined, PATIENCE).await;
        assert_eq!(site.host_state().await, HostState::Faulty);

        let mut lost = cards();
        lost[2] = Card::new(NAMES[2]).failing("*", code::GPU_IS_LOST);
        site.driver.shows(lost).unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(site.stage(NAMES[2]).await, Stage::Quarantined);

        let mut back = cards();
        back.reverse();
        site.driver.shows(back).unwrap();
        let back_ms = site.until_stage(NAMES[2], Stage::Probation, PATIENCE).await;
        let row = site.rows().await.into_iter().find(|row| row.facts.uuid.0 == NAMES[2]).unwrap();
        assert!(matches!(row.facts.health, DeviceHealth::Quarantined { .. }), "not at once: {row:?}");
        site.until_stage(NAMES[2], Stage::Well, PATIENCE).await;
        assert_eq!(site.host_state().await, HostState::Up);
        let rows = site.rows().await;
        assert!(rows.iter().all(|row| row.facts.health.is_healthy()), "{:#?}", shown(&rows));
        Report::of("G3", 1, &[]).figure("gone_to_decision_ms", found_ms, Some(FOUND_MS_MAX)).figure(
            "back_to_probation_ms",
            back_ms,
            None,
        )
    });
}

/// G7, R018: a failed remap takes the card out for good, a pending one leaves it at work and is shown; an operator's cordon
/// keeps new work off and lets old work run.
#[test]
fn g7_remaps_and_cordons() {
    on_bench(async |bench, _| {
        let site = Site::start(bench, "G7", "2s").await;
        let mut sick = cards();
        sick[0].remap = Some(Remap { pending: true, ..Remap::default() });
        sick[1].remap = Some(Remap { failed: true, ..Remap::default() });
        site.driver.shows(sick).unwrap();
        let out_ms = site.until_stage(NAMES[1], Stage::Out, PATIENCE).await;
        let noted = |rows: &[DeviceRow]| {
            let row = rows.iter().find(|row| row.facts.uuid.0 == NAMES[0]).expect("listed");
            row.facts.health.is_healthy() && row.mark.as_ref().is_some_and(|mark| !mark.reasons.is_empty())
        };
        site.until("the pending remap is shown", PATIENCE, noted).await;
        site.tend(Tending::Cordon { uuid: DeviceUuid(NAMES[2].into()), reason: "a loud fan".into() }).await;
        let jobs = site.occupy(6, &sleeper()).await;
        let used: Vec<&str> = jobs.iter().map(|(_, card, _)| card.as_str()).collect();
        assert!(!used.contains(&NAMES[1]) && !used.contains(&NAMES[2]), "{used:?}");
        let mut client = Stubborn::new(&site.lab, 0);
        let seventh = client.submit(sleeper()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(site.show(seventh).await.row.state, JobState::Pending);
        site.tend(Tending::Clear { uuid: DeviceUuid("GPU-c".into()) }).await;
        let placed = wait_for("a start on the cleared card", PATIENCE, async || {
            let view = site.show(seventh).await;
            (view.attempts.first()?.devices[0].uuid.0 == NAMES[2]).then_some(())
        });
        placed.await.unwrap();
        Report::of("G7", 1, &[]).figure("failed_remap_to_decision_ms", out_ms, Some(FOUND_MS_MAX))
    });
}

/// G14: three jobs that fail on one host and run well on another keep work off it; an operator's word lets it work again.
#[test]
fn g14_a_lemon_is_shunned() {
    on_bench(async |bench, dir| {
        let bad_file = dir.join("bad");
        let one_card =
            |options: &mut rota_node::lab::LabOptions| options.sim_gpus = Some("1xH100:80GiB".into());
        let lab = bench.lab("G14", 3, one_card).await.unwrap();
        let mut client = Stubborn::new(&lab, 0);
        // Two of three hosts are full: the third is the one on which jobs will fail.
        let (first, second) = (start(&lab, &mut client, 50).await, start(&lab, &mut client, 50).await);
        let bad =
            lab.peers.iter().map(|peer| peer.host).find(|host| ![first.1, second.1].contains(host)).unwrap();
        std::fs::write(&bad_file, bad.to_string()).unwrap();
        let script =
            format!("test \"$ROTA_HOST\" != \"$(cat {})\" || {{ sleep 1; exit 1; }}", bad_file.display());
        let picky = JobSpec { retries: 1, preemptible: false, ..with_gpus(shell_job("picky", &script), 1) };
        let mut good = first.0;
        let mut shunned_ms = 0;
        for time in 1..=3 {
            let job = client.submit(picky.clone()).await.unwrap();
            until_on(&lab, job, Some(bad)).await;
            // What is more urgent takes the bad host's card when it has failed; then a good host's card is freed.
            let mut urgent = sleeper();
            urgent.priority = 90;
            let urgent = client.submit(urgent).await.unwrap();
            until_on(&lab, urgent, Some(bad)).await;
            cancel(&mut client, good).await;
            client.until_done(&[job], PATIENCE, |_, _| {}).await.unwrap();
            let ended = Instant::now();
            good = start(&lab, &mut client, 50).await.0;
            cancel(&mut client, urgent).await;
            let state = async || lab.hosts().await.ok()?.into_iter().find(|row| row.host == bad);
            let row = wait_for("the count of failed jobs", PATIENCE, async || {
                state().await.filter(|row| row.care.failed_jobs == time)
            });
            let row = row.await.unwrap();
            assert_eq!(row.state == HostState::Shunned, time == 3, "{row:?}");
            shunned_ms = u64::try_from(ended.elapsed().as_millis()).unwrap();
        }
        let waits = client.submit(sleeper()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let why = match client.ask(ApiRequest::Why { job: waits }, PATIENCE).await.unwrap() {
            ApiReply::Why(why) => *why,
            other => panic!("{other:?}"),
        };
        let told = why
            .by_reason
            .iter()
            .any(|row| row.kind == "shunned" && row.detail.contains("3 jobs failed here"));
        assert!(told, "{why:?}");
        let request = rota_node::lab::new_request();
        client.ask(ApiRequest::Undrain { request, host: bad.to_string() }, PATIENCE).await.unwrap();
        until_on(&lab, waits, Some(bad)).await;
        Report::of("G14", 1, &[]).figure("jobs_until_shunned", 3, Some(3)).figure(
            "last_job_to_shunned_ms",
            shunned_ms,
            None,
        )
    });
}

/// A sleeper that runs, and where.
async fn start(lab: &Lab, client: &mut Stubborn, priority: u16) -> (JobId, HostId) {
    let job = client.submit(JobSpec { priority, ..sleeper() }).await.unwrap();
    (job, until_on(lab, job, None).await)
}

/// Waits until a job runs, on this host if one is named; gives where.
async fn until_on(lab: &Lab, job: JobId, wanted: Option<HostId>) -> HostId {
    let place = wait_for("a start", PATIENCE, async || {
        let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
        let ApiReply::Job(view) = lab.ask(show).await.ok()? else { return None };
        let live = view.attempts.iter().find(|a| a.state == Some(AttemptState::Running))?;
        wanted.is_none_or(|host| host == live.host).then_some(live.host)
    });
    place.await.unwrap()
}

async fn cancel(client: &mut Stubborn, job: JobId) {
    let request = rota_node::lab::new_request();
    client.ask(ApiRequest::Cancel { request, job, index: None }, PATIENCE).await.unwrap();
}
