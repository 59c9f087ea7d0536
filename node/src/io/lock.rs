//! The lock of a data directory: one directory serves one agent. The lock goes with the process, however it ends; beside
//! it stands who holds it, so that a second agent is told at once and the next one waits for what is only left over.

use super::proc;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Its name in the data directory.
pub const NAME: &str = "lock";

/// How long an agent that is ending, and what it leaves behind (its fork server and its shims take the lock to see
/// whether another has come, and the last of them clears up meanwhile), is waited for.
const LEFT_OVER: Duration = Duration::from_secs(10);
/// How long a holder that says nothing of itself, or that lives, is waited for: less than a second agent may take to say
/// that it is one (fault P11), more than a holder takes to write its name.
const ALIVE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the lock of `data_dir`. `None` if another process holds it and goes on.
///
/// # Errors
/// The file cannot be opened.
pub fn take(data_dir: &Path) -> io::Result<Option<File>> {
    let file =
        File::options().create(true).truncate(false).read(true).write(true).open(data_dir.join(NAME))?;
    let began = Instant::now();
    let mut alive_since = None;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if holder(&file).is_some_and(|(pid, start)| proc::goes_on(pid, start)) {
            let since = *alive_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= ALIVE {
                return Ok(None);
            }
        } else {
            alive_since = None;
        }
        if began.elapsed() >= LEFT_OVER {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
    // A full disk may refuse it, and an agent has to start on one: without a name the next one only waits longer.
    let _ = sign(&file);
    Ok(Some(file))
}

/// As wide as the widest name, so that none leaves a rest of the one before.
fn sign(file: &File) -> io::Result<()> {
    let me = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let text = format!("{:<40}\n", format!("{me} {}", proc::stat(me)?.start_ticks));
    file.write_all_at(text.as_bytes(), 0)
}

/// Process id and start of the agent that took the lock last.
fn holder(file: &File) -> Option<(i32, u64)> {
    let mut text = [0; 64];
    let len = file.read_at(&mut text, 0).ok()?;
    let mut words = std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_told_and_soon() {
        let dir = tempfile::tempdir().unwrap();
        let held = take(dir.path()).unwrap().expect("nobody has it");
        assert_eq!(holder(&held).map(|(pid, _)| pid), i32::try_from(std::process::id()).ok());
        assert!(take(dir.path()).unwrap().is_none());
    }

    /// Shims and fork servers of an agent that died hold its lock for a moment; the name beside it is of one that is gone.
    #[test]
    fn what_a_dead_agent_left_behind_is_waited_for() {
        for named in ["2147483646 7\n", "", "1 0\n", "no words of ours"] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(NAME), named).unwrap();
            let held = File::options().write(true).open(dir.path().join(NAME)).unwrap();
            flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| take(dir.path()).unwrap());
                std::thread::sleep(ALIVE + 20 * PAUSE);
                assert!(!waits.is_finished(), "`{named}` was taken for a living agent");
                drop(held);
                assert!(waits.join().unwrap().is_some(), "`{named}`");
            });
        }
    }

    /// A process that was killed holds its locks until the kernel has taken it apart.
    #[test]
    fn an_agent_that_is_about_to_die_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let start = proc::stat(pid).unwrap().start_ticks;
        assert!(proc::goes_on(pid, start));
        assert!(!proc::goes_on(pid, start + 1), "another process has its number");
        child.kill().unwrap();
        // Not reaped yet: what is left of it goes on no more.
        while proc::stat(pid).is_ok_and(|stat| stat.state != b'Z') {
            assert!(!proc::goes_on(pid, start), "it is being killed");
        }
        assert!(!proc::goes_on(pid, start));
        child.wait().unwrap();
        assert!(!proc::goes_on(pid, start));
    }
}
