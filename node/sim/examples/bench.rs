//! Runs a planner bench from the command line: `bench plan HOSTS GPUS JOBS OCCUPANCY [KINDS]`, `bench reclaim HOSTS`,
//! `bench admit JOBS QUEUES`.

use rota_sim::bench::{admit, plan, reclaim};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| -> Result<usize, Box<dyn Error>> {
        args.get(at).map_or(Ok(default), |text| Ok(text.parse()?))
    };
    match args.first().map(String::as_str) {
        Some("plan") => {
            let bench = plan::PlanBench {
                hosts: number(1, 1_000)?,
                gpus: number(2, 8)? as u32,
                jobs: number(3, 10_000)?,
                occupancy_percent: number(4, 50)? as u32,
                kinds: number(5, 100)?,
                events: 500,
                cold: 10,
            };
            println!("{}", serde_json::to_string_pretty(&plan::run(&bench)?)?);
        }
        Some("reclaim") => println!("{}", serde_json::to_string(&reclaim::run(number(1, 1_000)?)?)?),
        Some("admit") => {
            println!("{}", serde_json::to_string(&admit::run(number(1, 15_000)?, number(2, 30)?)?)?);
        }
        _ => return Err("plan, reclaim or admit".into()),
    }
    Ok(())
}
