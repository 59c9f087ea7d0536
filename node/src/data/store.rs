//! Blobs on the disk, below `<data>/cache`, which is the agent's alone:
//!
//! | folder | |
//! |---|---|
//! | `blobs/<hex>` | bytes whose hash is their name, read-only |
//! | `records/<hex>.json` | what is known of them; its own time of change is when the blob was last used |
//! | `partial/` | what is on its way in or out; emptied at the start |
//! | `bad/` | the blob that was found altered last, for somebody to look at; emptied at the start |
//! | `held/<token>` | what an attempt that may live has of them |
//!
//! There is one way into `blobs`: [`Ready`], which exists only for bytes whose hash was found right. At a start nothing is
//! hashed: the hash is the name, and a file is believed to be what it was as long as its length and its time of change are
//! those that were written down; whoever gets it over the network hashes it again in any case.

use crate::io::durable::sync_dir;
use crate::logic::shelf::{Kept, Wanted};
use ring::digest::{Context, SHA256};
use rota_protocol::Token;
use rota_protocol::data::BlobId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const FOLDERS: [&str; 5] = ["blobs", "records", "partial", "bad", "held"];
/// Anybody who is shown a blob may read it, nobody may write it.
const BLOB_MODE: u32 = 0o444;
/// Longest record that is read, in bytes.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are hashed at once.
const HASHED_BYTES: usize = 1 << 20;

/// The file beside a blob.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    bytes: u64,
    modified_ns: i128,
    owners: BTreeMap<String, bool>,
    public: bool,
    name: String,
}

/// The folder.
#[derive(Debug, Clone)]
pub(super) struct Store {
    dir: PathBuf,
}

/// Bytes that are coming in.
pub(super) struct Incoming {
    file: File,
    path: PathBuf,
    hash: Context,
    bytes: u64,
}

/// Bytes whose hash is right, all of them on the disk, with their record beside them.
pub(super) struct Ready {
    incoming: Incoming,
    record: PathBuf,
    blob: BlobId,
    kept: Kept,
}

/// Why bytes are not kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeepError {
    /// They are others.
    #[error("its bytes have the hash {0}")]
    OtherHash(BlobId),
    /// The disk.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Incoming {
    /// Takes the next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// How many came.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn blob(&self) -> BlobId {
        id_of(self.hash.clone())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Moved away if it was kept; what stays goes with the next start.
        let _ = fs::remove_file(&self.path);
    }
}

impl Ready {
    /// Its name.
    pub(super) fn blob(&self) -> BlobId {
        self.blob
    }
}

fn id_of(hash: Context) -> BlobId {
    let mut id = [0; 32];
    id.copy_from_slice(hash.finish().as_ref());
    BlobId(id)
}

