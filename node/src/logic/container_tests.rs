//! Tests of orders for container runtimes: the whole of each, word for word, and that nothing of a task's environment
//! comes where others could read it or something could believe it.

use super::*;
use rota_protocol::work::Warning;
use rota_protocol::{ClusterId, DeviceUuid, HostId, JobId, LeaseEpoch, TaskId, Token};

const NOTES: &str = "/data/tasks/77-ab";

fn pair(name: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (name.as_bytes().to_vec(), value.as_bytes().to_vec())
}

fn order(env: &[(&str, &str)]) -> LaunchOrder {
    LaunchOrder {
        cluster: ClusterId(0xab),
        host: HostId(2),
        epoch: LeaseEpoch(1),
        token: Token(77),
        task: TaskId { job: JobId(5), index: 3 },
        argv: vec![word("python"), word("a b"), word("--x=$Y")],
        env: env.iter().map(|(name, value)| pair(name, value)).collect(),
        workdir: word("/home/ada"),
        uid_gid: Some((1_000, 1_001)),
        devices: vec![DeviceUuid("GPU-1".into()), DeviceUuid("SIM-2".into()), DeviceUuid("MIG-3".into())],
        time_limit_ms: None,
        grace_ms: 200,
        kill_budget_ms: 600,
        lease_path: word("/data/lease"),
        notes_base: word(NOTES),
        warning: Some(Warning { signal: 10, before_ms: 1, leader_only: false }),
        requeue_status: None,
        gang: Vec::new(),
        output: rota_protocol::output::OutputOrder::default(),
        life: rota_protocol::session::LifeOrder::default(),
        around: rota_protocol::around::Around::default(),
        inputs: Vec::new(),
        cage: rota_protocol::cage::Cage::default(),
    }
}

fn usual() -> LaunchOrder {
    order(&[("ROTA_TOKEN", "77"), ("ROTA_CLUSTER", "ab"), ("HOME", "/home/ada"), ("SECRET", "s3cret")])
}

fn container() -> ContainerSpec {
    let mount = |source: &str, target: &str, read_only| Mount {
        source: source.into(),
        target: target.into(),
        read_only,
    };
    ContainerSpec {
        image: "registry/train:7".into(),
        mounts: vec![mount("/data/set", "/in", true), mount("/out", "/out", false)],
        ..ContainerSpec::default()
    }
}

fn wrap(runtime: Runtime, container: &ContainerSpec, order: LaunchOrder) -> LaunchOrder {
    let program = format!("/usr/bin/{}", runtime.name()).into_bytes();
    Executor { runtime, program }.wrap(container, 4_096, order)
}

