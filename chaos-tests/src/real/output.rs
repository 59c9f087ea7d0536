//! What is kept of attempts: each one's own output (field report R055), by rule and not by chance (R056), and the files
//! of the submission, from which every attempt starts anew (R060).

use super::freeze::{position, running_on};
use super::report::Report;
use super::{Bench, budget, said};
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, as_array, shell_job, true_job};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::ids::JobId;
use rota_protocol::job::{AttemptEnd, JobState};
use rota_protocol::output::OutputSpec;
use rota_protocol::view::{HostState, JobView};
use rota_protocol::work::GangSpec;
use rustix::process::Signal;
use std::time::Duration;

/// Longest wait for anything here.
const LIMIT: Duration = Duration::from_secs(60);
/// The limit of the job that writes without end, in bytes.
const CAP: u64 = 1 << 20;

async fn show(client: &mut Stubborn, job: JobId) -> Result<JobView, LabError> {
    let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
    match client.ask(show, Duration::from_secs(20)).await? {
        ApiReply::Job(view) => Ok(*view),
        other => Err(LabError::Io("unexpected reply".into(), std::io::Error::other(format!("{other:?}")))),
    }
}

async fn done(client: &mut Stubborn, job: JobId) -> Result<JobView, LabError> {
    client.until_done(&[job], LIMIT, |_, _| {}).await?;
    show(client, job).await
}

/// R055: three attempts, each ended otherwise; three logs with three texts, and a file of the user's that has all.
pub(super) async fn three_attempts(bench: &Bench) -> Result<Report, LabError> {
    let lab = bench.lab("R055", 2, |_| {}).await?;
    let mut client = Stubborn::new(&lab, 0);
    let mut violations = Vec::new();
    for round in 0..bench.rounds {
        let mine = bench.dir.join(format!("mine-{round}"));
        let script = "echo \"$ROTA_ATTEMPT:$ROTA_RESTART_REASON\"; sleep 0.3; case $ROTA_ATTEMPT in 1) exit 75;; 2) exit 1;; esac";
        let mut spec = shell_job("again", script);
        (spec.requeue_status, spec.retries) = (Some(75), 1);
        spec.output = OutputSpec {
            stdout: Some(mine.as_os_str().as_encoded_bytes().to_vec()),
            ..OutputSpec::default()
        }
        .held();
        let job = client.submit(spec).await?;
        let name = job.to_string();
        let followed = said(&mut bench.rota(&lab, round % 2, &["logs", "-f", &name])).await?;
        if followed.status != 0 || !followed.out.ends_with(b"3:failed\n") {
            violations.push(format!(
                "followed: {} {:?}",
                followed.status,
                String::from_utf8_lossy(&followed.out)
            ));
        }
        if !followed.err.contains("--- attempt 3 on n") {
            violations.push(format!("no word between attempts: {:?}", followed.err));
        }
        let view = done(&mut client, job).await?;
        if view.attempts.len() != 3 || view.row.state != JobState::Succeeded {
            violations.push(format!("{} attempts, {}", view.attempts.len(), view.row.state));
        }
        for (number, text) in [("1", "1:\n"), ("2", "2:requeue\n"), ("3", "3:failed\n")] {
            for peer in 0..2 {
                let one = said(&mut bench.rota(&lab, peer, &["logs", &name, "--attempt", number])).await?;
                if one.status != 0 || one.out != text.as_bytes() || !one.err.is_empty() {
                    violations.push(format!(
                        "attempt {number}: {:?} {:?}",
                        String::from_utf8_lossy(&one.out),
                        one.err
                    ));
                }
            }
        }
        let newest = said(&mut bench.rota(&lab, 0, &["logs", &name])).await?;
        if newest.out != b"3:failed\n" || !newest.err.contains("this is attempt 3") {
            violations.push(format!(
                "the newest: {:?} {:?}",
                String::from_utf8_lossy(&newest.out),
                newest.err
            ));
        }
        let gone = said(&mut bench.rota(&lab, 0, &["logs", &name, "--attempt", "4"])).await?;
        if gone.status == 0 || !gone.err.contains("attempt") {
            violations.push(format!("a fourth attempt: {} {:?}", gone.status, gone.err));
        }
        violations.extend(parts(bench, &lab, &mut client).await?);
        let all = std::fs::read_to_string(&mine).unwrap_or_default();
        let separators = all.lines().filter(|line| line.starts_with("--- rota: job ")).count();
        if separators != 2 || !["1:", "2:requeue", "3:failed"].iter().all(|text| all.contains(text)) {
            violations.push(format!("the user's own file has {all:?}"));
        }
    }
    Ok(Report::of("R055", bench.rounds, &violations).figure("attempts", 3, None))
}

