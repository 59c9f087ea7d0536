//! Inputs that hosts fetch from one another (fault T8): the source dies in the middle, its bytes are others than their name
//! says, the cache is full, two jobs need the same. Tasks hash what they are shown themselves.

mod faults;
mod rights;

use super::Bench;
use super::agent_death::show;
use super::ends::until;
use super::row::Row;
use rota_node::lab::{Lab, LabError, io, new_request, wait_for};
use rota_node::lab_work::{Stubborn, shell_job};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::data::{BlobId, BlobRow, CacheView, DataAsk, DataNews, Input, StagingRow};
use rota_protocol::ids::JobId;
use rota_protocol::job::{JobSpec, JobState};
use rota_protocol::{ErrorCode, PublicError};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A piece may take 5 s, and the next source is found within two more.
const NEXT_SOURCE_MS: u64 = 7_000;
/// The lab's patience.
const PATIENCE_MS: u64 = 6_000;
/// The longest pause between two looks for a source, and a fetch.
const FOUND_MS: u64 = 2_000 + 2_000;
/// Room is used as soon as it is there: from an end, through the log, to a fetch and a start.
const ROOM_MS: u64 = 4_000;
const CACHE_MIB: usize = 32;
const LIMIT: Duration = Duration::from_secs(60);
/// Where all jobs run: the others are drained, and only give.
const HERE: usize = 2;

struct T8 {
    bench: Bench,
    lab: Lab,
    client: Stubborn,
    dir: PathBuf,
    row: Row,
}

/// T8.
pub(super) async fn fetched(bench: &Bench) -> Result<Row, LabError> {
    let config = format!("[inputs]\ncache = \"{CACHE_MIB}MiB\"\npatience = \"{PATIENCE_MS}ms\"\n");
    let lab = bench.lab("T8", 3, |options| options.config = Some(config)).await?;
    let what = "inputs fetched from other hosts; the source dies in the middle: from its death to the task's good end";
    let mut t8 = T8 {
        bench: bench.clone(),
        client: Stubborn::new(&lab, HERE),
        dir: bench.dir.join("T8"),
        row: Row::new("T8", what, Some(NEXT_SOURCE_MS)),
        lab,
    };
    for giver in 0..HERE {
        let host = t8.lab.peers[giver].name.clone();
        let drain = ApiRequest::Drain { request: new_request(), host, reason: "gives only".into() };
        t8.client.ask(drain, LIMIT).await?;
    }
    for round in 0..bench.rounds.min(3) {
        t8.two_need_the_same(round).await?;
        t8.source_dies(round).await?;
        t8.other_bytes(round).await?;
        t8.cache_is_full(round).await?;
        t8.agent_dies(round).await?;
        t8.fetched_ahead(round).await?;
    }
    t8.nowhere().await?;
    t8.of_other_tenants().await?;
    t8.nothing_is_left().await?;
    Ok(t8.row)
}

