//! Runs `tests/scripts/*.txt`: blocks of commands, a line `----`, and all that they gave rise to, up to a blank
//! line. `UPDATE_EXPECT=1 cargo test -p rota-core scripts` rewrites the traces; the diff is what to review.
//!
//! Commands: `host`, `submit`, `plan`, `place JOB[_INDEX] HOST UUID..`, `start TASK`, `end TASK HOW`, `late TASK HOW`
//! (reports the newest ended attempt again), `cancel TASK|JOB [by=TENANT]`, `drain`, `undrain`, `expire`, `restart`
//! and `reboot` (with new facts, if given), `time +30s`, `jobs`, `hosts`, `devices`, `why JOB`, `explain JOB` (the whole
//! answer), `reserve NAME HOST FROM_S FOR_S`, `adjust JOB release`; and moves by hand: `begin JOB PART..`,
//! `evict JOB|- REASON TASK,.. SLOT..`, `queue NAME RULE..` (parts and slots as in `moves.rs`).

use crate::lab::{Lab, exit, host_facts, job_spec, launch_failed, number, task, user};
use crate::moves::queue_spec;
use rota_core::{Event, explain, view};
use rota_protocol::api::QueueFilter;
use rota_protocol::command::{Command, JobChange, Outcome, Proposal};
use rota_protocol::job::{Actor, AttemptEnd, EndReason};
use rota_protocol::plan::{Move, Plan};
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::{DeviceUuid, HostId, JobId, RequestId, TaskId, Token};
use std::fmt::Write;
use std::path::Path;

#[test]
fn scripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut names: Vec<_> =
        std::fs::read_dir(&folder).expect("folder").map(|entry| entry.expect("entry").path()).collect();
    names.sort();
    assert!(!names.is_empty());
    for path in names {
        let text = std::fs::read_to_string(&path).expect("script");
        let real = run(&text);
        if update {
            std::fs::write(&path, &real).expect("write");
        } else {
            assert!(text == real, "{}: the trace changed:\n{real}", path.display());
        }
    }
}

fn run(text: &str) -> String {
    let mut out = String::new();
    let mut script = Script { lab: Lab::new() };
    let mut block = Vec::new();
    let mut skipping = false;
    for line in text.lines().chain([""]) {
        match line {
            _ if line.starts_with('#') => writeln!(out, "{line}").expect("string"),
            "" => {
                if !block.is_empty() {
                    out.push_str(&script.block(&block));
                    block.clear();
                }
                skipping = false;
                if !out.ends_with("\n\n") && !out.is_empty() {
                    out.push('\n');
                }
            }
            "----" => skipping = true,
            _ if !skipping => block.push(line.to_owned()),
            _ => {}
        }
    }
    script.lab.check_copies();
    format!("{}\n", out.trim_end())
}

struct Script {
    lab: Lab,
}

impl Script {
    fn block(&mut self, lines: &[String]) -> String {
        let mut out = lines.join("\n");
        out.push_str("\n----\n");
        for line in lines {
            if lines.len() > 1 {
                writeln!(out, "> {line}").expect("string");
            }
            out.push_str(&self.line(line));
        }
        out
    }

    fn line(&mut self, line: &str) -> String {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        match verb {
            "host" => {
                let id = self.lab.host(rest);
                format!("host {id}\n")
            }
            "time" => {
                let step = rest.trim_start_matches('+').trim_end_matches('s');
                self.lab.now_ms += number(step) * 1_000;
                String::new()
            }
            "submit" => {
                let spec = job_spec(rest);
                self.apply(user("t"), Command::Submit { spec })
            }
            "plan" => {
                let plan = self.lab.plan();
                if plan.moves.is_empty() {
                    return "nothing to place\n".into();
                }
                self.apply(Actor::system(), Command::CommitPlan { plan })
            }
            "place" => self.place(&words),
            "begin" => {
                let parts = self.lab.parts(&words[1..].join(" "));
                self.plan_of(Move::Start { job: JobId(number(words[0])), choice: 0, parts })
            }
            "evict" => self.evict(&words),
            "queue" => self.apply(Actor::system(), Command::SetQueue { queue: queue_spec(rest) }),
            "start" => {
                let token = self.live(words[0]);
                self.report(token, AttemptFact::Started { pid: 42 })
            }
            "end" => {
                let token = self.live(words[0]);
                let end = ending(words[1]);
                self.report(token, AttemptFact::Ended { end, ran_ms: 1_000 })
            }
            "late" => self.late(&words),
            "cancel" => self.cancel(&words),
            "drain" => {
                let host = self.host_id(words[0]);
                let reason = words[1..].join(" ");
                self.apply(Actor::system(), Command::DrainHost { host, reason })
            }
            "undrain" => {
                let host = self.host_id(words[0]);
                self.apply(Actor::system(), Command::UndrainHost { host })
            }
            "expire" => {
                let host = self.host_id(words[0]);
                let epoch = self.lab.state.host(host).expect("host").epoch;
                self.apply(Actor::system(), Command::Expire { host, epoch })
            }
            "restart" | "reboot" => self.register(verb == "reboot", rest, &words),
            "jobs" => self.jobs(),
            "hosts" => self.hosts(),
            "devices" => self.devices(),
            "why" => self.why(&words),
            "explain" => self.explain(&words),
            "reserve" => self.reserve(&words),
            "adjust" => self.adjust(&words),
            other => panic!("no such command: {other}"),
        }
    }

