//! After the faults: the cluster must come to rest by itself (fault I20). Soon there is a leader, every host is up and
//! a new job is accepted; in the end every job that can run is over, every other one is explained, and nothing is held.

use super::oracle::Law;
use super::queue::{Ev, Outside};
use super::sim::World;
use rota_core::explain;
use rota_core::state::host::HostLife;
use rota_protocol::ask::Ask;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::job::JobSpec;
use rota_protocol::queue::Ceiling;
use rota_protocol::{HostId, JobId};

/// How often it is looked.
const LOOK_MS: u64 = 250;
/// Leader, hosts and a fresh job within this.
const SOON_MS: u64 = 10_000;
/// Everything within this: a queue of long jobs on few cards, and back-offs of up to 16 minutes.
const REST_MS: u64 = 3_600_000;

impl World {
    /// The faults are over: drains too, and a probe goes in.
    pub(super) fn begin_settling(&mut self) {
        self.healed_ms = self.now;
        for host in self.ids() {
            self.request(Command::UndrainHost { host });
        }
        self.request(super::client::ceiling(None));
        let spec = JobSpec {
            name: "probe".into(),
            argv: vec![b"/bin/true".to_vec()],
            env: Vec::new(),
            workdir: b"/".to_vec(),
            ask: Ask { cpus_milli: 100, ..Ask::default() },
            array: None,
            priority: 100,
            time_limit_ms: None,
            grace_ms: None,
            retries: 0,
            uid_gid: None,
            ..JobSpec::default()
        };
        let probe = self.request(Command::Submit { spec });
        self.clients.probe = Some(probe);
        self.queue.push(self.now + LOOK_MS, Ev::Outside(Outside::Settle));
    }

    /// Looks, and says what is wrong when time is up.
    pub(super) fn settle(&mut self) {
        let since = self.now - self.healed_ms;
        self.oracle_jobs();
        if since > SOON_MS
            && since <= SOON_MS + LOOK_MS
            && let Some(what) = self.not_soon()
        {
            self.oracle.broken(self.now, Law::I20, format!("{SOON_MS} ms after the faults: {what}"));
        }
        self.cancel_the_impossible();
        self.end_late_wishes();
        match self.not_at_rest() {
            None => self.at_rest(),
            Some(what) if since > REST_MS => {
                self.oracle.broken(self.now, Law::I20, format!("{REST_MS} ms after the faults: {what}"));
            }
            Some(_) => self.queue.push(self.now + LOOK_MS, Ev::Outside(Outside::Settle)),
        }
    }

    fn not_soon(&self) -> Option<String> {
        let head = &self.log.head;
        if self.log.leader.is_none() {
            return Some("no leader".into());
        }
        if let Some(host) = head.hosts().find(|host| host.life != HostLife::Up) {
            return Some(format!("host {} is {:?}", host.id, host.life));
        }
        let until = self.clients.probe.map_or(0, |probe| probe + 1);
        let open = self.clients.requests.iter().take(until).position(|request| request.answer.is_none());
        open.map(|at| {
            format!("request {} has no answer: {:?}", at + 1, self.clients.requests[at].proposal.command)
        })
    }

    /// Jobs that no host could ever run are explained as such; then their users give up.
    fn cancel_the_impossible(&mut self) {
        let head = &self.log.head;
        let gives_up = |id: JobId| {
            let cancels =
                |p: &Proposal| matches!(p.command, Command::Cancel { job, index: None } if job == id);
            self.clients.requests.iter().any(|r| r.answer.is_none() && cancels(&r.proposal))
        };
        let hopeless =
            head.jobs().filter(|job| !job.state.is_terminal() && !job.cancel_asked && job.live == 0);
        let hopeless = hopeless.filter(|job| !fits_somewhere(self, &job.spec.ask) && !gives_up(job.id));
        let explained = |id: JobId| explain::why(head, id, head.clock_ms()).is_some_and(|why| why.impossible);
        let hopeless: Vec<(JobId, bool)> = hopeless.map(|job| (job.id, explained(job.id))).collect();
        for (job, explained) in hopeless {
            if explained {
                self.reach.hit("impossible job explained");
                self.request(Command::Cancel { job, index: None });
            } else if self.now - self.healed_ms > SOON_MS {
                self.oracle.broken(
                    self.now,
                    Law::I20,
                    format!("job {job} waits for ever and nobody says so"),
                );
            }
        }
    }

    /// A drain or a ceiling that was asked during the faults may have come after the healing.
    fn end_late_wishes(&mut self) {
        if self.clients.requests.iter().any(|request| request.answer.is_none()) {
            return;
        }
        let drained: Vec<HostId> =
            self.log.head.hosts().filter(|h| h.drain.is_some()).map(|h| h.id).collect();
        for host in drained {
            self.request(Command::UndrainHost { host });
        }
        if self.log.head.queues().iter().any(|queue| queue.spec.ceiling != Ceiling::default()) {
            self.request(super::client::ceiling(None));
        }
    }

    fn not_at_rest(&self) -> Option<String> {
        let head = &self.log.head;
        if let Some(job) = head.jobs().find(|job| !job.state.is_terminal()) {
            let why = explain::why(head, job.id, head.clock_ms()).map(|why| why.verdict);
            return Some(format!("job {} is {}: {}", job.id, job.state, why.unwrap_or_default()));
        }
        if let Some(attempt) = head.attempts().next() {
            return Some(format!("attempt {} is {:?}", attempt.token, attempt.state));
        }
        if let Some(open) = self.clients.requests.iter().position(|request| request.answer.is_none()) {
            return Some(format!("request {} has no answer", open + 1));
        }
        if self.oracle.live() > 0 {
            return Some(format!("{} processes live", self.oracle.live()));
        }
        self.ids().find_map(|id| self.restless(id))
    }

    fn restless(&self, id: HostId) -> Option<String> {
        let host = self.host(id);
        let Some(agent) = &host.agent else { return Some(format!("host {id} has no agent")) };
        let held = self.log.head.host(id).map(|h| h.used.devices.len() + h.used.launching as usize);
        if held != Some(0) {
            return Some(format!("host {id} holds {held:?} grants in the log"));
        }
        if !host.shims.is_empty() || !agent.local.is_empty() || !agent.outbox.is_empty() {
            let (shims, local, outbox) = (host.shims.len(), agent.local.len(), agent.outbox.len());
            return Some(format!("host {id} keeps {shims} shims, {local} attempts, {outbox} facts"));
        }
        (agent.state.applied_index() != self.log.last())
            .then(|| format!("the replica of host {id} is behind"))
    }

    /// At rest: the last looks.
    fn at_rest(&mut self) {
        self.settled = true;
        self.oracle_jobs();
        for id in self.ids() {
            let same = self
                .host(id)
                .agent
                .as_ref()
                .is_some_and(|a| a.state.full_hash() == self.log.head.full_hash());
            if !same {
                self.oracle.broken(self.now, Law::I8, format!("host {id} came to another state"));
            }
        }
        let wrong = self
            .log
            .head
            .jobs()
            .find(|job| job.cancel_asked && job.state != rota_protocol::job::JobState::Cancelled);
        if let Some((id, state)) = wrong.map(|job| (job.id, job.state)) {
            self.oracle.broken(self.now, Law::I5, format!("job {id} was cancelled and is {state}"));
        }
    }
}

/// Some machine could run it when empty.
fn fits_somewhere(world: &World, ask: &Ask) -> bool {
    world.params.gpus.iter().any(|gpus| ask.gpus() <= *gpus)
}
