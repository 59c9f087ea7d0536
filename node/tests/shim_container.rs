//! Attempts in containers. A recording runtime stands for each of the four: what it was told, word for word, and that
//! ends, signals and leftovers are as without one. Where podman is installed and works, the same with real containers.
#![allow(clippy::unwrap_used, reason = "what cannot be read should stop the test where it stands")]

mod shim_lab;

use rota_node::logic::container::{Executor, Runtime};
use rota_node::shim::cage::CageAsk;
use rota_protocol::Token;
use rota_protocol::api::OutputStream::{Stderr, Stdout};
use rota_protocol::container::ContainerSpec;
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::spool::LaunchOrder;
use shim_lab::{Lab, alive, kill, wait_until};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A runtime that writes down what it was told and runs the command behind the image. As docker it hands the command to
/// a process of its own, which nobody's death ends, and whose number is the container.
const FAKE: &str = r#"#!/bin/bash
here=$(dirname "$0"); kind=$(basename "$0")
printf '%s\0' "$@" >> "$here/$kind.argv.$1"
tr '\0' '\n' < /proc/$$/environ > "$here/$kind.environ.$1"
if [ "$1" = rm ]; then
    [ ! -e "$here/refuse" ] || exit 1
    for name; do :; done
    echo "$name" >> "$here/removed"
    if [ -e "$here/$name.pid" ]; then
        pid=$(cat "$here/$name.pid"); rm -f "$here/$name.pid"
        kill -KILL -- "-$pid" 2>/dev/null
        # As an engine does: it answers when the container is gone.
        while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
    fi
    exit 0