    /// `reserve NAME HOST FROM_S FOR_S`: for nobody, times from now.
    fn reserve(&mut self, words: &[&str]) -> String {
        let start_ms = self.lab.now_ms + number(words[2]) * 1_000;
        let spec = ReservationSpec {
            name: words[0].into(),
            hosts: vec![self.host_id(words[1])],
            start_ms,
            end_ms: start_ms + number(words[3]) * 1_000,
            kept_for: ReservedFor::Nobody,
            reason: "test".into(),
        };
        self.apply(Actor::system(), Command::Reserve { reservation: spec })
    }

    /// `adjust JOB release|hold`.
    fn adjust(&mut self, words: &[&str]) -> String {
        let change = if words[1] == "hold" { JobChange::Hold } else { JobChange::Release };
        self.apply(user("t"), Command::Adjust { job: JobId(number(words[0])), change })
    }

    fn place(&mut self, words: &[&str]) -> String {
        let host = self.host_id(words[1]);
        let place = Move::Place {
            task: task_id(words[0]),
            host,
            epoch: self.lab.state.host(host).expect("host").epoch,
            devices: words[2..].iter().map(|w| DeviceUuid((*w).into())).collect(),
        };
        self.plan_of(place)
    }

    fn plan_of(&mut self, one: Move) -> String {
        let plan = Plan { seen_index: 0, moves: vec![one] };
        self.apply(Actor::system(), Command::CommitPlan { plan })
    }

    fn evict(&mut self, words: &[&str]) -> String {
        let reasons = [EndReason::Preempt, EndReason::Move, EndReason::Drain, EndReason::Reclaim];
        let reason = reasons.into_iter().chain([EndReason::Ceiling]).find(|r| r.to_string() == words[1]);
        let victims = words[2].split(',').map(|task| self.live(task)).collect();
        let job = (words[0] != "-").then(|| JobId(number(words[0])));
        let slots = self.lab.slots(&words[3..].join(" "));
        self.plan_of(Move::Evict { job, reason: reason.expect("a reason"), victims, slots, choice: 0 })
    }

    fn late(&mut self, words: &[&str]) -> String {
        let id = task_id(words[0]);
        let job = self.lab.state.job(id.job).expect("job");
        let old = job.ended.iter().rev().find(|a| a.index == id.index).expect("ended");
        let (token, host) = (old.token, old.host);
        let fact = AttemptFact::Ended { end: ending(words[1]), ran_ms: 1 };
        let reports = vec![AttemptReport { token, fact }];
        self.apply(Actor::system(), Command::Report { host, reports })
    }

    fn cancel(&mut self, words: &[&str]) -> String {
        let id = task_id(words[0]);
        let index = words[0].contains('_').then_some(id.index);
        let tenant = words.get(1).map_or("t", |w| w.trim_start_matches("by="));
        self.apply(user(tenant), Command::Cancel { job: id.job, index })
    }

    fn register(&mut self, reboot: bool, rest: &str, words: &[&str]) -> String {
        let host = self.host_id(words[0]);
        let facts = if words.len() > 1 { host_facts(rest).1 } else { self.lab.facts(host) };
        let events_before = self.lab.log.len();
        let outcome = self.lab.register(host, facts, reboot);
        assert_eq!(self.lab.log.len(), events_before + 1);
        let mut out = String::new();
        writeln!(out, "{}", outcome_text(&outcome)).expect("string");
        out
    }

    fn apply(&mut self, actor: Actor, command: Command) -> String {
        let request = RequestId::NONE;
        let applied = self.lab.apply(vec![Proposal { request, actor, command }]);
        let mut out = String::new();
        for outcome in &applied.outcomes {
            writeln!(out, "{}", outcome_text(outcome)).expect("string");
        }
        for event in &applied.events {
            writeln!(out, "  {}", self.event_text(event)).expect("string");
        }
        out
    }

    fn report(&mut self, token: Token, fact: AttemptFact) -> String {
        let host = self.lab.state.attempt(token).expect("live").host;
        let reports = vec![AttemptReport { token, fact }];
        self.apply(Actor::system(), Command::Report { host, reports })
    }

