//! What a waiting job costs in memory: a million of them must fit a peer. Its own process, because it reads the
//! resident size of the process.
#![cfg(target_os = "linux")]

use rota_core::State;
use rota_protocol::ask::Ask;
use rota_protocol::command::{Command, Entry, LOG_FORMAT, Proposal};
use rota_protocol::job::{Actor, ArraySpec, JobSpec, Role};
use rota_protocol::{ClusterId, RequestId};

/// The bound for one plain job, its remembered request included, in bytes.
const JOB_BYTES_MAX: usize = 1_536;

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = text.split(' ').nth(1).expect("resident").parse().expect("number");
    pages * 4_096
}

fn spec(array: Option<ArraySpec>) -> JobSpec {
    let args = ["python", "train.py", "--config", "configs/base.yaml"];
    JobSpec {
        name: "train-resnet50".into(),
        argv: args.map(|a| a.as_bytes().to_vec()).to_vec(),
        env: vec![(b"SEED".to_vec(), b"17".to_vec())],
        workdir: b"/home/alice/project".to_vec(),
        ask: Ask { gpu_milli: 1_000, cpus_milli: 4_000, mem_mib: 16_384, ..Ask::default() },
        array,
        priority: 50,
        time_limit_ms: Some(3_600_000),
        grace_ms: None,
        retries: 0,
        uid_gid: Some((1_000, 1_000)),
        ..JobSpec::default()
    }
}

fn apply(state: &mut State, commands: Vec<(u128, Command)>) {
    let actor = Actor { tenant: "vision".into(), user: "alice".into(), role: Role::Admin };
    let proposals = commands.into_iter().map(|(request, command)| Proposal {
        request: RequestId(request),
        actor: actor.clone(),
        command,
    });
    let proposals = proposals.collect();
    let entry = Entry { format: LOG_FORMAT, at_ms: 1_000, proposals };
    state.apply(state.applied_index() + 1, &entry);
}

#[test]
fn a_waiting_job_fits_its_bound() {
    let mut state = State::new();
    let create = Command::CreateCluster {
        cluster: ClusterId(1),
        name: "c".into(),
        host_name: "h".into(),
        addr: "a:1".into(),
    };
    apply(&mut state, vec![(0, create)]);
    let before = resident_bytes();
    let jobs = 30_000;
    for batch in 0..jobs / 1_000_u128 {
        let one = |n| (batch * 1_000 + n + 1, Command::Submit { spec: spec(None) });
        apply(&mut state, (0..1_000).map(one).collect());
    }
    let each = (resident_bytes() - before) / jobs as usize;
    assert_eq!(state.jobs().count(), jobs as usize);
    println!("{each} bytes for each job");
    assert!(each <= JOB_BYTES_MAX, "{each} bytes for each job");

    // A million tasks in one array are one small value.
    let before = resident_bytes();
    let array = ArraySpec { start: 0, end: 999_999, step: 1, parallel_max: 0 };
    apply(&mut state, vec![(1 << 64, Command::Submit { spec: spec(Some(array)) })]);
    assert!(resident_bytes() - before < 1 << 20);
}
