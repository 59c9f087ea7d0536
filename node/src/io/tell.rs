//! Where the agent's own words go: standard error, whatever becomes of them. A log file on a full disk refuses every
//! line, and a line that cannot be written must not end the thread that wrote it.

use std::io::{self, Write};

/// Standard error; what it refuses is lost.
#[derive(Debug, Default)]
pub struct Stderr<W = io::Stderr>(W);

/// The real one.
#[must_use]
pub fn stderr() -> Stderr {
    Stderr(io::stderr())
}

impl<W: Write> Write for Stderr<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // As a whole, so that a reader sees no half of it, as far as the file allows.
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk under the log's file: threads that told of it ended, and the room that came back was never used.
    #[test]
    fn a_full_disk_under_the_log_refuses_nothing() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!((&full).write_all(b"x").is_err(), "the kernel refuses");
        let mut tell = Stderr(full);
        assert_eq!(tell.write(b"a line\n").unwrap(), 7);
        tell.flush().unwrap();
    }
}
