//! Which attempt a process belongs to, by its ancestors: a shim adopts whatever its task leaves behind, so that every
//! process of an attempt has its shim above it, in whatever pid namespace it lives. Numbers are reused, so a process is
//! the one meant only if its start time is the same before and after the look.

use crate::io::proc;
use crate::logic::strangers::Whose;
use rota_protocol::Token;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Deepest chain of parents that is followed.
const DEPTH_MAX: usize = 64;

/// Where processes of attempts hang, and who may be on any card.
#[derive(Debug, Clone, Default)]
pub struct Roots {
    /// Shims that live.
    pub shims: BTreeMap<i32, Token>,
    /// Processes of Rota beside them, such as sharing daemons: what hangs below one is ours.
    pub ours: Vec<i32>,
    /// Names of programs that the site allows.
    pub watchers: Vec<String>,
}

/// Whose this process is. One that vanishes meanwhile is absent.
#[must_use]
pub fn whose(pid: u32, roots: &Roots) -> Whose {
    let Ok(pid) = i32::try_from(pid) else { return Whose::Absent };
    let before = match proc::stat(pid) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Whose::Unreadable,
        Err(_) => return Whose::Absent,
    };
    let found = by_parents(pid, before.ppid, roots).unwrap_or_else(|| stranger(pid, roots));
    match proc::stat(pid) {
        Ok(after) if after.start_ticks == before.start_ticks => found,
        _ => Whose::Absent,
    }
}

fn by_parents(pid: i32, parent: i32, roots: &Roots) -> Option<Whose> {
    let (mut at, mut next) = (pid, parent);
    for _ in 0..DEPTH_MAX {
        if let Some(token) = roots.shims.get(&at) {
            return Some(Whose::Attempt(*token));
        }
        if roots.ours.contains(&at) {
            return Some(Whose::Ours);
        }
        if next <= 0 {
            return None;
        }
        at = next;
        // A parent that is gone has handed its children on: the next look finds them at their new place.
        next = proc::stat(at).ok()?.ppid;
    }
    None
}

fn stranger(pid: i32, roots: &Roots) -> Whose {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if roots.watchers.iter().any(|known| known == name.trim_end()) {
        return Whose::Ours;
    }
    match user_of(pid) {
        Some(user) => Whose::Stranger(user),
        None => Whose::Unreadable,
    }
}

/// The user of a process: a name, or a number that has none.
#[must_use]
pub fn user_of(pid: i32) -> Option<String> {
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    Some(named.unwrap_or_else(|| uid.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("a shell")
    }

    fn lines(child: &mut Child) -> impl Iterator<Item = u32> {
        let reader = io::BufReader::new(child.stdout.take().expect("piped"));
        io::BufRead::lines(reader).map(|line| line.expect("text").trim().parse().expect("a pid"))
    }

    fn end(mut child: Child) {
        child.kill().expect("alive");
        child.wait().expect("a child");
    }

    #[test]
    fn a_grandchild_in_a_session_of_its_own_is_its_shims() {
        let mut child = shell("setsid sh -c 'sleep 60 & echo $!; wait' & wait");
        let pid = i32::try_from(child.id()).expect("a pid");
        let deep = lines(&mut child).next().expect("a line");
        let shims = BTreeMap::from([(pid, Token(9))]);
        let roots = Roots { shims, ..Roots::default() };
        assert_eq!(whose(deep, &roots), Whose::Attempt(Token(9)));
        let mine = Roots { ours: vec![pid], ..Roots::default() };
        assert_eq!(whose(deep, &mine), Whose::Ours);
        let Whose::Stranger(user) = whose(deep, &Roots::default()) else { panic!("a stranger") };
        assert!(!user.is_empty());
        // It is a copy of the shell until it has become the program.
        while !fs::read_to_string(format!("/proc/{deep}/comm")).is_ok_and(|name| name == "sleep\n") {
            std::thread::yield_now();
        }
        let named = Roots { watchers: vec!["sleep".into()], ..Roots::default() };
        assert_eq!(whose(deep, &named), Whose::Ours);
        let left = rustix::process::Pid::from_raw(i32::try_from(deep).expect("a pid")).expect("not zero");
        rustix::process::kill_process(left, rustix::process::Signal::KILL).expect("alive");
        end(child);
        // Until the shell above it has reaped it.
        while proc::stat(i32::try_from(deep).expect("a pid")).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(whose(deep, &roots), Whose::Absent);
        assert_eq!((whose(u32::MAX, &roots), whose(999_999_999, &roots)), (Whose::Absent, Whose::Absent));
    }

    /// Report R025: processes that end while they are looked at, from two shims at once.
    #[test]
    fn a_hundred_short_processes_are_never_anothers() {
        let shims: Vec<Child> = (0..2)
            .map(|_| shell("i=0; while [ $i -lt 50 ]; do sh -c 'echo $$'; i=$((i+1)); done; sleep 60"))
            .collect();
        let tokens: BTreeMap<i32, Token> = (1..)
            .zip(&shims)
            .map(|(n, child)| (i32::try_from(child.id()).expect("a pid"), Token(n)))
            .collect();
        let roots = Roots { shims: tokens.clone(), ..Roots::default() };
        let mut seen = 0;
        for mut shim in shims {
            let own = tokens[&i32::try_from(shim.id()).expect("a pid")];
            for pid in lines(&mut shim).take(50) {
                match whose(pid, &roots) {
                    Whose::Attempt(token) => assert_eq!(token, own),
                    // Gone already, or its number went to somebody else meanwhile.
                    Whose::Absent | Whose::Stranger(_) | Whose::Unreadable => {}
                    Whose::Ours => panic!("nothing here is ours"),
                }
                seen += 1;
            }
            end(shim);
        }
        assert_eq!(seen, 100);
    }
}
