//! A kept submission as the [`JobSpec`] that it was, for whoever writes it: the same fields in the same order, lent
//! instead of copied. A field that is new there is missed here by the compiler, one out of order by the tests.

use super::{Spec, Texts};
use rota_protocol::ask::Ask;
use rota_protocol::container::ContainerSpec;
use rota_protocol::job::{ArraySpec, JobSpec};
use rota_protocol::output::OutputSpec;
use rota_protocol::pace::Pace;
use rota_protocol::session::SessionSpec;
use rota_protocol::work::{Dependency, GangSpec, Layout, Warning};
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

#[derive(Serialize)]
pub(super) struct Lent<'a> {
    name: &'a String,
    argv: Args<'a>,
    env: Env<'a>,
    workdir: Text<'a>,
    ask: &'a Ask,
    array: &'a Option<ArraySpec>,
    priority: &'a u16,
    time_limit_ms: &'a Option<u64>,
    grace_ms: &'a Option<u32>,
    retries: &'a u16,
    uid_gid: &'a Option<(u32, u32)>,
    alternatives: &'a Vec<Ask>,
    gang: &'a Option<GangSpec>,
    layout: &'a Layout,
    after: &'a Vec<Dependency>,
    queue: &'a String,
    begin_ms: &'a Option<u64>,
    deadline_ms: &'a Option<u64>,
    hold: &'a bool,
    service: &'a bool,
    preemptible: &'a bool,
    requeue: &'a bool,
    warning: &'a Option<Warning>,
    requeue_status: &'a Option<u8>,
    output: &'a Option<Box<OutputSpec>>,
    session: &'a Option<Box<SessionSpec>>,
    container: &'a Option<Box<ContainerSpec>>,
    idle_until_ms: &'a Option<u64>,
    pace: &'a Option<Box<Pace>>,
}

impl<'a> Lent<'a> {
    pub(super) fn of(spec: &'a Spec) -> Self {
        let (args, mut texts) = spec.texts();
        let workdir = Text(texts.next().unwrap_or_default());
        let argv = Args(args, texts.clone());
        texts.by_ref().take(args as usize).for_each(drop);
        let env = Env(texts);
        let JobSpec {
            name,
            argv: _,
            env: _,
            workdir: _,
            ask,
            array,
            priority,
            time_limit_ms,
            grace_ms,
            retries,
            uid_gid,
            alternatives,
            gang,
            layout,
            after,
            queue,
            begin_ms,
            deadline_ms,
            hold,
            service,
            preemptible,
            requeue,
            warning,
            requeue_status,
            output,
            session,
            container,
            idle_until_ms,
            pace,
        } = &*spec.rest;
        Self {
            name,
            argv,
            env,
            workdir,
            ask,
            array,
            priority,
            time_limit_ms,
            grace_ms,
            retries,
            uid_gid,
            alternatives,
            gang,
            layout,
            after,
            queue,
            begin_ms,
            deadline_ms,
            hold,
            service,
            preemptible,
            requeue,
            warning,
            requeue_status,
            output,
            session,
            container,
            idle_until_ms,
            pace,
        }
    }
}

struct Text<'a>(&'a [u8]);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// So many of these texts.
struct Args<'a>(u32, Texts<'a>);

impl Serialize for Args<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0 as usize))?;
        for text in self.1.clone().take(self.0 as usize) {
            list.serialize_element(&Text(text))?;
        }
        list.end()
    }
}

/// These texts in pairs.
struct Env<'a>(Texts<'a>);

impl Serialize for Env<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.clone().count() / 2))?;
        let mut texts = self.0.clone();
        while let (Some(key), Some(value)) = (texts.next(), texts.next()) {
            list.serialize_element(&(Text(key), Text(value)))?;
        }
        list.end()
    }
}
