//! The one cause that keeps a job waiting, as a sentence and as one thing to change. The first that holds, from what
//! nothing can help to what only time does.

use super::Case;
use super::account::{amount, bound_name};
use super::ends;
use super::tally::Group;
use super::text::{count, span};
use crate::placement::TURN_MS;
use crate::state::job::STEADY_MS;
use crate::view::ask_text;
use rota_protocol::job::JobState;
use rota_protocol::limits::PRIORITY_DEFAULT;
use rota_protocol::reservation::ReservedFor;
use rota_protocol::why::StartBasis;

/// What keeps a job waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// No host could ever run it, or no gang of hosts.
    Impossible,
    /// It is larger than a ceiling of its account.
    CeilingTooLow,
    /// It is held.
    Hold,
    /// Other jobs must be over first.
    Dependency,
    /// What is left of its gang is being ended.
    GangEnds,
    /// Its deadline has passed; the next round gives it up.
    DeadlinePassed,
    /// It may not start yet.
    Begin,
    /// A service that ended at once waits before it starts again.
    Pause,
    /// Its own cap on tasks at once.
    ParallelCap,
    /// Attempts are being ended for it.
    Victims,
    /// A ceiling of its account is reached.
    Ceiling,
    /// Nothing: it is placed in its turn.
    Turn,
    /// What keeps it off the hosts.
    Hosts(&'static str),
    /// There are no hosts.
    NoHosts,
}

impl Cause {
    pub(super) fn of(case: &Case<'_>) -> Self {
        let job = case.job;
        let rules = [
            (case.lack.is_some() && case.too_large.is_none(), Self::Impossible),
            (case.too_large.is_some(), Self::CeilingTooLow),
            (job.held, Self::Hold),
            (job.pending.is_empty(), Self::Dependency),
            (job.gang_ending, Self::GangEnds),
            (case.is_late(), Self::DeadlinePassed),
            (case.now_ms < job.pauses_until_ms(), Self::Pause),
            (case.now_ms < job.earliest_ms(), Self::Begin),
            (job.parallel_room() == 0, Self::ParallelCap),
            (case.victims > 0, Self::Victims),
            (case.look.over.is_some(), Self::Ceiling),
            (case.tally.of("fits").is_some(), Self::Turn),
            // Of a gang the number of parts says more than what keeps it off full hosts.
            (case.tally.of("some_parts").is_some(), Self::Hosts("some_parts")),
        ];
        let first = rules.into_iter().find(|(holds, _)| *holds).map(|(_, cause)| cause);
        first.unwrap_or_else(|| case.tally.main().map_or(Self::NoHosts, |(kind, _)| Self::Hosts(kind)))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Impossible => "impossible",
            Self::CeilingTooLow => "ceiling_too_low",
            Self::Hold => "hold",
            Self::Dependency => "dependency",
            Self::GangEnds => "gang_ends",
            Self::DeadlinePassed => "deadline",
            Self::Begin => "begin",
            Self::Pause => "pause",
            Self::ParallelCap => "parallel_cap",
            Self::Victims => "victims",
            Self::Ceiling => "ceiling",
            Self::Turn => "turn",
            Self::Hosts(kind) => kind,
            Self::NoHosts => "no_hosts",
        }
    }

    /// One sentence.
    pub(super) fn sentence(self, case: &Case<'_>) -> String {
        let job = case.job;
        let in_ms = |at_ms: u64| span(at_ms.saturating_sub(case.now_ms));
        match self {
            Self::Impossible => format!("cannot run on this cluster: {}", case.lack_message()),
            Self::CeilingTooLow => format!("cannot run on its account: {}", case.lack_message()),
            Self::Hold if job.is_held_for_deaths() => {
                let hosts = count(job.host_deaths().into(), "host");
                format!("is held: {hosts} were lost while it ran there, and it may be the reason")
            }
            Self::Hold => "is held: it waits until somebody releases it".into(),
            Self::Dependency => dependency(case),
            Self::GangEnds => {
                format!("waits until the rest of its gang is gone: {} left", count(job.live.into(), "part"))
            }
            Self::DeadlinePassed => "has not started before its deadline: it is given up now".into(),
            Self::Begin => format!("begins no sooner than in {}, as asked", in_ms(job.earliest_ms())),
            Self::Pause => {
                let (pauses, left) = (count(job.pauses.into(), "time"), in_ms(job.pauses_until_ms()));
                if job.spec.service {
                    format!(
                        "is a service that ended {pauses} in a row, each within {}: it starts again in {left}",
                        span(STEADY_MS)
                    )
                } else if job.spec.array.is_some() {
                    format!(
                        "rests before its next retries: what waits of it has failed before, and goes on in {left}"
                    )
                } else {
                    format!(
                        "rests before its next retry: it failed {pauses} in a row, and starts again in {left}"
                    )
                }
            }
            Self::ParallelCap => format!("waits for its own tasks: at most {} run at once", job.live),
            Self::Victims => {
                let victims = count(case.victims.into(), "attempt");
                format!("starts as soon as {victims} asked to make room for it have ended")
            }
            Self::Ceiling => ceiling(case),
            Self::Turn => {
                let fitting = case.tally.of("fits").map_or(0, |group| group.hosts);
                format!(
                    "fits {} now and is placed in its turn: {}",
                    count(fitting.into(), "host"),
                    front(case)
                )
            }
            Self::Hosts(kind) => hosts(case, kind),
            Self::NoHosts => "waits: the cluster has no hosts".into(),
        }
    }

    /// One thing to change, if there is one.
    pub(super) fn hint(self, case: &Case<'_>) -> Option<String> {
        if case.starts_too_late() {
            return Some("move the deadline: it passes before the expected start".into());
        }
        if let Self::Hosts(_) | Self::Turn = self
            && let Some(words) = ends::will_fail(case.job)
        {
            return Some(words);
        }
        let text = match self {
            Self::Impossible => {
                let example = case.lack.as_ref()?.example.clone();
                format!("ask for {example}, or add a host that has it")
            }
            Self::CeilingTooLow => {
                format!("ask for {}, or have the ceiling raised", case.lack.as_ref()?.example)
            }
            Self::Hold if case.job.is_held_for_deaths() => {
                format!("see what became of those hosts; rota release {} forgets them", case.job.id)
            }
            Self::Hold => format!("rota release {}", case.job.id),
            Self::Dependency => {
                format!(
                    "see why job {} is not over, or submit without the dependency",
                    case.open.first()?.job
                )
            }
            Self::Begin => "submit it with an earlier begin time".into(),
            Self::Pause => format!("the exits of its last attempts say why it ends: rota show {}", case.job.id),
            Self::ParallelCap => "wait for its own tasks; the cap of a job that waits is not changed: submit the rest as another array".into(),
            Self::Ceiling => nearer(case).unwrap_or_else(|| ceiling_hint(case)),
            Self::Hosts(kind) => hosts_hint(case, kind)?,
            Self::GangEnds | Self::DeadlinePassed | Self::Victims | Self::Turn | Self::NoHosts => {
                return None;
            }
        };
        Some(text)
    }
}

