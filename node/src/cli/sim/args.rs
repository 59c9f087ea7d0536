//! The arguments of `rota sim`.

use crate::parse::amount::memory_mib;
use crate::parse::time::duration_or_zero_ms;
use clap::Args;
use rota_core::placement::score::Policy;
use rota_protocol::limits::HOST_DEVICES_MAX;
use rota_sim::cluster::HOSTS_MAX;
use rota_sim::gavel::GavelPolicy;
use rota_sim::replay::AddedHosts;
use rota_sim::shockwave::ShockwavePolicy;
use rota_sim::swf::SwfPolicy;
use rota_sim::swf::log::PROCESSORS_MAX;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Most seeds of one run.
const SEEDS_MAX: u64 = 10_000;
/// Jobs an hour: at the least, the measured ones come within sixty years, at the most none of them ends in time.
const RATE: RangeInclusive<f64> = 0.01..=1_000.0;
/// Longest cost of a start, ms: a day.
const RESTART_MS_MAX: u64 = 86_400_000;

/// How results are shown.
#[derive(Debug, Args, Clone)]
pub struct ShowArgs {
    /// Print one JSON document; of several runs a list
    #[arg(long)]
    pub json: bool,
    /// Write a chart to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Seeds from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

/// `rota sim openb`
#[derive(Debug, Args)]
pub struct OpenbArgs {
    /// The node list, comma-separated with a header: sn, cpu_milli, memory_mib, gpu, model
    #[arg(long, value_name = "FILE")]
    pub nodes: PathBuf,
    /// The pod lists, comma-separated with a header: name, cpu_milli, memory_mib, num_gpu, gpu_milli, and gpu_spec if any
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub pods: Vec<PathBuf>,
    /// How hosts are compared: rota on the production scheduler, fgd, bestfit, packing, clustering, dotprod and random
    /// on the reference engine with the tie rule of their publication
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',', default_value = "rota", value_parser = openb_policy)]
    pub policy: Vec<Policy>,
    /// One run for each
    #[arg(long, value_name = "FIRST-LAST", default_value = "42-51", value_parser = seeds)]
    pub seeds: Seeds,
    /// Only pods that have come are known, not the whole list
    #[arg(long)]
    pub online: bool,
    /// Rota too on the reference engine
    #[arg(long)]
    pub reference: bool,
    /// The published results, a line for each run: workload, sc_policy, and a column for each percent arrived
    #[arg(long, value_name = "FILE")]
    pub published: Option<PathBuf>,
    /// Runs of each seed of which the mean is told, for random alone: its lots fall anew in each
    #[arg(long, value_name = "RUNS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub draws: u32,
    /// Seeds that run side by side; times of decisions are right only for one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub threads: u16,
    /// How results are shown.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// `rota sim swf`
#[derive(Debug, Args)]
pub struct SwfArgs {
    /// The log, in the Standard Workload Format: 18 numbers a line, comments after a semicolon
    pub file: PathBuf,
    /// Who decides: rota is the production scheduler, rota-machine, rota-soft, rota-limits and rota-clairvoyant are its
    /// rule without hosts; easy, easy-sjbf, easy-plus-plus, conservative, easy-clairvoyant and easy-sjbf-clairvoyant are
    /// published
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',', default_value = "rota", value_parser = swf_policy)]
    pub policy: Vec<SwfPolicy>,
    /// Processors of the machine, if not those of the log's header
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(PROCESSORS_MAX)))]
    pub processors: Option<u32>,
    /// Let every job run to its limit: all estimates hold
    #[arg(long)]
    pub exact: bool,
    /// Policies that run side by side
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub threads: u16,
    /// How results are shown.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// `rota sim gavel`
#[derive(Debug, Args)]
pub struct GavelArgs {
    /// The table of measured speeds in steps a second, as JSON: {"v100": {"('A3C', 1)": {"null": 12.5}}, "p100": .., "k80": ..}
    #[arg(long, value_name = "FILE")]
    pub throughputs: PathBuf,
    /// Mean arrivals an hour
    #[arg(long, value_name = "JOBS,..", value_delimiter = ',', default_value = "5.6", value_parser = rate)]
    pub rate: Vec<f64>,
    /// Who decides: rota and rota-stated are the production scheduler, engine-blind, engine-known, engine-learning,
    /// engine-blind-sharing and engine-known-sharing its rule on a compact engine of rounds; fifo-blind, fifo-aware,
    /// las-blind and las-aware are published
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',', default_value = "rota", value_parser = gavel_policy)]
    pub policy: Vec<GavelPolicy>,
    /// What a start after a pause costs a job on the production scheduler, such as 30s
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = restart_ms)]
    pub restart: u64,
    /// Three jobs of ten need 2, 4 or 8 GPUs
    #[arg(long)]
    pub multi_gpu: bool,
    /// One run for each
    #[arg(long, value_name = "FIRST-LAST", default_value = "0-2", value_parser = seeds)]
    pub seeds: Seeds,
    /// Seeds that run side by side
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub threads: u16,
    /// How results are shown.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// `rota sim shockwave`
