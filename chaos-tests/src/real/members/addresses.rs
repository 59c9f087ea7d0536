//! Hosts with several interfaces, of which one leads to the others (R083).

use super::wait_for;
use crate::real::Bench;
use crate::real::row::Row;
use crate::real::spaces::Spaces;
use rota_node::client::Client;
use rota_node::lab::{LabError, io};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::view::{HostRow, HostState};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const HOSTS: usize = 2;
const LIMIT: Duration = Duration::from_secs(40);

/// Two hosts in namespaces of their own, that choose for themselves where they are.
struct Pair<'a> {
    bench: &'a Bench,
    dir: PathBuf,
    files: Vec<PathBuf>,
    agents: Vec<Child>,
}

impl<'a> Pair<'a> {
    fn new(bench: &'a Bench, name: &str, spaces: &Spaces) -> Self {
        Self { bench, dir: bench.dir.join(name), files: spaces.files(), agents: Vec::new() }
    }

    fn data(&self, at: usize) -> PathBuf {
        self.dir.join(format!("n{}", at + 1))
    }

    fn rota(&self, at: usize, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.files[at].display())).arg(&self.bench.exe);
        command.args(&self.bench.exe_args).args(args).env("ROTA_SOCKET", self.data(at).join("api.sock"));
        command.stdin(Stdio::null());
        command
    }

    /// Whether it went well, and all that it said. Its port is the default one: each host has its own 7420.
    fn says(&self, at: usize, args: &[&str]) -> Result<(bool, String), LabError> {
        let said = self.rota(at, args).output().map_err(io("cannot run rota"))?;
        let text = [said.stdout, said.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok((said.status.success(), text.concat()))
    }

    fn at(&self, at: usize, args: &[&str]) -> Result<(bool, String), LabError> {
        let data = self.data(at).display().to_string();
        self.says(at, &[args, &["--data-dir", &data]].concat())
    }

    fn agent(&mut self, at: usize) -> Result<(), LabError> {
        let data = self.data(at);
        let config = self.dir.join(format!("n{}.toml", at + 1));
        std::fs::write(&config, "gang_network = \"br0\"\n").map_err(io("the settings"))?;
        let log = std::fs::File::create(data.join("agent.log")).map_err(io("the log"))?;
        let (config, data) = (config.display().to_string(), data.display().to_string());
        let flags =
            ["--data-dir", &data, "--profile", "chaos", "--http-listen", "off", "--sim-gpus", "1xH100:80GiB"];
        let mut command = self.rota(at, &["agent"]);
        command.args(flags).stdout(Stdio::null()).stderr(log);
        if self.dir.ends_with("R083-4") {
            command.args(["--config", &config]);
        }
        self.agents.push(command.spawn().map_err(io("no agent"))?);
        Ok(())
    }

    async fn hosts(&self) -> Option<Vec<HostRow>> {
        let client = Client::connect_socket(&self.data(0).join("api.sock")).await.ok()?;
        match client.call(ApiRequest::Hosts { freshness: Freshness::Linearizable }).await {
            Ok(ApiReply::Hosts { rows, .. }) => Some(rows),
            _ => None,
        }
    }

    async fn until_up(&self, count: usize) -> Result<Vec<HostRow>, LabError> {
        wait_for(&format!("{count} hosts up"), LIMIT, async || {
            let rows = self.hosts().await?;
            let up = rows.iter().filter(|row| row.state == HostState::Up).count();
            (up == count && rows.len() == count).then_some(rows)
        })
        .await
    }

    fn token(&self) -> Result<String, LabError> {
        let (_, text) = self.says(0, &["cluster", "token", "--join"])?;
        Ok(text.split_whitespace().find(|word| word.starts_with("rota-join-")).unwrap_or_default().to_owned())
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn holds(row: &mut Row, text: &str, wanted: &[&str]) {
    for wanted in wanted {
        row.must(text.contains(wanted), || format!("`{wanted}` is not said: {text}"));
    }
}

fn has_identity(data: &Path) -> bool {
    std::fs::read_dir(data).is_ok_and(|mut entries| entries.next().is_some())
}

/// A bridge, a network of a virtual machine's own that is the same on all hosts and leads anywhere, and one that leads to
/// the other host.
async fn three_networks(bench: &Bench, row: &mut Row) -> Result<(), String> {
    let spaces = Spaces::furnished(HOSTS, |spaces, name, number, switch| {
        spaces.bridge(name, "172.17.0.1/16")?;
        spaces.nowhere(name, "eth0", "10.0.2.15/24")?;
        spaces.default_route(name, "eth0")?;
        spaces.wire(name, number, switch, ("eth1", &format!("192.168.33.{number}/24")))
    })?;
    let mut pair = Pair::new(bench, "R083-4", &spaces);
    let tried = async {
        let (_, text) = pair.at(0, &["init", "--name", "n1"])?;
        let flaws = [
            "br0 172.17.0.1/16  (a bridge",
            "eth0 10.0.2.15/24  (what a virtual machine",
            "eth1 192.168.33.1/24\n",
        ];
        holds(row, &text, &flaws);
        holds(row, &text, &["192.168.33.1:7420 (eth1): it is the only one of its kind"]);
        pair.agent(0)?;
        pair.until_up(1).await?;
        let (peer, token) = ("192.168.33.1:7420", pair.token()?);
        let join = ["join", peer, "--token", &token, "--name", "n2"];
        for (wish, said) in [
            ("eth0", "10.0.2.15:7420 does not lead back to this host"),
            ("br0", "172.17.0.1:7420 does not lead back to this host"),
            ("eth7", "this host has no interface eth7"),
            ("10.1.0.0/16", "no address of this host is in 10.1.0.0/16"),
        ] {
            let (good, text) = pair.at(1, &[&join[..], &["--advertise", wish]].concat())?;
            row.must(!good && !has_identity(&pair.data(1)), || format!("it joined as {wish}: {text}"));
            holds(row, &text, &["advertise", said]);
        }
        row.must(pair.hosts().await.is_some_and(|rows| rows.len() == 1), || "a host was admitted".to_owned());
        let (good, text) = pair.at(1, &join)?;
        row.must(good, || format!("it did not join: {text}"));
        holds(row, &text, &["192.168.33.2:7420 (eth1): packets to 192.168.33.1:7420 leave from it"]);
        let began = Instant::now();
        pair.agent(1)?;
        let hosts = pair.until_up(HOSTS).await?;
        row.ran(super::ms(began));
        for (host, addr) in hosts.iter().zip(["192.168.33.1:7420", "192.168.33.2:7420"]) {
            row.must(host.addr == addr, || format!("host {} is at {}", host.host, host.addr));
            let gang = host.labels.get("rota.gang_addr").map(String::as_str);
            row.must(gang == Some("172.17.0.1"), || format!("gangs meet at {gang:?}"));
        }
        Ok::<_, LabError>(())
    };
    tried.await.map_err(|error| error.to_string())
}

/// Hosts that have IPv6 alone, with link-local addresses beside.
async fn ipv6_only(bench: &Bench, row: &mut Row) -> Result<(), String> {
    let spaces = Spaces::furnished(HOSTS, |spaces, name, number, switch| {
        spaces.wire(name, number, switch, ("eth1", &format!("fd00:33::{number}/64")))
    })?;
    let mut pair = Pair::new(bench, "R083-6", &spaces);
    let tried = async {
        let (_, text) = pair.at(0, &["init", "--name", "n1"])?;
        holds(row, &text, &["[fd00:33::1]:7420 (eth1)"]);
        pair.agent(0)?;
        pair.until_up(1).await?;
        let token = pair.token()?;
        let (good, text) = pair.at(1, &["join", "[fd00:33::1]:7420", "--token", &token, "--name", "n2"])?;
        row.must(good, || format!("it did not join: {text}"));
        holds(row, &text, &["[fd00:33::2]:7420 (eth1)"]);
        pair.agent(1)?;
        pair.until_up(HOSTS).await?;
        Ok::<_, LabError>(())
    };
    tried.await.map_err(|error| error.to_string())
}

/// R083: which address is advertised, what is said of it, and who is let in with it.
pub(super) async fn several(bench: &Bench) -> Result<Row, LabError> {
    let what = "several networks, and IPv6 alone: the right address is chosen, a wrong one is refused";
    let mut row = Row::new("R083", what, None);
    if let Err(why) = Spaces::new(1) {
        return Ok(row.skip(&why));
    }
    if let Err(why) = three_networks(bench, &mut row).await {
        row.wrong(why);
    }
    if let Err(why) = ipv6_only(bench, &mut row).await {
        row.wrong(why);
    }
    Ok(row)
}
