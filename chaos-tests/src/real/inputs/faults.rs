//! The four cases of T8, and an agent that dies beside them.

use super::super::ends::{cancel, until};
use super::{CACHE_MIB, FOUND_MS, HERE, PATIENCE_MS, ROOM_MS, T8, ms, odd};
use rota_node::lab::{LabError, io};
use rota_protocol::data::BlobId;
use rota_protocol::job::{AttemptEnd, JobState};
use rustix::process::Signal;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

impl T8 {
    /// Two jobs at once, one set, one fetch; both hold it while they run.
    pub(super) async fn two_need_the_same(&mut self, round: usize) -> Result<(), LabError> {
        let (a, b) = (self.file("same-a", 4, round)?, self.file("same-b", 2, round)?);
        let set = [self.add(0, &a).await?, self.add(1, &b).await?];
        let bytes: u64 = [&a, &b].iter().filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum();
        let before = self.cache(HERE).await?.counts;
        let go = self.go(&format!("same-{round}"));
        let began = Instant::now();
        let mut jobs = Vec::new();
        for _ in 0..2 {
            let spec = self.job(&set, Some(&go));
            jobs.push(self.client.submit(spec).await?);
        }
        for job in &jobs {
            self.runs(*job).await?;
        }
        self.row.also("two_jobs_run_ms", ms(began), Some(ROOM_MS));
        let after = self.cache(HERE).await?.counts;
        let fetched = after.fetched_bytes - before.fetched_bytes;
        self.row.must(fetched == bytes, || format!("round {round}: {fetched} bytes fetched for {bytes}"));
        for blob in set {
            let held = self.holders(HERE, blob).await?;
            self.row.must(held == Some(2), || {
                format!("round {round}: two tasks run, {blob} has {held:?} holders")
            });
        }
        File::create(&go).map_err(io("go"))?;
        for job in jobs {
            self.must_succeed(job, "two need the same").await?;
        }
        for blob in set {
            self.until_free(blob).await?;
            self.forget(blob).await;
        }
        Ok(())
    }

    /// The source is killed while it gives; the other one goes on where it stopped.
    pub(super) async fn source_dies(&mut self, round: usize) -> Result<(), LabError> {
        let file = self.file("dies", 24, round)?;
        let blob = self.add(0, &file).await?;
        self.add(1, &file).await?;
        let (bytes, before) = (file.metadata().map_err(io("a file"))?.len(), self.cache(HERE).await?.counts);
        let spec = self.job(&[blob], None);
        let job = self.client.submit(spec).await?;
        let Some(said) = self.until_said(job, "fetching").await? else {
            self.row.wrong(format!("round {round}: not exercised, it came before anybody could look"));
            return Ok(());
        };
        let source = (0..HERE).find(|at| said.contains(&format!("from {}:", self.lab.peers[*at].name)));
        let Some(source) = source else { return Err(odd(said)) };
        self.lab.signal(source, Signal::KILL)?;
        let died = Instant::now();
        let partial: u64 = self.sizes(HERE, "cache/partial").iter().sum();
        self.row.must((1..bytes).contains(&partial), || {
            format!("round {round}: not in the middle: {partial} of {bytes} bytes were there")
        });
        self.must_succeed(job, "the source died").await?;
        self.row.ran(ms(died));
        let fetched = self.cache(HERE).await?.counts.fetched_bytes - before.fetched_bytes;
        self.row
            .must(fetched == bytes, || format!("round {round}: {fetched} bytes fetched in place of {bytes}"));
        self.lab.spawn(source)?;
        self.lab.until_answers(source).await?;
        self.forget(blob).await;
        self.until_free(blob).await
    }

    /// The only source has other bytes under the name. None of them is ever shown; when the right ones are added elsewhere
    /// the task gets those.
    pub(super) async fn other_bytes(&mut self, round: usize) -> Result<(), LabError> {
        let file = self.file("other", 4, round)?;
        let blob = self.add(0, &file).await?;
        let stored = self.lab.peers[0].dir.join("cache/blobs").join(blob.hex());
        alter(&stored)?;
        let before = self.cache(HERE).await?.counts;
        let spec = self.job(&[blob], None);
        let job = self.client.submit(spec).await?;
        let here = self.lab.peers[HERE].dir.join("cache/blobs").join(blob.hex());
        let began = Instant::now();
        let mut seen = false;
        loop {
            seen |= here.exists() || self.shown(&blob);
            let refused = self.cache(HERE).await?.counts.refused > before.refused;
            if refused && self.holders(0, blob).await?.is_none() {
                break;
            }
            if began.elapsed() > Duration::from_millis(PATIENCE_MS) {
                self.row.wrong(format!("round {round}: refused {refused}, and its source goes on giving it"));
                break;
            }
        }
        self.row.also("refused_and_put_apart_ms", ms(began), Some(FOUND_MS));
        self.row.must(!seen, || format!("round {round}: {blob} was there before its hash was right"));
        let added = Instant::now();
        self.add(1, &file).await?;
        self.must_succeed(job, "other bytes").await?;
        self.row.also("right_bytes_added_to_end_ms", ms(added), Some(FOUND_MS));
        let apart = self.lab.peers[0].dir.join("cache/bad").join(blob.hex());
        self.row.must(apart.exists(), || format!("round {round}: the altered file was not put apart"));
        self.forget(blob).await;
        Ok(())
    }