fn odd(reply: impl std::fmt::Debug) -> LabError {
    PublicError::new(ErrorCode::Internal, format!("unexpected reply {reply:?}")).into()
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// A file's hash, by a program that is not Rota's.
async fn hash_of(path: &Path) -> Result<String, LabError> {
    let said = tokio::process::Command::new("sha256sum").arg(path).output().await.map_err(io("sha256sum"))?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    Ok(text.split_whitespace().next().unwrap_or_default().trim_start_matches('\\').to_owned())
}

impl T8 {
    /// A file that nobody has yet.
    fn file(&self, name: &str, mib: usize, seed: usize) -> Result<PathBuf, LabError> {
        let path = self.dir.join(name);
        let line = |at: usize| format!("{name} {seed} {at:>40}\n").into_bytes();
        let bytes: Vec<u8> = (0..).flat_map(line).take((mib << 20) + seed + 1).collect();
        fs::write(&path, bytes).map_err(io("a file"))?;
        Ok(path)
    }

    /// `rota data add` at a host.
    async fn add(&self, at: usize, file: &Path) -> Result<BlobId, LabError> {
        self.add_with(at, file, &["--json"]).await
    }

    async fn add_with(&self, at: usize, file: &Path, flags: &[&str]) -> Result<BlobId, LabError> {
        let file = file.display().to_string();
        let args = [&["data", "add", &file], flags].concat();
        let said = super::said(&mut self.bench.rota(&self.lab, at, &args)).await?;
        let row: Result<BlobRow, _> = serde_json::from_slice(&said.out);
        let blob = row.ok().and_then(|row| row.blob.parse().ok());
        blob.ok_or_else(|| LabError::Command { command: format!("data add {file}"), output: said.err })
    }

    async fn cache(&self, at: usize) -> Result<CacheView, LabError> {
        match self.lab.peers[at].client().await?.call(ApiRequest::Data(DataAsk::List)).await? {
            ApiReply::Data(DataNews::Cache(view)) => Ok(*view),
            other => Err(odd(other)),
        }
    }

    async fn holders(&self, at: usize, blob: BlobId) -> Result<Option<usize>, LabError> {
        let rows = self.cache(at).await?.rows;
        Ok(rows.iter().find(|row| row.blob == blob.to_string()).map(|row| row.holders.len()))
    }

    /// A job that hashes its inputs, and then waits until it may go.
    fn job(&self, blobs: &[BlobId], go: Option<&Path>) -> JobSpec {
        let checks: String = blobs
            .iter()
            .map(|blob| {
                let hex = blob.hex();
                format!("[ \"$(sha256sum < $ROTA_INPUTS/in/{hex} | cut -c1-64)\" = {hex} ] || exit 9; ")
            })
            .collect();
        let waits = go
            .map_or("true".to_owned(), |go| format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()));
        let mut spec = shell_job("reads", &format!("{checks}{waits}; exit 0"));
        let input = |blob: &BlobId| Input { name: format!("in/{}", blob.hex()), blob: *blob };
        spec.inputs = blobs.iter().map(input).collect();
        spec
    }

    async fn staging(&mut self, job: JobId) -> Result<Vec<StagingRow>, LabError> {
        match self.client.ask(ApiRequest::Why { job }, LIMIT).await? {
            ApiReply::Why(view) => Ok(view.more.staging),
            other => Err(odd(other)),
        }
    }

    /// Waits until an attempt is said to wait for something of this kind.
    async fn until_said(&mut self, job: JobId, part: &str) -> Result<Option<String>, LabError> {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let rows = self.staging(job).await?;
            if let Some(row) = rows.into_iter().find(|row| row.waits_for.contains(part)) {
                return Ok(Some(row.waits_for));
            }
            if show(&mut self.client, job).await?.row.state.is_terminal() {
                return Ok(None);
            }
        }
        Err(LabError::Late(format!("{part:?} of job {job}"), LIMIT.as_millis()))
    }

    async fn must_succeed(&mut self, job: JobId, what: &str) -> Result<(), LabError> {
        let view = until(&mut self.client, job, "the end", |view| view.row.state.is_terminal()).await?;
        self.row.must(view.row.state == JobState::Succeeded, || {
            let ends: Vec<_> = view.attempts.iter().map(|attempt| &attempt.end).collect();
            format!("{what}: job {job} is {}, {ends:?}", view.row.state)
        });
        Ok(())
    }

    async fn runs(&mut self, job: JobId) -> Result<(), LabError> {
        let runs = |view: &rota_protocol::view::JobView| view.attempts.iter().any(|one| one.pid.is_some());
        until(&mut self.client, job, "a run", runs).await.map(drop)
    }

    fn go(&self, name: &str) -> PathBuf {
        self.dir.join(format!("go-{name}"))
    }

    async fn until_free(&mut self, blob: BlobId) -> Result<(), LabError> {
        let began = Instant::now();
        loop {
            match self.holders(HERE, blob).await? {
                None | Some(0) => return Ok(()),
                Some(held) if began.elapsed() > LIMIT => {
                    self.row.wrong(format!("{blob} still has {held} holders"));
                    return Ok(());
                }
                Some(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn sizes(&self, at: usize, folder: &str) -> Vec<u64> {
        let entries = fs::read_dir(self.lab.peers[at].dir.join(folder)).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).collect()
    }

    /// Takes it from whoever gives it: pinned there, it would be in the way of the next.
    async fn forget(&self, blob: BlobId) {
        for giver in 0..HERE {
            if let Ok(client) = self.lab.peers[giver].client().await {
                let _ = client.call(ApiRequest::Data(DataAsk::Remove { blob })).await;
            }
        }
    }

    /// Some task is shown a file of this name.
    fn shown(&self, blob: &BlobId) -> bool {
        let views = fs::read_dir(self.lab.peers[HERE].dir.join("inputs")).into_iter().flatten().flatten();
        views.map(|view| view.path().join("in").join(blob.hex())).any(|path| path.exists())
    }

    /// On no host anything is held, shown or half there; and whatever lies under a name has its hash.
    async fn nothing_is_left(&mut self) -> Result<(), LabError> {
        for at in 0..self.lab.peers.len() {
            let (view, dir) = (self.cache(at).await?, self.lab.peers[at].dir.clone());
            let held: Vec<_> = view.rows.iter().filter(|row| !row.holders.is_empty()).collect();
            self.row.must(held.is_empty(), || format!("n{}: still held: {held:?}", at + 1));
            let kept: u64 = view.rows.iter().map(|row| row.bytes).sum();
            self.row.must(kept == view.bytes_used, || {
                format!("n{}: {kept} bytes are kept, {} are said to be in use", at + 1, view.bytes_used)
            });
            let empty = |folder: &str| fs::read_dir(dir.join(folder)).map_or(0, Iterator::count) == 0;
            let empties =
                async || ["inputs", "cache/held", "cache/partial"].iter().all(|f| empty(f)).then_some(());
            if wait_for("empty folders", Duration::from_secs(5), empties).await.is_err() {
                self.row.wrong(format!("n{}: something is left of inputs, held or partial", at + 1));
            }
            for entry in fs::read_dir(dir.join("cache/blobs")).into_iter().flatten().flatten() {
                let (found, name) = (hash_of(&entry.path()).await?, entry.file_name());
                self.row
                    .must(found == name.to_string_lossy(), || format!("n{}: {name:?} has {found}", at + 1));
            }
        }
        Ok(())
    }
}
