//! The environment of a task: the user's variables, and Rota's own, which nobody overrides.
//!
//! | always | |
//! |---|---|
//! | `CUDA_VISIBLE_DEVICES`, `NVIDIA_VISIBLE_DEVICES` | UUIDs of the granted NVIDIA cards and slices; empty, `void` for none |
//! | `ROCR_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` | on hosts with AMD cards: UUIDs of the granted ones, and their numbers among those |
//! | `USER`, `LOGNAME` | who submitted the job, unless the job says otherwise |
//! | `ROTA_OTHER_DEVICES` | UUIDs of all other granted devices (FPGAs, what an operator described) |
//! | `ROTA_JOB_ID`, `ROTA_TASK_INDEX`, `ROTA_TOKEN`, `ROTA_CLUSTER`, `ROTA_HOST` | who runs where |
//! | `ROTA_ATTEMPT`, `ROTA_RESTART_REASON` | its number, from 1; why the attempt before it ended, in a word (`preempt`, `drain`, `move`, `reclaim`, `ceiling`, `failed`, `time_limit`, `host_lost`, `launch_failed`, `requeue`, `gang`, `shutdown`, `device`, `program`, `ended`), empty for the first |
//! | `ROTA_GPUS`, `ROTA_GPU_MILLI`, `ROTA_VRAM_MIB` | granted cards and slices, cards in thousandths, their memory in MiB |
//! | `ROTA_ALTERNATIVE` | which of the job's asks was granted: 0 for the first |
//! | `ROTA_NOTICE_FILE` | from a warning, or TERM, on: lines `reason=` (`time_limit`, `preempt`, `drain`, `move`, `reclaim`, `ceiling`, `cancel`, `gang`, `device`, `program`, `fenced`, `shutdown`), `term_ms=`, `deadline_ms=` (TERM and KILL, ms since the epoch) |
//! | `ROTA_INPUTS` | for a job with inputs: the folder where they are, by their names; read-only |
//! | `ROTA_REQUEUE_FILE` | there at the end of the first process: the task is queued again |
//!
//! | share of a card | |
//! |---|---|
//! | `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` | its bounds, as the driver's sharing service reads them |
//! | `CUDA_MPS_PIPE_DIRECTORY` | where that service listens, if the job asked for it |
//!
//! | part of a gang | |
//! |---|---|
//! | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `NODE_RANK`, each also with `ROTA_` in front | its place among the parts that started together; each part sees its own cards only, numbered from 0 |
//! | `NNODES`, `GROUP_RANK`, also with `ROTA_` in front (`ROTA_NODES`); `ROTA_GANG_HOSTS` | number of hosts, and of this one among them; addresses in the order of ranks, apart by commas |
//! | `MASTER_ADDR`, `MASTER_PORT`, `ROTA_MASTER`, `ROTA_PORT_FIRST`, `ROTA_PORT_COUNT` | where rank 0 listens (also as `host:port`, with brackets for IPv6), and the ports there that are the gang's own |
//! | `PET_NNODES`, `PET_NODE_RANK`, `PET_NPROC_PER_NODE`, `PET_MASTER_ADDR`, `PET_MASTER_PORT`; `PET_RDZV_*` for elastic gangs | what `torchrun` reads instead of flags, one `torchrun` a part; a `PET_NPROC_PER_NODE` of the user's own stays |
//! | `ROTA_HOSTFILE`, `ROTA_MACHINEFILE` | files with the hosts at the start: `host slots=n` for `mpirun --hostfile`, `host:n` for `mpiexec -f` |
//! | `ROTA_GANG_FILE` | the present parts: lines `size=`, `min=`, `max=`, `indices=`, `hosts=`, `names=`, `master_addr=`, `master_port=` |
//! | `SLURM_PROCID`, `SLURM_LOCALID`, `SLURM_NODEID`, `SLURM_NODELIST` | the same for scripts written for Slurm |

use super::gang::Meeting;
use super::granted::Granted;
use rota_protocol::around::{HOSTS_NAME, MACHINES_NAME};
use rota_protocol::spool::{GANG_NAME, NOTICE_NAME, REQUEUE_NAME};
use rota_protocol::{ClusterId, HostId, TaskId, Token};

/// Carries the attempt's fencing token; also how a process of an attempt is recognised.
pub const TOKEN_VAR: &str = "ROTA_TOKEN";
/// Carries the cluster's id; with the token it is unique on a machine that runs several peers.
pub const CLUSTER_VAR: &str = "ROTA_CLUSTER";

