//! Cards through the real wrapper and a scripted library, with real agents and real tasks (reports R025, R026, R029, R034,
//! R091). Each measured time stands beside its bound. Rows of the fault catalogue are in `hands.rs`.
//!
//! The scripted driver shows the processes that a test says: the tasks' real ones, and strangers.

// Helpers of tests: what cannot be set up should stop the test where it stands.
#![allow(clippy::unwrap_used)]

mod machine;

use fake_nvml::script::Card;
use fake_nvml::stage::Stage;
use machine::with_bench;
use rota_chaos::real::Bench;
use rota_chaos::real::cards::give_back::Stranger;
use rota_chaos::real::cards::sharing::{card, share, two};
use rota_chaos::real::cards::site::{Settings, Site, program};
use rota_chaos::real::report::{Report, Verdict};
use rota_node::lab::{new_request, violations, wait_for};
use rota_node::lab_work::{as_array, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, QueueFilter};
use rota_protocol::device::DeviceHealth;
use rota_protocol::job::{AttemptEnd, JobState};
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
const LONG: Duration = Duration::from_secs(60);

fn block(test: impl AsyncFnOnce(&Bench)) {
    with_bench(1, test);
}

async fn site(bench: &Bench, name: &str, cards: Vec<Card>, sharing: &str) -> Site {
    Site::start(bench, name, cards, Settings { sharing, ..Settings::default() }).await.unwrap()
}

fn passes(report: &Report) {
    println!("{}", report.line());
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.line());
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap()
}

