//! Runs the `openb` experiment from the command line:
//! `openb --nodes FILE --pods FILE [--policy rota] [--seeds 42-51] [--online] [--json]`.

use rota_core::placement::score::Policy;
use rota_sim::openb::{OpenbConfig, run};
use std::error::Error;
use std::ops::RangeInclusive;

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = OpenbConfig {
        nodes: "openb_node_list_gpu_node.csv".into(),
        pods: "openb_pod_list_default.csv".into(),
        policy: Policy::Rota,
        seeds: 42..=51,
        online: false,
        reference: false,
        tune_percent: 130,
        draws: 1,
    };
    let mut json = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value"));
        match arg.as_str() {
            "--nodes" => config.nodes = value()?.into(),
            "--pods" => config.pods = value()?.into(),
            "--policy" => config.policy = value()?.parse()?,
            "--seeds" => config.seeds = seeds(&value()?)?,
            "--online" => config.online = true,
            "--draws" => config.draws = value()?.parse()?,
            "--reference" => config.reference = true,
            "--json" => json = true,
            _ => return Err(format!("unknown argument {arg}").into()),
        }
    }
    let report = run(&config)?;
    if json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    println!(
        "{} {:.2} sd {:.2} placements {} seconds {:.2} decision us p50 {:.2} p99 {:.2}",
        report.policy,
        report.allocated_at_100,
        report.sd,
        report.placements,
        report.seconds,
        report.decision_us_p50,
        report.decision_us_p99,
    );
    Ok(())
}

/// `42-51`, or one number.
fn seeds(text: &str) -> Result<RangeInclusive<u64>, Box<dyn Error>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok(first.parse()?..=last.parse()?)
}
