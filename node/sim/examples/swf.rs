//! Replays a log of a batch machine from the command line, one line of figures for each policy:
//! `swf FILE [POLICY|all] [--exact] [--processors N]`, or a made-up one in place of a file, with
//! `--draw SEED,JOBS,USERS,PROCESSORS,LOAD_PERMILLE`. `--exact` lets every job run to its limit, `--jitter N` gives N
//! lines for each policy, of copies of the log with submissions moved by up to ten minutes. Not the product's front:
//! that is `rota sim`.

use rota_sim::swf::draw::{DrawConfig, draw, jitter};
use rota_sim::swf::log::Log;
use rota_sim::swf::{SwfPolicy, replay};
use std::error::Error;
use std::path::Path;

/// Most that a copy's submissions are moved, s.
const JITTER_S: u64 = 600;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut words, mut exact, mut processors, mut drawn, mut copies) =
        (Vec::new(), false, None, None, 0_u64);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--exact" => exact = true,
            "--processors" => processors = Some(args.next().ok_or("how many processors?")?.parse()?),
            "--jitter" => copies = args.next().ok_or("how many copies?")?.parse()?,
            "--draw" => drawn = Some(drawn_log(&args.next().ok_or("what to draw?")?)?),
            _ => words.push(arg),
        }
    }
    let mut words = words.into_iter();
    let log = match drawn {
        Some(log) => log,
        None => Log::read(Path::new(&words.next().ok_or("which file?")?), processors)?,
    };
    let log = if exact { log.with_exact_limits() } else { log };
    let policies = match words.next() {
        Some(name) if name != "all" => vec![name.parse::<SwfPolicy>()?],
        _ => SwfPolicy::ALL.to_vec(),
    };
    let logs: Vec<Log> = match copies {
        0 => vec![log],
        _ => (1..=copies).map(|seed| jitter(&log, seed, JITTER_S)).collect(),
    };
    for policy in policies {
        for log in &logs {
            println!("{}", serde_json::to_string(&replay(log, policy)?)?);
        }
    }
    Ok(())
}

fn drawn_log(text: &str) -> Result<Log, Box<dyn Error>> {
    let numbers = text.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let [seed, jobs, users, processors, load_permille] = numbers[..] else {
        return Err("--draw takes five numbers".into());
    };
    let (jobs, processors) = (usize::try_from(jobs)?, u32::try_from(processors)?);
    let config = DrawConfig { seed, jobs, users, processors, load_permille };
    Ok(Log { jobs: draw(&config), processors, left_out: 0 })
}