/// R010: each element of an array and each rank of a gang has its own output, while the others still run.
async fn parts(bench: &Bench, lab: &Lab, client: &mut Stubborn) -> Result<Vec<String>, LabError> {
    let mut violations = Vec::new();
    let script = "echo element $ROTA_TASK_INDEX; [ $ROTA_TASK_INDEX = 3 ] && sleep 600; true";
    let array = client.submit(as_array(shell_job("array", script), 3)).await?;
    let name = array.to_string();
    for index in ["1", "2", "3"] {
        let wanted = format!("element {index}\n");
        let own = wait_for("an element's output", LIMIT, async || {
            let read = said(&mut bench.rota(lab, 1, &["logs", &name, "--index", index])).await.ok()?;
            (!read.out.is_empty()).then_some(read.out)
        });
        let own = own.await?;
        if own != wanted.as_bytes() {
            violations.push(format!("element {index} has {:?}", String::from_utf8_lossy(&own)));
        }
    }
    said(&mut bench.rota(lab, 0, &["cancel", &name])).await?;
    let mut gang = shell_job("gang", "printf 'rank %s\\nend' $RANK");
    gang.gang = Some(GangSpec { min: 3, max: 3 });
    let gang = client.submit(gang).await?;
    done(client, gang).await?;
    let name = gang.to_string();
    let all = said(&mut bench.rota(lab, 0, &["logs", &name])).await?;
    let wanted: String = (0..3).map(|rank| format!("[{rank}] rank {rank}\n[{rank}] end\n")).collect();
    if all.out != wanted.as_bytes() {
        violations.push(format!("all ranks: {:?} {:?}", String::from_utf8_lossy(&all.out), all.err));
    }
    let followed = said(&mut bench.rota(lab, 1, &["logs", "-f", &name])).await?;
    if followed.status != 0 || followed.out.len() != wanted.len() {
        violations.push(format!("all ranks, followed: {:?}", String::from_utf8_lossy(&followed.out)));
    }
    let one = said(&mut bench.rota(lab, 1, &["logs", &name, "--rank", "2"])).await?;
    if one.out != b"rank 2\nend" {
        violations.push(format!("one rank: {:?} {:?}", String::from_utf8_lossy(&one.out), one.err));
    }
    Ok(violations)
}

/// R056: replacements remove nothing, age does and says so, a limit keeps head and tail, a full disk only stops starts.
pub(super) async fn kept_by_rule(bench: &Bench) -> Result<Report, LabError> {
    let keep = "[output]\nkeep = \"3s\"\nkeep_failed = \"1h\"\n";
    let mut lab = bench.lab("R056", 1, |options| options.config = Some(keep.into())).await?;
    let mut violations = replaced(bench, &lab).await?;
    let (kept, found) = capped(bench, &lab).await?;
    violations.extend(found);
    violations.extend(storage_low(&mut lab, keep).await?);
    Ok(Report::of("R056", 1, &violations).figure("kept_bytes", kept, Some(CAP)))
}

