//! The files of one stream, as who reads them sees them: a head, and beyond it pieces named by the position of their
//! first byte. Written in order: a piece is whole as soon as a later one is there. What no file covers was not kept.

use rota_protocol::Token;
use rota_protocol::api::OutputStream;
use rota_protocol::limits::LOG_CHUNK_BYTES_MAX;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How often a reader that is overtaken by the removal of what it wanted looks again at once.
const OVERTAKEN_MAX: usize = 16;
/// Most bytes that are looked through for the beginning of the last lines.
const LINES_LOOK_BYTES_MAX: u64 = 16 << 20;

/// How a stream is called in file names.
pub(crate) fn word(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    }
}

/// The file that a stream begins with.
pub(crate) fn head_name(token: Token, stream: OutputStream) -> String {
    format!("{token}.{}", word(stream))
}

/// The folder of an attempt's further pieces; made when there is one.
pub(crate) fn more_name(token: Token) -> String {
    format!("{token}.more")
}

/// The file of a piece, below the folder of further pieces.
pub(crate) fn piece_name(stream: OutputStream, start: u64) -> String {
    format!("{}.{start}", word(stream))
}

/// One stream of one attempt.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    head: PathBuf,
    more: PathBuf,
    stream: OutputStream,
}

impl Stream {
    pub(crate) fn new(dir: &Path, token: Token, stream: OutputStream) -> Self {
        Self { head: dir.join(head_name(token, stream)), more: dir.join(more_name(token)), stream }
    }

    /// What is kept from `offset` on, or from the first kept byte after it: its position and at most one chunk of it.
    /// None if there is nothing there yet.
    pub(crate) fn read(&self, offset: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        if let Some(bytes) = read_at(&self.head, offset)? {
            return Ok(Some((offset, bytes)));
        }
        for _ in 0..OVERTAKEN_MAX {
            let starts = self.starts()?;
            // The one before was whole when a later one was seen: only now it is known where it ends.
            if let Some(before) = starts.iter().rev().find(|start| **start <= offset)
                && let Some(bytes) = read_at(&self.path(*before), offset - before)?
            {
                return Ok(Some((offset, bytes)));
            }
            let Some(next) = starts.iter().find(|start| **start > offset) else { return Ok(None) };
            if let Some(bytes) = read_at(&self.path(*next), 0)? {
                return Ok(Some((*next, bytes)));
            }
        }
        Ok(None)
    }

    /// The position after the last byte on the disk.
    pub(crate) fn end(&self) -> io::Result<u64> {
        Ok(self.extents()?.last().map_or(0, |(start, len)| start + len))
    }

    /// How many bytes are on the disk.
    pub(crate) fn kept(&self) -> io::Result<u64> {
        Ok(self.extents()?.iter().map(|(_, len)| len).sum())
    }

    /// Where the last `lines` lines begin. A line that has no end yet counts. What is not kept ends the search.
    pub(crate) fn last_lines(&self, lines: u32) -> io::Result<u64> {
        const BLOCK: u64 = 64 << 10;
        let extents = self.extents()?;
        let end = extents.last().map_or(0, |(start, len)| start + len);
        let (mut looked, mut wanted, mut at) = (0, u64::from(lines), end);
        for (start, len) in extents.into_iter().rev().filter(|(_, len)| *len > 0) {
            if start + len != at || wanted == 0 {
                break;
            }
            while at > start {
                let from = at.saturating_sub(BLOCK).max(start);
                let block = self.read_exactly(start, from, at)?;
                for (back, byte) in (0..).zip(block.iter().rev()) {
                    let position = at - 1 - back;
                    // The end of the last line does not begin another one.
                    if *byte == b'\n' && position + 1 < end {
                        wanted -= 1;
                        if wanted == 0 {
                            return Ok(position + 1);
                        }
                    }
                }
                looked += at - from;
                at = from;
                if looked > LINES_LOOK_BYTES_MAX {
                    return Ok(at);
                }
            }
        }
        Ok(if lines == 0 { end } else { at })
    }