fn dependency(case: &Case<'_>) -> String {
    let Some(first) = case.open.first() else {
        return "waits for other jobs".into();
    };
    let element = if first.each { ", task by task" } else { "" };
    let more = match case.open.len() {
        1 => String::new(),
        n => format!(", and {} more", n - 1),
    };
    format!("waits for job {} ({}{element}), which is {}{more}", first.job, first.relation, first.state)
}

fn ceiling(case: &Case<'_>) -> String {
    let Some(over) = &case.look.over else {
        return "waits: a ceiling of its account is reached".into();
    };
    let who = bound_name(case.state, over);
    let (would, most) = (amount(over.part, over.would), amount(over.part, over.most));
    let parts = match case.look.parts {
        Some((needed, _)) if needed > 1 => format!("with its {needed} parts "),
        _ => String::new(),
    };
    format!("waits for its account: {parts}{who} would hold {would} and may hold {most} at most")
}

fn ceiling_hint(case: &Case<'_>) -> String {
    match &case.look.over {
        Some(over) if over.of_user => "wait for work of your own to end, or submit to another queue".into(),
        _ => "wait for work of the queue to end, or submit to another queue".into(),
    }
}

fn hosts(case: &Case<'_>, kind: &'static str) -> String {
    let Some(group) = case.tally.of(kind) else {
        return "waits".into();
    };
    if kind == "joining" {
        return "waits: no host that could run it has registered yet".into();
    }
    let able = count(case.tally.able().into(), "host");
    match (kind, case.look.parts) {
        ("some_parts", Some((needed, fit))) => {
            format!(
                "waits for room for all its parts at once: {fit} of {needed} find room now; {able} could run one"
            )
        }
        _ => {
            let front = if case.ahead.0 > 0 { format!("; {}", front(case)) } else { String::new() };
            let of_them = match group.hosts {
                n if n == case.tally.able() => String::new(),
                n => format!(", {n} of them"),
            };
            format!("waits: {able} could run it{of_them}: {}{front}", group.detail)
        }
    }
}

/// How many are in front of it.
fn front(case: &Case<'_>) -> String {
    match case.ahead.0 {
        0 => "nothing is in front of it".to_owned(),
        1 => "1 task is in front of it".to_owned(),
        n => format!("{n} tasks are in front of it"),
    }
}

