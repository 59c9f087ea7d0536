//! One real agent over a scripted driver: its cards, its kernel's log, and what a scenario asks it.

use super::{io, library, ms};
use crate::real::Bench;
use fake_nvml::kmsg::Kmsg;
use fake_nvml::script::Card;
use fake_nvml::stage::Stage as Driver;
use rota_node::lab::{Lab, LabError, new_request, violations, wait_for};
use rota_node::lab_work::{shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::health::{Stage, Tending};
use rota_protocol::job::{AttemptEnd, AttemptState, JobSpec};
use rota_protocol::view::{AttemptRow, DeviceRow, HostState, JobView};
use rota_protocol::{JobId, Token};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long things may take that have no bound of their own, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of one host with scripted cards.
#[derive(Debug)]
pub struct Site {
    /// The cluster.
    pub lab: Lab,
    /// Its driver.
    pub driver: Driver,
    /// Its kernel's log.
    pub kernel: Kmsg,
    /// Where the driver's files lie, and whatever a scenario adds.
    pub dir: PathBuf,
    /// Where the host's folder lies.
    lab_dir: PathBuf,
}

/// How a site is set up.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// How long a time of trial is.
    pub probation: &'a str,
    /// Lines under `[sharing]`; `DIR` is the site's folder.
    pub sharing: &'a str,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { probation: "10m", sharing: "" }
    }
}

fn unexpected(reply: &ApiReply) -> LabError {
    PublicError::new(ErrorCode::Internal, format!("unexpected reply {reply:?}")).into()
}

