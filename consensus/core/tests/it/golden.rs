//! A snapshot of the first format must load for ever (fault R7): `tests/golden/snapshot_1.hex`, 64 bytes a line.
//!
//! `UPDATE_EXPECT=1` writes the file only if it is not there. A failure means that a peer could not read its own disk
//! after an upgrade: make a new format beside the old one instead.

use crate::lab::{Lab, exit, launch_failed};
use rota_core::snapshot;
use rota_protocol::JobId;
use rota_protocol::command::{Command, Outcome, TokenUse};
use rota_protocol::job::AttemptEnd;
use rota_protocol::{HostId, RequestId};
use std::fmt::Write;
use std::path::Path;

#[test]
fn the_first_format_loads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/snapshot_1.hex");
    if std::env::var_os("UPDATE_EXPECT").is_some() && !path.exists() {
        std::fs::write(&path, hex(&snapshot::encode(&story().state))).expect("write");
    }
    let text = std::fs::read_to_string(&path).expect("golden bytes");
    let bytes = bytes(&text);
    let state = snapshot::decode(&bytes).expect("the first format loads");
    // Nothing is lost on the way: writing it again gives the same bytes.
    assert_eq!(hex(&snapshot::encode(&state)), text);
    let states: Vec<String> = state.jobs().map(|j| j.state.to_string()).collect();
    assert_eq!(states, ["succeeded", "failed", "cancelled", "running", "pending", "ending"]);
    assert_eq!(state.attempts().count(), 2);
    assert_eq!(state.hosts().count(), 4);
    assert_eq!(state.usage().map(|(_, usage)| usage.gpu_ms).sum::<u64>(), 12_000);
    assert_eq!(state.job(JobId(5)).map(|j| (j.tasks(), j.pending.len())), Some((1_000_000, 999_999)));
}

/// Something of everything that a state can hold.
fn story() -> Lab {
    let mut lab =
        Lab::with(&["h1 gpus=2xA100:80GiB+1xH100:141GiB cpus=16 rack=a", "h2 cpus=8 fpga=1", "h3 cpus=4"]);
    let usage = TokenUse::User { actor: crate::lab::user("t") };
    lab.system(Command::MintToken { token: [200; 32], usage, expires_at_ms: 9_000_000 });
    let ok = lab.submit("gpus=2 model=a100");
    let spec = crate::lab::job_spec("fpga=1 retries=1");
    let bad = match lab.ask(crate::lab::user("t"), RequestId(77), Command::Submit { spec }) {
        Outcome::Submitted { job } => job,
        other => panic!("{other:?}"),
    };
    lab.round();
    lab.now_ms += 6_000;
    let (ok, first) = (lab.token(ok), lab.token(bad));
    lab.start(ok);
    lab.end(ok, exit(0));
    lab.end(first, AttemptEnd::Signalled { signal: 9 });
    lab.round();
    let second = lab.token(bad);
    lab.end(second, exit(3));
    let gone = lab.submit("cpus=1");
    lab.cancel(gone);
    let runs = lab.submit("gpus=1 model=H100 vram=100GiB");
    lab.round();
    let runs = lab.token(runs);
    lab.start(runs);
    // One launch that failed, an index that was cancelled, and the rest of a million waits for its host.
    let array = lab.submit("rack=a cpus=16 array=0-999999%1 prio=90");
    lab.round();
    let launch = lab.token(array);
    lab.end(launch, launch_failed());
    lab.ask(crate::lab::user("t"), RequestId(78), Command::Cancel { job: array, index: Some(500) });
    let ending = lab.submit("cpus=8");
    lab.round();
    lab.cancel(ending);
    lab.system(Command::DrainHost { host: HostId(3), reason: "new fans".into() });
    lab.expire(HostId(4));
    lab
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(64) {
        for byte in line {
            write!(out, "{byte:02x}").expect("string");
        }
        out.push('\n');
    }
    out
}

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
    pairs.map(|pair| u8::from_str_radix(&pair, 16).expect("hex")).collect()
}
