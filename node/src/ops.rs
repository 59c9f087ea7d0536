//! What the commands that run or build a cluster do: `init`, `join`, `agent`, `dev`, `demo`, `bench`. Arguments are `cli::ops`; here they become settings, and a runtime is started where one is needed.

use crate::cli::Failure;
use crate::cli::ops::{AgentArgs, BenchArgs, DemoArgs, DevArgs, InitArgs, JoinArgs, Outcome};
use crate::config::{AgentConfig, DATA_DIR_DEFAULT, Profile};
use crate::devices::nvml;
use crate::doctor::{self, DoctorInput};
use crate::members::replace::{SetAside, set_aside};
use crate::net::{found_cluster, join_listening as join_cluster, keep_keys_out_of_dumps};
use crate::own_address::{self, address};
use crate::shim::cage::Place;
use crate::{agent, bench, demo};
use rota_protocol::PublicError;
use rota_protocol::cage::Isolation;
use rota_protocol::view::DoctorRow;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

/// Threads of an agent's runtime: agreement, QUIC and the API share them; more only fight over the same locks.
const AGENT_THREADS: usize = 2;
/// Where the token for a join may stand, so that it is in no process list.
const JOIN_TOKEN_ENV: &str = "ROTA_JOIN_TOKEN";
/// The configuration that is read when none is named.
const CONFIG_DEFAULT: &str = "/etc/rota/rota.toml";

/// `rota init`
///
/// # Errors
/// There is an identity already, or the disk refuses.
pub fn init(args: InitArgs) -> Outcome {
    keep_keys();
    let data = args.data_dir.unwrap_or_else(|| DATA_DIR_DEFAULT.into());
    let place = own_address::first(args.listen.as_deref(), args.advertise.as_deref(), None)?;
    place.told.iter().for_each(|line| println!("{line}"));
    let name = args.name.unwrap_or_else(host_name);
    let identity = found_cluster(&data, &args.cluster_name, &name).map_err(Failure::other)?;
    place.remember(&data)?;
    println!("founded cluster {} ({}); this host is {name}", identity.cluster_name, identity.cluster);
    println!("next: rota agent --data-dir {}", data.display());
    Ok(0)
}

/// `rota join`
///
/// # Errors
/// No token, nobody answers, the token is refused; nothing is stored then.
pub fn join(args: JoinArgs) -> Outcome {
    keep_keys();
    let data = args.data_dir.unwrap_or_else(|| DATA_DIR_DEFAULT.into());
    let place = own_address::first(args.listen.as_deref(), args.advertise.as_deref(), Some(&args.peer))?;
    place.told.iter().for_each(|line| println!("{line}"));
    let name = args.name.unwrap_or_else(host_name);
    let token = join_token(args.token)?;
    // Held until the identity is changed: no agent may run on it meanwhile.
    let _lock = if args.replace { Some(agent::lock(&data).map_err(Failure::other)?) } else { None };
    let aside = match args.replace {
        true => Some(set_aside(&data, crate::io::clock::wall_ms()).map_err(Failure::other)?),
        false => None,
    };
    let joined = runtime(1)?.block_on(join_cluster(
        &data,
        &token,
        &args.peer,
        (&name, &place.advertised.addr),
        place.listen,
    ));
    let identity = match (joined, aside) {
        (Ok(identity), aside) => {
            if let Some(folder) = aside.as_ref().and_then(SetAside::folder) {
                println!("set aside what this machine was before: {}", folder.display());
            }
            identity
        }
        (Err(error), Some(aside)) => {
            aside.put_back().map_err(Failure::other)?;
            return Err(Failure::other(error));
        }
        (Err(error), None) => return Err(Failure::other(error)),
    };
    place.remember(&data)?;
    println!("joined cluster {} as host {} ({name})", identity.cluster_name, identity.host);
    println!("next: rota agent --data-dir {}", data.display());
    Ok(0)
}

/// This process makes keys: none of them may be in a core dump (fault S22).
fn keep_keys() {
    if let Err(error) = keep_keys_out_of_dumps() {
        eprintln!("warning: a core dump of this process could show keys: {error}");
    }
}

