//! The table of faults of the hands: one line for each row, each a function that tries its fault on real processes and
//! measures it beside the stated bound. A new row is one line in [`ROWS`].

use super::row::Row;
use super::{
    Bench, again, agent_death, booted, cards, ends, hooks, inputs, inside, memory, reboot, sessions, starved,
    unkillable,
};
use rota_node::lab::{LabError, violations};
use std::future::Future;
use std::pin::Pin;

/// A row at work.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<Row, LabError>> + 'a>>;
/// What tries a row.
pub type Try = for<'a> fn(&'a Bench) -> Running<'a>;

/// A row that is a scenario of its own, whose first bounded time is what is measured.
async fn scenario(bench: &Bench, name: &str, what: &str) -> Result<Row, LabError> {
    Ok(Row::of(&super::run(name, bench).await?, what))
}

/// All rows, in the order of the table.
pub const ROWS: [(&str, Try); 37] = [
    ("P6", |bench| Box::pin(agent_death::adopted(bench))),
    ("P7", |bench| Box::pin(agent_death::orphaned(bench))),
    ("P10", |bench| Box::pin(starved::of_everything(bench))),
    ("R061", |bench| Box::pin(agent_death::at_any_point(bench))),
    ("T1", |bench| Box::pin(ends::tree_killed(bench))),
    ("T2", |bench| Box::pin(unkillable::frozen(bench))),
    ("T3", |bench| {
        Box::pin(scenario(
            bench,
            "T3",
            "a gang loses a part: from the loss to the last sign of life of any other",
        ))
    }),
    ("T4", |bench| {
        Box::pin(scenario(
            bench,
            "T4",
            "the leader dies while a gang starts: from its death to the gang's end; all parts run or none",
        ))
    }),
    ("T5", |bench| Box::pin(ends::cancels_race(bench))),
    ("T6", |bench| Box::pin(ends::preemptors_cancelled(bench))),
    ("T7", |bench| Box::pin(ends::reasons_told(bench))),
    ("T8", |bench| Box::pin(inputs::fetched(bench))),
    ("T9", |bench| {
        Box::pin(scenario(
            bench,
            "T9",
            "floods of output: memory of shim and agent stays bounded, followers get every kept byte",
        ))
    }),
    ("T10", |bench| Box::pin(hooks::prolog_hangs(bench))),
    ("T11", |bench| Box::pin(reboot::with_tasks(bench))),
    ("T12", |_| Box::pin(async { Ok(no_migration()) })),
    ("G1", |bench| Box::pin(cards::with_library(bench, "G1", cards::decided_in_time(bench)))),
    ("G2", |bench| Box::pin(cards::with_library(bench, "G2", cards::hung_call(bench)))),
    ("G3", |bench| Box::pin(cards::with_library(bench, "G3", cards::gone_and_back(bench)))),
    ("G4", |bench| Box::pin(cards::with_library(bench, "G4", cards::renumbered(bench)))),
    ("G5", |bench| Box::pin(cards::with_library(bench, "G5", cards::driver_upgraded(bench)))),
    ("G6", |bench| Box::pin(cards::with_library(bench, "G6", cards::clean_or_dirty(bench)))),
    ("G7", |bench| Box::pin(cards::with_library(bench, "G7", cards::remaps_and_cordons(bench)))),
    ("G8", |bench| Box::pin(cards::with_library(bench, "G8", cards::slowed(bench)))),
    ("G9", |bench| Box::pin(cards::with_library(bench, "G9", cards::bad_links_and_stragglers(bench)))),
    ("G10", |bench| Box::pin(cards::with_library(bench, "G10", cards::daemon_dies(bench)))),
    ("G11", |bench| Box::pin(booted::unit_under_systemd(bench))),
    ("G13", |bench| Box::pin(cards::mass_alarm(bench))),
    ("G14", |bench| Box::pin(cards::shunned(bench))),
    ("G15", |bench| Box::pin(cards::with_library(bench, "G15", cards::values(bench)))),
    ("S24", |bench| Box::pin(inside::nothing_of_the_node(bench))),
    ("R012", |bench| Box::pin(memory::no_card_unasked(bench))),
    ("R047", |bench| Box::pin(again::warned_and_queued_again(bench))),
    ("R049", |bench| Box::pin(memory::out_of_memory_told(bench))),
    ("R050", |bench| Box::pin(memory::hog_beside_others(bench))),
    ("R063", |bench| Box::pin(again::array_goes_on(bench))),
    ("R097", |bench| Box::pin(sessions::same_everywhere(bench))),
];

/// T12 is about jobs that are moved while they run.
fn no_migration() -> Row {
    let what = "a migration whose checkpoint works and whose restore fails";
    Row::new("T12", what, None)
        .without_subject("Rota moves no running job: it is ended, warned, and started anew")
}

/// Tries one row; a lab that fails is a row that did not hold.
pub async fn row(id: &str, bench: &Bench) -> Option<Row> {
    let (_, attempt) = ROWS.iter().find(|(known, _)| *known == id)?;
    let mut row = attempt(bench).await.unwrap_or_else(|error| {
        let mut row = Row::new(id, "the lab failed", None);
        row.wrong(error.to_string());
        row
    });
    // The agents watch themselves: whatever a row looks at, none of them may have found a broken law.
    for broken in violations(&bench.dir.join(id)) {
        if !row.violations.contains(&broken) {
            row.wrong(broken);
        }
    }
    Some(row)
}
