//! Data that is not what it was: files of two hosts swapped (D13), bits flipped in log, vote and snapshot (D2), on one
//! host and on a majority (D3). A host that cannot trust its data halts with a message; it never guesses.

use super::{doctor, equal, io, ms, submit, until_ended, until_host};
use crate::real::Bench;
use crate::real::row::Row;
use rota_node::lab::{Lab, LabError};
use rota_node::lab_work::{Stubborn, true_job};
use rota_protocol::view::HostState;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// From the start to the end with a message, in ms.
const HALT_MS: u64 = 15_000;

async fn halts(lab: &mut Lab, at: usize) -> Result<(u64, String), LabError> {
    let started = Instant::now();
    lab.spawn(at)?;
    let words = until_ended(lab, at).await?;
    Ok((ms(started), words))
}

/// D13: log, identity or both notes of two hosts are swapped.
pub(super) async fn swapped(bench: &Bench) -> Result<Row, LabError> {
    let what = "log, identity or life file swapped between two hosts: from start to halt";
    let mut row = Row::new("D13", what, Some(HALT_MS));
    let mut lab = bench.lab("D13", 3, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let (a, b) = (lab.peers[1].dir.clone(), lab.peers[2].dir.clone());
    for name in ["raft", "identity", "life"] {
        lab.stop(1).await?;
        lab.stop(2).await?;
        swap(&a.join(name), &b.join(name)).map_err(io("cannot swap"))?;
        for at in [1, 2] {
            let (took, words) = halts(&mut lab, at).await?;
            row.must(words.contains("belongs to host") || words.contains("is that of host"), || {
                format!("{name}: {words}")
            });
            row.ran(took);
            let told = doctor(bench, &lab, at).await?;
            row.must(told.contains("mixed"), || format!("{name}: doctor: {told}"));
        }
        swap(&a.join(name), &b.join(name)).map_err(io("cannot swap back"))?;
        for at in [1, 2] {
            lab.spawn(at)?;
        }
        lab.until_up(3).await?;
    }
    equal(&lab, &mut row).await?;
    Ok(row)
}

fn swap(a: &Path, b: &Path) -> std::io::Result<()> {
    let aside = a.with_extension("aside");
    std::fs::rename(a, &aside)?;
    std::fs::rename(b, a)?;
    std::fs::rename(&aside, b)
}

/// The first segment of a log.
fn segment(dir: &Path) -> std::io::Result<PathBuf> {
    let names = std::fs::read_dir(dir.join("raft"))?.flatten().map(|entry| entry.path());
    let mut logs: Vec<PathBuf> =
        names.filter(|path| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"RTALOG1"))).collect();
    logs.sort();
    logs.into_iter().next().ok_or_else(|| std::io::ErrorKind::NotFound.into())
}

fn flip(path: &Path, at: usize) -> std::io::Result<()> {
    let mut bytes = std::fs::read(path)?;
    let byte = bytes.get_mut(at).ok_or(std::io::ErrorKind::UnexpectedEof)?;
    *byte ^= 0x10;
    std::fs::write(path, bytes)
}

/// D2, D3: one bit of what was durable is flipped.
pub(super) async fn flipped(bench: &Bench) -> Result<Row, LabError> {
    let what = "bit flipped in header, vote or entries, on one host and on two: from start to halt; nothing is guessed";
    let mut row = Row::new("D2", what, Some(HALT_MS));
    let mut lab = bench.lab("D2", 3, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let mut client = Stubborn::without(&lab, 2);
    for _ in 0..20 {
        submit(&mut client).await?;
    }
    // The header; the first record, which holds the first vote; an entry among many.
    for at in [20, 70, 2_500] {
        let dir = lab.peers[2].dir.clone();
        lab.stop(2).await?;
        let file = segment(&dir).map_err(io("no log"))?;
        flip(&file, at).map_err(io("cannot flip"))?;
        let (took, words) = halts(&mut lab, 2).await?;
        row.must(words.contains("is damaged at byte"), || format!("byte {at}: {words}"));
        row.ran(took);
        let told = doctor(bench, &lab, 2).await?;
        row.must(told.contains("must not vote any more"), || format!("byte {at}: doctor: {told}"));
        submit(&mut client).await?;
        flip(&file, at).map_err(io("cannot mend"))?;
        lab.spawn(2)?;
        until_host(&lab, lab.peers[2].host, HostState::Up).await?;
        lab.until_answers(2).await?;
    }
    // For good: it comes back as a new host, with a state of the others'.
    lab.stop(2).await?;
    let file = segment(&lab.peers[2].dir).map_err(io("no log"))?;
    flip(&file, 2_500).map_err(io("cannot flip"))?;
    let leader = lab.leader().await?;
    lab.join_again(2, leader).await?;
    lab.spawn(2)?;
    until_host(&lab, lab.peers[2].host, HostState::Up).await?;
    equal(&lab, &mut row).await?;
    // D3: two of three. They halt, the third decides nothing alone.
    for at in [0, 1] {
        lab.stop(at).await?;
        let file = segment(&lab.peers[at].dir).map_err(io("no log"))?;
        flip(&file, 2_500).map_err(io("cannot flip"))?;
        let (took, words) = halts(&mut lab, at).await?;
        row.must(words.contains("is damaged at byte"), || format!("majority: {words}"));
        row.ran(took);
    }
    let mut alone = Stubborn::new(&lab, 2);
    let wait = Duration::from_secs(3);
    let answer = alone.submit_as(rota_node::lab::new_request(), true_job("none"), wait).await;
    row.must(answer.is_err(), || format!("one of three accepted {answer:?}"));
    Ok(row)
}
