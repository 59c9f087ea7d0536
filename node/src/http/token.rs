//! The secret that Prometheus shows: `<data>/metrics-token`, made at the first start, readable by its owner alone.

use rand::TryRngCore;
use rand::rngs::OsRng;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The file's name in the data directory.
pub(super) const FILE: &str = "metrics-token";
/// Random bytes in a token: 256 bits, far past guessing.
const BYTES: usize = 32;
/// Shortest token an operator may put there by hand, in bytes.
const LENGTH_MIN: usize = 16;
/// Longest, in bytes.
const LENGTH_MAX: usize = 512;

/// Why there is no usable token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read or written.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read it.
    #[error("{path} has mode {mode:o}, which others can read; set it to 600")]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not one line of visible characters of a fair length.
    #[error("{path} does not hold one token of {LENGTH_MIN} to {LENGTH_MAX} visible characters")]
    Form {
        /// The file.
        path: PathBuf,
    },
    /// The kernel gives no randomness.
    #[error("no randomness: {0}")]
    Random(String),
}

/// The secret. It has no `Debug` and no `Display`: it belongs into no log.
#[derive(Clone)]
pub struct MetricsToken(String);

impl MetricsToken {
    /// Reads the token of this data directory, or makes one.
    ///
    /// # Errors
    /// When it cannot be read or made, or when others can read it.
    pub fn open(data: &Path) -> Result<Self, TokenError> {
        let path = data.join(FILE);
        match Self::read(&path) {
            Err(TokenError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                create(&path)?;
                Self::read(&path)
            }
            other => other,
        }
    }

    /// Whether `shown` is the token, in a time that does not tell how much of it is right.
    #[must_use]
    pub fn is(&self, shown: &str) -> bool {
        let (own, shown) = (self.0.as_bytes(), shown.as_bytes());
        own.len() == shown.len()
            && own.iter().zip(shown).fold(0u8, |differ, (a, b)| std::hint::black_box(differ | (a ^ b))) == 0
    }

    fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::File { path: path.to_owned(), source };
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Readable { path: path.to_owned(), mode });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let token = text.trim();
        let fair =
            (LENGTH_MIN..=LENGTH_MAX).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
        if !fair {
            return Err(TokenError::Form { path: path.to_owned() });
        }
        Ok(Self(token.to_owned()))
    }
}

/// Writes beside and links, so that a crash leaves a whole token or none, and the first of two makers wins.
fn create(path: &Path) -> Result<(), TokenError> {
    let failed = |source| TokenError::File { path: path.to_owned(), source };
    let mut bytes = [0u8; BYTES];
    OsRng.try_fill_bytes(&mut bytes).map_err(|error| TokenError::Random(error.to_string()))?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let beside = path.with_extension(format!("new.{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()
        })
        .and_then(|()| match fs::hard_link(&beside, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
    // The temporary name is of no use whether or not it worked.
    let _ = fs::remove_file(&beside);
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_private() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = MetricsToken::open(dir.path()).expect("creatable");
        let again = MetricsToken::open(dir.path()).expect("readable");
        assert!(again.is(&first.0));
        assert_eq!(first.0.len(), 2 * BYTES);
        let mode = fs::metadata(dir.path().join(FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "nothing is left beside it");
        let other = tempfile::tempdir().expect("a temporary directory");
        assert!(!MetricsToken::open(other.path()).expect("creatable").is(&first.0));
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        MetricsToken::open(dir.path()).expect("creatable");
        for mode in [0o640, 0o604, 0o666] {
            fs::set_permissions(dir.path().join(FILE), fs::Permissions::from_mode(mode)).expect("own file");
            assert!(matches!(MetricsToken::open(dir.path()), Err(TokenError::Readable { .. })), "{mode:o}");
        }
    }

    #[test]
    fn an_empty_or_odd_file_opens_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join(FILE);
        for bad in ["", "\n", "short", "two tokens in one line of text", &"x".repeat(513)] {
            fs::write(&path, bad).expect("writable");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("own file");
            assert!(matches!(MetricsToken::open(dir.path()), Err(TokenError::Form { .. })), "{bad:?}");
        }
    }
}
