//! What must be true after each leg of a soak, once all is mended: somebody leads and takes writes soon (I20), what was
//! acknowledged is there once (I3, I4), no two attempts of a task lived at once (I1), every job ended as it should, all
//! copies of the state are one (I8), and the agents found no broken law of their own.

use super::work::{Asked, Tally, Work, lives};
use crate::real::row::Row;
use rota_node::lab::lives::Lived;
use rota_node::lab::{Lab, LabError, violations};
use rota_node::lab_work::{Stubborn, true_job};
use rota_protocol::ids::JobId;
use rota_protocol::job::JobState;
use rota_protocol::view::JobRow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// From the mending until a fresh submit is acknowledged and all hosts are up, in ms (I20).
pub(super) const WELL_MS: u64 = 10_000;
/// How long the jobs of a leg may take to end: leases, waits before repeated attempts, and the work itself.
const ENDS: Duration = Duration::from_secs(240);
/// How long a request is asked again that nobody answered while things were wrong.
const AGAIN: Duration = Duration::from_secs(20);
/// How long one peer may take with a list of all jobs of a soak, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is told when it takes longer than this.
const SLOW: Duration = Duration::from_secs(1);
/// Between two looks at all jobs.
const LOOK: Duration = Duration::from_secs(1);
/// Violations that are told of one leg.
const TOLD_MAX: usize = 12;

/// What one leg showed.
#[derive(Default)]
pub(super) struct Found {
    pub(super) well_ms: u64,
    /// What took long of that.
    slow: String,
    pub(super) wrong: Vec<String>,
    jobs: usize,
    lived: Lived,
}

impl Found {
    pub(super) fn words(&self) -> String {
        let slow = if self.slow.is_empty() { String::new() } else { format!(" ({})", self.slow) };
        format!(
            "{} jobs, {} attempts, {} tasks repeated, {} lived at once, {} violations{slow}",
            self.jobs,
            self.lived.attempts,
            self.lived.repeated,
            self.lived.overlaps.len(),
            self.wrong.len()
        )
    }
}

/// The judge of all legs.
pub(super) struct Verdicts {
    dir: PathBuf,
    last: Option<Found>,
    term: u64,
}