/// Where a task finds its inputs, if its job names some.
pub const INPUTS_VAR: &str = "ROTA_INPUTS";

/// A share of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Of its cores, in thousandths.
    pub milli: u32,
    /// Of its memory, in MiB.
    pub vram_mib: u64,
}

/// Where the clients of a card's sharing service find it.
pub const MPS_PIPE_VAR: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Who runs where, with what.
#[derive(Debug, Clone, Copy)]
pub struct TaskEnv<'a> {
    /// The cluster.
    pub cluster: ClusterId,
    /// This host.
    pub host: HostId,
    /// The attempt.
    pub token: Token,
    /// The task.
    pub task: TaskId,
    /// Granted devices.
    pub devices: &'a Granted,
    /// Which of the job's asks it was granted for.
    pub choice: u8,
    /// GPUs granted, in thousandths of a card.
    pub gpu_milli: u32,
    /// GPU memory granted on all cards together, in MiB.
    pub vram_mib: u64,
    /// Set when it has a share of one card instead of whole ones.
    pub share: Option<Share>,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// Why the attempt before it ended, in one word; empty for the first.
    pub because: &'a str,
    /// Where its card's sharing service listens, when it shares through that.
    pub mps_pipe: Option<&'a str>,
    /// The beginning of the paths of its notes.
    pub notes_base: &'a [u8],
    /// Its gang.
    pub gang: Option<&'a Meeting>,
    /// Who submitted the job; empty if nobody knows.
    pub user_name: &'a str,
    /// The folder of its inputs; empty for none.
    pub inputs: &'a [u8],
}

impl<'a> TaskEnv<'a> {
    /// One that was granted no device and is in no gang.
    #[must_use]
    pub fn plain(cluster: ClusterId, host: HostId, token: Token, task: TaskId, notes_base: &'a [u8]) -> Self {
        let (gpu_milli, vram_mib, choice) = (0, 0, 0);
        let (attempt, because) = (1, "");
        let (devices, share, mps_pipe, gang, user_name) = (Granted::NONE, None, None, None, "");
        Self {
            cluster,
            host,
            token,
            task,
            devices,
            choice,
            gpu_milli,
            vram_mib,
            share,
            attempt,
            because,
            mps_pipe,
            notes_base,
            gang,
            user_name,
            inputs: &[],
        }
    }
}

/// The whole environment: `user` byte for byte and in its order, without the names that Rota sets, then those.
///
/// Devices are named by UUID, and the lists are always set: no ask means no GPU, not all of them. A share of a card is
/// told to the driver's sharing service, which keeps it (without the service the figures are only advice).
#[must_use]
pub fn task_env(user: &[(Vec<u8>, Vec<u8>)], task: TaskEnv<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut own: Vec<(&str, Vec<u8>)> = [
        ("ROTA_JOB_ID", task.task.job.to_string()),
        ("ROTA_TASK_INDEX", task.task.index.to_string()),
        (TOKEN_VAR, task.token.to_string()),
        (CLUSTER_VAR, task.cluster.to_string()),
        ("ROTA_HOST", task.host.to_string()),
        ("ROTA_ATTEMPT", task.attempt.to_string()),
        ("ROTA_RESTART_REASON", task.because.to_owned()),
        ("ROTA_GPU_MILLI", task.gpu_milli.to_string()),
        ("ROTA_VRAM_MIB", task.vram_mib.to_string()),
        ("ROTA_ALTERNATIVE", task.choice.to_string()),
    ]
    .into_iter()
    .chain(task.devices.env())
    .chain(share_env(task))
    .chain(task.gang.into_iter().flat_map(Meeting::env))
    .map(|(name, value)| (name, value.into_bytes()))
    .collect();
    // How many workers a card carries is for the user to say.
    own.retain(|(name, _)| *name != "PET_NPROC_PER_NODE" || !user.iter().any(|(n, _)| n == name.as_bytes()));
    let file = |name: &str| [task.notes_base, b".", name.as_bytes()].concat();
    own.push(("ROTA_NOTICE_FILE", file(NOTICE_NAME)));
    own.push(("ROTA_REQUEUE_FILE", file(REQUEUE_NAME)));
    if !task.inputs.is_empty() {
        own.push((INPUTS_VAR, task.inputs.to_vec()));
    }
    if task.gang.is_some() {
        own.push(("ROTA_GANG_FILE", file(GANG_NAME)));
        own.push(("ROTA_HOSTFILE", file(HOSTS_NAME)));
        own.push(("ROTA_MACHINEFILE", file(MACHINES_NAME)));
    }
    let mut env: Vec<(Vec<u8>, Vec<u8>)> = user
        .iter()
        .filter(|(name, _)| !own.iter().any(|(ours, _)| ours.as_bytes() == name.as_slice()))
        .cloned()
        .collect();
    env.extend(own.into_iter().map(|(name, value)| (name.as_bytes().to_vec(), value)));
    // A user id without an account has no other name.
    let said = |name: &str| user.iter().any(|(known, _)| known == name.as_bytes());
    let missing = ["USER", "LOGNAME"].into_iter().filter(|name| !task.user_name.is_empty() && !said(name));
    env.extend(missing.map(|name| (name.as_bytes().to_vec(), task.user_name.as_bytes().to_vec())));
    env
}

