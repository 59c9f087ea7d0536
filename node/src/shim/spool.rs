//! One stream on its way to the disk: a head and the newest tail within a limit, never more a second than its rate.
//! What is not kept is counted, and positions go on counting: each file is named by the true position of its first
//! byte (see [`super::pieces`]). The task is neither blocked nor killed by its output.

use super::pieces::{head_name, more_name, piece_name};
use rota_protocol::Token;
use rota_protocol::api::OutputStream;
use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

/// Files that a tail consists of, when it was not cut into more by gaps: the part of it that is thrown away at once.
const TAIL_PARTS: u64 = 4;
/// Most files of a tail, however many gaps there are.
const PIECES_MAX: usize = 64;
/// Pause before a disk that refused is asked again, in ms.
const REFUSED_MS: u64 = 100;

/// Where and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Kept of the beginning, in bytes.
    head: u64,
    /// Kept of the end, in bytes.
    tail: u64,
    /// Kept in a second, in bytes.
    rate: u64,
}

impl Limits {
    pub(crate) fn new(bytes_max: u64, rate_bytes: u64) -> Self {
        // A piece has at least one byte.
        let bytes_max = bytes_max.max(4 * TAIL_PARTS);
        Self { head: bytes_max / 2, tail: bytes_max - bytes_max / 2, rate: rate_bytes.max(1) }
    }
}

/// A stream's files as its one writer sees them. Paths are below the working directory, or `dir`.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    token: Token,
    stream: OutputStream,
    limits: Limits,
    rate: Rate,
    len: u64,
    kept: u64,
    open: Option<(File, u64)>,
    /// Pieces beyond the head, oldest first: start and length. The last one may be open.
    pieces: VecDeque<(u64, u64)>,
    refused_until_ms: u64,
}

impl Spool {
    pub(crate) fn new(dir: PathBuf, token: Token, stream: OutputStream, limits: Limits) -> Self {
        Self {
            dir,
            token,
            stream,
            limits,
            rate: Rate { bytes: limits.rate, at_ms: None },
            len: 0,
            kept: 0,
            open: None,
            pieces: VecDeque::new(),
            refused_until_ms: 0,
        }
    }

    /// The position of the end.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that are not on the disk, or not any more.
    pub(crate) fn dropped(&self) -> u64 {
        self.len - self.kept
    }

    /// Takes all of it: what cannot be kept is counted.
    pub(crate) fn write(&mut self, bytes: &[u8], now_ms: u64) {
        let (bytes, over) = bytes.split_at(self.rate.take(self.limits.rate, now_ms, bytes.len()));
        self.keep(bytes, now_ms);
        self.skip(over.len());
    }

    fn keep(&mut self, mut bytes: &[u8], now_ms: u64) {
        while !bytes.is_empty() {
            if self.open.is_none() && now_ms >= self.refused_until_ms {
                self.open = self.begin_piece().ok();
                if self.open.is_none() {
                    self.refused_until_ms = now_ms + REFUSED_MS;
                }
            }
            let Some((file, room)) = &mut self.open else { return self.skip(bytes.len()) };
            let part = bytes.len().min(usize::try_from(*room).unwrap_or(usize::MAX));
            let written = write_some(file, &bytes[..part]);
            *room -= written as u64;
            let is_full = *room == 0;
            self.len += written as u64;
            self.kept += written as u64;
            if let Some((_, len)) = self.pieces.back_mut() {
                *len += written as u64;
            }
            bytes = &bytes[written..];
            if written < part {
                self.refused_until_ms = now_ms + REFUSED_MS;
                return self.skip(bytes.len());
            }
            if is_full {
                self.open = None;
            }
        }
    }

    /// Counts bytes that are not kept. What follows them needs a file of its own.
    fn skip(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.open = None;
        self.len += bytes as u64;
        if let Some((start, 0)) = self.pieces.back().copied() {
            self.pieces.pop_back();
            let _ = std::fs::remove_file(self.piece(start));
        }
    }

