//! The environment of a task: the user's variables, and Rota's own, which nobody overrides.

use rota_protocol::{ClusterId, DeviceUuid, HostId, TaskId, Token};

/// Carries the attempt's fencing token; also how a process of an attempt is recognised.
pub const TOKEN_VAR: &str = "ROTA_TOKEN";
/// Carries the cluster's id; with the token it is unique on a machine that runs several peers.
pub const CLUSTER_VAR: &str = "ROTA_CLUSTER";

/// Who runs where, with which devices.
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
    pub devices: &'a [DeviceUuid],
}

/// The whole environment: `user` byte for byte and in its order, without the names that Rota sets, then those.
///
/// Devices are named by UUID, and the lists are always set: no ask means no GPU, not all of them.
#[must_use]
pub fn task_env(user: &[(Vec<u8>, Vec<u8>)], task: TaskEnv<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let uuids: Vec<&str> = task.devices.iter().map(|d| d.0.as_str()).collect();
    let uuids = uuids.join(",");
    let nvidia = if uuids.is_empty() { "void".to_owned() } else { uuids.clone() };
    let own = [
        ("CUDA_VISIBLE_DEVICES", uuids),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("NVIDIA_VISIBLE_DEVICES", nvidia),
        ("ROTA_JOB_ID", task.task.job.to_string()),
        ("ROTA_TASK_INDEX", task.task.index.to_string()),
        (TOKEN_VAR, task.token.to_string()),
        (CLUSTER_VAR, task.cluster.to_string()),
        ("ROTA_HOST", task.host.to_string()),
        ("ROTA_GPUS", task.devices.len().to_string()),
    ];
    let mut env: Vec<(Vec<u8>, Vec<u8>)> = user
        .iter()
        .filter(|(name, _)| !own.iter().any(|(ours, _)| ours.as_bytes() == name.as_slice()))
        .cloned()
        .collect();
    env.extend(own.into_iter().map(|(name, value)| (name.as_bytes().to_vec(), value.into_bytes())));
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
    use rota_protocol::JobId;

    fn env(user: &[(&str, &str)], devices: &[&str]) -> Vec<(String, String)> {
        let user: Vec<_> = user.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        let devices: Vec<_> = devices.iter().map(|d| DeviceUuid((*d).to_owned())).collect();
        let task = TaskEnv {
            cluster: ClusterId(0xab),
            host: HostId(2),
            token: Token(77),
            task: TaskId { job: JobId(5), index: 3 },
            devices: &devices,
        };
        task_env(&user, task)
            .into_iter()
            .map(|(n, v)| (String::from_utf8(n).unwrap(), String::from_utf8(v).unwrap()))
            .collect()
    }

    #[test]
    fn no_device_means_an_empty_list_not_a_missing_one() {
        let env = env(&[("PATH", "/bin")], &[]);
        assert_eq!(env[0], ("PATH".into(), "/bin".into()));
        assert!(env.contains(&("CUDA_VISIBLE_DEVICES".into(), String::new())));
        assert!(env.contains(&("NVIDIA_VISIBLE_DEVICES".into(), "void".into())));
        assert!(env.contains(&("ROTA_GPUS".into(), "0".into())));
    }

    #[test]
    fn a_user_cannot_name_other_devices_or_another_token() {
        let env =
            env(&[("CUDA_VISIBLE_DEVICES", "0,1"), ("ROTA_TOKEN", "1"), ("A", "")], &["GPU-a", "GPU-b"]);
        let all =
            |name: &str| env.iter().filter(|(n, _)| n == name).map(|(_, v)| v.clone()).collect::<Vec<_>>();
        assert_eq!(all("CUDA_VISIBLE_DEVICES"), ["GPU-a,GPU-b"]);
        assert_eq!(all("NVIDIA_VISIBLE_DEVICES"), ["GPU-a,GPU-b"]);
        assert_eq!(all("ROTA_TOKEN"), ["77"]);
        assert_eq!(all("A"), [""]);
        assert_eq!(all("ROTA_JOB_ID"), ["5"]);
        assert_eq!(all("ROTA_TASK_INDEX"), ["3"]);
    }
}
