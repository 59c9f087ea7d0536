//! A plain order becomes an order for a container runtime: arguments, environment, files, and how to remove what it
//! makes. Pure: which runtime there is and where it lies was found before (`crate::containers`).
//!
//! A container is how a task gets its files, not a wall around it: it has the host's network (a gang meets there), the
//! task's own user, no rights beyond (`no-new-privileges`, no capabilities), and the devices that were granted.
//!
//! *Invariant:* a runtime runs as the task's own user, with an environment that Rota wrote. No variable of the task is
//! in it under a name that a loader or the runtime reads, and none with its value in the arguments, which everybody can
//! read: docker and podman take values from a file that only the user may read. So nothing with higher rights, such as
//! a hook of the runtime, is told anything by the task but what it says of itself.

use rota_protocol::around::{CID_NAME, ENV_NAME, EndHook, RuntimeOrder, TaskFile};
use rota_protocol::cage::{Cage, Controller, DeviceRule, Isolation};
use rota_protocol::container::{ContainerSpec, Mount};
use rota_protocol::spool::LaunchOrder;

/// Kinds of runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// Rootless, without a daemon: the container is a child of the attempt.
    Podman,
    /// With a daemon, whose children its containers are.
    Docker,
    /// The program itself in other folders.
    Apptainer,
    /// The same, unprivileged.
    Enroot,
}

impl Runtime {
    /// In the order in which they are looked for.
    pub const ALL: [Self; 4] = [Self::Podman, Self::Apptainer, Self::Enroot, Self::Docker];

    /// The program's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
            Self::Apptainer => "apptainer",
            Self::Enroot => "enroot",
        }
    }
}

/// The runtime of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executor {
    /// Which kind.
    pub runtime: Runtime,
    /// Path of its program.
    pub program: Vec<u8>,
}

/// What a runtime's own environment may hold of the task's: where its user keeps images and sockets.
const RUNTIME_VARS: [&str; 3] = ["HOME", "USER", "LOGNAME"];
/// Where a runtime looks for its helpers.
const RUNTIME_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Beginnings of names that a loader, a shell or a runtime reads: never in a runtime's own environment.
const UNSAFE_PREFIXES: [&str; 20] = [
    "LD_",
    "GLIBC_",
    "GCONV_",
    "MALLOC_",
    "BASH",
    "SHELLOPTS",
    "PS4",
    "IFS",
    "ENV",
    "GO",
    "PATH",
    "TMP",
    "XDG_",
    "DOCKER_",
    "CONTAINER",
    "PODMAN",
    "APPTAINER",
    "SINGULARITY",
    "ENROOT",
    "REGISTRY",
];
/// The same, names as a whole.
const UNSAFE_NAMES: [&str; 7] =
    ["HOME", "USER", "LOGNAME", "STORAGE_DRIVER", "STORAGE_OPTS", "NOTIFY_SOCKET", "LISTEN_FDS"];

type Words = Vec<Vec<u8>>;
/// Name and value.
type Variable = (Vec<u8>, Vec<u8>);

fn word(text: impl Into<Vec<u8>>) -> Vec<u8> {
    text.into()
}

/// `start=end` and the like, from pieces of bytes.
fn glue(pieces: &[&[u8]]) -> Vec<u8> {
    pieces.concat()
}

impl Executor {
    /// The order by which this runtime runs what `order` would run on the host itself. `mem_mib` is what the task asked;
    /// half of it may be shared memory.
    #[must_use]
    pub fn wrap(&self, container: &ContainerSpec, mem_mib: u64, order: LaunchOrder) -> LaunchOrder {
        match self.runtime {
            Runtime::Podman | Runtime::Docker => self.engine(container, mem_mib, order),
            Runtime::Apptainer => self.apptainer(container, order),
            Runtime::Enroot => self.enroot(container, order),
        }
    }

