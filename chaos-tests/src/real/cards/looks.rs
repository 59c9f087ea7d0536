//! What the agent's inventory makes of a driver that hangs, forgets, renumbers or is replaced (faults G2, G3, G4, G5).

use super::driver::{Driver, cards, marks, until};
use super::site::{Settings, Site, sleeper};
use super::{Bench, NAMES, eight, io, ms, place};
use crate::real::row::Row;
use fake_nvml::script::{Card, Script, code};
use rota_node::devices::inventory::PROBATION_LOOKS;
use rota_node::devices::probe::{PROBE_DEADLINE, STUCK_MAX};
use rota_node::lab::LabError;
use rota_protocol::device::DeviceHealth;
use rota_protocol::job::JobState;
use rota_protocol::view::DeviceRow;
use std::time::{Duration, Instant};

/// How often the agent looks.
const LOOK_EVERY: Duration = Duration::from_millis(2_000);
/// G2: from a call that does not return to the card closed.
const CLOSED_MS_MAX: u64 = 2_500;
/// G5: from the fix to the cards back.
const BACK_MS_MAX: u64 = 10_000;
const EIGHT: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];

fn eight_but(index: usize, card: Card) -> Vec<Card> {
    let mut all = cards(&EIGHT);
    all[index] = card;
    all
}

/// G2: a call that never returns closes its card in time, and no other for longer than one look; what runs goes on.
pub(in crate::real) async fn hung_call(bench: &Bench) -> Result<Row, LabError> {
    let what = "a driver's call that never returns: from the call to its card closed; the others, and what runs, go on";
    let mut row = Row::new("G2", what, Some(CLOSED_MS_MAX));
    let driver = Driver::new(bench, "G2", cards(&EIGHT))?;
    let mut inventory = driver.inventory_within(PROBE_DEADLINE);
    until(&mut inventory, "A B C D E F G H").await?;
    for _ in 0..bench.rounds.min(3) {
        driver.shows(eight_but(3, Card::new("D").hanging("memory")))?;
        let began = Instant::now();
        let facts = inventory.refresh().await;
        row.ran(ms(began));
        row.must(marks(&facts).starts_with("A B C D?"), || marks(&facts));
        row.must(facts.devices.len() == 9, || "devices of other sources are gone".into());
        // It hangs again and again, and costs its own card alone: it is asked last.
        for look in 0..5 {
            let began = Instant::now();
            let now = marks(&inventory.refresh().await);
            row.must(now == "A B C D? E F G H", || format!("look {look}: {now}"));
            row.must(look > 0 || began.elapsed() < PROBE_DEADLINE, || {
                "what hung was asked again at once".into()
            });
            row.must(inventory.stuck() <= STUCK_MAX, || format!("{} probes are stuck", inventory.stuck()));
            tokio::time::sleep(LOOK_EVERY / 4).await;
        }
        let readings = inventory.readings().await.len();
        row.must(readings == 8, || format!("{readings} readings of seven cards and another device"));
        driver.shows(cards(&EIGHT))?;
        let fixed = Instant::now();
        while marks(&inventory.refresh().await) != "A B C D E F G H"
            && fixed.elapsed() < Duration::from_secs(20)
        {
            tokio::time::sleep(LOOK_EVERY / 4).await;
        }
        row.also("back_after_the_fix_ms", ms(fixed), Some(20_000));
    }
    under_an_agent(bench, &mut row).await?;
    Ok(row)
}

/// The same under a real agent: the job on the card goes on, the card is not granted, the others are, and the agent
/// answers meanwhile.
async fn under_an_agent(bench: &Bench, row: &mut Row) -> Result<(), LabError> {
    let site = Site::well(bench, "G2", eight(), Settings::default()).await?;
    let holder = site.occupy(1).await?.remove(0);
    let mut cards = eight();
    let at = place(&holder.card);
    cards[at] = cards[at].clone().hanging("memory");
    site.driver.shows(cards).map_err(io("the script"))?;
    let health = |rows: &[DeviceRow], name: &str| {
        rows.iter().find(|row| row.facts.uuid.0 == name).map(|row| row.facts.health.clone())
    };
    let hidden = |rows: &[DeviceRow]| {
        matches!(health(rows, &holder.card), Some(DeviceHealth::Unknown { .. }))
            && NAMES
                .iter()
                .filter(|name| **name != holder.card)
                .all(|name| health(rows, name).is_some_and(|health| health.is_healthy()))
    };
    // The look before it may have just begun.
    row.also(
        "agent_next_look_to_closed_ms",
        site.until_rows("its card alone is closed", hidden).await?,
        None,
    );
    site.occupy(7).await?;
    let eighth = site.submit(sleeper()).await?;
    tokio::time::sleep(LOOK_EVERY / 2).await;
    let state = site.show(eighth).await?.row.state;
    row.must(state == JobState::Pending, || format!("a job for the hung card is {state}"));
    let state = site.show(holder.job).await?.row.state;
    row.must(state == JobState::Running, || format!("the job on the hung card is {state}"));
    row.violations.extend(site.broken_laws());
    Ok(())
}