fi
[ ! -e "$here/broken" ] || { echo "cannot find the image" >&2; exit 125; }
name='' env_file='' cid=''
while [ "$1" != IMAGE ] && [ "$1" != docker://IMAGE ]; do
    case $1 in
        --name=*) name=${1#*=} ;;
        --cidfile=*) cid=${1#*=} ;;
        --env-file=*) env_file=${1#*=}; stat -c %a:%u "$env_file" > "$here/env.mode"; cp "$env_file" "$here/env.copy" ;;
    esac
    shift
done
shift
if [ "$1" = env ]; then shift 2; fi
[ -z "$cid" ] || echo 1 > "$cid"
if [ "$kind" = docker ]; then
    # The daemon of the test makes the process: not a child of the attempt.
    mkfifo "$here/$name.out"
    printf '%s\0' "$name" "$@" > "$here/request.new"; mv "$here/request.new" "$here/request"
    cat "$here/$name.out" &
    trap 'kill -TERM "$(cat "$here/$name.pid")"' TERM
    while ! [ -e "$here/$name.code" ]; do sleep 0.02; done
    wait $!
    exit "$(cat "$here/$name.code")"
fi
if [ "$kind" = podman ]; then
    "$@" &
    child=$!
    trap 'kill -TERM $child' TERM
    wait $child; code=$?
    while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
    exit $code
fi
exec "$@"
"#;

/// The daemon: runs what is asked in a session of its own.
const DAEMON: &str = r#"
here=$1
while :; do
    if [ -e "$here/request" ]; then
        mapfile -d '' -t words < "$here/request"; rm -f "$here/request"
        name=${words[0]}
        ( setsid bash -c 'echo $$ > "$0/$1.pid.new"; mv "$0/$1.pid.new" "$0/$1.pid"; exec "${@:2}" > "$0/$1.out" 2>&1' \
            "$here" "$name" "${words[@]:1}"; echo $? > "$here/$name.code.new"; mv "$here/$name.code.new" "$here/$name.code" ) &
    fi
    sleep 0.01
done
"#;

struct Fake {
    dir: tempfile::TempDir,
    executor: Executor,
    daemon: Option<std::process::Child>,
}

impl Fake {
    fn new(runtime: Runtime) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(runtime.name());
        std::fs::write(&program, FAKE).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let daemon = (runtime == Runtime::Docker).then(|| {
            let mut command = Command::new("bash");
            command.args(["-c", DAEMON, "daemon"]).arg(dir.path()).stdin(std::process::Stdio::null());
            command.stderr(std::process::Stdio::null());
            command.spawn().unwrap()
        });
        let executor = Executor { runtime, program: program.into_os_string().into_encoded_bytes() };
        Self { dir, executor, daemon }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn order(&self, lab: &Lab, token: u64, script: &str) -> LaunchOrder {
        let order = lab.order(token, &["/bin/sh", "-c", script]);
        let container = ContainerSpec { image: "IMAGE".into(), ..ContainerSpec::default() };
        self.executor.wrap(&container, 0, order)
    }

    fn removes(&self) -> bool {
        matches!(self.executor.runtime, Runtime::Podman | Runtime::Docker)
    }

    fn is_removed(&self, lab: &Lab, token: u64) -> bool {
        let name = format!("rota-{}-{token}", lab.cluster);
        self.read("removed").lines().any(|line| line == name)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn hooks_left(lab: &Lab) -> usize {
    let names = std::fs::read_dir(lab.data.join("attempts")).unwrap();
    names.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "remove")).count()
}

fn notes_left(lab: &Lab) -> usize {
    std::fs::read_dir(lab.data.join("tasks")).unwrap().count()
}

#[tokio::test]
async fn each_runtime_is_told_the_order_and_the_program_ends_as_it_does() {
    for runtime in Runtime::ALL {
        let (mut lab, fake) = (Lab::new().await, Fake::new(runtime));
        let mut secret = fake.order(&lab, 1, "echo out; echo err >&2; exit 7");
        // The recording knows no variables of its own but those of the order.
        if let Some(file) = secret.around.files.first_mut() {
            file.bytes.extend(b"SECRET=s3cret\n");
        }
        let argv = secret.argv.clone();
        lab.host.launch(secret).await.unwrap();
        let record = lab.ended(1).await;
        assert_eq!(record.end, AttemptEnd::Exited { code: 7 }, "{runtime:?}");
        let out = String::from_utf8(lab.output(1, Stdout).await).unwrap();
        let err = String::from_utf8(lab.output(1, Stderr).await).unwrap();
        assert_eq!(format!("{out}{err}"), "out\nerr\n", "{runtime:?}");
        let verb = String::from_utf8(argv[1].clone()).unwrap();
        let told = std::fs::read(fake.path(&format!("{}.argv.{verb}", runtime.name()))).unwrap();
        let told: Vec<&[u8]> = told.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
        let meant: Vec<&[u8]> = argv[1..].iter().map(Vec::as_slice).filter(|word| !word.is_empty()).collect();
        assert_eq!(told, meant, "{runtime:?}");
        let environ = fake.read(&format!("{}.environ.{verb}", runtime.name()));
        assert!(environ.contains("ROTA_TOKEN=1\n") && !environ.contains("s3cret"), "{environ}");
        if fake.removes() {
            let uid = rustix::process::geteuid().as_raw();
            assert_eq!(fake.read("env.mode"), format!("600:{uid}\n"));
            assert!(
                fake.read("env.copy").contains("LAB=1\n")
                    && fake.read("env.copy").contains("SECRET=s3cret\n")
            );
        }
        assert_eq!((fake.is_removed(&lab, 1), hooks_left(&lab), notes_left(&lab)), (fake.removes(), 0, 0));
    }
}

#[tokio::test]
async fn term_reaches_the_program_once_and_kill_ends_what_ignores_it() {
    for runtime in Runtime::ALL {
        let (mut lab, fake) = (Lab::new().await, Fake::new(runtime));
        let polite = "trap 'n=$((n+1)); echo term$n' TERM; echo ready; while [ -z \"$n\" ]; do sleep 0.05; done; sleep 0.1; exit 4";
        let order = LaunchOrder { grace_ms: 10_000, ..fake.order(&lab, 1, polite) };
        lab.host.launch(order).await.unwrap();
        lab.says(1, b"ready\n").await;
        lab.host.end(Token(1), EndReason::Cancel).await;
        lab.ended(1).await;
        assert_eq!(lab.output(1, Stdout).await, b"ready\nterm1\n", "{runtime:?}");

        let deaf = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
        lab.host.launch(fake.order(&lab, 2, deaf)).await.unwrap();
        lab.says(2, b"ready\n").await;
        let pid = std::fs::read_to_string(fake.path(&format!("rota-{}-2.pid", lab.cluster))).ok();
        lab.host.end(Token(2), EndReason::Cancel).await;
        assert_eq!(lab.ended(2).await.end, AttemptEnd::Cancelled, "{runtime:?}");
        assert!(lab.processes(2).is_empty(), "{runtime:?}");
        if let Some(pid) = pid.and_then(|text| text.trim().parse().ok()) {
            assert!(!alive(pid), "the daemon's process is gone before the end is told");
        }
        assert_eq!((fake.is_removed(&lab, 2), hooks_left(&lab), notes_left(&lab)), (fake.removes(), 0, 0));
    }
}

#[tokio::test]
async fn what_the_runtime_cannot_make_is_the_hosts_fault() {
    for runtime in [Runtime::Podman, Runtime::Docker] {
        let (mut lab, fake) = (Lab::new().await, Fake::new(runtime));
        std::fs::write(fake.path("broken"), "").unwrap();
        lab.host.launch(fake.order(&lab, 1, "exit 0")).await.unwrap();
        match lab.ended(1).await.end {
            AttemptEnd::LaunchFailed { reason } => {
                assert!(
                    reason.contains(runtime.name()) && reason.contains("cannot find the image"),
                    "{reason}"
                );
            }
            other => panic!("{other:?}"),
        }
        std::fs::remove_file(fake.path("broken")).unwrap();
        // A program that ends so itself is no fault of the host.
        lab.host.launch(fake.order(&lab, 2, "exit 125")).await.unwrap();
        assert_eq!(lab.ended(2).await.end, AttemptEnd::Exited { code: 125 });
        // A runtime that is gone since it was found.
        std::fs::remove_file(fake.path(runtime.name())).unwrap();
        lab.host.launch(fake.order(&lab, 3, "exit 0")).await.unwrap();
        assert!(matches!(lab.ended(3).await.end, AttemptEnd::LaunchFailed { .. }));
        assert_eq!((hooks_left(&lab), notes_left(&lab)), (0, 0));
    }
}

/// An engine that can make no container can remove none either, as one whose configuration its user may not read: that
/// holds nobody's devices for ever.
#[tokio::test]
async fn an_engine_that_refuses_everything_ends_the_attempt() {
    for runtime in [Runtime::Podman, Runtime::Docker] {
        let (mut lab, fake) = (Lab::new().await, Fake::new(runtime));
        std::fs::write(fake.path("broken"), "").unwrap();
        std::fs::write(fake.path("refuse"), "").unwrap();
        lab.host.launch(fake.order(&lab, 1, "exit 0")).await.unwrap();
        assert!(matches!(lab.ended(1).await.end, AttemptEnd::LaunchFailed { .. }));
        assert_eq!((hooks_left(&lab), notes_left(&lab)), (0, 0));
    }
}

/// Nothing that an attempt held is free while its container may be there: a refusing daemon is asked again.
#[tokio::test]
async fn a_removal_is_tried_until_it_succeeds() {
    let (mut lab, fake) = (Lab::new().await, Fake::new(Runtime::Docker));
    std::fs::write(fake.path("refuse"), "").unwrap();
    lab.host.launch(fake.order(&lab, 1, "exit 0")).await.unwrap();
    loop {
        match lab.note().await {
            rota_node::shim::ShimNote::Stuck { token, .. } => {
                assert_eq!(token, Token(1));
                break;
            }
            rota_node::shim::ShimNote::Started { .. } => {}
            other => panic!("the end was told while the container was there: {other:?}"),
        }
    }
    std::fs::remove_file(fake.path("refuse")).unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Exited { code: 0 });
    assert!(fake.is_removed(&lab, 1));
}

