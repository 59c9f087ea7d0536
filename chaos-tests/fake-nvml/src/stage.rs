//! One driver as a test sets it up: a folder with its own copy of the library and its script.

use crate::script::{Card, Script};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A copy of the library in a folder, and its script.
#[derive(Debug)]
pub struct Stage {
    folder: PathBuf,
    /// The library as it was built.
    built: PathBuf,
}

impl Stage {
    /// Copies the library into `folder`, with these cards.
    ///
    /// # Errors
    /// When the built library is not found or the folder cannot be written.
    pub fn in_folder(folder: &Path, cards: Vec<Card>) -> io::Result<Self> {
        Self::of(crate::library().map_err(io::Error::other)?, folder, cards)
    }

    /// The same with a library that was built elsewhere.
    ///
    /// # Errors
    /// When it cannot be copied or the folder cannot be written.
    pub fn of(built: PathBuf, folder: &Path, cards: Vec<Card>) -> io::Result<Self> {
        let stage = Self { folder: folder.to_owned(), built };
        fs::copy(&stage.built, stage.library())?;
        stage.shows(cards)?;
        Ok(stage)
    }

    /// The library: what the agent's `nvml_library` must say.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.folder.join("libnvidia-ml.so.1")
    }

    /// The script: what `FAKE_NVML_STATE` may say for a process that loads the library by another path.
    #[must_use]
    pub fn script(&self) -> PathBuf {
        self.folder.join("fake-nvml.state")
    }

    /// From now on the driver shows these cards.
    ///
    /// # Errors
    /// When the script cannot be written.
    pub fn shows(&self, cards: Vec<Card>) -> io::Result<()> {
        self.says(&Script::of(cards))
    }

    /// From now on the driver answers so.
    ///
    /// # Errors
    /// When the script cannot be written.
    pub fn says(&self, script: &Script) -> io::Result<()> {
        script.write(&self.script())
    }

    /// Replaces the library's file by one that lacks these functions, as another driver's would: whoever has loaded
    /// the old file keeps it. With no names the whole library is back.
    ///
    /// # Errors
    /// When a function is not exported at all, or the folder cannot be written.
    pub fn lacks(&self, symbols: &[&str]) -> io::Result<()> {
        let mut bytes = fs::read(&self.built)?;
        for symbol in symbols {
            hide(&mut bytes, symbol)?;
        }
        self.replace(&bytes)
    }

    /// Replaces the library's file by something else, such as half of it.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let beside = self.folder.join("libnvidia-ml.new");
        fs::write(&beside, bytes)?;
        fs::rename(beside, self.library())
    }

    /// Takes the library's file away, as an upgrade does for a moment.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn uninstall(&self) -> io::Result<()> {
        fs::remove_file(self.library())
    }
}

/// Overwrites the function's name, so that nobody finds it.
fn hide(bytes: &mut [u8], symbol: &str) -> io::Result<()> {
    let name = format!("\0{symbol}\0").into_bytes();
    let last = bytes.len().saturating_sub(name.len());
    let places: Vec<usize> = (0..last).filter(|at| bytes[*at..].starts_with(&name)).collect();
    if places.is_empty() {
        return Err(io::Error::other(format!("{symbol} is not exported")));
    }
    for at in places {
        bytes[at + 1] = b'x';
    }
    Ok(())
}