/// G3 at the inventory: one of eight lost, seven shown, none shown, all back: names stay, and who returns is on
/// probation first.
pub(super) async fn come_and_go(bench: &Bench, row: &mut Row) -> Result<(), LabError> {
    let driver = Driver::new(bench, "G3", cards(&EIGHT))?;
    let mut inventory = driver.inventory();
    let mut steps: Vec<(Vec<Card>, &str, u32)> = vec![
        (cards(&EIGHT), "A B C D E F G H", 1),
        (eight_but(0, Card::new("A").failing("*", code::GPU_IS_LOST)), "A- B C D E F G H", 1),
        (cards(&EIGHT[1..]), "A- B C D E F G H", 1),
        (Vec::new(), "A- B- C- D- E- F- G- H-", 1),
        (cards(&EIGHT), "A? B? C? D? E? F? G? H?", PROBATION_LOOKS - 1),
    ];
    steps.push((cards(&EIGHT), "A B C D E F G H", 1));
    for (at, (shown, expected, looks)) in steps.into_iter().enumerate() {
        driver.shows(shown)?;
        for _ in 0..looks {
            let now = marks(&inventory.refresh().await);
            row.must(now == expected, || format!("step {at}: {now} instead of {expected}"));
        }
    }
    Ok(())
}

/// G4: renumbered at run time, and between two lives of the agent.
pub(in crate::real) async fn renumbered(bench: &Bench) -> Result<Row, LabError> {
    let what = "cards renumbered at run time and across a restart: marks, and what a task sees, follow UUIDs";
    let mut row = Row::new("G4", what, None);
    let sick = || Card::new("B").failing("memory", code::RESET_REQUIRED);
    let boot_1 = vec![Card::new("A"), sick(), Card::new("C"), Card::new("D")];
    let driver = Driver::new(bench, "G4", boot_1.clone())?;
    let mut inventory = driver.inventory();
    for swap in [(0, 1), (1, 3), (0, 2), (2, 3), (0, 3)] {
        let mut order = boot_1.clone();
        order.swap(swap.0, swap.1);
        driver.shows(order)?;
        let running = marks(&inventory.refresh().await);
        let fresh = marks(&driver.inventory().refresh().await);
        for (when, now) in [("at run time", running), ("after a restart", fresh)] {
            row.tried();
            row.must(now == "A B- C D", || format!("{when}, {swap:?}: {now}"));
        }
    }
    // A task names its card by its UUID, whatever the order is when it starts.
    let site = Site::well(bench, "G4", eight(), Settings::default()).await?;
    let mut order = eight();
    order.rotate_left(3);
    site.driver.shows(order).map_err(io("the script"))?;
    for holder in site.occupy(2).await? {
        let pid = i32::try_from(holder.pid).unwrap_or_default();
        let seen = rota_node::io::proc::variable(pid, "CUDA_VISIBLE_DEVICES");
        row.tried();
        row.must(seen.as_ref() == Some(&holder.card), || format!("a task of {} sees {seen:?}", holder.card));
    }
    row.violations.extend(site.broken_laws());
    Ok(row)
}

fn two() -> Script {
    Script::of(cards(&["A", "B"]))
}

/// What an upgrade does to the driver.
type Harm = fn(&Driver) -> std::io::Result<()>;

const HARMS: [(&str, Harm); 6] = [
    ("version mismatch", |d| d.stage.says(&two().failing_to_start(code::LIB_RM_VERSION_MISMATCH))),
    ("every call says mismatch", |d| {
        let failing = |card: Card| card.failing("*", code::LIB_RM_VERSION_MISMATCH);
        d.stage.shows(cards(&["A", "B"]).into_iter().map(failing).collect())
    }),
    ("not loaded", |d| d.stage.says(&two().failing_to_start(code::DRIVER_NOT_LOADED))),
    ("file gone", |d| d.stage.uninstall()),
    ("half a file", |d| d.stage.replace(b"\x7fELF and no more")),
    ("functions missing", |d| d.stage.lacks(&["nvmlInit_v2", "nvmlDeviceGetCount_v2"])),
];

/// G5: whatever an upgrade does to the driver under the agent, cards are closed, nothing else is, and they are back in
/// time after the fix without a restart of the agent.
pub(in crate::real) async fn driver_upgraded(bench: &Bench) -> Result<Row, LabError> {
    let what =
        "a driver replaced under the agent in six ways: from the fix to its cards offered again, no restart";
    let mut row = Row::new("G5", what, Some(BACK_MS_MAX));
    for (at, (name, harm)) in HARMS.into_iter().enumerate() {
        let driver = Driver::new(bench, &format!("G5-{at}"), cards(&["A", "B"]))?;
        let mut inventory = driver.inventory_within(PROBE_DEADLINE);
        until(&mut inventory, "A B").await?;
        harm(&driver).map_err(io("the driver's files"))?;
        // The library that is loaded works on until it is started anew.
        let noticed = Instant::now();
        while marks(&inventory.refresh().await) != "A? B?" {
            if noticed.elapsed() > Duration::from_secs(20) {
                row.wrong(format!("{name}: never noticed, {:?}", inventory.notes()));
                break;
            }
            tokio::time::sleep(LOOK_EVERY / 4).await;
        }
        let facts = inventory.refresh().await;
        row.must(facts.cpus_milli > 0 && facts.devices.len() == 3, || {
            format!("{name}: all else is gone too")
        });
        driver.stage.lacks(&[]).map_err(io("the driver's files"))?;
        driver.shows(cards(&["A", "B"]))?;
        let fixed = Instant::now();
        loop {
            // The fix comes just after a look.
            tokio::time::sleep(LOOK_EVERY).await;
            if marks(&inventory.refresh().await) == "A B"
                || fixed.elapsed() > 2 * Duration::from_millis(BACK_MS_MAX)
            {
                break;
            }
        }
        row.ran(ms(fixed));
    }
    Ok(row)
}