/// R026, R025: a stranger's card is not granted, and a job on a card of another is told; memory above the ask ends the
/// offender and not its neighbour (R032).
#[test]
fn strangers_trespassers_and_takers_are_seen_by_their_processes() {
    block(async |bench| {
        let host = site(bench, "host", two(), "").await;
        let bob = Stranger::new().unwrap();
        let mut cards = two();
        cards[1] = cards[1].clone().used_by(bob.pid(), 10 * GIB);
        cards[1].used = 11 * GIB;
        host.driver.shows(cards).unwrap();
        let began = Instant::now();
        let why =
            host.until("the card is marked", async |host| host.reason("GPU-b").await.unwrap()).await.unwrap();
        let marked_ms = ms(began);
        assert!(
            why.contains(&format!("used outside: pid {}", bob.pid())) && why.contains("10240 MiB"),
            "{why}"
        );
        let pair = host.submit(with_gpus(shell_job("pair", "true"), 2)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(host.show(pair).await.unwrap().row.state, JobState::Pending);
        drop(bob);
        host.driver.shows(two()).unwrap();
        let began = Instant::now();
        host.over(pair).await.unwrap();
        let back_ms = ms(began);
        // A job of card a whose process is on card b; then two shares of one card, one of which takes too much.
        let fat = host.submit(share("fat", 500, 20 << 10)).await.unwrap();
        let thin = host.submit(share("thin", 500, 20 << 10)).await.unwrap();
        let (fat_row, thin_row) =
            (host.running(fat, None).await.unwrap(), host.running(thin, None).await.unwrap());
        let own = fat_row.devices[0].uuid.0.clone();
        assert_eq!(own, thin_row.devices[0].uuid.0, "they share one card");
        let (own, other) = if own == "GPU-a" { (0, 1) } else { (1, 0) };
        let mut cards = two();
        cards[other] = cards[other].clone().used_by(thin_row.pid.unwrap(), GIB);
        cards[own] = cards[own].clone().used_by(fat_row.pid.unwrap(), 31 * GIB);
        cards[own].used = 32 * GIB;
        host.driver.shows(cards).unwrap();
        let began = Instant::now();
        host.until("the taker ends", async |host| {
            let end = host.show(fat).await.unwrap().attempts.into_iter().find_map(|row| row.end);
            end.filter(|end| *end == AttemptEnd::VramLimit { asked_mib: 20 << 10, used_mib: 31 << 10 })
        })
        .await
        .unwrap();
        let ended_ms = ms(began);
        let note = host
            .until("the owner is told of the other card", async |host| {
                host.show(thin).await.unwrap().attempts[0].care.clone()?.notes.first().cloned()
            })
            .await
            .unwrap();
        assert!(note.contains("GPU-a") && note.contains("GPU-b"), "{note}");
        assert_eq!(host.show(thin).await.unwrap().row.state, JobState::Running);
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

/// R029: declared slices that are gone are made again before the card is offered, and until then jobs wait with the
/// reason.
#[test]
fn r029_declared_slices_are_made_again() {
    block(async |bench| {
        let dir = Site::folder(bench, "host").unwrap();
        let empty = || card("GPU-a", "00000000:3B:00.0").cut(&[]);
        // Makes the slices in the scripted driver, and takes as long as the test wants.
        program(
            &dir.join("nvidia-smi"),
            "cd \"${0%/*}\"\necho \"$@\" >> calls\nwhile [ ! -e full ]; do sleep 0.1; done\n\
             cp full new && mv new fake-nvml.state",
        )
        .unwrap();
        let sharing =
            "nvidia_smi = \"DIR/nvidia-smi\"\n[sharing.mig]\n\"0000:3b:00.0\" = [\"1g.10gb\", \"1g.10gb\"]";
        let full =
            Stage::in_folder(&dir, vec![empty().cut(&[("MIG-1", "1g.10gb"), ("MIG-2", "1g.10gb")])]).unwrap();
        let text = std::fs::read(full.script()).unwrap();
        let host = site(bench, "host", vec![empty()], sharing).await;
        let job = {
            let mut spec = shell_job("slice", "true");
            spec.ask.devices.insert("mig:1g.10gb".into(), 1);
            host.submit(spec).await.unwrap()
        };
        let rows = host.devices().await.unwrap();
        let reasons: Vec<_> = rows.iter().filter_map(|row| row.facts.health.reason()).collect();
        assert!(reasons.contains(&"slices missing: declared 2, found 0"), "{reasons:?}");
        assert!(
            rows.iter().all(|row| row.facts.health != DeviceHealth::Healthy),
            "nothing is offered as whole"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(host.show(job).await.unwrap().row.state, JobState::Pending);
        std::fs::write(host.dir.join("full.new"), text).unwrap();
        std::fs::rename(host.dir.join("full.new"), host.dir.join("full")).unwrap();
        let began = Instant::now();
        let view = host.over(job).await.unwrap();
        let back_ms = ms(began);
        assert_eq!(view.row.state, JobState::Succeeded);
        let calls = std::fs::read_to_string(host.dir.join("calls")).unwrap();
        assert!(calls.starts_with("mig -i 0000:3b:00.0 -cgi 1g.10gb,1g.10gb -C"), "{calls}");
        passes(&Report::of("R029", 1, &[]).figure("offered_ms", back_ms, Some(30_000)));
    });
}

/// R091: a task that holds a card and does nothing with it is told so, and the report counts it by user.
#[test]
fn r091_an_idle_holder_is_warned_and_counted() {
    block(async |bench| {
        let host = site(bench, "host", two(), "").await;
        let socket = host.lab.peers[0].socket().to_string_lossy().into_owned();
        let job = host.submit(with_gpus(shell_job("idle", "exec sleep 600"), 1)).await.unwrap();
        // The queue of its tenant's name, which is there with its first job.
        let queue = host.show(job).await.unwrap().row.tenant;
        let rules = ["--idle", "warn", "--idle-window", "60s", "--socket", &socket];
        let told = host.lab.rota(&[&["queues", "set", &queue], &rules[..]].concat()).await.unwrap();
        assert!(told.contains("idle: 2 warnings, one each 1m"), "{told}");
        let row = host.running(job, None).await.unwrap();
        let mut cards = two();
        let at = usize::from(row.devices[0].uuid.0 == "GPU-b");
        cards[at] = cards[at].clone().used_by(row.pid.unwrap(), GIB);
        (cards[at].used, cards[at].busy) = (2 * GIB, 0);
        host.driver.shows(cards).unwrap();
        let began = Instant::now();
        let care = wait_for("the warning", 3 * LONG, async || {
            host.show(job).await.unwrap().attempts[0].care.clone().filter(|care| care.idle_gpu_ms > 0)
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
    block(async |bench| {
        let lab = bench.lab("R034", 3, |options| options.cpus = Some("64".into())).await.unwrap();
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
        let bounced = violations(&bench.dir.join("R034"));
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