    fn live(&self, word: &str) -> Token {
        let attempt = self.lab.state.attempt_of(task_id(word));
        attempt.unwrap_or_else(|| panic!("{word} has no live attempt")).token
    }

    fn host_id(&self, name: &str) -> HostId {
        self.lab.state.host_by_name_or_id(name).expect("host").id
    }

    fn host_name(&self, id: HostId) -> &str {
        &self.lab.state.host(id).expect("host").name
    }

    fn event_text(&self, event: &Event) -> String {
        match event {
            Event::Granted { host, token } => {
                let attempt = self.lab.state.attempt(*token).expect("live");
                let devices: Vec<&str> = attempt.devices.iter().map(|d| d.0.as_str()).collect();
                let host = self.host_name(*host);
                format!("granted {} on {host}: [{}]", attempt.task, devices.join(" "))
            }
            Event::EndAsked { host, token } => {
                let attempt = self.lab.state.attempt(*token).expect("live");
                format!("end asked of {} on {}", attempt.task, self.host_name(*host))
            }
            Event::AttemptEnded { host, job, .. } => {
                format!("an attempt of {job} ended on {}", self.host_name(*host))
            }
            Event::JobChanged(job) => {
                let row = view::job_row(&self.lab.state, *job).expect("job");
                let t = row.tasks;
                format!(
                    "job {job} {}: {} pending {} live {} succeeded {} failed {} cancelled",
                    row.state, t.pending, t.live, t.succeeded, t.failed, t.cancelled
                )
            }
            Event::HostChanged(host) => {
                let host = self.lab.state.host(*host).expect("host");
                let reason = host.reason(self.lab.now_ms).map_or_else(String::new, |r| format!(" ({r})"));
                format!("host {} {:?}{reason}", host.name, host.state(self.lab.now_ms))
            }
            Event::PlanNeeded => "plan needed".into(),
            Event::TrustChanged => "trust changed".into(),
        }
    }

    fn jobs(&self) -> String {
        let filter = QueueFilter { all: true, ..QueueFilter::default() };
        let (rows, _) = view::queue(&self.lab.state, &filter, &Actor::system());
        let mut out = String::new();
        for row in rows {
            writeln!(out, "{} {} {} {} | {}", row.job, row.state.code(), row.priority, row.ask, row.place)
                .expect("string");
        }
        out
    }

    fn hosts(&self) -> String {
        let mut out = String::new();
        for row in view::hosts_at(&self.lab.state, self.lab.now_ms) {
            writeln!(
                out,
                "{} {:?} epoch {}: {}/{} gpu {}/{} cpu {}/{} MiB{}",
                row.name,
                row.state,
                row.epoch,
                row.gpus_used,
                row.gpus,
                row.cpus_milli_used,
                row.cpus_milli,
                row.mem_mib_used,
                row.mem_mib,
                row.reason.map_or_else(String::new, |r| format!(" ({r})")),
            )
            .expect("string");
        }
        out
    }

    fn devices(&self) -> String {
        let mut out = String::new();
        for row in view::devices(&self.lab.state) {
            let hold = |hold: &rota_protocol::view::DeviceHold| match hold.milli {
                1_000 => format!("held by {}", hold.task),
                milli => format!("{milli} held by {}", hold.task),
            };
            let held: Vec<String> = row.held_by.iter().map(hold).collect();
            let held = if held.is_empty() { "free".into() } else { held.join(", ") };
            let health = row.facts.health.reason().unwrap_or("healthy");
            let index = row.facts.index.map_or_else(String::new, |i| i.to_string());
            writeln!(out, "{} [{index}] {held}, {health}", row.facts.uuid).expect("string");
        }
        out
    }

    fn why(&self, words: &[&str]) -> String {
        let why = explain::why(&self.lab.state, JobId(number(words[0])), self.lab.now_ms).expect("job");
        assert_eq!(why.by_reason.iter().map(|r| r.hosts).sum::<u32>(), why.hosts);
        let mut out = format!("{}\n", why.verdict);
        for reason in &why.by_reason {
            writeln!(out, "  {} {}: {}", reason.hosts, reason.kind, reason.detail).expect("string");
        }
        if let Some(offer) = &why.largest_offer {
            writeln!(out, "  offer: {offer}").expect("string");
        }
        if let Some(hint) = &why.hint {
            writeln!(out, "  hint: {hint}").expect("string");
        }
        writeln!(out, "  ahead: {} tasks, {} GPUs", why.ahead_tasks, why.ahead_gpus).expect("string");
        out
    }