impl Verdicts {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), last: None, term: 0 }
    }

    /// Waits until all is well and looks at everything.
    pub(super) async fn leg(&mut self, lab: &Lab, work: &Work) -> Result<Found, LabError> {
        let mut found = Found::default();
        let mended = Instant::now();
        let mut client = Stubborn::new(lab, 0);
        client.patience = PATIENCE;
        match well(lab, &mut client).await {
            Ok(slow) => found.slow = slow,
            Err(error) => found.wrong.push(format!("I20: not well after the mending: {error}")),
        }
        found.well_ms = u64::try_from(mended.elapsed().as_millis()).unwrap_or(u64::MAX);
        // What was not answered is asked again under its own request id: now it must be taken, once.
        for asked in work.tally().asked.values().filter(|asked| asked.told.is_empty()) {
            match client.submit_as(asked.request, asked.spec.clone(), AGAIN).await {
                Ok(job) => work.told(&asked.name, job),
                Err(error) => found.wrong.push(format!("I20: {} is refused with {error}", asked.name)),
            }
        }
        let tally = work.tally();
        let jobs: Vec<JobId> = tally.asked.values().flat_map(|asked| asked.told.iter().copied()).collect();
        let rows = match ended(&mut client, &jobs).await {
            Ok(rows) => rows,
            Err(error) => {
                found.wrong.push(format!("I20: the jobs of the leg are not told: {error}"));
                return Ok(found);
            }
        };
        found.jobs = rows.len();
        found.lived = lives(&self.dir).judge();
        found.wrong.extend(jobs_wrong(&tally, &rows, &found.lived));
        found.wrong.extend(found.lived.overlaps.iter().map(|what| format!("I1: {what}")));
        match lab.digests().await {
            Ok(digests)
                if digests.windows(2).any(|pair| (pair[0].2, pair[0].3) != (pair[1].2, pair[1].3)) =>
            {
                found.wrong.push(format!("I8: state hashes differ: {digests:?}"));
            }
            Ok(_) => {}
            Err(error) => found.wrong.push(format!("I20: the hosts do not come to one index: {error}")),
        }
        found.wrong.extend(violations(&self.dir));
        let more = found.wrong.len().saturating_sub(TOLD_MAX);
        found.wrong.truncate(TOLD_MAX);
        if more > 0 {
            found.wrong.push(format!("and {more} more"));
        }
        self.term = lab.cluster().await.map_or(self.term, |view| view.term);
        self.last =
            Some(Found { wrong: Vec::new(), slow: String::new(), lived: found.lived.clone(), ..found });
        Ok(found)
    }

    /// Adds what was met over all legs.
    pub(super) fn figures(&self, row: &mut Row, tally: &Tally, met: &mut BTreeMap<String, u64>) {
        let said = |what: &str| said(&self.dir, what);
        let lived = self.last.as_ref().map(|found| found.lived.clone()).unwrap_or_default();
        for (name, count) in [
            ("leader_changes_count", self.term),
            ("leases_expired_count", said("a lease ran out")),
            ("attempts_repeated_count", lived.repeated),
            ("asked_twice_count", tally.asked_twice),
            ("cancelled_count", tally.cancels),
        ] {
            if count > 0 {
                met.insert(name.to_owned(), count);
            }
        }
        for (code, count) in &tally.refused {
            met.insert(format!("gave_up_on_{code}_count"), *count);
        }
        let told = tally.asked.values().filter(|asked| !asked.told.is_empty()).count();
        row.also("jobs_acknowledged_count", told as u64, None);
        row.also("attempts_count", lived.attempts, None);
        row.also("attempts_at_once_count", lived.overlaps.len() as u64, Some(0));
        row.also("closest_attempts_ms", lived.closest_ms.unwrap_or(0), None);
        row.also("wait_for_an_acknowledgement_ms", tally.wait_max_ms, None);
        row.also("silent_beyond_a_second_ms", tally.silent_ms, None);
    }
}

/// All hosts are up, and a fresh submit is acknowledged; what of it took long, for people.
async fn well(lab: &Lab, client: &mut Stubborn) -> Result<String, LabError> {
    let mut slow = Vec::new();
    let mut at = Instant::now();
    let mut done = |what: String| {
        let took = at.elapsed();
        if took > SLOW {
            slow.push(format!("{what} after {} ms", took.as_millis()));
        }
        at = Instant::now();
    };
    lab.until_up(lab.peers.len()).await?;
    done("all up".into());
    for number in 0..lab.peers.len() {
        lab.until_answers(number).await?;
        done(format!("n{} answers", number + 1));
    }
    client.submit(true_job("well")).await?;
    done("a submit is acknowledged".into());
    Ok(slow.join(", "))
}

