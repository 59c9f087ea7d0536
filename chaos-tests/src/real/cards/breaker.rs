//! A mass alarm (fault G13): real agents on which the kernel says, all at once, that a card fell off the bus; and the
//! production state with a hundred hosts of which sixty say so within a minute.

use super::site::PATIENCE;
use super::{Bench, io, ms};
use crate::real::row::Row;
use fake_nvml::kmsg::Kmsg;
use rota_core::placement::PlanConfig;
use rota_core::view;
use rota_node::lab::{LabError, wait_for};
use rota_protocol::DeviceUuid;
use rota_protocol::HostId;
use rota_protocol::command::Command;
use rota_protocol::health::{Cause, Finding, HealthReport, Source, TRIAL_MS_MAX};
use rota_protocol::view::{HostRow, HostState};
use rota_sim::cluster::{Cluster, HostKind};
use std::time::{Duration, Instant};

/// Hosts of the cluster in virtual time, and how many of them cry.
const HOSTS: usize = 100;
const CRY: usize = 60;
/// A host that is taken out is out within this after its line.
const OUT_MS_MAX: u64 = 500;

fn state_of(rows: &[HostRow], state: HostState) -> usize {
    rows.iter().filter(|row| row.state == state).count()
}

/// G13: of many hosts that cry at once one in ten is taken out, at least one; the rest only alert; coming back is never
/// held up.
pub(in crate::real) async fn mass_alarm(bench: &Bench) -> Result<Row, LabError> {
    let what = "all of three hosts tell Xid 79 at once: from the line to one host out; the others only alert";
    let mut row = Row::new("G13", what, Some(OUT_MS_MAX));
    let kmsg = bench.dir.join("G13-kmsg");
    let mut kernel = Kmsg::open(&kmsg).map_err(io("the kernel's log"))?;
    let config = format!("[devices]\nkmsg_path = {kmsg:?}\nreset_command = []\n");
    let lab = bench.lab("G13", 3, |options| options.config = Some(config)).await?;
    let bus =
        lab.ask(rota_protocol::api::ApiRequest::Devices { freshness: rota_protocol::api::Freshness::Stale });
    let rota_protocol::api::ApiReply::Devices { rows, .. } = bus.await? else { return Ok(row) };
    let bus = rows.iter().find_map(|row| row.facts.bus.clone()).unwrap_or_default();
    let bus = bus.split('.').next().unwrap_or_default().to_owned();
    kernel.xid(&bus, 79, None, "GPU has fallen off the bus.").map_err(io("a line"))?;
    let began = Instant::now();
    let hosts = async || lab.hosts().await.ok();
    let out = wait_for("a host that is out", PATIENCE, async || {
        hosts().await?.into_iter().find(|host| host.state == HostState::Faulty)
    });
    let out = out.await?;
    row.ran(ms(began));
    let alerted = wait_for("two alerts", PATIENCE, async || {
        let rows = hosts().await?;
        (rows.iter().filter(|host| host.care.alert.is_some()).count() == 2).then_some(rows)
    });
    let rows = alerted.await?;
    row.must(state_of(&rows, HostState::Up) == 2, || format!("{rows:?}"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    row.also("hosts_out_of_3", state_of(&lab.hosts().await?, HostState::Faulty) as u64, Some(1));
    let undrain = rota_protocol::api::ApiRequest::Undrain {
        request: rota_node::lab::new_request(),
        host: out.host.to_string(),
    };
    lab.ask(undrain).await?;
    let back = wait_for("the host back while the breaker is open", PATIENCE, async || {
        (state_of(&hosts().await?, HostState::Up) == 3).then_some(())
    });
    back.await?;
    a_hundred_hosts(&mut row)?;
    Ok(row)
}

/// In virtual time, on the production state.
fn a_hundred_hosts(row: &mut Row) -> Result<(), LabError> {
    let kind =
        HostKind { cpus_milli: 8_000, mem_mib: 64 << 10, cards: 1, model: "H100".into(), vram_mib: None };
    let mut cluster = Cluster::new(&vec![kind; HOSTS], PlanConfig::default())?;
    let hosts: Vec<HostId> = cluster.state().hosts().map(|host| host.id).filter(|id| id.0 > 1).collect();
    let began_ms = cluster.now_ms();
    for (at, host) in hosts.iter().take(CRY).enumerate() {
        cluster.advance_to(began_ms + at as u64 * 1_000);
        let finding = Finding {
            uuid: DeviceUuid(format!("GPU-{}-0", host.0)),
            cause: Cause::NodeFault,
            source: Source::Kmsg,
            text: "Xid 79".into(),
            program: None,
            trial_ms: TRIAL_MS_MAX,
        };
        let report = HealthReport { findings: vec![finding], stopping: false };
        cluster.system(Command::Health { host: *host, report })?;
    }
    let now_ms = cluster.now_ms();
    let rows = view::hosts_at(cluster.state(), now_ms);
    let breaker = view::breaker(cluster.state(), now_ms);
    row.also("hosts_out_of_100_of_which_60_cry", state_of(&rows, HostState::Faulty) as u64, Some(10));
    row.must(state_of(&rows, HostState::Faulty) == 10, || "fewer were taken out than may be".into());
    row.must(breaker.open_since_ms.is_some() && breaker.alerts == 50, || format!("{breaker:?}"));
    for host in hosts.iter().take(5) {
        cluster.system(Command::UndrainHost { host: *host })?;
    }
    let rows = view::hosts_at(cluster.state(), now_ms);
    row.must(state_of(&rows, HostState::Faulty) == 5, || "coming back was held up".into());
    Ok(())
}
