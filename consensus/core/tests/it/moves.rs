//! Moves of a planner made by hand, in a short language: `0@h1:0,1 1@h2:0` are parts (index, host, cards), `h1:0,1 h2`
//! are slots, `lab/vision gpus=4 user_gpus=2 guarantee=2` is a queue.

use crate::lab::{Lab, job_spec, number, user};
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::job::{Actor, AttemptState, EndReason};
use rota_protocol::plan::{Move, Part, Plan, PromiseBreak, Refusal, Slot};
use rota_protocol::queue::{Excess, QueueSpec};
use rota_protocol::{DeviceUuid, HostId, JobId, PublicError, RequestId, Token};

impl Lab {
    /// Commits moves; gives what was refused, by position.
    pub(crate) fn moves(&mut self, moves: Vec<Move>) -> Vec<(u32, Refusal)> {
        match self.system(Command::CommitPlan { plan: Plan { seen_index: 0, moves } }) {
            Outcome::Planned { refused } => refused,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn one_move(&mut self, one: Move) -> Result<(), Refusal> {
        match self.moves(vec![one]).first() {
            None => Ok(()),
            Some((0, refusal)) => Err(*refusal),
            Some(other) => panic!("{other:?}"),
        }
    }

    /// Starts tasks: `0@h1:0,1 1@h2:0`.
    pub(crate) fn begin(&mut self, job: JobId, parts: &str) -> Result<(), Refusal> {
        self.begin_with(job, 0, parts)
    }

    pub(crate) fn begin_with(&mut self, job: JobId, choice: u8, parts: &str) -> Result<(), Refusal> {
        let parts = self.parts(parts);
        self.one_move(Move::Start { job, choice, parts })
    }

    /// Starts tasks and reports their processes.
    pub(crate) fn run(&mut self, line: &str, parts: &str) -> JobId {
        self.run_as(user("t"), line, parts)
    }

    pub(crate) fn run_as(&mut self, actor: Actor, line: &str, parts: &str) -> JobId {
        let job = self.try_submit(actor, line).expect(line);
        assert_eq!(self.begin(job, parts), Ok(()), "{line}: {parts}");
        self.all_started();
        job
    }

    /// Every granted attempt reports its process.
    pub(crate) fn all_started(&mut self) {
        let granted = self.state.attempts().filter(|a| a.started_ms.is_none());
        for token in granted.map(|a| a.token).collect::<Vec<_>>() {
            self.start(token);
        }
    }

    pub(crate) fn evict(
        &mut self,
        job: Option<JobId>,
        reason: EndReason,
        victims: &[Token],
        slots: &str,
    ) -> Result<(), Refusal> {
        let slots = self.slots(slots);
        self.one_move(Move::Evict { job, reason, victims: victims.to_vec(), slots, choice: 0 })
    }

    pub(crate) fn promise(
        &mut self,
        job: JobId,
        at_ms: u64,
        slots: &str,
        broken_by: Option<PromiseBreak>,
    ) -> Result<(), Refusal> {
        let slots = self.slots(slots);
        self.one_move(Move::Promise { job, at_ms, slots, choice: 0, broken_by })
    }

    pub(crate) fn lapse(&mut self, job: JobId) -> Result<(), Refusal> {
        self.one_move(Move::Lapse { job })
    }

    pub(crate) fn adjust(&mut self, actor: Actor, job: JobId, change: JobChange) -> Outcome {
        self.ask(actor, RequestId::NONE, Command::Adjust { job, change })
    }

    pub(crate) fn try_submit(&mut self, actor: Actor, line: &str) -> Result<JobId, PublicError> {
        match self.ask(actor, RequestId::NONE, Command::Submit { spec: job_spec(line) }) {
            Outcome::Submitted { job } => Ok(job),
            Outcome::Refused(error) => Err(error),
            other => panic!("{line}: {other:?}"),
        }
    }

    pub(crate) fn try_queue(&mut self, line: &str) -> Result<(), PublicError> {
        match self.system(Command::SetQueue { queue: queue_spec(line) }) {
            Outcome::Done => Ok(()),
            Outcome::Refused(error) => Err(error),
            other => panic!("{line}: {other:?}"),
        }
    }

    pub(crate) fn queue(&mut self, line: &str) {
        assert_eq!(self.try_queue(line), Ok(()), "{line}");
    }

    /// Live attempts of a job by index.
    pub(crate) fn tokens(&self, job: JobId) -> Vec<Token> {
        self.state.attempts_of(job).map(|a| a.token).collect()
    }

    /// Live attempts of a job that are asked to end.
    pub(crate) fn ending(&self, job: JobId) -> usize {
        self.state.attempts_of(job).filter(|a| a.state == AttemptState::Ending).count()
    }

    pub(crate) fn live(&self, job: JobId) -> u32 {
        self.state.job(job).expect("known").live
    }

    pub(crate) fn host_named(&self, name: &str) -> HostId {
        self.state.host_by_name_or_id(name).unwrap_or_else(|| panic!("no host {name}")).id
    }

    pub(crate) fn parts(&self, text: &str) -> Vec<Part> {
        let part = |word: &str| {
            let (index, place) = word.split_once('@').expect("0@h1:0");
            let slot = self.slot(place);
            let epoch = self.state.host(slot.host).expect("known").epoch;
            Part { index: number(index) as u32, host: slot.host, epoch, devices: slot.devices }
        };
        text.split_whitespace().map(part).collect()
    }

    pub(crate) fn slots(&self, text: &str) -> Vec<Slot> {
        text.split_whitespace().map(|word| self.slot(word)).collect()
    }

    /// `h1:0,1` are two cards of h1; other devices by their whole UUID.
    fn slot(&self, text: &str) -> Slot {
        let (name, devices) = text.split_once(':').unwrap_or((text, ""));
        let uuid = |word: &str| match word.parse::<u32>() {
            Ok(at) => DeviceUuid(format!("GPU-{name}-{at}")),
            Err(_) => DeviceUuid(word.into()),
        };
        let devices = devices.split(',').filter(|word| !word.is_empty()).map(uuid).collect();
        Slot { host: self.host_named(name), devices }
    }
}

/// `lab/vision gpus=4 cpus=16 user_gpus=2 guarantee=2 borrows=no tenants=a,b excess=requeue weight=2 limit=60`.
pub(crate) fn queue_spec(line: &str) -> QueueSpec {
    let mut words = line.split_whitespace();
    let mut spec = QueueSpec::open(words.next().expect("a path"));
    for word in words {
        let (key, value) = word.split_once('=').expect("key=value");
        let milli = |value: &str| (value.parse::<f64>().expect("a number") * 1_000.0) as u64;
        match key {
            "gpus" => spec.ceiling.gpu_milli = Some(milli(value)),
            "cpus" => spec.ceiling.cpus_milli = Some(milli(value)),
            "mem" => spec.ceiling.mem_mib = Some(number(value) << 10),
            "vram" => spec.ceiling.vram_mib = Some(number(value) << 10),
            "user_gpus" => spec.user_ceiling.gpu_milli = Some(milli(value)),
            "user_cpus" => spec.user_ceiling.cpus_milli = Some(milli(value)),
            "guarantee" => spec.guarantee.gpu_milli = milli(value),
            "guarantee_cpus" => spec.guarantee.cpus_milli = milli(value),
            "borrows" => spec.borrows = value == "yes",
            "tenants" => spec.tenants = value.split(',').map(str::to_owned).collect(),
            "excess" if value == "requeue" => spec.excess = Excess::RequeueYoungest,
            "priority_max" => spec.priority_max = Some(number(value) as u16),
            "min_runtime" => spec.min_runtime_ms = Some(number(value) * 1_000),
            "weight" => spec.weight = number(value) as u32,
            "limit" => spec.time_limit_default_ms = Some(number(value) * 1_000),
            other => panic!("no such rule: {other}"),
        }
    }
    spec
}