    /// The next file, and how many bytes it may have.
    fn begin_piece(&mut self) -> std::io::Result<(File, u64)> {
        if self.len == 0 {
            let path = self.dir.join(head_name(self.token, self.stream));
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
            return Ok((file, self.limits.head));
        }
        let room = (self.limits.tail / TAIL_PARTS).max(1);
        let mut held: u64 = self.pieces.iter().map(|(_, len)| len).sum();
        while held + room > self.limits.tail || self.pieces.len() >= PIECES_MAX {
            let Some((start, len)) = self.pieces.pop_front() else { break };
            std::fs::remove_file(self.piece(start))?;
            held -= len;
            self.kept -= len;
        }
        let more = self.dir.join(more_name(self.token));
        match DirBuilder::new().mode(0o700).create(&more) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = self.piece(self.len);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        self.pieces.push_back((self.len, 0));
        Ok((file, room))
    }

    fn piece(&self, start: u64) -> PathBuf {
        self.dir.join(more_name(self.token)).join(piece_name(self.stream, start))
    }
}

/// How many bytes reached the file before it refused.
fn write_some(file: &mut File, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(len) => written += len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}

/// Bytes that may still be kept: a second's worth at most, growing with time.
#[derive(Debug)]
struct Rate {
    bytes: u64,
    at_ms: Option<u64>,
}

impl Rate {
    /// How many of `wanted` bytes may be kept now. Once it is used up, nothing until a quarter is there again: many
    /// small gaps say less than a few.
    fn take(&mut self, rate: u64, now_ms: u64, wanted: usize) -> usize {
        let since_ms = now_ms.saturating_sub(*self.at_ms.get_or_insert(now_ms));
        let grown = u128::from(rate) * u128::from(since_ms) / 1_000;
        if grown > 0 {
            self.bytes = rate.min(self.bytes.saturating_add(u64::try_from(grown).unwrap_or(u64::MAX)));
            self.at_ms = Some(now_ms);
        }
        let wanted = wanted as u64;
        let given = if self.bytes >= wanted || self.bytes >= rate / 4 { wanted.min(self.bytes) } else { 0 };
        self.bytes -= given;
        usize::try_from(given).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pieces::Stream;
    use super::*;

    fn spool(dir: &std::path::Path, limits: Limits) -> (Spool, Stream) {
        let stream = OutputStream::Stdout;
        (Spool::new(dir.to_owned(), Token(5), stream, limits), Stream::new(dir, Token(5), stream))
    }

    /// The byte at a position, so that a piece at a wrong place shows.
    fn byte(position: u64) -> u8 {
        (position % 251) as u8
    }

    /// All that is kept, checked byte by byte against its position. Returns the ranges.
    fn ranges(stream: &Stream, end: u64) -> Vec<(u64, u64)> {
        let (mut at, mut ranges) = (0, Vec::<(u64, u64)>::new());
        while let Some((from, bytes)) = stream.read(at).unwrap() {
            for (position, got) in (from..).zip(&bytes) {
                assert_eq!(*got, byte(position), "at {position}");
            }
            at = from + bytes.len() as u64;
            match ranges.last_mut() {
                Some((_, to)) if *to == from => *to = at,
                _ => ranges.push((from, at)),
            }
        }
        assert!(at <= end);
        ranges
    }

    #[test]
    fn a_stream_past_its_limit_has_its_head_and_its_tail_at_their_true_places() {
        for step in [1, 7, 100, 1_000, 4_096] {
            let dir = tempfile::tempdir().unwrap();
            let (mut spool, stream) = spool(dir.path(), Limits::new(1_000, u64::MAX));
            let mut at = 0;
            while at < 10_000 {
                let bytes: Vec<u8> = (at..10_000.min(at + step)).map(byte).collect();
                spool.write(&bytes, 0);
                at += bytes.len() as u64;
                let kept = stream.kept().unwrap();
                assert!(kept <= 1_000, "{kept} kept at {at}");
                assert_eq!((spool.len(), spool.dropped()), (at, at - kept));
            }
            let [(0, 500), (tail, 10_000)] = ranges(&stream, 10_000)[..] else {
                panic!("{:?}", ranges(&stream, 10_000))
            };
            assert!((9_500..=9_625).contains(&tail), "at least three quarters of the tail: {tail}");
        }
    }

    #[test]
    fn a_short_stream_is_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let (mut spool, stream) = spool(dir.path(), Limits::new(1_000, u64::MAX));
        assert!(!dir.path().join("5.stdout").exists(), "made with the first byte");
        let bytes: Vec<u8> = (0..500).map(byte).collect();
        spool.write(&bytes, 0);
        assert_eq!((ranges(&stream, 500), spool.dropped()), (vec![(0, 500)], 0));
        assert!(!dir.path().join("5.more").exists());
    }

