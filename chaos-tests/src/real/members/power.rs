//! Power: everybody is gone at once and comes back, at other addresses (R074), in any order, after any mix of stops and
//! kills (R085). Stopping never changes the membership.

use super::{equal, ms, submit, until, voters};
use crate::real::Bench;
use crate::real::row::Row;
use rota_node::lab::{Lab, LabError, free_port};
use rota_node::lab_work::Stubborn;
use rustix::process::Signal;
use std::time::Instant;

/// From the last start at new addresses to all hosts up again, in ms.
const FOUND_MS: u64 = 60_000;
/// From the second start to an accepted write, in ms.
const LEADER_MS: u64 = 15_000;
/// All orders of three.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// R074: all addresses change; one name, or one word at each host, is enough.
pub(super) async fn other_addresses(bench: &Bench) -> Result<Row, LabError> {
    let what = "all addresses changed, one known to all: from the last start to all hosts up";
    let mut row = Row::new("R074", what, Some(FOUND_MS));
    let mut lab = bench.lab("R074", 3, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let mut client = Stubborn::new(&lab, 0);
    for round in 0..bench.rounds.max(2) {
        submit(&mut client).await?;
        let before = lab.cluster().await?;
        for at in 0..3 {
            lab.signal(at, Signal::KILL)?;
        }
        for peer in &mut lab.peers {
            peer.port = free_port()?;
            peer.advertise = peer.port;
        }
        let known = format!("127.0.0.1:{}", lab.peers[1].port);
        let by_setting = round % 2 == 0;
        if by_setting {
            lab.configure(&format!("peers = [\"{known}\"]\n"));
        } else {
            lab.configure("");
        }
        for at in 0..3 {
            lab.spawn(at)?;
        }
        let started = Instant::now();
        if !by_setting {
            // The documented word, at each host that is to find another.
            for at in [0, 2] {
                let socket = lab.peers[at].socket();
                // The file of the killed agent's socket is still there: only one that answers is the new one's.
                rota_node::lab::wait_for("a socket", super::PATIENCE, async || {
                    std::os::unix::net::UnixStream::connect(&socket).ok().map(drop)
                })
                .await?;
                let args = ["cluster", "address", "2", &known];
                let said = crate::real::said(&mut bench.rota(&lab, at, &args)).await?;
                if said.status != 0 {
                    row.wrong(format!("round {round}: {}", said.err));
                    return Ok(row);
                }
            }
        }
        lab.until_up(3).await?;
        let ports: Vec<String> = lab.peers.iter().map(|peer| peer.port.to_string()).collect();
        let view = until(&lab, "the new addresses in the log", |view| {
            view.peers.iter().all(|peer| ports.iter().any(|port| peer.addr.ends_with(port)))
        })
        .await?;
        row.ran(ms(started));
        row.must(voters(&view) == voters(&before), || format!("round {round}: {:?}", voters(&view)));
        equal(&lab, &mut row).await?;
        client = Stubborn::new(&lab, 0);
    }
    Ok(row)
}

async fn all_down(lab: &mut Lab, order: [usize; 3], round: usize) -> Result<(), LabError> {
    for (turn, at) in order.into_iter().enumerate() {
        // Stops, kills, and both in one round.
        let kill = match round % 3 {
            0 => false,
            1 => true,
            _ => turn == 1,
        };
        if kill { lab.signal(at, Signal::KILL)? } else { lab.stop(at).await? }
    }
    Ok(())
}

/// R085: all are stopped politely or killed, in any order, and started in any order.
pub(super) async fn any_order(bench: &Bench) -> Result<Row, LabError> {
    let what =
        "all stopped or killed in every order, started in every order: from the second start to a write";
    let mut row = Row::new("R085", what, Some(LEADER_MS));
    let mut lab = bench.lab("R085", 3, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let before = voters(&lab.cluster().await?);
    let mut jobs = 0;
    for (round, up) in ORDERS.into_iter().enumerate() {
        submit(&mut Stubborn::new(&lab, 0)).await?;
        jobs += 1;
        all_down(&mut lab, ORDERS[(round * 5 + 1) % ORDERS.len()], round).await?;
        lab.spawn(up[0])?;
        lab.spawn(up[1])?;
        let second = Instant::now();
        submit(&mut Stubborn::without(&lab, up[2])).await?;
        jobs += 1;
        row.ran(ms(second));
        lab.spawn(up[2])?;
        lab.until_up(3).await?;
        let now = voters(&lab.cluster().await?);
        row.must(now == before, || format!("round {round}: voters {before:?} became {now:?}"));
    }
    let known = Stubborn::new(&lab, 0).all_jobs().await?.len();
    row.must(known == jobs, || format!("{known} jobs of {jobs}"));
    equal(&lab, &mut row).await?;
    Ok(row)
}