fn hosts_hint(case: &Case<'_>, kind: &'static str) -> Option<String> {
    let group: &Group = case.tally.of(kind)?;
    let example = &group.example;
    let own = match kind {
        "gpus_busy" | "others_turn" if case.job.spec.takes_turns() => {
            format!(
                "it takes turns with others of its queue: who runs may be changed every {}",
                span(TURN_MS)
            )
        }
        "gpus_busy" | "devices_busy" | "cpus_busy" | "mem_busy" | "ahead" | "held"
            if has_others_before(case) =>
        {
            higher(case)
        }
        "cpus_busy" => format!("CPUs are what is missing: wait for work on {example} to end"),
        "mem_busy" => format!("memory is what is missing: wait for work on {example} to end"),
        "draining" => format!("an operator can open it again: rota undrain {example}"),
        "suspended" | "probation" => format!("see why launches fail on {example}: rota hosts"),
        "avoided" => format!("see why launches fail on {example}: rota show {}", case.job.id),
        "faulty" => format!("restart {example}, or undrain it if it is well"),
        "shunned" => format!("see why jobs fail on {example}; undrain it once that is mended"),
        "gpus_degraded" => format!("list the devices of {example} to see what is wrong"),
        "gpus_unhealthy" => format!("list the devices of {example} to see what is wrong"),
        "lost" | "joining" | "silent" => format!("see whether the agent on {example} runs"),
        "reserved" if case.is_closed_to_all(example) => "wait for the end of the reservation".into(),
        "reserved" => "submit to a queue that the reservation is for, or wait for its end".into(),
        "layout" => "submit it with another layout".into(),
        "ports" => format!("wait for a gang on {example} to end"),
        _ => "wait for what runs to end, or add a host".into(),
    };
    Some(nearer(case).unwrap_or(own))
}

/// A higher priority, as far as the submitter may go by itself.
fn higher(case: &Case<'_>) -> String {
    let id = case.job.id;
    if case.job.spec.priority < PRIORITY_DEFAULT {
        format!("a higher priority would bring it forward: rota priority {id} {PRIORITY_DEFAULT}")
    } else {
        format!("an operator can bring it forward with a higher priority: rota priority {id} N")
    }
}

fn has_others_before(case: &Case<'_>) -> bool {
    case.ahead.0 > 0 || case.tally.of("ahead").is_some() || case.tally.of("held").is_some()
}

/// What was found to start right now.
fn nearer(case: &Case<'_>) -> Option<String> {
    let limit = case.look.shorter_limit_ms.map(|ms| {
        // Rounded down: a longer one would not do.
        let whole_ms = if ms < 600_000 { 1_000 } else { 60_000 };
        format!("with a time limit of at most {} it would start now", span(ms / whole_ms * whole_ms))
    });
    limit.or_else(|| Some(format!("asking {} would start now", case.smaller_text()?)))
}

impl Case<'_> {
    /// A host of this name is kept for nobody.
    fn is_closed_to_all(&self, name: &str) -> bool {
        let host = self.state.hosts().find(|host| host.name == name).map(|host| host.id);
        let mut rows = self.state.reservations();
        rows.any(|row| row.kept_for == ReservedFor::Nobody && host.is_some_and(|id| row.hosts.contains(&id)))
    }

    /// The nearest ask that starts now, with its host.
    pub(super) fn smaller_text(&self) -> Option<String> {
        let smaller = self.look.smaller.as_ref()?;
        let text = ask_text(&smaller.ask);
        let name = smaller.host.and_then(|id| self.state.host(id)).map(|host| host.name.as_str());
        Some(match (smaller.parts, name) {
            (Some(parts), _) => format!("{} of {text}", count(parts.into(), "part")),
            (None, Some(name)) => format!("{text} on {name}"),
            (None, None) => text,
        })
    }

    /// It has not started and its deadline has passed.
    fn is_late(&self) -> bool {
        self.job.started_ms.is_none() && self.job.spec.deadline_ms.is_some_and(|at_ms| self.now_ms >= at_ms)
    }

    /// Its deadline lies before the start that is expected.
    fn starts_too_late(&self) -> bool {
        let Some((expected, deadline_ms)) = self.expected.as_ref().zip(self.job.spec.deadline_ms) else {
            return false;
        };
        self.job.started_ms.is_none()
            && !self.is_late()
            && expected.basis != StartBasis::Now
            && expected.at_ms > deadline_ms
    }

    fn lack_message(&self) -> &str {
        self.lack.as_ref().map_or("", |lack| &lack.message)
    }
}

/// One sentence for a job that waits for nothing.
pub(super) fn settled_sentence(job: &crate::state::job::Job) -> String {
    let counts = job.counts();
    match job.state {
        JobState::Running => format!("runs: {} live, nothing waits", counts.live),
        JobState::Ending => {
            format!("was cancelled: {} not yet proven gone", count(counts.live.into(), "attempt"))
        }
        state => format!("is over: {state}"),
    }
}
