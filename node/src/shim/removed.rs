//! What was removed, when and by which rule, for as many attempts as a small file holds: whoever asks for output that is
//! gone is told so, instead of that it never was.
//!
//! File `removed`: entries of 17 bytes: token u64 | ms since the epoch u64 | rule u8; little-endian. Appended to; when it
//! is full its older half goes. A torn entry at its end is passed over.

use super::retention::Rule;
use rota_protocol::Token;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const NAME: &str = "removed";
const ENTRY_BYTES: usize = 17;
/// Entries that are kept at most: a megabyte.
const ENTRIES_MAX: usize = 65_536;

/// Notes removals of now.
pub(super) fn note(dir: &Path, removed: &[(Token, Rule)], now_ms: u64) -> io::Result<()> {
    if removed.is_empty() {
        return Ok(());
    }
    let path = dir.join(NAME);
    let mut bytes: Vec<u8> = Vec::with_capacity(removed.len() * ENTRY_BYTES);
    for (token, rule) in removed {
        bytes.extend_from_slice(&token.0.to_le_bytes());
        bytes.extend_from_slice(&now_ms.to_le_bytes());
        bytes.push(rule.code());
    }
    let held = std::fs::metadata(&path).map_or(0, |meta| meta.len());
    let held = usize::try_from(held).unwrap_or(usize::MAX);
    let whole = held.is_multiple_of(ENTRY_BYTES);
    if whole && held.saturating_add(bytes.len()) <= ENTRIES_MAX * ENTRY_BYTES {
        return OpenOptions::new().append(true).create(true).mode(0o600).open(path)?.write_all(&bytes);
    }
    let mut all = read(&path)?;
    all.truncate(all.len() / ENTRY_BYTES * ENTRY_BYTES);
    all.extend_from_slice(&bytes);
    let surplus = all.len().saturating_sub(ENTRIES_MAX / 2 * ENTRY_BYTES);
    let new = dir.join("removed.new");
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?
        .write_all(&all[surplus..])?;
    std::fs::rename(new, path)
}

/// When and by which rule an attempt's output was removed.
pub(super) fn find(dir: &Path, token: Token) -> io::Result<Option<(u64, Rule)>> {
    let all = read(&dir.join(NAME))?;
    Ok(all.chunks_exact(ENTRY_BYTES).rev().find_map(|entry| {
        let (number, rest) = entry.split_first_chunk()?;
        let (at_ms, rule) = rest.split_first_chunk()?;
        (u64::from_le_bytes(*number) == token.0)
            .then(|| Some((u64::from_le_bytes(*at_ms), Rule::of_code(*rule.first()?)?)))?
    }))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_are_remembered_within_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find(dir.path(), Token(1)).unwrap(), None);
        note(dir.path(), &[(Token(1), Rule::Age), (Token(2), Rule::Size)], 77).unwrap();
        note(dir.path(), &[(Token(3), Rule::Number)], 78).unwrap();
        assert_eq!(find(dir.path(), Token(1)).unwrap(), Some((77, Rule::Age)));
        assert_eq!(find(dir.path(), Token(3)).unwrap(), Some((78, Rule::Number)));
        // Torn: passed over, and mended with the next one.
        let path = dir.path().join(NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(&[1, 2, 3]);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(find(dir.path(), Token(3)).unwrap(), Some((78, Rule::Number)));
        let many: Vec<_> = (10..10 + ENTRIES_MAX as u64).map(|token| (Token(token), Rule::Failed)).collect();
        note(dir.path(), &many, 79).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, ENTRIES_MAX / 2 * ENTRY_BYTES);
        assert_eq!(find(dir.path(), many[many.len() - 1].0).unwrap(), Some((79, Rule::Failed)));
        assert_eq!(find(dir.path(), Token(1)).unwrap(), None, "the oldest went");
    }
}
