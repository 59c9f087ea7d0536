//! Runs the heterogeneity experiment: `gavel TABLE POLICY JOBS_PER_HOUR [multi] [SEEDS]`, report as JSON.

use rota_sim::gavel::{GavelConfig, GavelPolicy, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, table, policy, rate, rest @ ..] = args.as_slice() else {
        return Err("usage: gavel TABLE POLICY JOBS_PER_HOUR [multi] [SEEDS]".into());
    };
    let policy: GavelPolicy = serde_json::from_value(policy.as_str().into())?;
    let multi_gpu = rest.iter().any(|arg| arg == "multi");
    let seeds: Vec<u32> = match rest.iter().find(|arg| *arg != "multi") {
        Some(list) => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        None => vec![0, 1, 2],
    };
    let config = GavelConfig {
        throughputs: table.into(),
        jobs_per_hour: rate.parse()?,
        multi_gpu,
        policy,
        seeds,
        window: (4000, 5000),
    };
    println!("{}", serde_json::to_string(&run(&config)?)?);
    Ok(())
}
