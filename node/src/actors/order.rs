//! What a shim is ordered: an attempt of the log and its job's spec, put together once. No actor.

use crate::logic::env::{Share, TaskEnv, task_env};
use crate::logic::granted::Granted;
use crate::logic::{gang, output};
use crate::node::Node;
use crate::warden::mps;
use rota_core::Attempt;
use rota_protocol::Token;
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::spool::LaunchOrder;
use std::os::unix::ffi::OsStringExt;
use std::sync::PoisonError;

/// All that the shim needs; none when the log has moved on, a reason when this host cannot run it.
pub(super) fn order(node: &Node, token: Token) -> Option<Result<LaunchOrder, String>> {
    let params = node.config.profile.lease();
    let (epoch, lease_path) = {
        let lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
        let own = lease.as_ref()?;
        (own.epoch, own.file.path().as_os_str().as_encoded_bytes().to_vec())
    };
    let notes_base = node.shims.draw_notes_base(token);
    node.consensus.read(|replica| {
        // Never an attempt of an older epoch under the lease of a newer one.
        let attempt = replica.attempt(token).filter(|attempt| attempt.epoch == epoch)?;
        let job = replica.job(attempt.task.job)?;
        let spec = job.spec.whole();
        let meeting = gang::meeting(replica, token);
        let (number, because) = output::place_of(replica, attempt);
        let host_devices = replica.host(attempt.host).map_or(&[][..], |host| &host.facts.devices);
        let granted = Granted::of(&attempt.devices, host_devices);
        let task = task_of(node, attempt, &granted, &notes_base, meeting.as_ref());
        let pipe = mps::card_of(replica, attempt).map(|card| mps::pipe_folder(&node.config.data_dir, &card));
        let pipe = pipe.as_ref().map(|pipe| pipe.to_string_lossy());
        let mps_pipe = pipe.as_deref();
        let inputs = match spec.inputs.is_empty() {
            true => Vec::new(),
            false => node.data.draw_view(token).into_os_string().into_vec(),
        };
        let env =
            TaskEnv { attempt: number, because, mps_pipe, user_name: &job.user, inputs: &inputs, ..task };
        let env = task_env(&spec.env, env);
        let output = output::order(replica, attempt, &spec, node.config.output.limits());
        let kill_budget_ms = u32::try_from(params.kill_budget_ms).unwrap_or(u32::MAX);
        let roster = gang::roster(replica, attempt.task.job).filter(|_| meeting.is_some());
        let cage = node.shims.cage_for(replica, attempt, &spec);
        let order = LaunchOrder {
            cluster: node.cluster,
            host: node.host,
            epoch: attempt.epoch,
            token,
            task: attempt.task,
            argv: spec.argv,
            env,
            workdir: spec.workdir,
            uid_gid: spec.uid_gid,
            devices: attempt.devices.clone(),
            time_limit_ms: spec.time_limit_ms,
            grace_ms: spec.grace_ms.unwrap_or(kill_budget_ms),
            kill_budget_ms,
            lease_path,
            notes_base,
            warning: spec.warning,
            requeue_status: spec.requeue_status,
            gang: roster.unwrap_or_default().into_bytes(),
            output,
            life: node.config.life_order(job.user.clone(), spec.session.as_deref().copied()),
            around: meeting.as_ref().map(gang::Meeting::around).unwrap_or_default(),
            cage,
            inputs,
        };
        Some(match (&spec.container, &node.containers) {
            (None, _) => Ok(order),
            (Some(container), Some(executor)) => Ok(executor.wrap(container, attempt.mem_mib, order)),
            (Some(_), None) => Err("no container runtime is installed on this host".to_owned()),
        })
    })
}

fn task_of<'a>(
    node: &Node,
    attempt: &'a Attempt,
    devices: &'a Granted,
    notes_base: &'a [u8],
    gang: Option<&'a gang::Meeting>,
) -> TaskEnv<'a> {
    let is_share = (1..CARD_MILLI).contains(&attempt.card_milli);
    TaskEnv {
        cluster: node.cluster,
        host: node.host,
        token: attempt.token,
        task: attempt.task,
        devices,
        choice: attempt.choice,
        gpu_milli: attempt.gpu_milli,
        vram_mib: attempt.vram_mib,
        share: is_share.then_some(Share { milli: attempt.card_milli, vram_mib: attempt.card_vram_mib }),
        notes_base,
        gang,
        ..TaskEnv::plain(node.cluster, node.host, attempt.token, attempt.task, notes_base)
    }
}
