//! What a submit answer says beside the job's number: what the cluster made of the job, which rules stand above the
//! job's own, and whether hosts and account could ever run it. It never refuses: hosts come and go.

use crate::warden::mps;
use rota_core::{State, explain};
use rota_protocol::JobId;
use rota_protocol::job::JobSpec;
use rota_protocol::queue::Excess;
use rota_protocol::view::Accepted;

/// The answer for a job that was accepted. This peer's copy may be a moment behind the log: then what was sent is
/// what can be told.
pub(super) fn accepted(state: &State, job: JobId, sent: &JobSpec, tenant: &str) -> Accepted {
    let stored = state.job(job);
    let queue = match stored.and_then(|job| state.queues().get(job.queue)) {
        Some(queue) => queue.spec.name.clone(),
        None if sent.queue.is_empty() => tenant.to_owned(),
        None => sent.queue.clone(),
    };
    let time_limit_ms = stored.map_or(sent.time_limit_ms, |job| job.spec.time_limit_ms);
    let mut notes = Vec::new();
    if let Some(limit_ms) = time_limit_ms.filter(|_| sent.time_limit_ms.is_none()) {
        let limit = crate::parse::time::duration_text(limit_ms);
        notes.push(format!("time limit {limit}: the rule of queue {queue} for jobs that name none"));
    }
    let default_ms = state.queues().named(&queue).and_then(|queue| queue.spec.time_limit_default_ms);
    if let Some((asked_ms, default_ms)) = sent.time_limit_ms.zip(default_ms).filter(|(own, rule)| own > rule)
    {
        let text = crate::parse::time::duration_text;
        notes.push(format!(
            "time limit {}: longer than the {} that queue {queue} gives to jobs that name none, which is no bound",
            text(asked_ms),
            text(default_ms)
        ));
    }
    notes.extend(overridden(state, sent, &queue));
    notes.extend(warned(sent));
    notes.extend(sharing(sent));
    if let Err(never) = explain::feasible(state, tenant, sent) {
        notes.push(format!("{}; it waits until that changes", never.message));
    }
    Accepted { job, queue, time_limit_ms, notes }
}

/// How much of its warning a job gets when it is ended for somebody else.
fn warned(spec: &JobSpec) -> Option<String> {
    let warning = spec.warning.filter(|warning| warning.eviction_ms() < warning.before_ms)?;
    let text = |ms: u32| crate::parse::time::duration_text(ms.into());
    Some(format!(
        "the warning of {} holds before the time limit; ended to make room, it has {} of it, then TERM, then its grace",
        text(warning.before_ms),
        text(warning.eviction_ms())
    ))
}

/// What is kept apart on a card that it shares.
fn sharing(spec: &JobSpec) -> Option<String> {
    let share = spec.asks().find(|ask| ask.share_milli().is_some())?;
    let through_mps = share.labels.get(mps::LABEL.0).is_some_and(|mode| mode == mps::LABEL.1);
    Some(if through_mps {
        "shares a card through mps with jobs of its tenant: the driver bounds its memory and cores, and a fault of one \
         job ends all on the card (they are queued again)"
            .to_owned()
    } else {
        "shares a card in turns with jobs of its tenant: faults stay with their job; memory above what is asked ends \
         the job that took it"
            .to_owned()
    })
}