    /// One task holds most of the cache; the next waits for it, and one that waits too long is told why and is not blamed.
    pub(super) async fn cache_is_full(&mut self, round: usize) -> Result<(), LabError> {
        let file = |name| self.file(name, CACHE_MIB - 8, round);
        let files = [file("full-a")?, file("full-b")?, file("full-c")?];
        // Each giver has room for one.
        let mut blobs = vec![self.add(0, &files[0]).await?, self.add(1, &files[1]).await?];
        let (first_go, second_go) =
            (self.go(&format!("full-a-{round}")), self.go(&format!("full-b-{round}")));
        let spec = self.job(&blobs[..1], Some(&first_go));
        let first = self.client.submit(spec).await?;
        self.runs(first).await?;
        self.forget(blobs[0]).await;
        blobs.push(self.add(0, &files[2]).await?);
        let spec = self.job(&blobs[1..2], Some(&second_go));
        let second = self.client.submit(spec).await?;
        let said = self.until_said(second, "the cache is full").await?;
        self.row.must(said.is_some(), || format!("round {round}: a full cache held nothing up"));
        File::create(&first_go).map_err(io("go"))?;
        let freed = Instant::now();
        self.runs(second).await?;
        self.row.also("room_to_run_ms", ms(freed), Some(ROOM_MS));
        self.must_succeed(first, "it filled the cache").await?;
        // The second holds it now, and stays.
        let waited = Instant::now();
        let spec = self.job(&blobs[2..], None);
        let third = self.client.submit(spec).await?;
        let told = until(&mut self.client, third, "an end for want of room", |view| {
            view.attempts.iter().any(|attempt| attempt.end.is_some())
        });
        let view = told.await?;
        self.row.also("full_cache_told_ms", ms(waited), Some(PATIENCE_MS + ROOM_MS));
        let end = view.attempts.iter().find_map(|attempt| attempt.end.clone());
        let of_host = |reason: &str| reason.contains("the cache is full");
        let fits =
            matches!(&end, Some(AttemptEnd::InputsMissing { nowhere: false, reason }) if of_host(reason));
        self.row.must(fits && !view.row.state.is_terminal(), || {
            format!("round {round}: it ended as {end:?}, the job is {}", view.row.state)
        });
        cancel(&mut self.client, third).await?;
        File::create(&second_go).map_err(io("go"))?;
        self.must_succeed(second, "it waited for room").await?;
        for blob in blobs {
            self.until_free(blob).await?;
            self.forget(blob).await;
        }
        Ok(())
    }

    /// The agent is killed under a task with inputs: what it holds is held again afterwards, and let go at its end. One that
    /// is cancelled while it waits for inputs leaves nothing.
    pub(super) async fn agent_dies(&mut self, round: usize) -> Result<(), LabError> {
        let file = self.file("agent", 2, round)?;
        let (blob, go) = (self.add(0, &file).await?, self.go(&format!("agent-{round}")));
        let spec = self.job(&[blob], Some(&go));
        let job = self.client.submit(spec).await?;
        self.runs(job).await?;
        self.lab.signal(HERE, Signal::KILL)?;
        self.lab.spawn(HERE)?;
        self.lab.until_answers(HERE).await?;
        let held = self.holders(HERE, blob).await?;
        self.row.must(held == Some(1), || format!("round {round}: after the restart {held:?} hold it"));
        let absent = BlobId([u8::try_from(round).unwrap_or(0); 32]);
        let spec = self.job(&[blob, absent], None);
        let waits = self.client.submit(spec).await?;
        let said = self.until_said(waits, "no host").await?;
        self.row
            .must(said.is_some(), || format!("round {round}: nobody was told what job {waits} waits for"));
        let asked = Instant::now();
        cancel(&mut self.client, waits).await?;
        until(&mut self.client, waits, "the end", |view| view.row.state == JobState::Cancelled).await?;
        self.row.also("cancelled_while_fetching_ms", ms(asked), Some(1_500));
        let held = self.holders(HERE, blob).await?;
        self.row.must(held == Some(1), || format!("round {round}: after a cancel {held:?} hold it"));
        File::create(&go).map_err(io("go"))?;
        self.must_succeed(job, "the agent died").await?;
        self.forget(blob).await;
        self.until_free(blob).await
    }

    /// What no host has ends the job, with a word on what to do.
    pub(super) async fn nowhere(&mut self) -> Result<(), LabError> {
        let began = Instant::now();
        let spec = self.job(&[BlobId([0xee; 32])], None);
        let job = self.client.submit(spec).await?;
        let view = until(&mut self.client, job, "the end", |view| view.row.state.is_terminal()).await?;
        self.row.also("nowhere_told_ms", ms(began), Some(PATIENCE_MS + ROOM_MS));
        let end = view.attempts.first().and_then(|attempt| attempt.end.clone());
        let says = |reason: &str| reason.contains("rota data add");
        let fits = matches!(&end, Some(AttemptEnd::InputsMissing { nowhere: true, reason }) if says(reason));
        self.row.must(fits && view.row.state == JobState::Failed && view.attempts.len() == 1, || {
            format!("what nobody has: {end:?}, {} attempts, {}", view.attempts.len(), view.row.state)
        });
        Ok(())
    }
}

/// One byte is another, and nothing else shows it.
fn alter(path: &Path) -> Result<(), LabError> {
    use std::os::unix::fs::FileExt;
    let before = path.metadata().and_then(|metadata| metadata.modified()).map_err(io("a blob"))?;
    let file = File::options().write(true).open(path).map_err(io("a blob"))?;
    file.write_at(b"#", 1 << 20).and_then(|_| file.set_modified(before)).map_err(io("a blob"))
}