    fn engine(&self, container: &ContainerSpec, mem_mib: u64, order: LaunchOrder) -> LaunchOrder {
        let podman = self.runtime == Runtime::Podman;
        let name = format!("rota-{}-{}", order.cluster, order.token);
        let file = |name: &str| glue(&[&order.notes_base, b".", name.as_bytes()]);
        let (env_file, inherited) = split_env(&order.env);
        let mut argv: Words = vec![self.program.clone(), word("run"), word("--rm")];
        argv.push(word(format!("--name={name}")));
        argv.push(glue(&[b"--cidfile=", &file(CID_NAME)]));
        argv.push(word("--network=host"));
        argv.push(word("--security-opt=no-new-privileges"));
        argv.push(word("--cap-drop=all"));
        argv.push(word("--log-driver=none"));
        argv.push(word(format!("--shm-size={}m", shm_mib(mem_mib))));
        if podman {
            // In the attempt's own group, so that it ends with it.
            argv.push(word("--cgroups=disabled"));
            if order.uid_gid.is_some_and(|(uid, _)| uid != 0) {
                argv.push(word("--userns=keep-id"));
            }
        } else {
            argv.push(word("--init"));
            if let Some((uid, gid)) = order.uid_gid {
                argv.push(word(format!("--user={uid}:{gid}")));
            }
        }
        argv.extend(streams(&order));
        if container.read_only {
            argv.push(word("--read-only"));
        }
        for device in order.devices.iter().filter(|device| is_nvidia(&device.0)) {
            argv.push(word(format!("--device=nvidia.com/gpu={}", device.0)));
        }
        for Bind { source, target, read_only } in binds(container, &order) {
            let options: &[u8] = if read_only { b",readonly" } else { b"" };
            argv.push(glue(&[b"--mount=type=bind,source=", &source, b",target=", &target, options]));
        }
        argv.push(glue(&[b"--workdir=", &workdir(container, &order)]));
        argv.push(glue(&[b"--env-file=", &file(ENV_NAME)]));
        for (name, _) in &inherited {
            argv.push(glue(&[b"--env=", name]));
        }
        if !container.entrypoint {
            argv.push(word("--entrypoint="));
        }
        argv.push(word(container.image.as_str()));
        argv.extend(order.argv.iter().cloned());
        let mut remove: Words = vec![self.program.clone(), word("rm"), word("--force")];
        if podman {
            remove.extend([word("--ignore"), word("--time=0")]);
        }
        remove.push(word(name));
        let env = self.own_env(&order);
        let runtime = RuntimeOrder {
            name: self.runtime.name().to_owned(),
            passes_signals: true,
            failed_status: Some(ENGINE_FAILED),
            remove: Some(EndHook { argv: remove, env: env.clone(), uid_gid: order.uid_gid }),
        };
        let file = TaskFile { name: ENV_NAME.to_owned(), bytes: env_file, private: true };
        let warning =
            order.warning.map(|warning| rota_protocol::work::Warning { leader_only: true, ..warning });
        let mut wrapped = as_runtime(order, argv, env.into_iter().chain(inherited).collect(), runtime);
        wrapped.around.files.push(file);
        wrapped.warning = warning;
        wrapped
    }

    fn apptainer(&self, container: &ContainerSpec, order: LaunchOrder) -> LaunchOrder {
        let verb = if container.entrypoint { "run" } else { "exec" };
        let mut argv: Words = vec![self.program.clone(), word(verb), word("--cleanenv"), word("--no-home")];
        argv.push(word("--no-privs"));
        if !container.read_only {
            argv.push(word("--writable-tmpfs"));
        }
        if order.devices.iter().any(|device| is_nvidia(&device.0)) {
            argv.push(word("--nv"));
        }
        for Bind { source, target, read_only } in binds(container, &order) {
            let mode: &[u8] = if read_only { b":ro" } else { b":rw" };
            argv.push(glue(&[b"--bind=", &source, b":", &target, mode]));
        }
        argv.push(glue(&[b"--pwd=", &workdir(container, &order)]));
        let is_file = container.image.starts_with('/') || container.image.contains("://");
        argv.push(word(if is_file {
            container.image.clone()
        } else {
            format!("docker://{}", container.image)
        }));
        argv.extend(order.argv.iter().cloned());
        // Under this prefix a variable is the container's alone.
        let inside = order.env.iter().map(|(name, value)| (glue(&[b"APPTAINERENV_", name]), value.clone()));
        let env = self.own_env(&order).into_iter().chain(inside).collect();
        as_runtime(order, argv, env, self.becomes_program())
    }