async fn replaced(bench: &Bench, lab: &Lab) -> Result<Vec<String>, LabError> {
    let mut violations = Vec::new();
    let mut client = Stubborn::new(lab, 0);
    let failed = client.submit(shell_job("fails", "echo of the failed; exit 1")).await?;
    let good = client.submit(shell_job("good", "echo of the good")).await?;
    done(&mut client, failed).await?;
    done(&mut client, good).await?;
    let many = client.submit(as_array(shell_job("replacements", "echo x"), 50)).await?;
    done(&mut client, many).await?;
    let good = good.to_string();
    let removed = wait_for("the removal of old output", LIMIT, async || {
        let asked = said(&mut bench.rota(lab, 0, &["logs", &good])).await.ok()?;
        (asked.status != 0).then_some(asked)
    });
    let removed = removed.await?;
    if !removed.err.contains("was removed at 20") || !removed.err.contains("by the rule output.keep") {
        violations.push(format!("old output: {:?}", removed.err));
    }
    let json = said(&mut bench.rota(lab, 0, &["logs", &good, "--json"])).await?;
    if !(json.err.clone() + &String::from_utf8_lossy(&json.out)).contains("not_found") {
        violations.push(format!("no not-found: {:?}", json.err));
    }
    let stays = said(&mut bench.rota(lab, 0, &["logs", &failed.to_string()])).await?;
    if stays.out != b"of the failed\n" {
        violations.push(format!(
            "the failed job's log: {:?} {:?}",
            String::from_utf8_lossy(&stays.out),
            stays.err
        ));
    }
    Ok(violations)
}

/// `yes` with a limit. Returns what is kept of it.
async fn capped(bench: &Bench, lab: &Lab) -> Result<(u64, Vec<String>), LabError> {
    let seconds = budget("ROTA_FLOOD_SECONDS", 3);
    let mut client = Stubborn::new(lab, 0);
    // It fails, so that it is not removed while it is looked at.
    let mut spec = shell_job("yes", &format!("timeout {seconds} yes 0123456789abcde; exit 9"));
    spec.output = OutputSpec { bytes_max: Some(CAP), ..OutputSpec::default() }.held();
    let job = client.submit(spec).await?;
    let view = done(&mut client, job).await?;
    let Some(token) = view.attempts.first().map(|attempt| attempt.token) else {
        return Ok((0, vec!["`yes` has no attempt".into()]));
    };
    let attempts = lab.peers[0].dir.join("attempts");
    let mut kept = std::fs::metadata(attempts.join(format!("{token}.stdout"))).map_or(0, |meta| meta.len());
    for piece in std::fs::read_dir(attempts.join(format!("{token}.more"))).into_iter().flatten().flatten() {
        kept += piece.metadata().map_or(0, |meta| meta.len());
    }
    let read = said(&mut bench.rota(lab, 0, &["logs", &job.to_string()])).await?;
    let mut violations = Vec::new();
    if read.out.len() as u64 != kept
        || !read.err.contains("bytes were not kept")
        || !read.err.contains("gap 524288..")
    {
        violations.push(format!("{kept} bytes kept, {} given, told {:?}", read.out.len(), read.err));
    }
    // Lines of sixteen bytes: the head ends with a whole one, and so do tails that begin at their true place.
    let tail = &read.out[(CAP as usize / 2).min(read.out.len())..];
    let gap_end = read.err.split("..").nth(1).and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
    let line = b"0123456789abcde\n";
    let misplaced =
        gap_end.is_none_or(|from| !tail.iter().enumerate().all(|(at, byte)| *byte == line[(from + at) % 16]));
    if misplaced || tail.is_empty() {
        violations.push(format!("the tail of {} bytes is not at its place", tail.len()));
    }
    Ok((kept, violations))
}

