//! A kept submission as the [`JobSpec`] that it was, for whoever writes it: the same fields in the same order, lent
//! instead of copied. A field that is new there is missed here by the compiler, one out of order by the tests.

use super::{Spec, Texts};
use rota_protocol::bytes::Lent;
use rota_protocol::job::JobSpec;
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

/// Writes `$spec`: these fields as they are kept, and after the first of them those that are packed.
macro_rules! write_fields {
    ($spec:expr, $serializer:expr, $first:ident, $($field:ident),*) => {{
        let (args, mut texts) = $spec.texts();
        let workdir = Lent(texts.next().unwrap_or_default());
        let argv = Args(args, texts.clone());
        texts.by_ref().take(args as usize).for_each(drop);
        let JobSpec { $first, argv: _, env: _, workdir: _, $($field),* } = &*$spec.rest;
        let packed = ["argv", "env", "workdir"];
        let fields = 1 + packed.len() + [$(stringify!($field)),*].len();
        let mut row = $serializer.serialize_struct("JobSpec", fields)?;
        row.serialize_field(stringify!($first), $first)?;
        row.serialize_field(packed[0], &argv)?;
        row.serialize_field(packed[1], &Env(texts))?;
        row.serialize_field(packed[2], &workdir)?;
        $(row.serialize_field(stringify!($field), $field)?;)*
        row.end()
    }};
}

pub(super) fn serialize<S: Serializer>(spec: &Spec, serializer: S) -> Result<S::Ok, S::Error> {
    write_fields!(
        spec,
        serializer,
        name,
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
        inputs
    )
}

/// So many of these texts.
struct Args<'a>(u32, Texts<'a>);

impl Serialize for Args<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0 as usize))?;
        for text in self.1.clone().take(self.0 as usize) {
            list.serialize_element(&Lent(text))?;
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
            list.serialize_element(&(Lent(key), Lent(value)))?;
        }
        list.end()
    }
}