    fn enroot(&self, container: &ContainerSpec, order: LaunchOrder) -> LaunchOrder {
        let mut argv: Words = vec![self.program.clone(), word("start")];
        if !container.read_only {
            argv.push(word("--rw"));
        }
        for Bind { source, target, read_only } in binds(container, &order) {
            let options: &[u8] =
                if read_only { b":none:x-create=auto,bind,ro" } else { b":none:x-create=auto,bind,rw" };
            argv.push(glue(&[b"--mount=", &source, b":", &target, options]));
        }
        let safe: Vec<_> = order.env.iter().filter(|(name, _)| is_safe(name)).cloned().collect();
        for (name, _) in &safe {
            argv.extend([word("--env"), name.clone()]);
        }
        argv.push(word(container.image.as_str()));
        // It has no flag for the working directory; `env` is in every image that has a shell.
        argv.extend([word("env"), glue(&[b"--chdir=", &workdir(container, &order)])]);
        argv.extend(order.argv.iter().cloned());
        let own = self.own_env(&order);
        let more = safe.into_iter().filter(|pair| !own.contains(pair)).collect::<Vec<_>>();
        let env = own.into_iter().chain(more).collect();
        as_runtime(order, argv, env, self.becomes_program())
    }

    /// A runtime that turns into the program: signals, status and processes are the program's own.
    fn becomes_program(&self) -> RuntimeOrder {
        let name = self.runtime.name().to_owned();
        RuntimeOrder { name, passes_signals: false, failed_status: None, remove: None }
    }

    /// The runtime's own environment, with the marks by which its processes are known as the attempt's.
    fn own_env(&self, order: &LaunchOrder) -> Vec<Variable> {
        use super::env::{CLUSTER_VAR, TOKEN_VAR};
        let kept = [TOKEN_VAR, CLUSTER_VAR].into_iter().chain(RUNTIME_VARS);
        let found = |name: &str| order.env.iter().find(|(n, _)| n == name.as_bytes()).cloned();
        let mut env: Vec<Variable> = kept.filter_map(found).collect();
        env.push((word("PATH"), RUNTIME_PATH.to_vec()));
        if let Some((uid, _)) = order.uid_gid.filter(|(uid, _)| *uid != 0) {
            env.push((word("XDG_RUNTIME_DIR"), format!("/run/user/{uid}").into_bytes()));
        }
        env
    }
}

/// Status of docker and podman when they could not make a container.
const ENGINE_FAILED: u8 = 125;
/// Shared memory of a task that asked for no memory, in MiB.
const SHM_MIB_DEFAULT: u64 = 8_192;

fn shm_mib(mem_mib: u64) -> u64 {
    if mem_mib == 0 { SHM_MIB_DEFAULT } else { (mem_mib / 2).max(64) }
}

/// Cards and slices that the driver names; what else there is has no name that a runtime knows.
fn is_nvidia(uuid: &str) -> bool {
    uuid.starts_with("GPU-") || uuid.starts_with("MIG-")
}

fn as_runtime(order: LaunchOrder, argv: Words, env: Vec<Variable>, runtime: RuntimeOrder) -> LaunchOrder {
    let mut around = order.around.clone();
    let cage = cage_of_runtime(order.cage.clone(), runtime.remove.is_some());
    around.runtime = Some(runtime);
    // The job's folder is mounted by name; the runtime itself needs none of it.
    LaunchOrder { argv, env, workdir: word("/"), around, cage, ..order }
}

