//! Runs the experiment of adaptive jobs: `shockwave TRACE TABLE GPUS POLICY`, report as JSON.

use rota_sim::shockwave::{ShockwaveConfig, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, trace, table, gpus, policy] = args.as_slice() else {
        return Err("usage: shockwave TRACE TABLE GPUS POLICY".into());
    };
    let config = ShockwaveConfig {
        trace: trace.into(),
        throughputs: table.into(),
        gpus: gpus.parse()?,
        policy: serde_json::from_value(policy.as_str().into())?,
    };
    println!("{}", serde_json::to_string(&run(&config)?)?);
    Ok(())
}
