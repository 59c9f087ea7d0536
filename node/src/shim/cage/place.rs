//! The agent's side: what this host has to bound tasks with, found out once; the folder of this agent's groups in each
//! hierarchy; the cage of each attempt, as a plan without choices.
//!
//! Two agents on one host (labs, tests) do not meet: the folder carries a name that is drawn once for a data directory and
//! kept in it. Nothing that the file system gives away again, such as an inode's number, would do.
//!
//! The memory of all tasks together is bounded by what the host offers, so that the reserve for the system and the
//! agent holds whatever single tasks may use.

use super::ask::Drivers;
use super::device_program;
use super::hierarchy;
use super::nodes::COMMON;
use super::pool::remove_spares;
use super::settings::{CageSettings, Means};
use crate::io::ffi::devices::{attach_device_program, load_device_program};
use rota_protocol::Token;
use rota_protocol::cage::{Cage, Controller, DeviceRule, Group, Isolation};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Below this folder no device node can be opened but those of everybody, without a rule per attempt.
pub(super) const BARE: &str = "bare";
/// The leaf in which the agent itself sits where version 2 gives its controllers away.
const AGENT_LEAF: &str = "agent";
/// In the attempts folder, which is where shims are: an empty file and an empty folder that nobody but a holder of
/// capabilities may open. They cover what a task must not reach.
pub(super) const CLOSED_FILE: &str = "closed";
pub(super) const CLOSED_FOLDER: &str = "closed.d";
/// Also there: the name of this agent's folders.
pub(crate) const NAME_FILE: &str = "groups";
/// A node that exists nearly everywhere and that no task may open: probed when no other is known.
const PROBE_DEFAULT: &str = "/dev/kmsg";
/// A task that asks for no memory gets its part of the host by processors, but never less than one part in this many.
const MEM_PART: u64 = 16;
/// Nor less than this, in MiB.
const MEM_MIB_MIN: u64 = 2 << 10;

/// What one attempt asked for and was granted, as far as its cage depends on it.
#[derive(Debug, Clone, Default)]
pub struct CageAsk {
    /// Processor time, in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory, in MiB; 0 if none was asked.
    pub mem_mib: u64,
    /// Nodes of the granted devices.
    pub nodes: Vec<PathBuf>,
    /// A node of a device that it was not granted.
    pub probe: Option<PathBuf>,
    /// Its working directory.
    pub workdir: PathBuf,
    /// It runs as the agent's own user.
    pub as_agent: bool,
    /// Its user is known to no host.
    pub as_dynamic: bool,
    /// A container runtime makes its view of the host, and needs for that what the full cage forbids.
    pub in_container: bool,
    /// It shares a card through the driver's service, which needs the host's shared memory. Sharing by turns does not.
    pub uses_mps: bool,
}

/// What the agent says of itself and of what its host offers to all tasks together.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    /// Processor time, in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory, in MiB; 0 if it is not known, and then not bounded.
    pub mem_mib: u64,
    /// The API's socket.
    pub socket: PathBuf,
}

/// What this host has, and where this agent's groups are.
#[derive(Debug, Clone)]
pub struct Place {
    pub(super) settings: CageSettings,
    offer: Offer,
    /// The folder of this agent's groups in each hierarchy.
    pub(super) bases: BTreeMap<Controller, PathBuf>,
    /// The last part of their paths.
    pub(super) name: String,
    pub(super) devices: DeviceRule,
    pub(super) namespaces: bool,
    pub(super) drivers: Drivers,
    data_dir: PathBuf,
    /// Why something is missing, for people.
    pub(super) notes: Vec<String>,
}

fn below_tmp(path: &Path) -> bool {
    path.starts_with("/tmp")
}

impl Place {
    /// Finds out what there is and makes the folders. What is missing is left out, and said.
    ///
    /// # Errors
    /// The data directory cannot be read.
    pub fn find(data_dir: &Path, settings: &CageSettings, offer: Offer) -> io::Result<Self> {
        let mut place = Self::bare(settings.clone(), &data_dir.canonicalize()?);
        place.name = own_name(&place.data_dir.join("attempts").join(NAME_FILE))?;
        place.offer = offer;
        if settings.isolation == Isolation::None {
            return Ok(place);
        }
        let is_root = rustix::process::geteuid().is_root();
        place.namespaces = settings.isolation == Isolation::Full && is_root && place.may(Means::Namespaces);
        if place.may(Means::Groups) {
            place.make_bases();
        }
        place.devices = place.device_rule();
        if is_root {
            place.make_closed()?;
        } else {
            place.notes.push("the agent is not root".to_owned());
        }
        place.try_out();
        Ok(place)
    }