    /// Removes all of it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        absent_is_fine(std::fs::remove_file(&self.head))?;
        for start in self.starts()? {
            absent_is_fine(std::fs::remove_file(self.path(start)))?;
        }
        Ok(())
    }

    fn read_exactly(&self, start: u64, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let path = if start == 0 { self.head.clone() } else { self.path(start) };
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
        File::open(path)?.read_exact_at(&mut bytes, from - start)?;
        Ok(bytes)
    }

    fn path(&self, start: u64) -> PathBuf {
        self.more.join(piece_name(self.stream, start))
    }

    /// Beginnings of the pieces beyond the head, in order.
    fn starts(&self) -> io::Result<Vec<u64>> {
        let entries = match std::fs::read_dir(&self.more) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let own = word(self.stream);
        let start = |entry: io::Result<std::fs::DirEntry>| {
            let name = entry.ok()?.file_name();
            name.to_str()?.strip_prefix(own)?.strip_prefix('.')?.parse().ok()
        };
        let mut starts: Vec<u64> = entries.filter_map(start).collect();
        starts.sort_unstable();
        Ok(starts)
    }

    /// Beginnings and lengths, the head's included, in order.
    fn extents(&self) -> io::Result<Vec<(u64, u64)>> {
        let starts = self.starts()?;
        let mut extents = Vec::with_capacity(starts.len() + 1);
        let files = starts.into_iter().map(|start| (start, self.path(start)));
        for (start, path) in std::iter::once((0, self.head.clone())).chain(files) {
            match std::fs::metadata(path) {
                Ok(meta) => extents.push((start, meta.len())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(extents)
    }
}

/// A chunk of a file from a position on; none if there is no such byte, or no such file any more.
fn read_at(path: &Path, offset: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let there = file.metadata()?.len().saturating_sub(offset);
    if there == 0 {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(there).unwrap_or(usize::MAX).min(LOG_CHUNK_BYTES_MAX)];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64)? {
            0 => break,
            len => read += len,
        }
    }
    bytes.truncate(read);
    Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_led_over_what_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let stream = Stream::new(dir.path(), Token(5), OutputStream::Stdout);
        assert_eq!(stream.read(0).unwrap(), None, "nothing yet");
        std::fs::write(dir.path().join("5.stdout"), "a\nb\nhead").unwrap();
        std::fs::create_dir(dir.path().join("5.more")).unwrap();
        let piece = |start: u64, text: &str| {
            std::fs::write(dir.path().join(format!("5.more/stdout.{start}")), text).unwrap();
        };
        piece(20, "c\nd");
        piece(23, "\ne\nf\n");
        std::fs::write(dir.path().join("5.more/stderr.0"), "other").unwrap();
        let read = |offset| stream.read(offset).unwrap().map(|(at, b)| (at, String::from_utf8(b).unwrap()));
        assert_eq!(read(0), Some((0, "a\nb\nhead".into())));
        assert_eq!(read(6), Some((6, "ad".into())));
        assert_eq!(read(8), Some((20, "c\nd".into())), "a gap of twelve bytes");
        assert_eq!(read(13), Some((20, "c\nd".into())));
        assert_eq!(read(22), Some((22, "d".into())));
        assert_eq!(read(23), Some((23, "\ne\nf\n".into())));
        assert_eq!(read(28), None);
        assert_eq!((stream.end().unwrap(), stream.kept().unwrap()), (28, 16));
        let lines: Vec<u64> = [0, 1, 2, 3, 4, 9].map(|lines| stream.last_lines(lines).unwrap()).into();
        assert_eq!(lines, [28, 26, 24, 22, 20, 20], "f, e, d, c, and the gap ends it");
        stream.remove().unwrap();
        assert_eq!(stream.end().unwrap(), 0);
        assert!(dir.path().join("5.more/stderr.0").exists());
    }
}