fn modified_ns(metadata: &fs::Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

impl Store {
    /// The folder of this data directory; it is made when something is to be kept.
    pub(super) fn of(data_dir: &Path) -> Self {
        Self { dir: data_dir.join("cache") }
    }

    pub(super) fn path(&self, blob: &BlobId) -> PathBuf {
        self.dir.join("blobs").join(blob.hex())
    }

    fn record(&self, blob: &BlobId) -> PathBuf {
        self.dir.join("records").join(format!("{}.json", blob.hex()))
    }

    fn partial(&self, what: &str) -> PathBuf {
        self.dir.join("partial").join(format!("{:032x}.{what}", rand::random::<u128>()))
    }

    fn make_folders(&self) -> io::Result<()> {
        for name in FOLDERS {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(self.dir.join(name))?;
        }
        fs::set_permissions(&self.dir, Permissions::from_mode(0o700))
    }

    /// Everything that is kept, after what was on its way is removed.
    pub(super) fn load(&self) -> io::Result<Vec<(BlobId, Kept)>> {
        if !self.dir.exists() {
            return Ok(Vec::new());
        }
        self.make_folders()?;
        for folder in ["partial", "bad"] {
            for entry in fs::read_dir(self.dir.join(folder))? {
                fs::remove_file(entry?.path())?;
            }
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(self.dir.join("blobs"))? {
            let path = entry?.path();
            let blob = path.file_name().and_then(|name| BlobId::of_hex(name.to_str()?));
            match blob.and_then(|blob| Some((blob, self.believed(&blob)?))) {
                Some(found) => all.push(found),
                // Half removed, or altered: it comes again when it is needed.
                None => {
                    tracing::warn!(path = %path.display(), "a blob is not what was written down: removed");
                    fs::remove_file(&path)?;
                }
            }
        }
        for entry in fs::read_dir(self.dir.join("records"))? {
            let path = entry?.path();
            let blob = path.file_stem().and_then(|stem| BlobId::of_hex(stem.to_str()?));
            if blob.is_none_or(|blob| !self.path(&blob).exists()) {
                fs::remove_file(&path)?;
            }
        }
        Ok(all)
    }

    /// What is known of a blob, if its file is what it was.
    pub(super) fn believed(&self, blob: &BlobId) -> Option<Kept> {
        let path = self.record(blob);
        let mut text = String::new();
        let file = File::open(&path).ok()?;
        let used = file.metadata().ok()?.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        file.take(RECORD_BYTES_MAX).read_to_string(&mut text).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        let found = self.path(blob).symlink_metadata().ok()?;
        let same =
            found.is_file() && found.len() == record.bytes && modified_ns(&found) == record.modified_ns;
        let Record { bytes, owners, public, name, .. } = record;
        let used_ms = u64::try_from(used.as_millis()).unwrap_or(0);
        same.then(|| Kept { bytes, owners, public, name, used_ms, ..Kept::default() })
    }

    /// Bytes are to come.
    pub(super) fn begin(&self) -> io::Result<Incoming> {
        self.make_folders()?;
        let path = self.partial("in");
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Incoming { file, path, hash: Context::new(&SHA256), bytes: 0 })
    }

    /// All came: they are checked, and brought onto the disk with what is to be known of them.
    pub(super) fn ready(&self, incoming: Incoming, blob: BlobId, kept: Kept) -> Result<Ready, KeepError> {
        let found = incoming.blob();
        if found != blob {
            return Err(KeepError::OtherHash(found));
        }
        incoming.file.set_permissions(Permissions::from_mode(BLOB_MODE))?;
        incoming.file.sync_all()?;
        let record = self.partial("record");
        write_record(&record, &kept, modified_ns(&incoming.file.metadata()?), true)?;
        Ok(Ready { incoming, record, blob, kept })
    }

    /// Puts it under its name: two renames. `known` is what is known of it already.
    pub(super) fn put(&self, ready: Ready, known: Option<&Kept>) -> io::Result<(BlobId, Kept)> {
        let Ready { incoming, record, blob, kept } = ready;
        fs::rename(&record, self.record(&blob))?;
        fs::rename(&incoming.path, self.path(&blob))?;
        if let Some(known) = known {
            let mut both = known.clone();
            both.share_with(&kept);
            self.note(&blob, &both)?;
        }
        Ok((blob, kept))
    }

    /// Makes what was put there lasting.
    pub(super) fn sync(&self) -> io::Result<()> {
        sync_dir(&self.dir.join("records"))?;
        sync_dir(&self.dir.join("blobs"))
    }

    /// Writes down anew what is known of a blob.
    pub(super) fn note(&self, blob: &BlobId, kept: &Kept) -> io::Result<()> {
        let found = self.path(blob).symlink_metadata()?;
        let new = self.partial("record");
        write_record(&new, kept, modified_ns(&found), false)?;
        fs::rename(&new, self.record(blob))
    }

    /// It is used now.
    pub(super) fn used(&self, blob: &BlobId, at_ms: u64) -> io::Result<()> {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(at_ms);
        OpenOptions::new().write(true).open(self.record(blob))?.set_modified(at)
    }

    /// Takes it from under its name, quickly; what is left of it is for [`Self::discard`].
    pub(super) fn set_aside(&self, blob: &BlobId) -> PathBuf {
        let aside = self.partial("out");
        // The file first: without its record it is nothing.
        let _ = fs::rename(self.path(blob), &aside);
        let _ = fs::remove_file(self.record(blob));
        aside
    }

    /// The same for one that was altered: its bytes are kept for a look, until the next such one comes.
    pub(super) fn set_apart(&self, blob: &BlobId) {
        for before in fs::read_dir(self.dir.join("bad")).into_iter().flatten().flatten() {
            let _ = fs::remove_file(before.path());
        }
        let _ = fs::rename(self.path(blob), self.dir.join("bad").join(blob.hex()));
        let _ = fs::remove_file(self.record(blob));
    }

    /// Gives the disk back.
    pub(super) fn discard(aside: &Path) {
        let _ = fs::remove_file(aside);
    }

    /// A piece, shorter only at the end.
    pub(super) fn read(&self, blob: &BlobId, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let file = File::open(self.path(blob))?;
        let mut piece = vec![0; bytes];
        let mut filled = 0;
        while filled < bytes {
            match file.read_at(&mut piece[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        piece.truncate(filled);
        Ok(piece)
    }

    /// Whether its bytes still have the hash that it is named by.
    pub(super) fn is_right(&self, blob: &BlobId) -> io::Result<bool> {
        let mut file = File::open(self.path(blob))?;
        let (mut hash, mut piece) = (Context::new(&SHA256), vec![0; HASHED_BYTES]);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(id_of(hash) == *blob),
                read => hash.update(&piece[..read]),
            }
        }
    }

    /// Writes down what an attempt is given, before it is given.
    pub(super) fn hold(&self, token: Token, wanted: &[Wanted]) -> io::Result<()> {
        let path = self.dir.join("held").join(token.to_string());
        let lines: String =
            wanted.iter().map(|(blob, tenant)| format!("{} {tenant}\n", blob.hex())).collect();
        crate::io::durable::write_atomic(&path, lines.as_bytes(), 0o600)
    }

    /// The attempt has nothing any more.
    pub(super) fn let_go(&self, token: Token) {
        let _ = fs::remove_file(self.dir.join("held").join(token.to_string()));
    }

    /// What attempts were given, by what was written down.
    pub(super) fn held(&self) -> io::Result<Vec<(Token, Vec<Wanted>)>> {
        let folder = self.dir.join("held");
        if !folder.exists() {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let token = path.file_name().and_then(|name| name.to_str()?.parse().ok()).map(Token);
            let Some(token) = token else {
                fs::remove_file(&path)?;
                continue;
            };
            let text = fs::read_to_string(&path)?;
            let wanted = |line: &str| {
                let (hex, tenant) = line.split_once(' ')?;
                Some((BlobId::of_hex(hex)?, tenant.to_owned()))
            };
            all.push((token, text.lines().filter_map(wanted).collect()));
        }
        Ok(all)
    }
}

fn write_record(path: &Path, kept: &Kept, modified_ns: i128, lasting: bool) -> io::Result<()> {
    let Kept { bytes, owners, public, name, used_ms, .. } = kept.clone();
    let text = serde_json::to_vec(&Record { bytes, modified_ns, owners, public, name })?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&text)?;
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(used_ms))?;
    if lasting { file.sync_all() } else { Ok(()) }
}

#[cfg(test)]
#[path = "tests/store.rs"]
mod tests;