/// What keeps a task within its share of a card. The only visible card is number 0, whatever it is to the host.
fn share_env(task: TaskEnv<'_>) -> Vec<(&'static str, String)> {
    let Some(share) = task.share else { return Vec::new() };
    let percent = (share.milli / 10).max(1);
    let mut env = vec![("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string())];
    // A card of unknown memory: better no bound than none at all to use.
    if share.vram_mib > 0 {
        env.push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={}M", share.vram_mib)));
    }
    env.extend(task.mps_pipe.map(|pipe| (MPS_PIPE_VAR, pipe.to_owned())));
    env
}

/// The bytes by which a process of this attempt is recognised in `/proc/<pid>/environ`.
#[must_use]
pub fn markers(cluster: ClusterId, token: Token) -> [Vec<u8>; 2] {
    [format!("{TOKEN_VAR}={token}").into_bytes(), format!("{CLUSTER_VAR}={cluster}").into_bytes()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::gang::Seat;
    use rota_protocol::{DeviceUuid, JobId};

    fn plain(devices: &Granted) -> TaskEnv<'_> {
        let task = TaskId { job: JobId(5), index: 3 };
        let plain = TaskEnv::plain(ClusterId(0xab), HostId(2), Token(77), task, b"/data/tasks/77-ab");
        TaskEnv { devices, choice: 1, ..plain }
    }

    fn text(user: &[(&str, &str)], task: TaskEnv<'_>) -> Vec<(String, String)> {
        let user: Vec<_> = user.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        task_env(&user, task)
            .into_iter()
            .map(|(n, v)| (String::from_utf8(n).unwrap(), String::from_utf8(v).unwrap()))
            .collect()
    }

    fn env(user: &[(&str, &str)], devices: &[&str]) -> Vec<(String, String)> {
        let devices: Vec<_> = devices.iter().map(|d| DeviceUuid((*d).to_owned())).collect();
        text(user, plain(&Granted::of(&devices, &[])))
    }

    fn all(env: &[(String, String)], name: &str) -> Vec<String> {
        env.iter().filter(|(n, _)| n == name).map(|(_, v)| v.clone()).collect()
    }

    #[test]
    fn no_device_means_an_empty_list_not_a_missing_one() {
        let env = env(&[("PATH", "/bin")], &[]);
        assert_eq!(env[0], ("PATH".into(), "/bin".into()));
        assert!(env.contains(&("CUDA_VISIBLE_DEVICES".into(), String::new())));
        assert!(env.contains(&("NVIDIA_VISIBLE_DEVICES".into(), "void".into())));
        assert!(env.contains(&("ROTA_GPUS".into(), "0".into())));
        assert!(!env.iter().any(|(name, _)| name.starts_with("CUDA_MPS") || name.contains("GANG")));
    }

    #[test]
    fn a_user_cannot_name_other_devices_or_another_token() {
        let user =
            [("CUDA_VISIBLE_DEVICES", "0,1"), ("ROTA_TOKEN", "1"), ("A", ""), ("ROTA_NOTICE_FILE", "x")];
        let env = env(&user, &["GPU-a", "GPU-b"]);
        assert_eq!(all(&env, "CUDA_VISIBLE_DEVICES"), ["GPU-a,GPU-b"]);
        assert_eq!(all(&env, "NVIDIA_VISIBLE_DEVICES"), ["GPU-a,GPU-b"]);
        assert_eq!(all(&env, "ROTA_TOKEN"), ["77"]);
        assert_eq!(all(&env, "A"), [""]);
        assert_eq!(all(&env, "ROTA_JOB_ID"), ["5"]);
        assert_eq!(all(&env, "ROTA_TASK_INDEX"), ["3"]);
        assert_eq!(all(&env, "ROTA_ALTERNATIVE"), ["1"]);
        assert_eq!(
            (all(&env, "ROTA_ATTEMPT"), all(&env, "ROTA_RESTART_REASON")),
            (vec!["1".into()], vec![String::new()])
        );
        assert_eq!(all(&env, "ROTA_NOTICE_FILE"), ["/data/tasks/77-ab.notice"]);
        assert_eq!(all(&env, "ROTA_REQUEUE_FILE"), ["/data/tasks/77-ab.requeue"]);
    }

    #[test]
    fn whoever_submitted_is_the_user_unless_the_job_says_otherwise() {
        let task = TaskEnv { user_name: "alice", ..plain(Granted::NONE) };
        let env = text(&[("USER", "root"), ("A", "1")], task);
        assert_eq!((all(&env, "USER"), all(&env, "LOGNAME")), (vec!["root".into()], vec!["alice".into()]));
        let nobody = text(&[], plain(Granted::NONE));
        assert!(all(&nobody, "USER").is_empty() && all(&nobody, "LOGNAME").is_empty());
    }

    #[test]
    fn only_a_job_with_inputs_has_a_folder_of_them() {
        assert!(all(&env(&[], &[]), INPUTS_VAR).is_empty());
        let task = TaskEnv { inputs: b"/data/inputs/77-ab", ..plain(Granted::NONE) };
        assert_eq!(all(&text(&[(INPUTS_VAR, "/mine")], task), INPUTS_VAR), ["/data/inputs/77-ab"]);
    }

    #[test]
    fn a_share_is_told_to_the_driver_and_a_whole_card_is_not() {
        let card = Granted::of(&[DeviceUuid("GPU-a".into())], &[]);
        let share = |milli, vram_mib| {
            let share = Some(Share { milli, vram_mib });
            text(&[], TaskEnv { gpu_milli: milli, vram_mib, share, ..plain(&card) })
        };
        let half = share(500, 40_960);
        assert_eq!(all(&half, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), ["50"]);
        assert_eq!(all(&half, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), ["0=40960M"]);
        assert_eq!(
            (all(&half, "ROTA_GPU_MILLI"), all(&half, "ROTA_VRAM_MIB")),
            (vec!["500".into()], vec!["40960".into()])
        );
        assert!(all(&half, MPS_PIPE_VAR).is_empty());
        let share_of = Some(Share { milli: 500, vram_mib: 1 });
        let piped = text(&[], TaskEnv { share: share_of, mps_pipe: Some("/p"), ..plain(&card) });
        assert_eq!(all(&piped, MPS_PIPE_VAR), ["/p"]);
        let least = share(5, 0);
        assert_eq!(all(&least, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), ["1"], "zero would mean no bound");
        assert!(all(&least, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").is_empty());
        let whole = text(&[], TaskEnv { gpu_milli: 1_000, vram_mib: 81_920, ..plain(&card) });
        assert!(!whole.iter().any(|(name, _)| name.starts_with("CUDA_MPS")));
        assert_eq!(all(&whole, "ROTA_GPU_MILLI"), ["1000"]);
    }

    #[test]
    fn a_gang_overrides_what_a_user_says_of_ranks() {
        let seat = |index, host| Seat {
            index,
            token: Token(u64::from(index)),
            host: HostId(host),
            name: format!("h{host}"),
            addr: format!("10.0.0.{host}"),
        };
        let (seats, job) = (vec![seat(0, 1), seat(1, 2)], JobId(5));
        let meeting = Meeting { seats, rank: 1, port: Some(24_000), job, elastic: None, slots: 2 };
        let user = [("RANK", "0"), ("MASTER_ADDR", "x"), ("PET_NPROC_PER_NODE", "7"), ("PET_NNODES", "9")];
        let env = text(&user, TaskEnv { gang: Some(&meeting), ..plain(Granted::NONE) });
        assert_eq!(all(&env, "PET_NPROC_PER_NODE"), ["7"], "only this is the user's to say");
        assert_eq!(all(&env, "PET_NNODES"), ["2"]);
        assert_eq!(all(&env, "ROTA_HOSTFILE"), ["/data/tasks/77-ab.hosts"]);
        assert_eq!(all(&env, "ROTA_MACHINEFILE"), ["/data/tasks/77-ab.machines"]);
        assert_eq!(all(&env, "RANK"), ["1"]);
        assert_eq!(all(&env, "MASTER_ADDR"), ["10.0.0.1"]);
        assert_eq!(all(&env, "ROTA_GANG_FILE"), ["/data/tasks/77-ab.gang"]);
    }
}
