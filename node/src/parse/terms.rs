//! The terms of a job beyond what a task needs: when it starts and ends, in which order, with what others, and what
//! becomes of it when something is in its way.

use super::amount;
use super::draft::{narrow, once, scalars, twice};
use super::key::{Key, Scalar, Value};
use super::moment::{Moment, moment, within_reach};
use super::pieces::grace_ms;
use super::{shape, time, word};
use rota_protocol::PublicError;
use rota_protocol::job::{ArraySpec, JobSpec};
use rota_protocol::limits::{PRIORITY_MAX, RETRIES_MAX};
use rota_protocol::work::{Dependency, GangSpec, Layout, Warning};

/// Terms of which some have been said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Terms {
    array: Option<ArraySpec>,
    parts: Option<Parts>,
    layout: Option<Layout>,
    after: Option<Vec<Dependency>>,
    queue: Option<String>,
    begin: Option<Moment>,
    deadline: Option<Moment>,
    hold: Option<bool>,
    service: Option<bool>,
    time_limit_ms: Option<u64>,
    grace_ms: Option<u32>,
    warning: Option<Warning>,
    priority: Option<u16>,
    preemptible: Option<bool>,
    requeue: Option<bool>,
    requeue_status: Option<u8>,
    retries: Option<u16>,
    idle_until: Option<Moment>,
}

/// What `gang` and `nodes` say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    /// None: one task, which is no gang.
    gang: Option<GangSpec>,
    /// On as many hosts as can be, unless a layout is given.
    spread: bool,
    /// Said by `nodes`.
    nodes: bool,
}

impl Terms {
    /// Reads one value; false if the key is none of these.
    pub(super) fn set(&mut self, key: Key, value: &Value) -> Result<bool, PublicError> {
        let field = key.name();
        match key {
            Key::Array => once(key, &mut self.array, word::array(field, value.amount(key)?)?),
            Key::Gang | Key::Nodes => self.set_parts(key, value.amount(key)?),
            Key::Layout => once(key, &mut self.layout, shape::layout(field, value.one(key)?.text(field)?)?),
            Key::After => self.set_after(value),
            Key::Queue => once(key, &mut self.queue, word::queue(field, value.one(key)?.text(field)?)?),
            Key::Begin => once(key, &mut self.begin, moment(field, value.amount(key)?)?),
            Key::Deadline => once(key, &mut self.deadline, moment(field, value.amount(key)?)?),
            Key::IdleUntil => once(key, &mut self.idle_until, moment(field, value.amount(key)?)?),
            Key::Hold => once(key, &mut self.hold, value.yes(key)?),
            Key::Service => once(key, &mut self.service, value.yes(key)?),
            Key::Time => once(key, &mut self.time_limit_ms, time::duration_ms(field, value.amount(key)?)?),
            Key::Grace => once(key, &mut self.grace_ms, grace_ms(value.amount(key)?)?),
            Key::Warn => once(key, &mut self.warning, shape::warning(field, value.amount(key)?)?),
            Key::Priority => {
                let priority = amount::count(field, value.amount(key)?, 0, u32::from(PRIORITY_MAX))?;
                once(key, &mut self.priority, narrow(priority))
            }
            Key::Preemptible => once(key, &mut self.preemptible, value.yes(key)?),
            Key::NoPreempt => once(key, &mut self.preemptible, !value.yes(key)?),
            Key::Requeue => once(key, &mut self.requeue, value.yes(key)?),
            Key::NoRequeue => once(key, &mut self.requeue, !value.yes(key)?),
            Key::RequeueStatus => {
                let status = amount::count(field, value.amount(key)?, 1, u32::from(u8::MAX))?;
                once(key, &mut self.requeue_status, u8::try_from(status).unwrap_or(u8::MAX))
            }
            Key::Retries => {
                let retries = amount::count(field, value.amount(key)?, 0, u32::from(RETRIES_MAX))?;
                once(key, &mut self.retries, narrow(retries))
            }
            _ => return Ok(false),
        }?;
        Ok(true)
    }