#[derive(Debug, Args)]
pub struct ShockwaveArgs {
    /// The job trace, tabs between its 12 columns: program, command, folder, flag, -, steps, GPUs, mode, -, -, -, arrival
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// The table of measured speeds in steps a second, as JSON: {"v100": {"('LM (batch size 10)', 1)": {"null": 12.5}}}
    #[arg(long, value_name = "FILE")]
    pub throughputs: PathBuf,
    /// GPUs, all equal, each a host of its own
    #[arg(long, value_name = "GPUS,..", value_delimiter = ',', default_value = "32", value_parser = clap::value_parser!(u32).range(1..=HOSTS_MAX as i64))]
    pub gpus: Vec<u32>,
    /// Who decides: rota and rota-foreseen are the production scheduler, engine and engine-foreseen its rule on a compact
    /// engine of rounds, max-min is published
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',', default_value = "rota", value_parser = shockwave_policy)]
    pub policy: Vec<ShockwavePolicy>,
    /// Runs side by side
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub threads: u16,
    /// How results are shown.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// `rota sim replay`
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// What `rota history --json` wrote: one JSON document, "format": "rota-history", "version": 1
    pub file: PathBuf,
    /// What if hosts were compared in this way: rota, fgd, bestfit, packing, clustering, dotprod or random
    #[arg(long, value_name = "POLICY", value_parser = openb_policy)]
    pub policy: Option<Policy>,
    /// What if there were more hosts, such as 4x8xH100 or 4x8xH100:80GiB; may be repeated
    #[arg(long, value_name = "HOSTSxCARDSxMODEL", value_parser = added_hosts)]
    pub add_hosts: Vec<AddedHosts>,
    /// What if these hosts were not there
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub without_hosts: Vec<String>,
    /// Move submissions by up to so long, by the seed: whether a result hangs on chance
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = jitter_ms)]
    pub jitter: u64,
    /// Which way they are moved
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How results are shown.
    #[command(flatten)]
    pub show: ShowArgs,
}

fn openb_policy(text: &str) -> Result<Policy, String> {
    named(&Policy::ALL, Policy::name, text)
}

fn swf_policy(text: &str) -> Result<SwfPolicy, String> {
    named(&SwfPolicy::ALL, SwfPolicy::name, text)
}

fn gavel_policy(text: &str) -> Result<GavelPolicy, String> {
    named(&GavelPolicy::ALL, GavelPolicy::name, text)
}

fn shockwave_policy(text: &str) -> Result<ShockwavePolicy, String> {
    named(&ShockwavePolicy::ALL, ShockwavePolicy::name, text)
}

fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, text: &str) -> Result<T, String> {
    let names = || all.iter().map(|policy| name(*policy)).collect::<Vec<_>>().join(", ");
    let found = all.iter().copied().find(|policy| name(*policy) == text);
    found.ok_or_else(|| format!("there are {}", names()))
}

/// `42-51`, or one number.
fn seeds(text: &str) -> Result<Seeds, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u32>().map(u64::from);
    let (Ok(first), Ok(last)) = (number(first), number(last)) else {
        return Err("want a number below 4294967296, or FIRST-LAST such as 42-51".into());
    };
    if first > last {
        return Err(format!("{first} is behind {last}"));
    }
    if last - first >= SEEDS_MAX {
        return Err(format!("more than {SEEDS_MAX} seeds"));
    }
    Ok(Seeds { first, last })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.trim().parse().map_err(|_| "want a number such as 5.6".to_owned())?;
    if RATE.contains(&rate) {
        return Ok(rate);
    }
    Err(format!("want {} to {} jobs an hour, such as 5.6", RATE.start(), RATE.end()))
}