    /// One that has nothing.
    pub(super) fn bare(settings: CageSettings, data_dir: &Path) -> Self {
        Self {
            settings,
            offer: Offer::default(),
            bases: BTreeMap::new(),
            name: String::new(),
            devices: DeviceRule::None,
            namespaces: false,
            drivers: Drivers::default(),
            data_dir: data_dir.to_owned(),
            notes: Vec::new(),
        }
    }

    pub(super) fn settings(&self) -> &CageSettings {
        &self.settings
    }

    fn make_closed(&self) -> io::Result<()> {
        let attempts = self.data_dir.join("attempts");
        let (file, folder) = (attempts.join(CLOSED_FILE), attempts.join(CLOSED_FOLDER));
        fs::OpenOptions::new().write(true).create(true).truncate(false).open(&file)?;
        make_folder(&folder)?;
        [file, folder].iter().try_for_each(|path| fs::set_permissions(path, fs::Permissions::from_mode(0o0)))
    }

    pub(super) fn may(&self, means: Means) -> bool {
        !self.settings.without.contains(&means)
    }

    fn make_bases(&mut self) {
        let own = match hierarchy::own() {
            Ok(own) => own,
            Err(error) => {
                self.notes.push(format!("control groups cannot be looked for: {error}"));
                return;
            }
        };
        for (controller, folder) in hierarchy::best_first(own) {
            if self.leaves_out(controller) {
                continue;
            }
            match self.make_base(controller, &folder) {
                Ok(base) => {
                    self.bases.insert(controller, base);
                }
                Err(error) => self.notes.push(format!("no group below {}: {error}", folder.display())),
            }
        }
    }

    /// Each hierarchy costs something at every launch.
    pub(super) fn leaves_out(&self, controller: Controller) -> bool {
        let has = |controller| self.bases.contains_key(&controller);
        // Where no process can be made any more, killing one by one comes to an end: one way to kill is enough.
        let kills = has(Controller::Pids);
        match controller {
            // Its own means are there in version 1.
            Controller::Unified => {
                !self.may(Means::Unified) || (kills && has(Controller::Memory) && has(Controller::Devices))
            }
            Controller::Freezer => !self.may(Means::Freezer) || kills || self.kills_at_once(),
            Controller::Devices => !self.may(Means::DevicesGroup),
            Controller::Memory | Controller::Pids | Controller::Cpu => false,
        }
    }

    pub(super) fn kills_at_once(&self) -> bool {
        let base = self.bases.get(&Controller::Unified);
        base.is_some_and(|base| base.join("cgroup.kill").exists())
    }

    fn make_base(&self, controller: Controller, own: &Path) -> io::Result<PathBuf> {
        // Beside the agent where it sits in a leaf of its own, else below it.
        let in_leaf = own.file_name().is_some_and(|name| name == AGENT_LEAF);
        let parent = own.parent().filter(|_| in_leaf).unwrap_or(own);
        let base = parent.join(&self.name);
        make_folder(&base)?;
        // Of an agent with other settings, or of another build.
        remove_spares(&base);
        match controller {
            Controller::Unified => give_away(parent, &base, in_leaf),
            Controller::Memory => {
                // Old kernels count what is below only when told to; newer ones know nothing else.
                let _ = fs::write(base.join("memory.use_hierarchy"), "1");
                if self.offer.mem_mib > 0 {
                    fs::write(base.join("memory.limit_in_bytes"), (self.offer.mem_mib << 20).to_string())?;
                }
            }
            Controller::Devices => {
                let bare = base.join(BARE);
                make_folder(&bare)?;
                // The kernel does not take everything back while attempts of an earlier agent are below.
                if fs::read_to_string(bare.join("devices.list"))?.contains("*:* rwm") {
                    fs::write(bare.join("devices.deny"), "a")?;
                    for node in COMMON {
                        fs::write(bare.join("devices.allow"), node.rule())?;
                    }
                }
            }
            Controller::Pids | Controller::Cpu | Controller::Freezer => {}
        }
        if controller == Controller::Unified && self.offer.mem_mib > 0 {
            // Only where the controller is enabled.
            let _ = fs::write(base.join("memory.max"), (self.offer.mem_mib << 20).to_string());
        }
        Ok(base)
    }

    fn device_rule(&mut self) -> DeviceRule {
        if self.bases.contains_key(&Controller::Devices) {
            return DeviceRule::Group;
        }
        let unified = self.bases.get(&Controller::Unified).filter(|_| self.may(Means::DevicesProgram));
        if let Some(base) = unified {
            match try_program(&base.join("trial")) {
                Ok(()) => return DeviceRule::Program,
                Err(error) => self.notes.push(format!("no device program: {error}")),
            }
        }
        if self.namespaces { DeviceRule::Folder } else { DeviceRule::None }
    }

