//! What is there before it is needed, and what another tenant can make of it.

use super::super::agent_death::show;
use super::super::ends::cancel;
use super::{HERE, LIMIT, T8, ms, odd};
use rota_node::lab::{LabError, io, new_request};
use rota_node::lab_work::shell_job;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::command::TokenUse;
use rota_protocol::data::BlobId;
use rota_protocol::job::{Actor, JobState, Role};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Instant;

/// A promise is made after a second of waiting and looked at each second.
const AHEAD_MS: u64 = 5_000;
/// All processors of a host of the lab.
const ALL_CPUS: u32 = 16_000;

impl T8 {
    /// A job that was promised a start finds its inputs there, fetched while it waited.
    pub(super) async fn fetched_ahead(&mut self, round: usize) -> Result<(), LabError> {
        let file = self.file("ahead", 2, round)?;
        let blob = self.add(0, &file).await?;
        let mut fills = shell_job("fills", "sleep 50");
        (fills.ask.cpus_milli, fills.time_limit_ms) = (ALL_CPUS, Some(55_000));
        let fills = self.client.submit(fills).await?;
        self.runs(fills).await?;
        let mut spec = self.job(&[blob], None);
        (spec.ask.cpus_milli, spec.time_limit_ms) = (ALL_CPUS, Some(60_000));
        let before = self.cache(HERE).await?.counts;
        let job = self.client.submit(spec).await?;
        let began = Instant::now();
        while self.holders(HERE, blob).await?.is_none() && began.elapsed() < LIMIT {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        self.row.also("promised_and_fetched_ahead_ms", ms(began), Some(AHEAD_MS));
        let state = show(&mut self.client, job).await?.row.state;
        self.row
            .must(state == JobState::Pending, || format!("round {round}: fetched ahead, and it is {state}"));
        cancel(&mut self.client, fills).await?;
        self.must_succeed(job, "fetched ahead").await?;
        let after = self.cache(HERE).await?.counts;
        self.row.must((after.hits - before.hits, after.misses - before.misses) == (1, 0), || {
            format!("round {round}: {before:?} became {after:?}")
        });
        self.forget(blob).await;
        self.until_free(blob).await
    }

    /// A user of another tenant knows the hash of what is not for it: to that user it is nowhere. What is for everybody is
    /// shown to its task, which can do nothing to it.
    pub(super) async fn of_other_tenants(&mut self) -> Result<(), LabError> {
        if !rustix::process::geteuid().is_root() {
            println!("NOT EXERCISED: T8, other tenants: not root, tasks run as the agent's own user");
            return Ok(());
        }
        // What is refused must be refused by Rota, not by a folder of this lab.
        std::fs::set_permissions(&self.bench.dir, std::fs::Permissions::from_mode(0o755))
            .map_err(io("the lab's folder"))?;
        let (ours, all) = (self.file("ours", 1, 1)?, self.file("all", 1, 2)?);
        let (ours, all) =
            (self.add(HERE, &ours).await?, self.add_with(0, &all, &["--json", "--public"]).await?);
        let secret = self.token().await?;
        let (status, said) = self.as_other(&secret, &["data", "list", "--json"]).await?;
        self.row
            .must(status == 0 && !said.contains(&ours.hex()), || format!("{status}: another sees: {said}"));
        let name = ours.to_string();
        let (status, said) = self.as_other(&secret, &["data", "remove", &name]).await?;
        self.row.must(status != 0 && said.contains("no blob"), || {
            format!("{status}: removed by another: {said}")
        });
        let (status, said) = self.run_as_other(&secret, ours, "true").await?;
        self.row.must(status != 0 && said.contains("no host has"), || {
            format!("{status}: another tenant's task with what is not for it: {said}")
        });
        // Each word is tried on what the agent keeps; the task is not its owner.
        let script = "f=$ROTA_INPUTS/in; [ \"$(stat -c %h $f)\" -gt 1 ] || exit 11; \
                      [ \"$(sha256sum < $f | cut -c1-64)\" = HEX ] || exit 12; \
                      ( echo x >> $f ) 2> /dev/null && exit 13; chmod u+w $f 2> /dev/null && exit 14; \
                      rm -f $f 2> /dev/null && exit 15; ( echo x > $ROTA_INPUTS/new ) 2> /dev/null && exit 16; \
                      ls $ROTA_INPUTS/.. > /dev/null 2>&1 && exit 17; exit 0";
        let (status, said) = self.run_as_other(&secret, all, &script.replace("HEX", &all.hex())).await?;
        self.row.must(status == 0, || format!("{status}: a task that tries to alter its inputs: {said}"));
        self.until_free(all).await
    }

    async fn run_as_other(
        &self,
        secret: &str,
        blob: BlobId,
        script: &str,
    ) -> Result<(i32, String), LabError> {
        let input = format!("in={blob}");
        self.as_other(secret, &["run", "--input", &input, "--", "sh", "-c", script]).await
    }

    /// A command of a user whom only a token names.
    async fn as_other(&self, secret: &str, args: &[&str]) -> Result<(i32, String), LabError> {
        let peer = format!("127.0.0.1:{}", self.lab.peers[HERE].port);
        let mut command = tokio::process::Command::new(&self.bench.exe);
        command.args(&self.bench.exe_args).args(["--peer", &peer]).args(args);
        command.env("ROTA_TOKEN", secret).current_dir("/").stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output()).await;
        let output =
            output.map_err(|_| LabError::Late(args.join(" "), LIMIT.as_millis()))?.map_err(io("rota"))?;
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned()))
    }

    async fn token(&self) -> Result<String, LabError> {
        let actor = Actor { tenant: "others".into(), user: "ci-bot".into(), role: Role::Submitter };
        let usage = TokenUse::User { actor };
        match self.lab.ask(ApiRequest::MintToken { request: new_request(), usage, ttl_ms: 600_000 }).await? {
            ApiReply::Token { secret } => Ok(secret.0),
            other => Err(odd(other)),
        }
    }
}