/// The daemon's process outlives shim and agent; the next agent removes it before the attempt is over.
#[tokio::test]
async fn leftovers_go_after_the_deaths_of_agent_and_shim() {
    for agent_dies in [false, true] {
        let (mut lab, fake) = (Lab::new().await, Fake::new(Runtime::Docker));
        lab.host.launch(fake.order(&lab, 1, "echo ready; while :; do sleep 0.05; done")).await.unwrap();
        lab.says(1, b"ready\n").await;
        let client = lab.started_or_local(1).await;
        let shim = shim_lab::parent(client);
        let pid: i32 = fake.read(&format!("rota-{}-1.pid", lab.cluster)).trim().parse().unwrap();
        if agent_dies {
            let remains = lab.kill_agent().await;
            kill(shim);
            wait_until("the shim is gone", || !alive(shim)).await;
            assert!(alive(pid), "nobody removed it");
            lab = Lab::open(remains, shim_lab::LEASE_MS).await;
            assert!(lab.adopted.contains_key(&Token(1)));
        } else {
            kill(shim);
            assert!(matches!(lab.ended(1).await.end, AttemptEnd::Vanished { .. }));
        }
        assert!(!alive(pid) && fake.is_removed(&lab, 1), "agent_dies={agent_dies}");
        assert_eq!((hooks_left(&lab), notes_left(&lab)), (0, 0));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Real containers

/// A folder with podman's store and a test image of busybox alone; a wrapper that uses them. None, said aloud, where
/// podman or a static busybox is missing or this machine lets it make no containers.
struct Podman {
    dir: tempfile::TempDir,
    executor: Executor,
}

const IMAGE: &str = "localhost/rota-test:1";

impl Podman {
    fn new() -> Option<Self> {
        let skipped = |why: &str| {
            // Past the capture of the harness, behind what is there, which may be a file.
            let stderr = std::fs::OpenOptions::new().append(true).open("/dev/stderr");
            let _ = stderr.and_then(|mut stderr| writeln!(stderr, "SKIPPED: real containers: {why}"));
            None
        };
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
        let Some(busybox) = busybox else { return skipped("no busybox") };
        if !Path::new("/usr/bin/podman").exists() {
            return skipped("no podman");
        }
        let dir = tempfile::Builder::new().prefix("rp").tempdir().unwrap();
        let at = dir.path().display();
        let conf = "[containers]\ndefault_ulimits=[\"nofile=1024:1024\",\"nproc=1024:1024\"]\n";
        std::fs::write(dir.path().join("containers.conf"), conf).unwrap();
        // A store of its own; and a container's runtime refuses machines with both versions of control groups, of which
        // it would use neither here.
        let wrapper = format!(
            "#!/bin/sh\nexport CONTAINERS_CONF={at}/containers.conf\nexec unshare -m sh -c 'umount /sys/fs/cgroup/unified \
             2>/dev/null; exec /usr/bin/podman --storage-driver=vfs --root={at}/store --runroot={at}/run \
             --tmpdir={at}/tmp \"$@\"' podman \"$@\"\n"
        );
        let program = dir.path().join("podman");
        std::fs::write(&program, wrapper).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let make = format!(
            "set -e; mkdir -p {at}/root/bin {at}/root/tmp {at}/root/etc; cp {busybox} {at}/root/bin/busybox; \
             for name in sh echo sleep cat id env ls true touch; do ln -s busybox {at}/root/bin/$name; done; \
             tar -C {at}/root -c . | {at}/podman import - {IMAGE}; \
             {at}/podman run --rm --network=host --cgroups=disabled --cap-drop=all --security-opt=no-new-privileges \
             {IMAGE} true"
        );
        let made = Command::new("bash").args(["-c", &make]).output().unwrap();
        if !made.status.success() {
            return skipped(&String::from_utf8_lossy(&made.stderr));
        }
        let program = program.into_os_string().into_encoded_bytes();
        Some(Self { dir, executor: Executor { runtime: Runtime::Podman, program } })
    }

    fn order(&self, lab: &Lab, token: u64, script: &str) -> LaunchOrder {
        let container = ContainerSpec { image: IMAGE.into(), ..ContainerSpec::default() };
        let ask =
            CageAsk { workdir: "/tmp".into(), as_agent: true, in_container: true, ..CageAsk::default() };
        let cage = lab.host.cage(Token(token), ask);
        let order = LaunchOrder { grace_ms: 5_000, cage, ..lab.order(token, &["sh", "-c", script]) };
        self.executor.wrap(&container, 0, order)
    }

    fn containers(&self) -> String {
        let out = Command::new(self.dir.path().join("podman")).args(["ps", "-aq"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }
}

#[tokio::test]
async fn the_same_with_real_containers() {
    let Some(podman) = Podman::new() else { return };
    let mut lab = Lab::new().await;
    // Its own files, the job's variables and notes, no rights, its status.
    let script = r#"ls /; echo "[$LAB] $ROTA_TOKEN"; touch "$ROTA_REQUEUE_FILE" && echo noted; echo err >&2
        while read name value; do [ "$name" != CapEff: ] || echo "caps $value"; done < /proc/self/status; exit 9"#;
    lab.host.launch(podman.order(&lab, 1, script)).await.unwrap();
    let end = lab.ended(1).await.end;
    let out = String::from_utf8(lab.output(1, Stdout).await).unwrap();
    let err = String::from_utf8(lab.output(1, Stderr).await).unwrap();
    assert_eq!(end, AttemptEnd::Requeued { code: 9 }, "{out}{err}");
    assert!(out.contains("bin\n") && out.contains("[1] 1\nnoted\n") && !out.contains("boot"), "{out}");
    assert!(out.contains("caps 0000000000000000\n") && err.ends_with("err\n"), "{out}{err}");

    // A signal reaches the program, once.
    let polite = "n=0; trap 'n=$((n+1)); echo term$n' TERM; echo ready; while [ $n = 0 ]; do sleep 0.1; done; sleep 0.3; exit 4";
    lab.host.launch(podman.order(&lab, 2, polite)).await.unwrap();
    lab.says(2, b"ready\n").await;
    lab.host.end(Token(2), EndReason::Cancel).await;
    lab.ended(2).await;
    assert_eq!(lab.output(2, Stdout).await, b"ready\nterm1\n");

    // One that does not listen is killed, and nothing is left of it.
    let deaf = LaunchOrder {
        grace_ms: 200,
        ..podman.order(&lab, 3, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    };
    lab.host.launch(deaf).await.unwrap();
    lab.says(3, b"ready\n").await;
    lab.host.end(Token(3), EndReason::Cancel).await;
    assert_eq!(lab.ended(3).await.end, AttemptEnd::Cancelled);
    assert_eq!((lab.processes(3), podman.containers().as_str()), (vec![], ""));

    // An image that is not there.
    let mut missing = podman.order(&lab, 4, "true");
    let at = missing.argv.iter().position(|word| word == IMAGE.as_bytes()).unwrap();
    missing.argv[at] = b"localhost/no-such:1".to_vec();
    lab.host.launch(missing).await.unwrap();
    assert!(matches!(lab.ended(4).await.end, AttemptEnd::LaunchFailed { .. }));

    // The deaths of agent and shim.
    lab.host.launch(podman.order(&lab, 5, "echo ready; while :; do sleep 0.1; done")).await.unwrap();
    lab.says(5, b"ready\n").await;
    let client = lab.started_or_local(5).await;
    let shim = shim_lab::parent(client);
    let remains = lab.kill_agent().await;
    kill(shim);
    wait_until("the shim is gone", || !alive(shim)).await;
    let lab = Lab::open(remains, shim_lab::LEASE_MS).await;
    assert!(lab.adopted.contains_key(&Token(5)));
    assert_eq!((lab.processes(5), podman.containers().as_str()), (vec![], ""));
    assert_eq!((hooks_left(&lab), notes_left(&lab)), (0, 0));
}