/// An engine reads nothing and shows no terminal unless it is told to.
fn streams(order: &LaunchOrder) -> Words {
    let terminal = order.life.session.is_some();
    let mut words = Vec::new();
    if terminal || !order.output.stdin.is_empty() {
        words.push(word("--interactive"));
    }
    if terminal {
        words.push(word("--tty"));
    }
    words
}

/// The runtime makes the view, drops the rights and filters the calls of what it runs; behind those of the attempt's own
/// cage it could not. What a control group does stays: limits, device rules, an end that nothing escapes.
fn cage_of_runtime(mut cage: Cage, makes_nodes: bool) -> Cage {
    cage.isolation = cage.isolation.min(Isolation::Basic);
    // An engine makes a `/dev` with the granted devices alone, for which it must make nodes; in it nobody may. The
    // others show the host's, behind the group's rules; a private one would need the view.
    if makes_nodes || cage.devices == DeviceRule::Folder {
        (cage.devices, cage.probe) = (DeviceRule::None, None);
        cage.groups.retain(|group| group.controller != Controller::Devices);
    }
    cage
}

struct Bind {
    source: Vec<u8>,
    target: Vec<u8>,
    read_only: bool,
}

/// What the container sees of the host: the task's notes, its working directory, and what the job names.
fn binds(container: &ContainerSpec, order: &LaunchOrder) -> Vec<Bind> {
    let same = |path: &[u8]| Bind { source: path.to_vec(), target: path.to_vec(), read_only: false };
    let mut binds = Vec::new();
    // The folder, not the files: they come and are replaced while the task runs. Nobody may list it.
    if let Some(at) = order.notes_base.iter().rposition(|byte| *byte == b'/') {
        binds.push(same(&order.notes_base[..at]));
    }
    if !order.inputs.is_empty() {
        binds.push(Bind { read_only: true, ..same(&order.inputs) });
    }
    let plain = |path: &[u8]| !path.iter().any(|byte| b",:\"'\\$\n".contains(byte));
    let named = |path: &[u8]| container.mounts.iter().any(|mount| mount.target.as_bytes() == path);
    if order.workdir != b"/" && plain(&order.workdir) && !named(&order.workdir) {
        binds.push(same(&order.workdir));
    }
    binds.extend(container.mounts.iter().map(|Mount { source, target, read_only }| Bind {
        source: word(source.as_str()),
        target: word(target.as_str()),
        read_only: *read_only,
    }));
    binds
}

fn workdir(container: &ContainerSpec, order: &LaunchOrder) -> Vec<u8> {
    container.workdir.as_ref().map_or_else(|| order.workdir.clone(), |dir| word(dir.as_str()))
}

/// The environment as the file that docker and podman read, and what such a file cannot hold (a line break) and may be
/// passed through the runtime's own environment. What can be neither is left out.
fn split_env(env: &[Variable]) -> (Vec<u8>, Vec<Variable>) {
    let (mut file, mut inherited) = (Vec::new(), Vec::new());
    for (name, value) in env {
        let in_file = !name.iter().chain(value).any(|byte| matches!(byte, b'\n' | b'\r'))
            && !name.starts_with(b"#")
            && !name.iter().any(u8::is_ascii_whitespace);
        if in_file {
            file.extend(glue(&[name, b"=", value, b"\n"]));
        } else if is_safe(name) {
            inherited.push((name.clone(), value.clone()));
        }
    }
    (file, inherited)
}

/// A name that means nothing to a loader, a shell or a runtime.
fn is_safe(name: &[u8]) -> bool {
    let plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let upper = name.to_ascii_uppercase();
    plain
        && !UNSAFE_PREFIXES.iter().any(|prefix| upper.starts_with(prefix.as_bytes()))
        && !UNSAFE_NAMES.iter().any(|unsafe_name| upper == unsafe_name.as_bytes())
}

#[cfg(test)]
#[path = "container_tests.rs"]
mod tests;