fn join_token(flag: Option<String>) -> Result<String, Failure> {
    let missing = || {
        PublicError::invalid(
            "token",
            "no join token; `rota cluster token --join` on any host of the cluster prints one",
            "rota-join-...",
        )
    };
    match flag.or_else(|| std::env::var(JOIN_TOKEN_ENV).ok()) {
        Some(text) if text == "-" => {
            let mut text = String::new();
            // A token has under 200 bytes; whatever is longer is none.
            std::io::stdin().take(1_024).read_to_string(&mut text).map_err(Failure::other)?;
            Ok(text.trim().to_owned())
        }
        Some(text) => Ok(text),
        None => Err(missing().into()),
    }
}

/// `rota agent`
///
/// # Errors
/// Anything that keeps it from serving.
pub fn agent(args: AgentArgs) -> Outcome {
    log_to_stderr();
    let mut config = settings(args)?;
    own_address::settle(&mut config)?;
    config.check().map_err(Failure::other)?;
    runtime(AGENT_THREADS)?.block_on(agent::run(config)).map_err(Failure::other)?;
    Ok(0)
}

/// `rota dev`
///
/// # Errors
/// The cluster of one cannot be founded or served.
pub fn dev(args: DevArgs) -> Outcome {
    log_to_stderr();
    let data = args.data_dir.unwrap_or_else(user_data_dir);
    let listen = SocketAddr::from(([127, 0, 0, 1], 7420));
    if !data.join("identity").exists() {
        found_cluster(&data, "dev", &host_name()).map_err(Failure::other)?;
    }
    let config = AgentConfig {
        data_dir: data.clone(),
        listen,
        sim_gpus: args.sim_gpus,
        cpus: args.cpus,
        metrics_open_on_loopback: true,
        ..AgentConfig::default()
    };
    config.check().map_err(Failure::other)?;
    let socket = config.socket_path();
    runtime(AGENT_THREADS)?
        .block_on(async {
            let running = agent::start(config).await?;
            println!("a cluster of one runs under {}; Ctrl-C stops it, jobs go on", data.display());
            println!("in another terminal:");
            println!("  export ROTA_SOCKET={}", socket.display());
            println!("  rota run -- echo hello");
            println!("  rota run --gpus 1 -- sh -c 'echo my card is $CUDA_VISIBLE_DEVICES'");
            println!("  rota submit --array 1-100 -- sh -c 'echo task $ROTA_TASK_INDEX'");
            println!("  rota queue --all; rota devices; rota doctor");
            // Whoever cannot take signals is ended by them, which is as good.
            let _ = tokio::signal::ctrl_c().await;
            agent::stop(running).await;
            Ok::<_, agent::AgentError>(())
        })
        .map_err(Failure::other)?;
    Ok(0)
}

/// `rota demo`
///
/// # Errors
/// The cluster cannot be started or stops answering.
pub fn demo(args: DemoArgs) -> Outcome {
    let report = runtime(2)?.block_on(demo::run(&args)).map_err(Failure::other)?;
    if args.json {
        println!("{}", serde_json::to_string(&report).map_err(Failure::other)?);
    } else {
        demo::print(&report);
    }
    Ok(u8::from(!report.is_good()))
}

/// `rota bench`
///
/// # Errors
/// The cluster cannot be started or stops answering.
pub fn bench(args: BenchArgs) -> Outcome {
    runtime(2)?.block_on(bench::run(args)).map_err(Failure::other)?;
    Ok(0)
}

/// The checks of a host with these settings.
pub async fn doctor_rows(config: &AgentConfig) -> Vec<DoctorRow> {
    let mut input = DoctorInput::new(&config.data_dir);
    input.socket.clone_from(&config.socket);
    input.listen = Some(config.listen);
    input.http_listen = config.http_listen;
    if let Ok(devices) = config.devices(&host_name()) {
        input.devices = devices;
    }
    let mut rows = doctor::examine(&input).await;
    rows.push(doctor::isolation(&Place::survey(&config.cages())));
    rows
}