fn restart_ms(text: &str) -> Result<u64, String> {
    let ms = duration_or_zero_ms("restart", text).map_err(|error| error.message)?;
    if ms <= RESTART_MS_MAX { Ok(ms) } else { Err("want at most one day, such as 30s".into()) }
}

fn jitter_ms(text: &str) -> Result<u64, String> {
    duration_or_zero_ms("jitter", text).map_err(|error| error.message)
}

/// `4x8xH100`, with the memory of a card after a colon if it is to be said.
fn added_hosts(text: &str) -> Result<AddedHosts, String> {
    let form = || "want HOSTSxCARDSxMODEL[:MEMORY], such as 4x8xH100:80GiB".to_owned();
    let (counts, memory) =
        text.split_once(':').map_or((text, None), |(counts, memory)| (counts, Some(memory)));
    let mut parts = counts.splitn(3, 'x');
    let (Some(hosts), Some(cards), Some(model)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(form());
    };
    let (Ok(hosts), Ok(cards)) = (hosts.parse::<u32>(), cards.parse::<u32>()) else {
        return Err(form());
    };
    if model.is_empty() || model.chars().any(char::is_control) {
        return Err(form());
    }
    if !(1..=HOSTS_MAX as u32).contains(&hosts) || !(1..=HOST_DEVICES_MAX as u32).contains(&cards) {
        return Err(format!(
            "want 1 to {HOSTS_MAX} hosts of 1 to {HOST_DEVICES_MAX} cards, such as 4x8xH100:80GiB"
        ));
    }
    let vram_mib = memory.map(|memory| memory_mib("add-hosts", memory)).transpose();
    let vram_mib = vram_mib.map_err(|error| error.message)?;
    Ok(AddedHosts { hosts, cards, model: model.to_owned(), vram_mib })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_added_by_count_cards_and_model() {
        let added = |model: &str, vram_mib| AddedHosts { hosts: 4, cards: 8, model: model.into(), vram_mib };
        assert_eq!(added_hosts("4x8xH100"), Ok(added("H100", None)));
        assert_eq!(added_hosts("4x8xRTX x2:80GiB"), Ok(added("RTX x2", Some(81_920))));
        for wrong in ["", "4", "4x8", "4x8x", "ax8xH100", "0x8xH100", "4x129xH100", "4x8xH100:x", "-1x8xH100"]
        {
            assert!(added_hosts(wrong).is_err(), "{wrong}");
        }
    }

    /// A reader of the help knows what can be named, and what files are read.
    #[test]
    fn help_names_every_policy_and_format() {
        fn help<A: Args>(policies: &[&str], formats: &[&str]) {
            let text = A::augment_args(clap::Command::new("sim")).render_long_help().to_string();
            let words: Vec<&str> = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
            for policy in policies {
                assert!(words.contains(policy), "{policy}\n{text}");
            }
            for format in formats {
                assert!(text.contains(format), "{format}\n{text}");
            }
        }
        let hosts = Policy::ALL.map(Policy::name);
        help::<OpenbArgs>(&hosts, &["sn, cpu_milli", "num_gpu, gpu_milli"]);
        help::<ReplayArgs>(&hosts, &["rota history --json", "\"rota-history\""]);
        help::<SwfArgs>(&SwfPolicy::ALL.map(SwfPolicy::name), &["Standard Workload Format"]);
        help::<GavelArgs>(&GavelPolicy::ALL.map(GavelPolicy::name), &["{\"v100\": {\"('A3C', 1)\""]);
        help::<ShockwaveArgs>(&ShockwavePolicy::ALL.map(ShockwavePolicy::name), &["12 columns", "{\"v100\""]);
    }

    #[test]
    fn seeds_are_a_number_or_a_range() {
        assert_eq!(seeds("42-51"), Ok(Seeds { first: 42, last: 51 }));
        assert_eq!(seeds("7"), Ok(Seeds { first: 7, last: 7 }));
        for wrong in ["", "x", "5-4", "1-2-3", "-1", "0-10000", "1-99999999999"] {
            assert!(seeds(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "NaN", "inf", "-1", "1e-308", "1e300"] {
            assert!(
                rate(wrong).is_err_and(|said| said.contains("0.01 to 1000") && said.contains("such as 5.6"))
            );
        }
        assert_eq!((rate("5.6"), rate("0.01")), (Ok(5.6), Ok(0.01)));
        assert!(restart_ms("2d").is_err() && restart_ms("30s") == Ok(30_000));
        assert!(swf_policy("esay").is_err_and(|said| said.contains("easy, easy-sjbf")));
    }
}
