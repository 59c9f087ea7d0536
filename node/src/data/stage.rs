//! An attempt's inputs are brought here and shown to it before its shim is launched. Whoever stops waiting leaves nothing
//! behind: what was held is let go by `Data::over`, which comes with the attempt's end.

use super::sources::{Peer, Peers};
use super::{Data, Failure, fetch, lock, on_disk, view};
use crate::io::clock;
use crate::logic::shelf::{Want, Wanted};
use crate::meters;
use crate::node::Node;
use rota_core::state::host::HostLife;
use rota_protocol::Token;
use rota_protocol::data::Input;
use rota_protocol::ids::JobId;
use rota_protocol::spool::LaunchOrder;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What an attempt is to be given.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) token: Token,
    pub(super) job: JobId,
    pub(super) tenant: String,
    pub(super) inputs: Vec<Input>,
    pub(super) view: PathBuf,
    /// It runs as the agent's own user.
    pub(super) copies: bool,
}

/// The other hosts, as the log knows them.
pub(super) fn peers(node: &Arc<Node>) -> Peers {
    let of = Arc::downgrade(node);
    let all = move || {
        let Some(node) = of.upgrade() else { return Vec::new() };
        let peer = |host: &rota_core::Host| Peer {
            host: host.id,
            name: host.name.clone(),
            up: host.life == HostLife::Up,
        };
        node.consensus.read(|state| {
            let others =
                state.hosts().filter(|host| host.id != node.host && host.belonging.removed.is_none());
            others.map(peer).collect()
        })
    };
    Peers { link: Arc::clone(&node.net) as Arc<_>, all: Arc::new(all) }
}

/// Brings what an order needs, and shows it to its task. Dropping it gives up.
///
/// # Errors
/// It cannot be had here; why.
pub(crate) async fn stage(node: &Arc<Node>, order: &LaunchOrder) -> Result<(), Failure> {
    let token = order.token;
    let ask = node.consensus.read(|state| {
        let job = state.job(state.attempt(token)?.task.job)?;
        let own = rustix::process::geteuid().as_raw();
        Some(Ask {
            token,
            job: job.id,
            tenant: job.tenant.clone(),
            inputs: job.spec.inputs.to_vec(),
            view: Path::new(OsStr::from_bytes(&order.inputs)).to_owned(),
            copies: order.uid_gid.is_none_or(|(uid, _)| uid == own),
        })
    });
    match ask {
        Some(ask) => bring(&node.data, &peers(node), ask).await,
        None => Err(Failure::here("the attempt is over")),
    }
}

pub(super) async fn bring(data: &Arc<Data>, peers: &Peers, ask: Ask) -> Result<(), Failure> {
    let wanted: BTreeSet<Wanted> = ask.inputs.iter().map(|input| (input.blob, ask.tenant.clone())).collect();
    put_altered_apart(data, &wanted).await;
    let mut first = true;
    loop {
        let mut changed = std::pin::pin!(data.changed.notified());
        changed.as_mut().enable();
        // Before anything is asked anew: a fetch that failed is not begun again for this attempt.
        if let Some(failure) = lock(&data.failures).remove(&ask.token) {
            return Err(failure);
        }
        let answers: Vec<(&Wanted, Want)> = {
            let (mut shelf, now_ms) = (lock(&data.shelf), clock::wall_ms());
            wanted.iter().map(|one| (one, shelf.want(ask.token, one, now_ms))).collect()
        };
        if std::mem::take(&mut first) {
            count(data, &answers);
        }
        for (one, _) in answers.iter().filter(|(_, want)| *want == Want::Fetch) {
            fetch::begin(data, peers, (*one).clone(), ask.job);
        }
        if answers.iter().all(|(_, want)| *want == Want::Here) {
            break;
        }
        changed.await;
    }
    let (own, store) = (Arc::clone(data), data.store.clone());
    let shown = on_disk(move || {
        let all: Vec<Wanted> = wanted.into_iter().collect();
        store.hold(ask.token, &all)?;
        for (blob, _) in &all {
            store.used(blob, clock::wall_ms())?;
        }
        let built = view::build(&store, &ask.view, &ask.inputs, ask.copies);
        // It may be over meanwhile; whoever saw to that may have found nothing to remove yet.
        if !lock(&own.shelf).knows(ask.token) {
            view::remove_of(&own.inputs, ask.token)?;
            store.let_go(ask.token);
        }
        built
    });
    shown.await.map_err(|error| Failure::here(format!("its inputs cannot be shown to it: {error}")))
}

/// What is on the shelf is looked at before it is used: length and time of change, not its hash.
async fn put_altered_apart(data: &Arc<Data>, wanted: &BTreeSet<Wanted>) {
    let known = {
        let shelf = lock(&data.shelf);
        wanted.iter().map(|(blob, _)| *blob).filter(|blob| shelf.kept(blob).is_some()).collect::<Vec<_>>()
    };
    if known.is_empty() {
        return;
    }
    let own = Arc::clone(data);
    let looked = tokio::task::spawn_blocking(move || known.iter().for_each(|blob| own.look(blob)));
    // A look that fails shows in what comes after it.
    let _ = looked.await;
}

impl Data {
    /// Puts a blob apart whose file is not what was written down.
    pub(super) fn look(&self, blob: &rota_protocol::data::BlobId) {
        let altered = {
            let shelf = lock(&self.shelf);
            shelf.kept(blob).is_some() && self.store.believed(blob).is_none()
        };
        if altered {
            self.quarantine(blob);
        }
    }
}

fn count(data: &Data, answers: &[(&Wanted, Want)]) {
    let hits = answers.iter().filter(|(_, want)| *want == Want::Here).count() as u64;
    let misses = answers.len() as u64 - hits;
    let mut counts = lock(&data.counts);
    (counts.hits, counts.misses) = (counts.hits + hits, counts.misses + misses);
    metrics::counter!(meters::INPUTS_HITS).increment(hits);
    metrics::counter!(meters::INPUTS_MISSES).increment(misses);
}