/// A floor above what the disk has: nothing new starts, what runs goes on, and no retry is used up.
async fn storage_low(lab: &mut Lab, keep: &str) -> Result<Vec<String>, LabError> {
    let mut violations = Vec::new();
    let mut client = Stubborn::new(lab, 0);
    let running = client.submit(shell_job("runs on", "sleep 8; echo over")).await?;
    running_on(&mut client, running).await?;
    restart(lab, &format!("{keep}disk_floor = \"900TiB\"\n")).await?;
    let host = |lab: &Lab| lab.peers[0].host;
    let id = host(lab);
    let low = wait_for("the drain of a full host", LIMIT, async || {
        let hosts = lab.hosts().await.ok()?;
        let row = hosts.into_iter().find(|row| row.host == id)?;
        (row.state == HostState::Draining).then_some(row.reason.unwrap_or_default())
    });
    let low = low.await?;
    if !low.starts_with("storage_low: ") {
        violations.push(format!("drained because of {low:?}"));
    }
    let mut client = Stubborn::new(lab, 0);
    let mut spec = shell_job("waits", "true");
    spec.retries = 1;
    let waits = client.submit(spec).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let view = show(&mut client, waits).await?;
    if view.row.state != JobState::Pending || !view.attempts.is_empty() {
        violations.push(format!(
            "with a full disk it is {} after {} attempts",
            view.row.state,
            view.attempts.len()
        ));
    }
    let ran = done(&mut client, running).await?;
    if ran.row.state != JobState::Succeeded || ran.attempts.len() != 1 {
        violations.push(format!(
            "what ran before is {} after {} attempts",
            ran.row.state,
            ran.attempts.len()
        ));
    }
    restart(lab, keep).await?;
    let mut client = Stubborn::new(lab, 0);
    let view = done(&mut client, waits).await?;
    if view.row.state != JobState::Succeeded || view.attempts.len() != 1 {
        violations.push(format!(
            "with room again it is {} after {} attempts",
            view.row.state,
            view.attempts.len()
        ));
    }
    Ok(violations)
}

async fn restart(lab: &mut Lab, config: &str) -> Result<(), LabError> {
    lab.configure(config);
    lab.stop(0).await?;
    lab.spawn(0)?;
    lab.until_answers(0).await
}

/// Submits a script that deletes all it was given, and deletes what was submitted. The job, or why there is none.
async fn submitted(
    bench: &Bench,
    lab: &Lab,
    round: usize,
    input: &[u8],
    secret: &str,
) -> Result<Result<JobId, String>, LabError> {
    let io = |e| LabError::Io("a file of the submission".into(), e);
    let (dir, work) = (bench.dir.join(format!("submitted-{round}")), bench.dir.join(format!("work-{round}")));
    std::fs::create_dir_all(&dir).and_then(|()| std::fs::create_dir_all(&work)).map_err(io)?;
    let (script, stdin) = (dir.join("s.sh"), dir.join("input"));
    let text = "#!/bin/sh\n#ROTA --cpus 1\nrm -f \"$0\"; rm -rf \"$PWD\"/*; cat; printf '%s' \"$SECRET\"\nif [ \"$ROTA_ATTEMPT\" = 1 ]; then sleep 600; fi\n";
    std::fs::write(&script, text).and_then(|()| std::fs::write(&stdin, input)).map_err(io)?;
    let (script, stdin, work) =
        (script.display().to_string(), stdin.display().to_string(), work.display().to_string());
    let env = format!("SECRET={secret}");
    let words =
        ["submit", "--script", &script, "--stdin", &stdin, "--env", &env, "--workdir", &work, "--json"];
    let answer = said(&mut bench.rota(lab, 0, &words)).await?;
    std::fs::remove_dir_all(&dir).map_err(io)?;
    let json: serde_json::Value = serde_json::from_slice(&answer.out).unwrap_or_default();
    Ok(json["job"].as_u64().map(JobId).ok_or(answer.err))
}