    /// The whole answer, times as seconds from now.
    fn explain(&self, words: &[&str]) -> String {
        let now_ms = self.lab.now_ms;
        let why = explain::why(&self.lab.state, JobId(number(words[0])), now_ms).expect("job");
        assert_eq!(why.by_reason.iter().map(|r| r.hosts).sum::<u32>(), why.hosts);
        let in_s = |at_ms: u64| format!("{:+} s", (i128::from(at_ms) - i128::from(now_ms)) / 1_000);
        let mut lines = vec![format!("{} {}: {}", why.state, why.cause, why.verdict)];
        lines.push(format!("asks: {}, waited {} s", why.ask, why.waited_ms / 1_000));
        let impossible = why.impossible.then(|| "impossible".to_owned());
        lines.extend(impossible);
        lines.extend(why.by_reason.iter().map(|r| format!("{} {}: {}", r.hosts, r.kind, r.detail)));
        lines.push(format!("ahead: {} tasks, {} GPUs", why.ahead_tasks, why.ahead_gpus));
        lines.extend(why.largest_offer.map(|offer| format!("offer: {offer}")));
        lines.extend(why.expected.map(|start| {
            format!("expected: {} by {:?} on {}", in_s(start.at_ms), start.basis, start.hosts.join(","))
        }));
        lines.extend(why.promise.map(|promise| {
            let (at, made, on) = (in_s(promise.at_ms), in_s(promise.made_ms), promise.hosts.join(","));
            format!("promise: {at} on {on}, made {made}, broken by {:?}", promise.broken_by)
        }));
        let victims = (why.victims > 0).then(|| format!("victims: {}", why.victims));
        lines.extend(victims);
        lines.extend(why.account.iter().map(|row| {
            let most = row.ceiling.map_or("none".into(), |most| most.to_string());
            let (user, full) =
                (if row.of_user { " (user)" } else { "" }, if row.full { " FULL" } else { "" });
            let (queue, part, held, own) = (&row.queue, &row.part, row.held, row.guarantee);
            format!("account {queue}{user}: {part} {held} of {most}, guarantee {own}{full}")
        }));
        lines.extend(why.dependencies.iter().map(|dep| {
            format!(
                "after: job {} {}{} is {}",
                dep.job,
                dep.relation,
                if dep.each { " each" } else { "" },
                dep.state
            )
        }));
        lines.extend(why.held.then(|| "held".to_owned()));
        for (name, at_ms) in
            [("begin", why.begin_ms), ("deadline", why.deadline_ms), ("paused", why.paused_until_ms)]
        {
            lines.extend(at_ms.map(|at_ms| format!("{name}: {}", in_s(at_ms))));
        }
        lines.extend(why.parallel_max.map(|most| format!("at once: {most}")));
        lines.extend(why.parts.map(|parts| format!("parts: {} of {} fit", parts.fit, parts.needed)));
        lines.extend(why.smaller_ask.map(|ask| format!("smaller: {ask}")));
        lines.extend(why.shorter_limit_ms.map(|ms| format!("limit: {} s", ms / 1_000)));
        lines.extend(why.hint.map(|hint| format!("hint: {hint}")));
        let waits = why.waits.iter().map(|wait| format!("{} {} s", wait.cause, wait.ms / 1_000));
        lines.push(format!("waits: {}", waits.collect::<Vec<_>>().join(", ")));
        lines.iter().map(|line| format!("  {line}\n")).collect::<String>().replacen("  ", "", 1)
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "done".into(),
        Outcome::Refused(error) => format!("refused, {}: {error}", error.code),
        Outcome::HostAdmitted { host } => format!("admitted {host}"),
        Outcome::HostRegistered { epoch } => format!("registered, epoch {epoch}"),
        Outcome::Submitted { job } => format!("job {job}"),
        Outcome::Planned { refused } => format!("planned, refused {refused:?}"),
        Outcome::Cancelling { live } => format!("cancelling {live}"),
    }
}

fn task_id(text: &str) -> TaskId {
    let (job, index) = text.split_once('_').unwrap_or((text, "0"));
    task(JobId(number(job)), number(index) as u32)
}

fn ending(text: &str) -> AttemptEnd {
    match text.split_once('=') {
        Some(("exit", code)) => exit(number(code) as u8),
        Some(("signal", n)) => AttemptEnd::Signalled { signal: number(n) as u8 },
        _ => match text {
            "time-limit" => AttemptEnd::TimeLimit,
            "cancelled" => AttemptEnd::Cancelled,
            "launch-failed" => launch_failed(),
            "fenced" => AttemptEnd::Fenced,
            "gang-broken" => AttemptEnd::GangBroken,
            "host-stopped" => AttemptEnd::HostStopped,
            "preempted" => AttemptEnd::Preempted,
            "vanished" => AttemptEnd::Vanished { reason: "no record".into() },
            other => panic!("no such end: {other}"),
        },
    }
}
