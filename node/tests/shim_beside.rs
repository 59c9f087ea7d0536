//! A command inside a task sees the host as the task does, and no more of it: its `/tmp`, its devices. With real
//! namespaces and control groups, and without the groups. As root; without, nothing of this can be tried, and that is
//! said.
#![allow(clippy::unwrap_used, reason = "what cannot be set up should stop the test where it stands")]

mod shim_lab;

use rota_node::shim::cage::{CageAsk, CageSettings, Granted, Means, Offer, of_grant};
use rota_protocol::Token;
use rota_protocol::api::OutputStream::Stdout;
use rota_protocol::job::EndReason;
use rota_protocol::session::{SessionAsk, SessionEnd};
use rota_protocol::spool::LaunchOrder;
use shim_lab::{HANG, Lab, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A user that exists nowhere.
const USER: u32 = 61_001;
/// Drivers that open for anybody and do nothing by that: they stand for cards 0 and 1.
const DRIVERS: [&str; 2] = ["229", "237"];
const SESSION: u64 = 5;

fn open_up(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A folder for everybody, and fake cards in it.
fn site() -> tempfile::TempDir {
    let site = tempfile::tempdir_in("/var/tmp").unwrap();
    open_up(site.path(), 0o777);
    for (card, minor) in DRIVERS.iter().enumerate() {
        let path = site.path().join(format!("nvidia{card}"));
        assert!(Command::new("mknod").arg(&path).args(["c", "10", minor]).status().unwrap().success());
        open_up(&path, 0o666);
    }
    site
}

/// What a command inside says, and how it ends.
async fn inside(lab: &Lab, token: u64, script: &str) -> (String, Option<SessionEnd>) {
    let argv = ["sh", "-c", script].map(|word| word.as_bytes().to_vec()).to_vec();
    let ask =
        async |ask| tokio::time::timeout(HANG, lab.host.session(Token(token), SESSION, ask)).await.unwrap();
    ask(SessionAsk::Start { argv, terminal: None, term: Vec::new() }).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        let read = SessionAsk::Read { stream: Stdout, offset: bytes.len() as u64, wait_ms: 5_000 };
        let news = ask(read).await.unwrap();
        let chunk = news.chunk.unwrap();
        bytes.extend_from_slice(&chunk.bytes);
        if chunk.last {
            ask(SessionAsk::Close).await.unwrap();
            return (String::from_utf8_lossy(&bytes).into_owned(), news.end);
        }
    }
}

#[tokio::test]
async fn a_command_inside_sees_what_its_task_sees() {
    if !rustix::process::geteuid().is_root() {
        println!("NOT EXERCISED: what a command inside a task sees: only root can bound tasks");
        return;
    }
    let site = site();
    for without in [vec![], vec![Means::Groups]] {
        let bare = !without.is_empty();
        let settings = CageSettings { device_dir: site.path().into(), without, ..CageSettings::default() };
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut lab = Lab::bounded(&settings, Offer::default(), dir).await;
        let place = lab.host.place().to_string();
        println!("what a command inside a task sees: {place}");
        if !bare && !lab.host.place().is_whole() {
            println!("NOT EXERCISED: what a command inside a task sees");
            return;
        }
        for (token, uid) in [(1, Some(USER)), (2, None)] {
            let ask = CageAsk {
                workdir: site.path().into(),
                nodes: of_grant(site.path(), &[Granted::Card { minor: 1 }]),
                as_agent: uid.is_none(),
                ..CageAsk::default()
            };
            let ready = site.path().join(format!("ready{token}{bare}"));
            let script = format!("echo own > /tmp/own; > {}; sleep 9999", ready.display());
            let order = LaunchOrder {
                workdir: site.path().as_os_str().as_encoded_bytes().to_vec(),
                uid_gid: uid.map(|uid| (uid, uid)),
                cage: lab.host.cage(Token(token), ask),
                ..lab.order(token, &["sh", "-c", &script])
            };
            assert!(order.cage.private_tmp, "{place}");
            lab.host.launch(order).await.unwrap();
            let main = lab.started(token).await;
            wait_until("the task is ready", || ready.exists()).await;
            let mounts = std::fs::read_link(format!("/proc/{main}/ns/mnt")).unwrap();
            let dev = site.path().display();
            let card = |card: u32| format!("(: < {dev}/nvidia{card}) 2>&- && echo open{card}");
            let words = format!(
                "cat /tmp/own; readlink /proc/self/ns/mnt; test -e /dev/kmsg && (: < /dev/kmsg) 2>&- && echo kmsg; {}; {}; true",
                card(0),
                card(1)
            );
            let (said, end) = inside(&lab, token, &words).await;
            // Without groups a folder of devices can only hide what lies in /dev.
            let cards = if bare { "open0\nopen1\n" } else { "open1\n" };
            let wanted = format!("own\n{}\n{cards}", mounts.display());
            assert_eq!((said, end), (wanted, Some(SessionEnd::Exited { code: 0 })), "{place}, {uid:?}");
            lab.host.end(Token(token), EndReason::Cancel).await;
            lab.ended(token).await;
        }
    }
}
