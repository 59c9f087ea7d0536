//! Faults of cards: real agents, or the agent's own inventory, over the real NVML wrapper and a scripted library. Each row
//! of the table is a function of one of the files here; the tests and the program run the same ones.

mod breaker;
pub mod driver;
pub mod give_back;
mod lemon;
mod looks;
mod odd;
pub mod sharing;
mod sick;
pub mod site;
mod slow;
mod xids;

use super::Bench;
use super::row::Row;
use fake_nvml::script::Card;
use rota_node::lab::{LabError, io};
use std::path::PathBuf;
use std::time::Instant;

pub(super) use breaker::mass_alarm;
pub(super) use give_back::clean_or_dirty;
pub(super) use lemon::shunned;
pub(super) use looks::{driver_upgraded, hung_call, renumbered};
pub(super) use odd::values;
pub(super) use sharing::daemon_dies;
pub(super) use sick::{gone_and_back, remaps_and_cordons};
pub(super) use slow::{bad_links_and_stragglers, slowed};
pub(super) use xids::decided_in_time;

/// Names of eight cards, each with an address of its own ([`eight`]).
pub const NAMES: [&str; 8] = ["GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-e", "GPU-f", "GPU-g", "GPU-h"];

/// A row that needs the scripted library: without it, it is not exercised and says so.
pub(super) async fn with_library(
    bench: &Bench,
    id: &str,
    row: impl Future<Output = Result<Row, LabError>>,
) -> Result<Row, LabError> {
    match library(bench) {
        Ok(_) => row.await,
        Err(why) => {
            let what = "cards under a scripted driver";
            Ok(Row::new(id, what, None).skip(&format!("{why}: `cargo build -p fake-nvml`, or --nvml FILE")))
        }
    }
}

/// The scripted library.
pub(super) fn library(bench: &Bench) -> Result<PathBuf, String> {
    match &bench.nvml {
        Some(path) if path.is_file() => Ok(path.clone()),
        Some(path) => Err(format!("{} is no file", path.display())),
        None => fake_nvml::library(),
    }
}

/// Eight cards, each at its own address. None of them gives advice.
#[must_use]
pub fn eight() -> Vec<Card> {
    let card = |(name, at): (&&str, u32)| Card {
        bus: format!("00000000:{:02X}:00.0", 0x3b + at).into_bytes(),
        minor: Some(at),
        recovery: None,
        ..Card::new(name)
    };
    NAMES.iter().zip(0..).map(card).collect()
}

/// The place of one of [`NAMES`].
fn place(name: &str) -> usize {
    NAMES.iter().position(|other| *other == name).unwrap_or_default()
}

/// The address of one of [`eight`], as the kernel writes it.
fn bus(at: usize) -> String {
    format!("0000:{:02x}:00", 0x3b + at)
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