/// An environment of a megabyte comes through the log as it was given.
async fn environment(
    bench: &Bench,
    lab: &Lab,
    client: &mut Stubborn,
    peer: usize,
) -> Result<Vec<String>, LabError> {
    // Without a shell, which would put it into an order of its own.
    let mut spec = true_job("environment");
    spec.argv = vec![b"/bin/cat".to_vec(), b"/proc/self/environ".to_vec()];
    spec.env.extend([
        (b"EMPTY".to_vec(), Vec::new()),
        (b"LINES".to_vec(), b"a\nb\n\n".to_vec()),
        (b"NOT_UTF8".to_vec(), vec![0xff, b'=', 0x80, 1]),
    ]);
    spec.env.extend((0..10_u8).map(|n| (vec![b'B', b'0' + n], vec![b'a' + n; 100_000])));
    let wanted: Vec<u8> =
        spec.env.iter().flat_map(|(name, value)| [name, &b"="[..], value, b"\0"].concat()).collect();
    let job = client.submit(spec).await?;
    done(client, job).await?;
    let got = said(&mut bench.rota(lab, peer, &["logs", &job.to_string()])).await?.out;
    let is_there = got.windows(wanted.len()).any(|window| window == wanted);
    Ok(if is_there {
        Vec::new()
    } else {
        vec![format!("an environment of {} bytes became {}", wanted.len(), got.len())]
    })
}

/// R060: the submitted files are gone, and the first attempt throws away what it was given; the second one, on another
/// host, has the same script, input and environment.
pub(super) async fn the_same_copy(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("R060", 3, |_| {}).await?;
    let mut violations = Vec::new();
    for round in 0..bench.rounds {
        let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let secret = "line\nline\n=\t";
        let job = match submitted(bench, &lab, round, &bytes, secret).await? {
            Ok(job) => job,
            Err(why) => {
                violations.push(format!("not submitted: {why}"));
                continue;
            }
        };
        let mut client = Stubborn::new(&lab, 0);
        let at = position(&lab, running_on(&mut client, job).await?);
        let mut wanted = bytes.clone();
        wanted.extend_from_slice(secret.as_bytes());
        let other = (at + 1) % 3;
        wait_for("the first attempt's output", LIMIT, async || {
            let read = said(&mut bench.rota(&lab, other, &["logs", &job.to_string()])).await.ok()?;
            (read.out == wanted).then_some(())
        })
        .await?;
        let name = job.to_string();
        let mut follow = bench.rota(&lab, other, &["logs", "-f", &name]);
        let following = tokio::spawn(async move { said(&mut follow).await });
        tokio::time::sleep(Duration::from_millis(500)).await;
        lab.signal(at, Signal::KILL)?;
        let mut client = Stubborn::without(&lab, at);
        let view = done(&mut client, job).await?;
        let ends: Vec<_> = view.attempts.iter().map(|attempt| attempt.end.clone()).collect();
        if view.row.state != JobState::Succeeded
            || ends.first() != Some(&Some(AttemptEnd::Exited { code: 0 }))
        {
            violations.push(format!("round {round}: {} after {ends:?}", view.row.state));
        }
        let second =
            said(&mut bench.rota(&lab, other, &["logs", &job.to_string(), "--attempt", "2"])).await?;
        if second.out != wanted {
            let found = super::follow::difference(&second.out, &wanted);
            violations.push(format!("round {round}: the second attempt: {found}, {}", second.err));
        }
        // A host that is gone for good does not hold up who follows.
        let followed = following.await.map_err(|e| LabError::Io("following".into(), e.into()))??;
        if followed.status != 0 || followed.out != [&wanted[..], &wanted[..]].concat() {
            violations.push(format!(
                "round {round}: followed {} bytes, {}",
                followed.out.len(),
                followed.err
            ));
        }
        if !followed.err.contains("which does not answer") || !followed.err.contains("--- attempt 2 on") {
            violations.push(format!("round {round}: it was told {:?}", followed.err));
        }
        violations.extend(environment(bench, &lab, &mut client, other).await?);
        lab.spawn(at)?;
        lab.until_up(3).await?;
    }
    Ok(Report::of("R060", bench.rounds, &violations))
}
