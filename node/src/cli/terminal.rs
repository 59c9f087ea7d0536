//! The terminal that a person sits at: passed through byte for byte while a session lasts, and given back as it was,
//! however the command ends.

use rota_protocol::session::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal};

/// The size of a window of which nothing is known.
const SIZE_DEFAULT: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// While it lives, keys go through unseen by this side's terminal: no echo, no lines, no signals.
pub(super) struct Raw {
    saved: Termios,
}

impl Raw {
    /// None if standard input is no terminal.
    pub(super) fn enter() -> Option<Self> {
        let stdin = rustix::stdio::stdin();
        let saved = tcgetattr(stdin).ok()?;
        let mut raw = saved.clone();
        raw.make_raw();
        tcsetattr(stdin, OptionalActions::Drain, &raw).ok()?;
        Some(Self { saved })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &self.saved);
    }
}

/// Both ends of a person's line are terminals.
pub(super) fn is_person() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The size of the window.
pub(super) fn size() -> TerminalSize {
    let of = |seen: rustix::io::Result<rustix::termios::Winsize>| {
        let seen = seen.ok().filter(|seen| seen.ws_row > 0 && seen.ws_col > 0)?;
        Some(TerminalSize { rows: seen.ws_row, cols: seen.ws_col })
    };
    of(tcgetwinsize(rustix::stdio::stdout()))
        .or_else(|| of(tcgetwinsize(rustix::stdio::stdin())))
        .unwrap_or(SIZE_DEFAULT)
}

/// Finds the keys by which a person leaves: `~.` at the beginning of a line, as with ssh.
#[derive(Debug)]
pub(super) struct Escape {
    at_start: bool,
    tilde: bool,
}

impl Escape {
    pub(super) fn new() -> Self {
        Self { at_start: true, tilde: false }
    }

    /// Adds to `out` what is to be passed on of `keys`. True: the person leaves, and what follows is not passed on.
    pub(super) fn pass(&mut self, keys: &[u8], out: &mut Vec<u8>) -> bool {
        for key in keys {
            if std::mem::take(&mut self.tilde) {
                match key {
                    b'.' => return true,
                    // Twice for one.
                    b'~' => {
                        out.push(b'~');
                        self.at_start = false;
                        continue;
                    }
                    _ => out.push(b'~'),
                }
            } else if self.at_start && *key == b'~' {
                self.tilde = true;
                continue;
            }
            out.push(*key);
            self.at_start = matches!(key, b'\r' | b'\n');
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(parts: &[&[u8]]) -> (Vec<u8>, bool) {
        let (mut escape, mut out) = (Escape::new(), Vec::new());
        let left = parts.iter().any(|part| escape.pass(part, &mut out));
        (out, left)
    }

    #[test]
    fn only_a_tilde_and_a_dot_at_the_beginning_of_a_line_leave() {
        assert_eq!(passed(&[b"ls\r~.rest"]), (b"ls\r".to_vec(), true));
        assert_eq!(passed(&[b"~", b"."]), (b"".to_vec(), true));
        assert_eq!(passed(&[b"a~."]), (b"a~.".to_vec(), false));
        assert_eq!(passed(&[b"~~."]), (b"~.".to_vec(), false));
        assert_eq!(passed(&[b"\r~x~."]), (b"\r~x~.".to_vec(), false));
        assert_eq!(passed(&[b"cd ~\r", b"~", b"b\r~."]), (b"cd ~\r~b\r".to_vec(), true));
    }
}