impl Site {
    /// Where the files of a site of this name lie: what is made there before it starts stays.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(bench: &Bench, name: &str) -> Result<PathBuf, LabError> {
        let dir = bench.dir.join(format!("{name}-site"));
        std::fs::create_dir_all(&dir).map_err(io("a folder"))?;
        Ok(dir)
    }

    /// A host with these cards, all of them offered.
    ///
    /// # Errors
    /// It does not start, or does not offer them.
    pub async fn start(
        bench: &Bench,
        name: &str,
        cards: Vec<Card>,
        settings: Settings<'_>,
    ) -> Result<Self, LabError> {
        let dir = Self::folder(bench, name)?;
        let built = library(bench).map_err(std::io::Error::other).map_err(io("the scripted driver"))?;
        let driver = Driver::of(built, &dir, cards).map_err(io("the scripted driver"))?;
        // A log of an earlier round would tell this one's cards of faults that they never had.
        let log = dir.join("kmsg");
        let _ = std::fs::remove_file(&log);
        let kernel = Kmsg::open(&log).map_err(io("the kernel's log"))?;
        let config = format!(
            "nvml_library = {:?}\n[devices]\nkmsg_path = {:?}\nprobation = {:?}\nreset_command = []\n[sharing]\n{}\n",
            driver.library(),
            kernel.path(),
            settings.probation,
            settings.sharing.replace("DIR", &dir.to_string_lossy()),
        );
        let change = |options: &mut rota_node::lab::LabOptions| {
            options.sim_gpus = None;
            options.config = Some(config);
        };
        let lab = bench.lab(name, 1, change).await?;
        let site = Self { lab, driver, kernel, dir, lab_dir: bench.dir.join(name) };
        let listed = async |site: &Self| (!site.devices().await.ok()?.is_empty()).then_some(());
        site.until("the cards are listed", listed).await?;
        Ok(site)
    }

    /// The same, and all of them are well.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub async fn well(
        bench: &Bench,
        name: &str,
        cards: Vec<Card>,
        settings: Settings<'_>,
    ) -> Result<Self, LabError> {
        let count = cards.len();
        let site = Self::start(bench, name, cards, settings).await?;
        let well =
            |rows: &[DeviceRow]| rows.len() == count && rows.iter().all(|row| row.facts.health.is_healthy());
        site.until_rows("all cards are offered", well).await?;
        Ok(site)
    }

    /// Asks again and again.
    ///
    /// # Errors
    /// It is not so in time.
    pub async fn until<T>(&self, what: &str, probe: impl AsyncFn(&Self) -> Option<T>) -> Result<T, LabError> {
        wait_for(what, PATIENCE, async || probe(self).await).await
    }

    /// Looks every few ms until the cards are so; gives how long that took, in ms.
    ///
    /// # Errors
    /// They are not so in time.
    pub async fn until_rows(&self, what: &str, is: impl Fn(&[DeviceRow]) -> bool) -> Result<u64, LabError> {
        let started = Instant::now();
        loop {
            let rows = self.rows(Freshness::Stale).await?;
            if is(&rows) {
                return Ok(ms(started));
            }
            if started.elapsed() > PATIENCE {
                let what = format!("{what}, but {:?}", shown(&rows));
                return Err(LabError::Late(what, PATIENCE.as_millis()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a card is at this stage; gives how long that took, in ms.
    ///
    /// # Errors
    /// It is not there in time.
    pub async fn until_stage(&self, name: &str, stage: Stage) -> Result<u64, LabError> {
        self.until_rows(&format!("{name} is {stage}"), |rows| stage_in(rows, name) == Some(stage)).await
    }

    /// Its cards, as the state has them now.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn devices(&self) -> Result<Vec<DeviceRow>, LabError> {
        self.rows(Freshness::Linearizable).await
    }

    async fn rows(&self, freshness: Freshness) -> Result<Vec<DeviceRow>, LabError> {
        match self.lab.ask(ApiRequest::Devices { freshness }).await? {
            ApiReply::Devices { rows, .. } => Ok(rows),
            other => Err(unexpected(&other)),
        }
    }

    /// Where a card stands; none if it is not listed.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn stage(&self, name: &str) -> Result<Option<Stage>, LabError> {
        Ok(stage_in(&self.devices().await?, name))
    }

    /// Why a card may not be granted; none for a healthy one.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn reason(&self, uuid: &str) -> Result<Option<String>, LabError> {
        let rows = self.devices().await?;
        let row = rows.iter().find(|row| row.facts.uuid.0 == uuid);
        Ok(row.and_then(|row| row.facts.health.reason()).map(str::to_owned))
    }

    /// The host itself.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn host_state(&self) -> Result<Option<HostState>, LabError> {
        Ok(self.lab.hosts().await?.first().map(|row| row.state))
    }

    /// An operator's word.
    ///
    /// # Errors
    /// It is refused.
    pub async fn tend(&self, tending: Tending) -> Result<(), LabError> {
        self.lab.ask(ApiRequest::Tend { request: new_request(), tending }).await.map(|_| ())
    }

    /// Submits one job.
    ///
    /// # Errors
    /// It is refused.
    pub async fn submit(&self, spec: JobSpec) -> Result<JobId, LabError> {
        match self.lab.ask(ApiRequest::Submit { jobs: vec![(new_request(), spec)] }).await? {
            ApiReply::Submitted(mut results) if !results.is_empty() => Ok(results.remove(0)?),
            other => Err(unexpected(&other)),
        }
    }

    /// Cancels a job and waits until it is over.
    ///
    /// # Errors
    /// It is refused, or the job does not end.
    pub async fn cancel(&self, job: JobId) -> Result<JobView, LabError> {
        self.lab.ask(ApiRequest::Cancel { request: new_request(), job, index: None }).await?;
        self.over(job).await
    }

    /// A job as it is now.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn show(&self, job: JobId) -> Result<JobView, LabError> {
        match self.lab.ask(ApiRequest::Show { job, freshness: Freshness::Linearizable }).await? {
            ApiReply::Job(view) => Ok(*view),
            other => Err(unexpected(&other)),
        }
    }

    /// The process of a job's live attempt, other than `not`.
    ///
    /// # Errors
    /// It does not run in time.
    pub async fn running(&self, job: JobId, not: Option<Token>) -> Result<AttemptRow, LabError> {
        let live = |row: &AttemptRow| {
            row.end.is_none()
                && Some(row.token) != not
                && row.state == Some(AttemptState::Running)
                && row.pid.is_some()
                && !row.devices.is_empty()
        };
        let found = async |site: &Self| site.show(job).await.ok()?.attempts.into_iter().find(|row| live(row));
        self.until(&format!("a run of job {job}"), found).await
    }

    /// Waits until a job is over.
    ///
    /// # Errors
    /// It is not in time.
    pub async fn over(&self, job: JobId) -> Result<JobView, LabError> {
        let over = async |site: &Self| site.show(job).await.ok().filter(|view| view.row.state.is_terminal());
        self.until(&format!("the end of job {job}"), over).await
    }

    /// How the first attempt of a job ended.
    ///
    /// # Errors
    /// It does not end in time.
    pub async fn until_ended(&self, job: JobId) -> Result<AttemptEnd, LabError> {
        let end = async |site: &Self| {
            site.show(job).await.ok()?.attempts.into_iter().find_map(|attempt| attempt.end)
        };
        self.until(&format!("an end in job {job}"), end).await
    }

    /// So many running jobs of one card; each with its card and its first process.
    ///
    /// # Errors
    /// They do not all run in time.
    pub async fn occupy(&self, count: usize) -> Result<Vec<Holder>, LabError> {
        let mut jobs = Vec::new();
        for _ in 0..count {
            jobs.push(self.submit(sleeper()).await?);
        }
        let mut on = Vec::new();
        for job in jobs {
            let row = self.running(job, None).await?;
            on.push(Holder { job, card: card_of(&row), pid: row.pid.unwrap_or_default() });
        }
        Ok(on)
    }

    /// Broken laws that the agent found itself.
    #[must_use]
    pub fn broken_laws(&self) -> Vec<String> {
        violations(&self.lab_dir)
    }

    /// The end of the agent's log.
    #[must_use]
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.lab_dir.join("n1/agent.log")).unwrap_or_default();
        log.get(log.len().saturating_sub(4_000)..).unwrap_or_default().to_owned()
    }
}

/// A running job, its card and its first process.
#[derive(Debug, Clone)]
pub struct Holder {
    /// The job.
    pub job: JobId,
    /// The UUID of its card.
    pub card: String,
    /// Its first process.
    pub pid: u32,
}

/// The first card of an attempt.
#[must_use]
pub fn card_of(row: &AttemptRow) -> String {
    row.devices.first().map(|device| device.uuid.0.clone()).unwrap_or_default()
}

/// Never ended to make room: what a scenario waits for is what it asked for.
#[must_use]
pub fn sleeper() -> JobSpec {
    JobSpec { preemptible: false, ..with_gpus(shell_job("sleeper", "exec sleep 600"), 1) }
}

/// Where a card stands; none if it is not listed.
#[must_use]
pub fn stage_in(rows: &[DeviceRow], name: &str) -> Option<Stage> {
    let row = rows.iter().find(|row| row.facts.uuid.0 == name)?;
    Some(row.mark.as_ref().map_or(Stage::Well, |mark| mark.stage))
}

/// Cards for people.
#[must_use]
pub fn shown(rows: &[DeviceRow]) -> Vec<String> {
    rows.iter().map(|row| format!("{} {:?} {:?}", row.facts.uuid, row.facts.health, row.mark)).collect()
}

/// A program that a scenario lets the agent run.
///
/// # Errors
/// It cannot be written.
pub fn program(path: &Path, script: &str) -> Result<(), LabError> {
    crate::real::host_files::program(path, script)
}
