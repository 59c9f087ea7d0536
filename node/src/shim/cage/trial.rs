//! The whole cage tried once, around a program that does not exist: the exec that then fails says that every step before it
//! worked. What does not work (inside a container, on an old kernel) is left out and said, before a task depends on it.

use super::group::Groups;
use super::held::Held;
use super::left;
use super::place::{CageAsk, Place};
use super::view;
use crate::io::ffi::{self, CStrings, Stage, Start};
use rota_protocol::Token;
use rota_protocol::cage::{DeviceRule, Isolation};
use std::io;
use std::os::fd::AsFd;

/// No log has this many entries.
const TRIAL: Token = Token(u64::MAX);

impl Place {
    /// Tries, and does without what fails, until something holds.
    pub(super) fn try_out(&mut self) {
        while let Err(reason) = self.try_once() {
            let weaker = match self.devices {
                _ if reason.is_leak => match self.devices {
                    DeviceRule::Group | DeviceRule::Program if self.namespaces => DeviceRule::Folder,
                    _ => DeviceRule::None,
                },
                DeviceRule::Folder if self.namespaces => DeviceRule::None,
                rule => rule,
            };
            self.notes.push(reason.text);
            if reason.is_leak {
                self.devices = weaker;
            } else if self.namespaces {
                self.namespaces = false;
                self.devices = weaker;
            } else if self.bases.is_empty() {
                // Nothing is left that could fail.
                return;
            } else {
                let bases: Vec<_> = std::mem::take(&mut self.bases).into_values().collect();
                left::tidy(&bases, false);
                self.devices = DeviceRule::None;
            }
        }
    }

    fn try_once(&self) -> Result<(), Failure> {
        let other = |text: String| Failure { text, is_leak: false };
        let cage = self.cage(TRIAL, CageAsk { workdir: "/".into(), ..CageAsk::default() });
        if cage.isolation == Isolation::None {
            return Ok(());
        }
        let mut groups = Groups::make(&cage, None, Held::default()).map_err(other)?;
        let tried = view::steps(&cage, &groups, None);
        let started = start_nothing(&tried);
        groups.leave(0, |_| ());
        let failed = started.map_err(|error| other(format!("no trial: {error}")))?;
        match failed.stage {
            Stage::Exec => Ok(()),
            Stage::Cage => {
                let name = tried.name(failed.program);
                let is_leak = tried.is_probe(failed.program);
                Err(Failure {
                    text: if is_leak { name } else { format!("{name}: {}", failed.error) },
                    is_leak,
                })
            }
            stage => Err(other(format!("{stage:?}: {}", failed.error))),
        }
    }
}

struct Failure {
    text: String,
    /// Every step worked, and yet a node can be opened.
    is_leak: bool,
}

fn start_nothing(steps: &ffi::cage::Steps) -> io::Result<ffi::StartError> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let nothing = CStrings::new(Vec::new());
    let start = Start {
        programs: &[c"/proc/no-such-program".to_owned()],
        argv: &nothing,
        envp: &nothing,
        workdir: c"/",
        stdin: None,
        terminal: false,
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        uid_gid: None,
        oom_default: false,
        cage: steps,
    };
    match ffi::start_task(&start) {
        Err(failed) => Ok(failed),
        Ok(pid) => {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            Err(io::Error::other("a program ran that does not exist"))
        }
    }
}