fn lines(words: &[Vec<u8>]) -> Vec<String> {
    words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn own_env(order: &LaunchOrder) -> Vec<String> {
    let line = |(name, value): &Variable| [name.as_slice(), b"=", value].concat();
    lines(&order.env.iter().map(line).collect::<Words>())
}

fn of_podman_or_docker(runtime: Runtime, own: &[&str]) -> Vec<String> {
    let name = ClusterId(0xab);
    let mut words: Vec<String> = vec![
        format!("/usr/bin/{}", runtime.name()),
        "run".into(),
        "--rm".into(),
        format!("--name=rota-{name}-77"),
        format!("--cidfile={NOTES}.cid"),
    ];
    words.extend(
        [
            "--network=host",
            "--security-opt=no-new-privileges",
            "--cap-drop=all",
            "--log-driver=none",
            "--shm-size=2048m",
        ]
        .map(String::from),
    );
    words.extend(own.iter().map(|word| (*word).to_owned()));
    words.extend(
        [
            "--device=nvidia.com/gpu=GPU-1",
            "--device=nvidia.com/gpu=MIG-3",
            "--mount=type=bind,source=/data/tasks,target=/data/tasks",
            "--mount=type=bind,source=/home/ada,target=/home/ada",
            "--mount=type=bind,source=/data/set,target=/in,readonly",
            "--mount=type=bind,source=/out,target=/out",
            "--workdir=/home/ada",
            "--env-file=/data/tasks/77-ab.env",
            "--entrypoint=",
            "registry/train:7",
            "python",
            "a b",
            "--x=$Y",
        ]
        .map(String::from),
    );
    words
}

#[test]
fn podman_and_docker_word_for_word() {
    let podman = wrap(Runtime::Podman, &container(), usual());
    let own = ["--cgroups=disabled", "--userns=keep-id"];
    assert_eq!(lines(&podman.argv), of_podman_or_docker(Runtime::Podman, &own));
    let docker = wrap(Runtime::Docker, &container(), usual());
    assert_eq!(lines(&docker.argv), of_podman_or_docker(Runtime::Docker, &["--init", "--user=1000:1001"]));
    let name = format!("rota-{}-77", ClusterId(0xab));
    for (wrapped, remove) in [
        (&podman, vec!["/usr/bin/podman", "rm", "--force", "--ignore", "--time=0", &name]),
        (&docker, vec!["/usr/bin/docker", "rm", "--force", &name]),
    ] {
        let runtime = wrapped.around.runtime.as_ref().unwrap();
        assert!(runtime.passes_signals && runtime.failed_status == Some(125));
        let hook = runtime.remove.as_ref().unwrap();
        assert_eq!(
            (lines(&hook.argv), hook.uid_gid),
            (remove.into_iter().map(String::from).collect(), Some((1_000, 1_001)))
        );
        assert_eq!(hook.env, wrapped.env, "the same user's runtime");
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let expected =
            ["ROTA_TOKEN=77", "ROTA_CLUSTER=ab", "HOME=/home/ada", path, "XDG_RUNTIME_DIR=/run/user/1000"];
        assert_eq!(own_env(wrapped), expected);
        let file = &wrapped.around.files[0];
        assert_eq!((file.name.as_str(), file.private), ("env", true));
        assert_eq!(
            String::from_utf8(file.bytes.clone()).unwrap(),
            "ROTA_TOKEN=77\nROTA_CLUSTER=ab\nHOME=/home/ada\nSECRET=s3cret\n"
        );
        assert_eq!(wrapped.warning.map(|warning| warning.leader_only), Some(true));
        assert_eq!((wrapped.workdir.as_slice(), wrapped.uid_gid), (b"/".as_slice(), Some((1_000, 1_001))));
    }
}

#[test]
fn inputs_are_seen_at_their_path_and_cannot_be_written() {
    let with = || LaunchOrder { inputs: word("/data/inputs/77-ab"), ..usual() };
    for (runtime, bound) in [
        (Runtime::Podman, "--mount=type=bind,source=/data/inputs/77-ab,target=/data/inputs/77-ab,readonly"),
        (Runtime::Apptainer, "--bind=/data/inputs/77-ab:/data/inputs/77-ab:ro"),
        (Runtime::Enroot, "--mount=/data/inputs/77-ab:/data/inputs/77-ab:none:x-create=auto,bind,ro"),
    ] {
        let wrapped = wrap(runtime, &container(), with());
        assert!(lines(&wrapped.argv).iter().any(|argument| argument == bound), "{:?}", lines(&wrapped.argv));
        assert_eq!(wrapped.inputs, with().inputs);
    }
}

#[test]
fn apptainer_and_enroot_word_for_word() {
    let apptainer = wrap(Runtime::Apptainer, &container(), usual());
    assert_eq!(
        lines(&apptainer.argv),
        [
            "/usr/bin/apptainer",
            "exec",
            "--cleanenv",
            "--no-home",
            "--no-privs",
            "--writable-tmpfs",
            "--nv",
            "--bind=/data/tasks:/data/tasks:rw",
            "--bind=/home/ada:/home/ada:rw",
            "--bind=/data/set:/in:ro",
            "--bind=/out:/out:rw",
            "--pwd=/home/ada",
            "docker://registry/train:7",
            "python",
            "a b",
            "--x=$Y",
        ]
    );
    assert!(own_env(&apptainer).contains(&"APPTAINERENV_SECRET=s3cret".to_owned()));
    let enroot = wrap(Runtime::Enroot, &container(), usual());
    assert_eq!(
        lines(&enroot.argv),
        [
            "/usr/bin/enroot",
            "start",
            "--rw",
            "--mount=/data/tasks:/data/tasks:none:x-create=auto,bind,rw",
            "--mount=/home/ada:/home/ada:none:x-create=auto,bind,rw",
            "--mount=/data/set:/in:none:x-create=auto,bind,ro",
            "--mount=/out:/out:none:x-create=auto,bind,rw",
            "--env",
            "ROTA_TOKEN",
            "--env",
            "ROTA_CLUSTER",
            "--env",
            "SECRET",
            "registry/train:7",
            "env",
            "--chdir=/home/ada",
            "python",
            "a b",
            "--x=$Y",
        ]
    );
    for wrapped in [apptainer, enroot] {
        let runtime = wrapped.around.runtime.unwrap();
        assert!(!runtime.passes_signals && runtime.remove.is_none() && runtime.failed_status.is_none());
        assert_eq!(wrapped.warning.map(|warning| warning.leader_only), Some(false));
    }
}

#[test]
fn what_a_job_says_of_its_container_is_passed_on() {
    let said = ContainerSpec {
        image: "/images/x.sif".into(),
        workdir: Some("/w".into()),
        entrypoint: true,
        read_only: true,
        mounts: Vec::new(),
    };
    let has = |runtime, word: &str| lines(&wrap(runtime, &said, usual()).argv).iter().any(|w| w == word);
    for runtime in [Runtime::Podman, Runtime::Docker] {
        assert!(
            has(runtime, "--read-only") && has(runtime, "--workdir=/w") && !has(runtime, "--entrypoint=")
        );
    }
    assert!(has(Runtime::Apptainer, "run") && !has(Runtime::Apptainer, "--writable-tmpfs"));
    assert!(has(Runtime::Apptainer, "/images/x.sif"), "a file is no reference");
    assert!(!has(Runtime::Enroot, "--rw"));
    // Nothing of the host's root is mounted for a job that has no folder, and root is mapped to itself.
    let root = LaunchOrder { workdir: word("/"), uid_gid: None, devices: Vec::new(), ..usual() };
    let words = lines(&wrap(Runtime::Podman, &container(), root).argv);
    assert!(
        !words
            .iter()
            .any(|w| w.contains("source=/,") || w.starts_with("--userns") || w.starts_with("--device"))
    );
}

/// A job's input and its terminal are the program's, not the engine's alone.
#[test]
fn an_engine_is_told_of_input_and_terminal() {
    let has = |order: LaunchOrder, word: &str| {
        lines(&wrap(Runtime::Podman, &container(), order).argv).iter().any(|said| said == word)
    };
    let mut typed = usual();
    typed.output.stdin = vec![b'x'];
    assert!(has(typed.clone(), "--interactive") && !has(typed, "--tty"));
    assert!(!has(usual(), "--interactive") && !has(usual(), "--tty"));
    let size = rota_protocol::session::TerminalSize { rows: 24, cols: 80 };
    let mut shown = usual();
    shown.life.session = Some(rota_protocol::session::SessionSpec { size, hold_ms: None });
    assert!(has(shown.clone(), "--interactive") && has(shown, "--tty"));
}

/// The runtime makes a view of its own: it must be let, and only what a control group does stays.
#[test]
fn a_runtime_is_caged_by_its_group_alone() {
    let mut order = usual();
    order.cage.isolation = Isolation::Full;
    (order.cage.devices, order.cage.probe, order.cage.mem_mib) =
        (DeviceRule::Folder, Some(word("/dev/x")), 7);
    let cage = wrap(Runtime::Podman, &container(), order.clone()).cage;
    assert_eq!((cage.isolation, cage.devices, cage.probe), (Isolation::Basic, DeviceRule::None, None));
    assert_eq!(cage.mem_mib, 7);
    order.cage.isolation = Isolation::None;
    order.cage.devices = DeviceRule::Group;
    let group = |controller| rota_protocol::cage::Group { controller, path: word("/g") };
    order.cage.groups = vec![group(Controller::Memory), group(Controller::Devices)];
    for (runtime, devices, groups) in
        [(Runtime::Docker, DeviceRule::None, 1), (Runtime::Enroot, DeviceRule::Group, 2)]
    {
        let cage = wrap(runtime, &container(), order.clone()).cage;
        assert_eq!((cage.isolation, cage.devices, cage.groups.len()), (Isolation::None, devices, groups));
    }
}

/// S10, S12: values are in no arguments, and nothing that a loader or a runtime reads is in a runtime's own environment.
#[test]
fn nothing_of_the_tasks_environment_is_read_by_the_runtime() {
    let hostile = [
        ("LD_PRELOAD", "/tmp/evil.so"),
        ("LD_AUDIT", "/tmp/evil.so"),
        ("PATH", "/tmp/evil"),
        ("BASH_ENV", "/tmp/evil"),
        ("DOCKER_HOST", "tcp://evil"),
        ("CONTAINERS_CONF", "/tmp/evil"),
        ("XDG_CONFIG_HOME", "/tmp/evil"),
        ("APPTAINER_BIND", "/etc"),
        ("SINGULARITY_BIND", "/etc"),
        ("ENROOT_CONFIG_PATH", "/tmp/evil"),
        ("GODEBUG", "evil"),
        ("TMPDIR", "/tmp/evil"),
        ("GLIBC_TUNABLES", "evil"),
        ("ld_preload", "/tmp/evil.so"),
    ];
    let with_breaks: Vec<(String, String)> =
        hostile.iter().map(|(name, value)| ((*name).to_owned(), format!("{value}\nevil"))).collect();
    let broken: Vec<(&str, &str)> = with_breaks.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    for env in [hostile.to_vec(), broken] {
        for runtime in Runtime::ALL {
            let wrapped = wrap(runtime, &container(), order(&env));
            for said in lines(&wrapped.argv) {
                assert!(!said.contains("evil"), "{runtime:?}: {said}");
            }
            for said in own_env(&wrapped) {
                let prefixed = said.starts_with("APPTAINERENV_");
                assert!(prefixed || !said.contains("evil"), "{runtime:?}: {said}");
            }
        }
    }
    let kept = wrap(Runtime::Docker, &container(), order(&hostile)).around.files.remove(0).bytes;
    assert!(
        String::from_utf8(kept).unwrap().starts_with("LD_PRELOAD=/tmp/evil.so\n"),
        "inside it is the user's own"
    );
}

/// A line break would end the line of a file and begin another variable.
#[test]
fn a_line_break_makes_no_further_variable() {
    let env =
        [("A", "1\nLD_PRELOAD=x"), ("B C", "2"), ("#D", "3"), ("E", "4=5"), ("F\nG", "6"), ("SAFE", "7\n8")];
    let wrapped = wrap(Runtime::Podman, &container(), order(&env));
    let file = String::from_utf8(wrapped.around.files[0].bytes.clone()).unwrap();
    assert_eq!(file, "E=4=5\n");
    let words = lines(&wrapped.argv);
    let by_name: Vec<_> = words.iter().filter(|word| word.starts_with("--env=")).collect();
    assert_eq!(by_name, ["--env=A", "--env=SAFE"]);
    assert!(own_env(&wrapped).contains(&"SAFE=7\n8".to_owned()));
}

/// A folder whose name would be more than a name to a runtime is not mounted; the job then ends in words of the runtime.
#[test]
fn a_folder_with_signs_of_a_list_is_not_mounted() {
    let odd = LaunchOrder { workdir: word("/home/a,source=/etc"), ..usual() };
    for runtime in Runtime::ALL {
        let words = lines(&wrap(runtime, &container(), odd.clone()).argv);
        assert!(
            !words
                .iter()
                .any(|word| word.contains("source=/etc") && !word.contains("dir=") && !word.contains("pwd="))
        );
    }
}
