//! Work that is run again, and work that must not be (field reports R047, R063).

use super::Bench;
use super::agent_death::show;
use super::ends::until;
use super::row::Row;
use rota_node::lab::{LabError, wait_for};
use rota_node::lab_work::{Stubborn, Witness, as_array, shell_job};
use rota_protocol::job::{AttemptEnd, JobState};
use rota_protocol::work::Warning;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// From the set time to the warning in the program, in ms.
const WARNED_MS: u64 = 2_000;
/// From the restart of all agents to the end of an array whose rest takes about two seconds, in ms.
const DONE_MS: u64 = 20_000;
/// The status by which a task asks to be queued again.
const AGAIN: u8 = 75;
const LIMIT: Duration = Duration::from_secs(60);

/// R047: a program below a shell hears the warning, saves how far it is, and asks by its status for another run; the third
/// run is the last.
pub(super) async fn warned_and_queued_again(bench: &Bench) -> Result<Row, LabError> {
    const LIMIT_MS: u64 = 2_500;
    const BEFORE_MS: u32 = 1_500;
    let lab = bench.lab("R047", 1, |_| {}).await?;
    let (dir, mut client) = (bench.dir.join("R047"), Stubborn::new(&lab, 0));
    let what = "warning below a shell, saved, queued again by status: from the set time to the signal in the program";
    let mut row = Row::new("R047", what, Some(WARNED_MS));
    for round in 0..bench.rounds.min(2) {
        let (count, times) = (dir.join(format!("count-{round}")), dir.join(format!("times-{round}")));
        let program = format!(
            "n=$(($(cat {0} 2>/dev/null || echo 0) + 1)); [ $n = 3 ] && echo $n > {0} && exit 0; \
             trap 'date +%s%N >> {1}; cat $ROTA_NOTICE_FILE > {0}.notice; echo $n > {0}; exit {AGAIN}' USR1; \
             while :; do sleep 0.02; done",
            count.display(),
            times.display()
        );
        let program_file = dir.join(format!("program-{round}"));
        super::host_files::program(&program_file, &program)?;
        let mut spec = shell_job("saves", &format!("sh -c '{}; exit $?'; exit $?", program_file.display()));
        spec.time_limit_ms = Some(LIMIT_MS);
        spec.warning = Some(Warning { signal: 10, before_ms: BEFORE_MS, leader_only: false });
        spec.requeue_status = Some(AGAIN);
        let job = client.submit(spec).await?;
        let view = until(&mut client, job, "the end", |view| view.row.state.is_terminal()).await?;
        row.must(view.row.state == JobState::Succeeded, || {
            format!("round {round}: it is {}", view.row.state)
        });
        let again = AttemptEnd::Requeued { code: AGAIN };
        let mut ends: Vec<_> = view.attempts.iter().filter_map(|attempt| attempt.end.clone()).collect();
        ends.sort_by_key(|end| end.is_success());
        row.must(ends == [again.clone(), again, AttemptEnd::Exited { code: 0 }], || {
            format!("round {round}: {ends:?}")
        });
        let counted = std::fs::read_to_string(&count).unwrap_or_default();
        row.must(counted.trim() == "3", || format!("round {round}: it counted {counted:?}"));
        let notice = std::fs::read_to_string(format!("{}.notice", count.display())).unwrap_or_default();
        row.must(notice.contains("reason=time_limit"), || format!("round {round}: notice {notice:?}"));
        let heard = std::fs::read_to_string(&times).unwrap_or_default();
        let heard: Vec<u64> =
            heard.lines().filter_map(|line| line.parse::<u64>().ok()).map(|ns| ns / 1_000_000).collect();
        let mut starts: Vec<u64> = view.attempts.iter().filter_map(|attempt| attempt.started_ms).collect();
        starts.sort_unstable();
        row.must(heard.len() == 2, || format!("round {round}: {} warnings", heard.len()));
        for (heard_ms, started_ms) in heard.iter().zip(&starts) {
            let set_ms = started_ms + LIMIT_MS - u64::from(BEFORE_MS);
            row.ran(heard_ms.saturating_sub(set_ms));
        }
    }
    Ok(row)
}

/// R063: every agent is killed in the middle of an array: what was done is not done again, the rest is, once.
pub(super) async fn array_goes_on(bench: &Bench) -> Result<Row, LabError> {
    const TASKS: u32 = 100;
    let mut lab = bench.lab("R063", 3, |options| options.cpus = Some("4".into())).await?;
    let what =
        "all agents killed in the middle of an array of 100: from their start to its end, each task run once";
    let mut row = Row::new("R063", what, Some(DONE_MS));
    for round in 0..bench.rounds.min(2) {
        let dir = bench.dir.join("R063").join(format!("round-{round}"));
        std::fs::create_dir_all(&dir).map_err(|e| LabError::Io("a folder".into(), e))?;
        let witness = Witness::new(&dir);
        let mut client = Stubborn::new(&lab, 0);
        let job = client.submit(as_array(shell_job("array", &witness.script("sleep 0.3")), TASKS)).await?;
        let done = || witness.counts().values().filter(|(_, ends)| *ends > 0).count();
        wait_for("sixty ends", LIMIT, async || (done() >= 60).then_some(())).await?;
        for number in 0..lab.peers.len() {
            lab.signal(number, Signal::KILL)?;
        }
        let before = done();
        tokio::time::sleep(Duration::from_millis(500)).await;
        for number in 0..lab.peers.len() {
            lab.spawn(number)?;
        }
        let started = Instant::now();
        let mut client = Stubborn::new(&lab, 0);
        client.until_done(&[job], LIMIT, |_, _| {}).await?;
        row.ran(started.elapsed().as_millis() as u64);
        let view = show(&mut client, job).await?;
        row.must(view.row.tasks.succeeded == TASKS, || format!("round {round}: {:?}", view.row.tasks));
        let counts = witness.counts();
        let once = counts.values().filter(|counts| **counts == (1, 1)).count();
        row.must(once == TASKS as usize && before < TASKS as usize, || {
            format!("round {round}: {once} of {TASKS} ran once; {before} were done before")
        });
        lab.until_up(3).await?;
    }
    Ok(row)
}