    /// Lays these terms over others.
    pub(super) fn over(self, base: Self) -> Self {
        Self {
            array: self.array.or(base.array),
            parts: self.parts.or(base.parts),
            layout: self.layout.or(base.layout),
            after: self.after.or(base.after),
            queue: self.queue.or(base.queue),
            begin: self.begin.or(base.begin),
            deadline: self.deadline.or(base.deadline),
            hold: self.hold.or(base.hold),
            service: self.service.or(base.service),
            time_limit_ms: self.time_limit_ms.or(base.time_limit_ms),
            grace_ms: self.grace_ms.or(base.grace_ms),
            warning: self.warning.or(base.warning),
            priority: self.priority.or(base.priority),
            preemptible: self.preemptible.or(base.preemptible),
            requeue: self.requeue.or(base.requeue),
            requeue_status: self.requeue_status.or(base.requeue_status),
            retries: self.retries.or(base.retries),
            idle_until: self.idle_until.or(base.idle_until),
        }
    }

    /// Writes what was said into a spec that has the defaults.
    ///
    /// # Errors
    /// A time that has passed or is too far, or terms that contradict each other.
    pub(super) fn fill(self, spec: &mut JobSpec, now_ms: u64) -> Result<(), PublicError> {
        self.check()?;
        let at = |key: Key, moment: Option<Moment>| {
            moment.map(|moment| within_reach(key.name(), moment.at_ms(now_ms), now_ms)).transpose()
        };
        spec.begin_ms = at(Key::Begin, self.begin)?;
        spec.deadline_ms = at(Key::Deadline, self.deadline)?;
        spec.idle_until_ms = at(Key::IdleUntil, self.idle_until)?;
        if spec.deadline_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            return Err(PublicError::invalid(Key::Deadline.name(), "has passed already", "now+2h"));
        }
        let spread = self.parts.is_some_and(|parts| parts.spread);
        spec.array = self.array;
        spec.gang = self.parts.and_then(|parts| parts.gang);
        spec.layout = self.layout.unwrap_or(if spread { Layout::Spread } else { Layout::Any });
        spec.after = self.after.unwrap_or_default();
        spec.queue = self.queue.unwrap_or_default();
        spec.time_limit_ms = self.time_limit_ms;
        spec.grace_ms = self.grace_ms;
        spec.warning = self.warning;
        spec.requeue_status = self.requeue_status;
        spec.hold = self.hold.unwrap_or(spec.hold);
        spec.service = self.service.unwrap_or(spec.service);
        spec.priority = self.priority.unwrap_or(spec.priority);
        spec.preemptible = self.preemptible.unwrap_or(spec.preemptible);
        spec.requeue = self.requeue.unwrap_or(spec.requeue);
        spec.retries = self.retries.unwrap_or(spec.retries);
        Ok(())
    }

    fn check(&self) -> Result<(), PublicError> {
        if let Some(after) = &self.after {
            shape::check_after(Key::After.name(), after)?;
        }
        if let (Some(warning), Some(limit_ms)) = (self.warning, self.time_limit_ms)
            && u64::from(warning.before_ms) >= limit_ms
        {
            let message = format!(
                "{} before the end is no less than the time limit of {}",
                time::duration_text(warning.before_ms.into()),
                time::duration_text(limit_ms)
            );
            return Err(PublicError::invalid(Key::Warn.name(), message, "USR1@1s"));
        }
        Ok(())
    }

    /// `gang 4` are four parts wherever they fit; `nodes 4` are Slurm's four hosts: four parts, apart as far as can be.
    fn set_parts(&mut self, key: Key, text: &str) -> Result<(), PublicError> {
        let gang = shape::gang(key.name(), text)?;
        let nodes = key == Key::Nodes;
        let gang = Some(gang).filter(|gang| !nodes || gang.max > 1);
        let parts = Parts { gang, spread: nodes && gang.is_some(), nodes };
        if let Some(before) = self.parts.replace(parts) {
            if before.nodes == nodes {
                return Err(twice(key.name()));
            }
            let message = "is given twice: gang and nodes say the same in two ways";
            return Err(PublicError { example: None, ..PublicError::invalid(key.name(), message, "") });
        }
        Ok(())
    }

    fn set_after(&mut self, value: &Value) -> Result<(), PublicError> {
        let field = Key::After.name();
        if let Value::Map(_) = value {
            return value.one(Key::After).map(|_: &Scalar| ());
        }
        for scalar in scalars(value) {
            let more = shape::after(field, scalar.text(field)?)?;
            self.after.get_or_insert_default().extend(more);
        }
        Ok(())
    }
}