    /// The cage of one attempt.
    #[must_use]
    pub fn cage(&self, token: Token, ask: CageAsk) -> Cage {
        let settings = &self.settings;
        if settings.isolation == Isolation::None {
            return Cage::default();
        }
        let bytes = |path: PathBuf| path.into_os_string().into_vec();
        // What has no device of its own needs no devices group of its own, if another one says whose its processes are.
        let alone = self.bases.len() == 1;
        let groups = self.bases.iter().map(|(controller, base)| {
            let bare = *controller == Controller::Devices && ask.nodes.is_empty();
            let folder = if bare { base.join(BARE) } else { base.clone() };
            let path = if bare && !alone { folder } else { folder.join(token.to_string()) };
            Group { controller: *controller, path: bytes(path) }
        });
        // What Rota must show the task, and what it came for, must stay visible.
        let private_tmp = !below_tmp(&ask.workdir) && !self.lies_in_tmp();
        Cage {
            isolation: if self.namespaces && !ask.in_container {
                settings.isolation
            } else {
                settings.isolation.min(Isolation::Basic)
            },
            groups: groups.collect(),
            mem_mib: self.mem_mib(&ask),
            cpus_milli: ask.cpus_milli,
            cpus_hard: settings.cpus_hard,
            pids: settings.pids_max,
            devices: self.devices,
            probe: ask.probe.clone().or_else(|| Some(PROBE_DEFAULT.into())).map(bytes),
            private_tmp,
            private_ipc: !ask.uses_mps,
            hidden: self.hidden(&ask).into_iter().map(bytes).collect(),
            keep_caps: ask.as_agent && settings.root_capabilities,
            nofile: settings.nofile,
            nproc: settings.nproc,
            nodes: ask.nodes.into_iter().map(bytes).collect(),
        }
    }

    /// The data directory lies below the host's `/tmp`, which tasks then see.
    pub(super) fn lies_in_tmp(&self) -> bool {
        below_tmp(&self.data_dir)
    }

    /// The limit: what was asked, or else the task's part of the host.
    fn mem_mib(&self, ask: &CageAsk) -> u64 {
        let all = self.offer.mem_mib;
        if ask.mem_mib > 0 || all == 0 {
            return ask.mem_mib;
        }
        let by_cpus = all.saturating_mul(u64::from(ask.cpus_milli)) / u64::from(self.offer.cpus_milli.max(1));
        by_cpus.max(all / MEM_PART).max(MEM_MIB_MIN).min(all)
    }

    /// What the agent keeps for itself. Other users are held off by the files' own modes.
    fn hidden(&self, ask: &CageAsk) -> Vec<PathBuf> {
        let below = |name: &str| self.data_dir.join(name);
        match (ask.as_agent, ask.as_dynamic) {
            (true, _) => ["identity", "raft", "attempts", "lease", "cache"].map(below).to_vec(),
            (false, true) => vec![self.offer.socket.clone()],
            (false, false) => Vec::new(),
        }
    }
}

/// The name of this agent's folders: drawn at its first start.
fn own_name(file: &Path) -> io::Result<String> {
    let is_name = |text: &str| {
        text.strip_prefix("rota-")
            .is_some_and(|id| id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    match fs::read_to_string(file) {
        Ok(name) if is_name(&name) => return Ok(name),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let name = format!("rota-{:016x}", rand::random::<u64>());
    fs::write(file, &name)?;
    Ok(name)
}

fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Enables the controllers for the groups below. The kernel refuses while a process sits in a group that gives away,
/// so the agent moves into a leaf first. Without controllers (they are all in version 1) nothing of this is needed.
fn give_away(parent: &Path, base: &Path, in_leaf: bool) {
    let offered = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
    let wanted: Vec<String> = ["memory", "pids", "cpu"]
        .into_iter()
        .filter(|name| offered.split_whitespace().any(|found| found == *name))
        .map(|name| format!("+{name}"))
        .collect();
    if wanted.is_empty() {
        return;
    }
    let wanted = wanted.join(" ");
    let enable = |folder: &Path| fs::write(folder.join("cgroup.subtree_control"), &wanted);
    if enable(parent).is_err() && !in_leaf {
        let leaf = parent.join(AGENT_LEAF);
        let moved = make_folder(&leaf).and_then(|()| fs::write(leaf.join("cgroup.procs"), "0"));
        let _ = moved.and_then(|()| enable(parent));
    }
    let _ = enable(base);
}

/// Whether programs can be loaded and attached here.
fn try_program(folder: &Path) -> io::Result<()> {
    make_folder(folder)?;
    let tried = fs::File::open(folder).and_then(|group| {
        let program = load_device_program(&device_program::program(&COMMON))?;
        attach_device_program(group.as_fd(), program.as_fd())
    });
    let _ = fs::remove_dir(folder);
    tried
}