    #[test]
    fn what_is_above_the_rate_is_counted_and_leaves_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let (mut spool, stream) = spool(dir.path(), Limits::new(1 << 20, 1_000));
        let mut at = 0;
        for tick in 0..10 {
            let bytes: Vec<u8> = (at..at + 500).map(byte).collect();
            spool.write(&bytes, tick * 100);
            at += 500;
        }
        let kept = stream.kept().unwrap();
        assert!((1_000..=1_900).contains(&kept), "a second's worth, and what came in 0.9 s: {kept}");
        assert_eq!((spool.len(), spool.dropped()), (5_000, 5_000 - kept));
        let found = ranges(&stream, 5_000);
        assert!(found.len() > 1 && found[0].0 == 0, "{found:?}");
    }

    #[test]
    fn a_disk_that_refuses_leaves_a_gap_and_is_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let (mut spool, stream) = spool(&gone, Limits::new(1 << 20, u64::MAX));
        let bytes = |from: u64, to: u64| (from..to).map(byte).collect::<Vec<u8>>();
        spool.write(&bytes(0, 100), 0);
        assert_eq!((spool.len(), spool.dropped()), (100, 100));
        std::fs::create_dir(&gone).unwrap();
        spool.write(&bytes(100, 200), REFUSED_MS - 1);
        assert_eq!(spool.dropped(), 200, "not asked again at once");
        spool.write(&bytes(200, 300), REFUSED_MS);
        spool.write(&bytes(300, 400), REFUSED_MS);
        assert_eq!((spool.len(), spool.dropped()), (400, 200));
        assert_eq!(ranges(&stream, 400), [(200, 400)]);
    }

    /// Fault of a full disk, on a file system of 256 KiB; only root may mount one.
    #[test]
    fn a_full_disk_costs_output_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, filler) = (dir.path().join("disk"), dir.path().join("disk/filler"));
        std::fs::create_dir(&disk).unwrap();
        let run = |program: &str, args: &[&str]| {
            let status = std::process::Command::new(program).args(args).arg(&disk).status();
            status.is_ok_and(|status| status.success())
        };
        if !run("mount", &["-t", "tmpfs", "-o", "size=256k", "rota-test"]) {
            eprintln!("NOT EXERCISED: a full disk, because no file system can be mounted here");
            return;
        }
        let (mut spool, stream) = spool(&disk, Limits::new(1 << 20, u64::MAX));
        let bytes = |from: u64, to: u64| (from..to).map(byte).collect::<Vec<u8>>();
        std::fs::write(&filler, vec![0; 128 << 10]).unwrap();
        spool.write(&bytes(0, 200_000), 0);
        assert!((1..200_000).contains(&spool.dropped()), "{}", spool.dropped());
        std::fs::remove_file(&filler).unwrap();
        spool.write(&bytes(200_000, 200_100), REFUSED_MS);
        let found = ranges(&stream, 200_100);
        let dropped = spool.dropped();
        drop(spool);
        assert!(run("umount", &[]));
        let [(0, to), (200_000, 200_100)] = found[..] else { panic!("{found:?}") };
        assert_eq!(dropped, 200_000 - to);
    }

    #[test]
    fn many_gaps_make_no_more_files_than_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let (mut spool, stream) = spool(dir.path(), Limits::new(1 << 20, u64::MAX));
        for at in 0..1_000 {
            spool.write(&[byte(2 * at)], 0);
            spool.skip(1);
        }
        let files = std::fs::read_dir(dir.path().join("5.more")).unwrap().count();
        assert!(files <= PIECES_MAX, "{files}");
        assert_eq!(ranges(&stream, 2_000).last(), Some(&(1_998, 1_999)));
        assert_eq!(spool.dropped(), 2_000 - stream.kept().unwrap());
    }
}