/// Flags of the job that a rule of the site stands above.
fn overridden(state: &State, spec: &JobSpec, queue: &str) -> Vec<String> {
    let mut notes = Vec::new();
    if !spec.requeue {
        let rule =
            "no-requeue holds when its place is needed; a drain or a move by an operator queues it again";
        notes.push(rule.to_owned());
    }
    if !spec.preemptible {
        let cut = state.queues().named(queue).is_some_and(|queue| {
            state.queues().path(queue.id).any(|above| above.spec.excess == Excess::RequeueYoungest)
        });
        let also = if cut { " and a lowered ceiling of its queue end" } else { " ends" };
        notes.push(format!("no-preempt holds against other jobs; a drain with a deadline{also} it even so"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::ask::Ask;
    use rota_protocol::command::{Command, Entry, LOG_FORMAT, Proposal};
    use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts, HostRegistration};
    use rota_protocol::job::{Actor, Role};
    use rota_protocol::queue::QueueSpec;
    use rota_protocol::work::{GangSpec, Layout, Warning};
    use rota_protocol::{BootId, ClusterId, DeviceUuid, HostId, RequestId};
    use std::collections::BTreeMap;

    fn entry(commands: Vec<Command>) -> Entry {
        let proposals = commands.into_iter().map(|command| Proposal {
            request: RequestId::NONE,
            actor: Actor::system(),
            command,
        });
        Entry { format: LOG_FORMAT, at_ms: 1_000, proposals: proposals.collect() }
    }

    /// One host with four cards of 80 GiB and 16 CPUs.
    fn cluster() -> State {
        let card = |n: u32| DeviceFacts {
            uuid: DeviceUuid(format!("GPU-{n}")),
            kind: DeviceKind::Gpu,
            model: "H100".into(),
            vram_mib: Some(80 << 10),
            bus: None,
            index: None,
            numa: None,
            compute_cap: Some(90),
            island: Some(0),
            health: DeviceHealth::Healthy,
            detail: Default::default(),
        };
        let facts = HostFacts {
            cpus_milli: 16_000,
            mem_mib: 64 << 10,
            devices: (0..4).map(card).collect(),
            labels: BTreeMap::new(),
            version: "t".into(),
            notes: Default::default(),
        };
        let registration = HostRegistration { boot: BootId(1), addr: "127.0.0.1:1".into(), facts };
        let mut state = State::new();
        let create = Command::CreateCluster {
            cluster: ClusterId(1),
            name: "c".into(),
            host_name: "n1".into(),
            addr: "127.0.0.1:1".into(),
        };
        state.apply(1, &entry(vec![create, Command::RegisterHost { host: HostId(1), registration }]));
        state
    }

    fn spec(ask: Ask) -> JobSpec {
        JobSpec { name: "j".into(), argv: vec![b"true".to_vec()], ask, ..JobSpec::default() }
    }

    fn gpus(milli: u32) -> Ask {
        Ask { gpu_milli: milli, cpus_milli: 1_000, ..Ask::default() }
    }

    fn notes(spec: &JobSpec) -> Vec<String> {
        let mut notes = accepted(&cluster(), JobId(1), spec, "t").notes;
        notes.retain(|note| !note.starts_with("shares a card"));
        notes
    }

    #[test]
    fn who_shares_a_card_is_told_what_is_kept_apart() {
        // Field report R035.
        let told = |spec: &JobSpec| accepted(&cluster(), JobId(1), spec, "t").notes.join("\n");
        assert!(told(&spec(gpus(500))).contains("in turns"));
        let labels = BTreeMap::from([(mps::LABEL.0.to_owned(), mps::LABEL.1.to_owned())]);
        assert!(told(&spec(Ask { labels, ..gpus(500) })).contains("a fault of one job ends all"));
        assert_eq!(told(&spec(gpus(1_000))), "");
    }

    #[test]
    fn an_ask_that_no_host_meets_is_told_unless_another_would_do() {
        // Field report R006.
        assert_eq!(notes(&spec(gpus(4_000))), Vec::<String>::new());
        let wide = spec(gpus(5_000));
        let told = notes(&wide);
        assert!(told.len() == 1 && told[0].contains("the largest offer is 4 GPUs on n1"), "{told:?}");
        let either = JobSpec { alternatives: vec![gpus(2_000)], ..wide };
        assert_eq!(notes(&either), Vec::<String>::new());
    }

    #[test]
    fn a_gang_larger_than_its_place_is_told_with_the_most_that_fits() {
        let gang = |min, ask, layout| JobSpec { gang: Some(GangSpec { min, max: min }), layout, ..spec(ask) };
        assert_eq!(notes(&gang(4, gpus(1_000), Layout::SameHost)), Vec::<String>::new());
        assert_eq!(notes(&gang(8, gpus(500), Layout::Any)), Vec::<String>::new());
        for (job, most) in [
            (
                gang(5, gpus(1_000), Layout::SameHost),
                "5 parts of 1 gpu, 1 cpu on one host asked at once, the largest offer is 4 parts on n1",
            ),
            (
                gang(9, gpus(500), Layout::Pack),
                "9 parts of 0.5 gpu, 1 cpu asked at once, all hosts together have room for 8",
            ),
            (
                gang(17, gpus(0), Layout::Spread),
                "17 parts of 1 cpu asked at once, all hosts together have room for 16",
            ),
        ] {
            let told = notes(&job);
            assert!(told.len() == 1 && told[0].contains(most), "{told:?}");
        }
    }

    #[test]
    fn a_warning_that_an_eviction_cuts_short_is_told() {
        let warned = |before_ms| JobSpec {
            warning: Some(Warning { signal: 10, before_ms, leader_only: false }),
            ..spec(gpus(1_000))
        };
        assert_eq!(notes(&warned(30_000)), Vec::<String>::new());
        let told = notes(&warned(60_000));
        assert!(
            told.len() == 1 && told[0].contains("warning of 1m") && told[0].contains("30s of it"),
            "{told:?}"
        );
    }

    #[test]
    fn rules_that_stand_above_the_jobs_own_are_told() {
        // Field report R044.
        let mut state = cluster();
        let queue = QueueSpec {
            time_limit_default_ms: Some(3_600_000),
            excess: Excess::RequeueYoungest,
            ..QueueSpec::open("lab")
        };
        let job = JobSpec { requeue: false, preemptible: false, queue: "lab".into(), ..spec(gpus(1_000)) };
        let submit = Command::Submit { spec: job.clone() };
        let mut entry = entry(vec![Command::SetQueue { queue }, submit]);
        entry.proposals[1].actor = Actor { tenant: "lab".into(), user: "u".into(), role: Role::Submitter };
        let outcomes = state.apply(2, &entry).outcomes;
        assert!(
            matches!(outcomes[1], rota_protocol::command::Outcome::Submitted { job: JobId(1) }),
            "{outcomes:?}"
        );
        let answer = accepted(&state, JobId(1), &job, "lab");
        assert_eq!((answer.queue.as_str(), answer.time_limit_ms), ("lab", Some(3_600_000)));
        let told = answer.notes.join("\n");
        for part in
            ["time limit 1h: the rule of queue lab", "no-requeue holds", "a lowered ceiling of its queue"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