/// All jobs, once all of these have ended or their time is over.
async fn ended(client: &mut Stubborn, jobs: &[JobId]) -> Result<Vec<JobRow>, LabError> {
    let began = Instant::now();
    loop {
        let rows = client.all_jobs().await?;
        let live: BTreeSet<JobId> =
            rows.iter().filter(|row| !row.state.is_terminal()).map(|row| row.job).collect();
        if !jobs.iter().any(|job| live.contains(job)) || began.elapsed() > ENDS {
            return Ok(rows);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn jobs_wrong(tally: &Tally, rows: &[JobRow], lived: &Lived) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut by_name: BTreeMap<&str, Vec<&JobRow>> = BTreeMap::new();
    for row in rows {
        by_name.entry(&row.name).or_default().push(row);
    }
    for asked in tally.asked.values() {
        let there = by_name.get(asked.name.as_str()).cloned().unwrap_or_default();
        let mut told = asked.told.clone();
        told.sort_unstable();
        told.dedup();
        if told.len() > 1 {
            wrong.push(format!("I4: {} was acknowledged as {told:?}", asked.name));
        }
        match &there[..] {
            [row] if told.iter().all(|job| *job == row.job) => wrong.extend(ended_wrong(asked, row, lived)),
            [] if told.is_empty() => {}
            [] => wrong.push(format!("I3: {} was acknowledged as {told:?} and is not there", asked.name)),
            rows => {
                let jobs: Vec<JobId> = rows.iter().map(|row| row.job).collect();
                wrong.push(format!("I4: {} is there as {jobs:?}, told as {told:?}", asked.name));
            }
        }
    }
    wrong
}

/// A job ends as it should, and a task that is said to have succeeded has done all of its work in one attempt.
fn ended_wrong(asked: &Asked, row: &JobRow, lived: &Lived) -> Option<String> {
    match row.state {
        JobState::Succeeded => {
            let done = (0..=asked.tasks)
                .filter(|index| lived.beats(&format!("{}/{index}", row.job)) >= asked.beats)
                .count();
            (done < asked.tasks as usize).then(|| {
                format!(
                    "I5: job {} succeeded, and {done} of its {} tasks did all their work",
                    row.job, asked.tasks
                )
            })
        }
        JobState::Cancelled if asked.cancelled => None,
        state => Some(format!("I20: job {} ({}) is {state:?}: {:?}", row.job, asked.name, row.tasks)),
    }
}

/// How often the agents said something.
fn said(dir: &Path, what: &str) -> u64 {
    let logs =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|host| host.path().join("agent.log"));
    let texts = logs.filter_map(|log| std::fs::read_to_string(log).ok());
    texts.map(|text| text.matches(what).count() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::ids::RequestId;
    use rota_protocol::view::TaskCounts;

    fn asked(name: &str, told: &[u64]) -> (String, Asked) {
        let asked = Asked {
            name: name.to_owned(),
            request: RequestId(1),
            spec: true_job(name),
            tasks: 1,
            beats: 0,
            told: told.iter().map(|job| JobId(*job)).collect(),
            cancelled: false,
        };
        (name.to_owned(), asked)
    }

    fn row(job: u64, name: &str, state: JobState) -> JobRow {
        JobRow {
            job: JobId(job),
            name: name.to_owned(),
            tenant: String::new(),
            user: String::new(),
            state,
            priority: 0,
            submitted_ms: 0,
            started_ms: None,
            ended_ms: None,
            tasks: TaskCounts::default(),
            ask: String::new(),
            place: String::new(),
        }
    }

    /// What a soak must see, one broken promise at a time.
    #[test]
    fn each_broken_promise_is_seen() {
        let done = |job, name| row(job, name, JobState::Succeeded);
        let of = |asked: (String, Asked), rows: &[JobRow]| {
            let tally = Tally { asked: BTreeMap::from([asked]), ..Tally::default() };
            let wrong = jobs_wrong(&tally, rows, &Lived::default());
            wrong.first().map_or(String::new(), |what| what.split(':').next().unwrap_or("").to_owned())
        };
        assert_eq!(of(asked("a", &[1]), &[done(1, "a")]), "");
        assert_eq!(of(asked("a", &[1]), &[]), "I3", "acknowledged and lost");
        assert_eq!(of(asked("a", &[]), &[]), "", "never answered, and never taken");
        assert_eq!(of(asked("a", &[1, 2]), &[done(1, "a")]), "I4", "one request, two answers");
        assert_eq!(of(asked("a", &[1]), &[done(1, "a"), done(2, "a")]), "I4", "there twice");
        assert_eq!(of(asked("a", &[1]), &[done(2, "a")]), "I4", "another number");
        assert_eq!(of(asked("a", &[1]), &[row(1, "a", JobState::Running)]), "I20", "it never ends");
        assert_eq!(of(asked("a", &[1]), &[row(1, "a", JobState::Cancelled)]), "I20", "nobody cancelled it");
        let mut works = asked("a", &[1]);
        works.1.beats = 3;
        assert_eq!(of(works, &[done(1, "a")]), "I5", "it succeeded without doing its work");
        let mut cancelled = asked("a", &[1]);
        cancelled.1.cancelled = true;
        assert_eq!(of(cancelled, &[row(1, "a", JobState::Cancelled)]), "");
    }
}
