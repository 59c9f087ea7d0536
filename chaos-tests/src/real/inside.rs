//! From inside a running task to its host's agent (fault S24): the socket is shut, the port answers nobody without a token,
//! the host's own credentials cannot be read. Each try is the product's own client, or plain words; outside the task the
//! same words work for root, so that they are known to be good.

use super::Bench;
use super::row::Row;
use rota_node::lab::{Lab, LabError, io, new_request};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::command::TokenUse;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::job::{Actor, Role};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// How long the token that is to be over counts: more than a commit takes on a busy machine.
const STALE_AFTER_MS: u64 = 3_000;

/// A try: its name, its words, and what the refusal must say one of.
struct Try {
    name: &'static str,
    words: String,
    refusals: &'static [&'static str],
    /// Outside the words work, with the token of the task's owner.
    works_outside: bool,
}

/// S24: a task of a user whom only a token names.
pub(super) async fn nothing_of_the_node(bench: &Bench) -> Result<Row, LabError> {
    let what = "from inside a task: the agent's socket, its port without a token, its credentials: from the try to the refusal";
    let mut row = Row::new("S24", what, None);
    if !rustix::process::geteuid().is_root() {
        return Ok(row.skip("not root: tasks run as the agent's own user"));
    }
    // What is refused must be refused by Rota, not by a folder of this lab.
    std::fs::set_permissions(&bench.dir, std::fs::Permissions::from_mode(0o755))
        .map_err(io("the lab's folder"))?;
    let lab = bench.lab("S24", 1, |_| {}).await?;
    let (secret, stale) = (token(&lab, 600_000).await?, token(&lab, STALE_AFTER_MS).await?);
    tokio::time::sleep(Duration::from_millis(STALE_AFTER_MS)).await;
    let peer = format!("127.0.0.1:{}", lab.peers[0].port);
    for one in tries(bench, &lab, &peer, &stale) {
        let mut shell = std::process::Command::new("sh");
        let outside =
            shell.args(["-c", &one.words]).env("ROTA_TOKEN", &secret).output().map_err(io("a shell"))?;
        row.must(outside.status.success() == one.works_outside, || {
            format!("not exercised: {} is not as it should be outside: {}", one.name, said(&outside))
        });
        let mut run = tokio::process::Command::new(&bench.exe);
        run.args(&bench.exe_args).args(["run", "--peer", &peer, "--", "sh", "-c", &one.words]);
        run.env("ROTA_TOKEN", &secret).current_dir("/").stdin(std::process::Stdio::null());
        let began = Instant::now();
        let inside = tokio::time::timeout(Duration::from_secs(60), run.output()).await;
        let inside = inside.map_err(|_| LabError::Late(one.name.into(), 60_000))?.map_err(io("rota run"))?;
        row.ran(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        let told = said(&inside);
        let refused = !inside.status.success() && one.refusals.iter().any(|refusal| told.contains(refusal));
        row.must(refused, || format!("{}: {} {told}", one.name, inside.status));
    }
    Ok(row)
}

fn said(output: &std::process::Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).chars().take(400).collect()
}

/// A token of a user whom no host knows.
async fn token(lab: &Lab, ttl_ms: u64) -> Result<String, LabError> {
    let actor = Actor { tenant: "lab".into(), user: "ci-bot".into(), role: Role::Submitter };
    let usage = TokenUse::User { actor };
    match lab.ask(ApiRequest::MintToken { request: new_request(), usage, ttl_ms }).await? {
        ApiReply::Token { secret } => Ok(secret.0),
        other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}")).into()),
    }
}

fn tries(bench: &Bench, lab: &Lab, peer: &str, stale: &str) -> Vec<Try> {
    let rota = |args: &str| format!("{} {} {args}", bench.exe.display(), bench.exe_args.join(" "));
    let dir = &lab.peers[0].dir;
    let file = |name: &str| dir.join(name).display().to_string();
    let socket = lab.peers[0].socket();
    let key = |name: &str| format!("cat {} > /dev/null", file(name));
    let of = |name, words, refusals| Try { name, words, refusals, works_outside: true };
    let unreadable = &["Permission denied", "No such file"];
    let by_stale = format!("ROTA_TOKEN={stale} {}", rota(&format!("queue --peer {peer}")));
    vec![
        of(
            "the agent's socket",
            rota(&format!("queue --socket {}", socket.display())),
            &["may not open", "Connection refused", "no socket"],
        ),
        // What a task has as its token is the number of its attempt, and no secret.
        of("the port with what a task has", rota(&format!("queue --peer {peer}")), &["not a token of rota"]),
        Try {
            works_outside: false,
            ..of("the port with a token that is over", by_stale, &["unknown or expired"])
        },
        of("the host's key", key("identity/host-key.pem"), unreadable),
        of("the cluster's key", key("identity/ca-key.pem"), unreadable),
        of("the attempts' records", format!("ls {}/ > /dev/null", file("attempts")), unreadable),
        of("the log", format!("ls {}/ > /dev/null", file("raft")), unreadable),
    ]
}