/// Whether this machine has cards that NVML shows.
#[must_use]
pub fn has_real_gpus() -> bool {
    nvml::inspect(&nvml::library_path(None), Path::new("/"))
        .ok()
        .flatten()
        .is_some_and(|facts| facts.cards > 0)
}

/// Flags over the file over the defaults.
fn settings(args: AgentArgs) -> Result<AgentConfig, Failure> {
    let file =
        args.config.clone().or_else(|| Some(PathBuf::from(CONFIG_DEFAULT)).filter(|path| path.exists()));
    let mut config = match file {
        Some(path) => AgentConfig::load(&path).map_err(Failure::other)?,
        None => AgentConfig::default(),
    };
    if let Some(data) = args.data_dir {
        config.data_dir = data;
    }
    // Shims work in a folder of their own and tasks in any: a path that begins here would mean another one there.
    config.data_dir = std::path::absolute(&config.data_dir).map_err(Failure::other)?;
    if let Some(left) = own_address::recall(&config.data_dir) {
        config.listen = left.listen;
        config.advertise = config.advertise.or(left.wish);
    }
    if let Some(listen) = args.listen {
        config.listen = address("listen", &listen)?;
    }
    match args.http_listen.as_deref() {
        Some("off") => config.http_listen = None,
        Some(addr) => config.http_listen = Some(address("http_listen", addr)?),
        None => {}
    }
    if let Some(profile) = args.profile {
        config.profile = match profile.as_str() {
            "production" => Profile::Production,
            "chaos" => Profile::Chaos,
            other => {
                let message = format!("there is no profile {other}; there are production and chaos");
                return Err(PublicError::invalid("profile", message, "production").into());
            }
        };
    }
    if let Some(isolation) = args.isolation {
        config.isolation = match isolation.as_str() {
            "full" => Isolation::Full,
            "basic" => Isolation::Basic,
            "none" => Isolation::None,
            other => {
                let message = format!("there is no isolation {other}; there are full, basic and none");
                return Err(PublicError::invalid("isolation", message, "full").into());
            }
        };
    }
    for label in args.labels {
        let Some((key, value)) = label.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(PublicError::invalid("label", format!("{label} is no KEY=VALUE"), "zone=a").into());
        };
        config.labels.insert(key.to_owned(), value.to_owned());
    }
    config.advertise = args.advertise.or(config.advertise);
    config.sim_gpus = args.sim_gpus.or(config.sim_gpus);
    config.cpus = args.cpus.or(config.cpus);
    config.mem = args.mem.or(config.mem);
    config.nvml_library = args.nvml_library.or(config.nvml_library);
    config.containers.runtime = args.container_runtime.or(config.containers.runtime);
    config.metrics_open_on_loopback |= args.metrics_open_on_loopback;
    Ok(config)
}

/// What the system calls this machine.
#[must_use]
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "host".into() } else { name }
}

fn user_data_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(home)
        .unwrap_or_else(std::env::temp_dir)
        .join("rota")
}

fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(Failure::other)
}

/// Warnings and the agent's own news, unless `RUST_LOG` says otherwise.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("warn,openraft=error,rota_node=info,rota_consensus=info"));
    // Only the first call of a process counts; a second one changes nothing.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(crate::io::tell::stderr).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shim that is started in the attempts folder must find the lease of an agent that was given a relative path.
    #[test]
    fn a_relative_data_directory_is_made_absolute() {
        let args = AgentArgs { data_dir: Some("n1".into()), ..no_args() };
        let config = settings(args).unwrap_or_else(|_| panic!("settings"));
        assert_eq!(config.data_dir, std::env::current_dir().unwrap_or_default().join("n1"));
    }

    fn no_args() -> AgentArgs {
        AgentArgs {
            config: None,
            data_dir: None,
            listen: None,
            advertise: None,
            http_listen: None,
            sim_gpus: None,
            cpus: None,
            mem: None,
            profile: None,
            isolation: None,
            labels: Vec::new(),
            nvml_library: None,
            metrics_open_on_loopback: false,
            container_runtime: None,
        }
    }
}
