//! Reading input files whole, with limits: what is too large, empty, no text or broken by a NUL is named with its line
//! before any parser sees it. It knows no format.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Most bytes that are read of one file: four hundred times the largest published list.
pub const INPUT_BYTES_MAX: u64 = 512 << 20;

/// Why a file is no input.
#[derive(Debug, Error)]
pub enum InputError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It has no text.
    #[error("{}: the file is empty", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
    /// It is larger than any input.
    #[error("{}: more than {bytes_max} bytes", path.display())]
    Large {
        /// Which file.
        path: PathBuf,
        /// The most that is read.
        bytes_max: u64,
    },
    /// A byte that no text has.
    #[error("{}:{line}: {what}: this is no text file", path.display())]
    NoText {
        /// Which file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What stands there.
        what: &'static str,
    },
}

/// The text of a file.
///
/// # Errors
/// It cannot be read, is empty or larger than [`INPUT_BYTES_MAX`], or is no text.
pub fn read_text(path: &Path) -> Result<String, InputError> {
    read_text_within(path, INPUT_BYTES_MAX)
}

fn read_text_within(path: &Path, bytes_max: u64) -> Result<String, InputError> {
    let read = |source| InputError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    if file.metadata().map_err(read)?.len() > bytes_max {
        return Err(InputError::Large { path: path.to_owned(), bytes_max });
    }
    let mut bytes = Vec::new();
    // A pipe or a device has no size, and may not end.
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(read)?;
    let path = || path.to_owned();
    if bytes.len() as u64 > bytes_max {
        return Err(InputError::Large { path: path(), bytes_max });
    }
    let line_of = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(InputError::NoText { path: path(), line: line_of(&bytes[..at]), what: "a NUL byte" });
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = line_of(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        InputError::NoText { path: path(), line, what: "bytes that are not UTF-8" }
    })?;
    if text.trim().is_empty() {
        return Err(InputError::Empty { path: path() });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_input_is_named() {
        let dir = std::env::temp_dir().join(format!("rota-sim-input-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let said = |bytes: &[u8]| {
            let path = dir.join("f");
            std::fs::write(&path, bytes).unwrap();
            let text = read_text_within(&path, 16).map_err(|error| error.to_string());
            text.map_err(|error| error.rsplit_once("/f").map_or(error.clone(), |(_, end)| end.to_owned()))
        };
        assert_eq!(said(b"a\nb\n"), Ok("a\nb\n".to_owned()));
        assert_eq!(said(b" \n"), Err(": the file is empty".to_owned()));
        assert_eq!(said(b"a\nb\0\n"), Err(":2: a NUL byte: this is no text file".to_owned()));
        assert_eq!(said(b"\n\n\xff"), Err(":3: bytes that are not UTF-8: this is no text file".to_owned()));
        assert_eq!(said(&[b'a'; 17]), Err(": more than 16 bytes".to_owned()));
        std::fs::remove_dir_all(&dir).unwrap();
        let gone = read_text(&dir).unwrap_err();
        assert!(matches!(gone, InputError::Read { .. }), "{gone}");
        // Endless, and without a size.
        let endless = read_text_within(Path::new("/dev/zero"), 1_000).unwrap_err();
        assert!(matches!(endless, InputError::Large { .. }), "{endless}");
    }
}
