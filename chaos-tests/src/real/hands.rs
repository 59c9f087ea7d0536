//! The table of faults of the hands: one line for each row, each a function that tries its fault on real processes and
//! measures it beside the stated bound. A new row is one line in [`ROWS`].

use super::row::Row;
use super::{Bench, again, agent_death, ends, hooks, reboot, sessions, unkillable};
use rota_node::lab::LabError;
use std::future::Future;
use std::pin::Pin;

/// A row at work.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<Row, LabError>> + 'a>>;
/// What tries a row.
pub type Try = for<'a> fn(&'a Bench) -> Running<'a>;

/// All rows, in the order of the table.
pub const ROWS: [(&str, Try); 13] = [
    ("P6", |bench| Box::pin(agent_death::adopted(bench))),
    ("P7", |bench| Box::pin(agent_death::orphaned(bench))),
    ("R061", |bench| Box::pin(agent_death::at_any_point(bench))),
    ("T1", |bench| Box::pin(ends::tree_killed(bench))),
    ("T2", |bench| Box::pin(unkillable::frozen(bench))),
    ("T5", |bench| Box::pin(ends::cancels_race(bench))),
    ("T6", |bench| Box::pin(ends::preemptors_cancelled(bench))),
    ("T7", |bench| Box::pin(ends::reasons_told(bench))),
    ("T10", |bench| Box::pin(hooks::prolog_hangs(bench))),
    ("T11", |bench| Box::pin(reboot::with_tasks(bench))),
    ("R047", |bench| Box::pin(again::warned_and_queued_again(bench))),
    ("R063", |bench| Box::pin(again::array_goes_on(bench))),
    ("R097", |bench| Box::pin(sessions::same_everywhere(bench))),
];

/// Tries one row; a lab that fails is a row that did not hold.
pub async fn row(id: &str, bench: &Bench) -> Option<Row> {
    let (_, attempt) = ROWS.iter().find(|(known, _)| *known == id)?;
    Some(attempt(bench).await.unwrap_or_else(|error| {
        let mut row = Row::new(id, "the lab failed", None);
        row.wrong(error.to_string());
        row
    }))
}
