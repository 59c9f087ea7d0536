//! Inputs: data named by its hash that hosts fetch from one another, keep, and show to the attempts that ask for it.
//!
//! | file | |
//! |---|---|
//! | `settings` | what an operator may set |
//! | `store` | blobs on the disk |
//! | `view` | what a task sees of them |
//! | `stage` | an attempt's inputs, all there before its shim is launched |
//! | `ahead` | the same before the grant, for starts that are promised |
//! | `fetch`, `sources` | one blob from whichever hosts have it |
//! | `serve` | what peers ask |
//! | `clients` | what clients ask: add, list, remove |
//!
//! What is decided without files is `logic::shelf`. Its lock is held over renames, so that what it says is there is there
//! under its name, and over nothing that takes long.
//!
//! Not here: which host a job runs on (the planner knows nothing of blobs), and any replication of its own: a blob is
//! where somebody added it and where jobs needed it.

mod ahead;
mod clients;
mod fetch;
mod serve;
mod settings;
mod sources;
mod stage;
mod store;
mod view;

pub(crate) use ahead::watch;
pub(crate) use clients::answer as answer_client;
pub(crate) use serve::answer as answer_peer;
pub use settings::InputsConfig;
pub(crate) use stage::stage;

use crate::logic::shelf::{Shelf, Wanted};
use crate::meters;
use rota_protocol::Token;
use rota_protocol::data::{BlobId, CacheCounts};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::{Ready, Store};
use tokio::sync::Notify;

/// Why an attempt cannot have its inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// No host has it: another one could not do better.
    pub nowhere: bool,
    /// For people.
    pub reason: String,
}

impl Failure {
    fn here(reason: impl Into<String>) -> Self {
        Self { nowhere: false, reason: reason.into() }
    }
}

/// This host's blobs and what is under way with them.
pub struct Data {
    store: Store,
    /// `<data>/inputs`.
    inputs: PathBuf,
    shelf: Mutex<Shelf>,
    /// Something on the shelf changed.
    changed: Notify,
    patience: Duration,
    counts: Mutex<CacheCounts>,
    flights: Mutex<BTreeMap<Wanted, Flight>>,
    failures: Mutex<BTreeMap<Token, Failure>>,
    /// Sources that are not asked for a blob for a while.
    doubts: sources::Doubts,
    uploads: clients::Uploads,
    /// One look at a doubted blob at a time.
    looking: tokio::sync::Mutex<()>,
}

/// A fetch under way.
struct Flight {
    /// Drawn, to tell it from a later one.
    number: u64,
    task: tokio::task::AbortHandle,
    /// What it does, in a sentence.
    standing: String,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is complete when they are let go.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Data {
    /// What is kept on the disk, held by those attempts that live. Files of others are removed. A disk that refuses costs
    /// the cache, not the agent.
    #[must_use]
    pub fn open(data_dir: &Path, config: &InputsConfig, lives: &BTreeSet<Token>) -> Arc<Self> {
        // A task's inputs are shown to it by an absolute path.
        let data_dir = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_owned());
        let (store, inputs) = (Store::of(&data_dir), data_dir.join("inputs"));
        let shelf = load(&store, &inputs, config.cache_bytes(), lives).unwrap_or_else(|error| {
            tracing::error!(%error, "the cache of inputs cannot be read: it is taken as empty");
            Shelf::new(config.cache_bytes())
        });
        Arc::new(Self {
            store,
            inputs,
            shelf: Mutex::new(shelf),
            changed: Notify::new(),
            patience: config.patience(),
            counts: Mutex::default(),
            flights: Mutex::default(),
            failures: Mutex::default(),
            doubts: sources::Doubts::default(),
            uploads: clients::Uploads::default(),
            looking: tokio::sync::Mutex::default(),
        })
    }

    /// Where a new attempt's inputs are to be.
    #[must_use]
    pub fn draw_view(&self, token: Token) -> PathBuf {
        view::draw(&self.inputs, token)
    }

    /// An attempt is over, or will not start: what it held is free. Of one without inputs nothing is known, and nothing is
    /// done.
    pub fn over(&self, token: Token) {
        let gone = {
            let mut shelf = lock(&self.shelf);
            if !shelf.knows(token) {
                return;
            }
            let (idle, gone) = shelf.let_go(token);
            for wanted in idle {
                shelf.fetch_over(&wanted);
                if let Some(flight) = lock(&self.flights).remove(&wanted) {
                    flight.task.abort();
                }
            }
            self.set_aside(&gone)
        };
        lock(&self.failures).remove(&token);
        self.changed.notify_waiters();
        let (store, inputs) = (self.store.clone(), self.inputs.clone());
        in_background(move || {
            discard(&gone);
            match view::remove_of(&inputs, token) {
                // Only then: until it is gone, a restart must find it.
                Ok(()) => store.let_go(token),
                Err(error) => tracing::warn!(%token, %error, "inputs of an attempt cannot be removed"),
            }
        });
    }

    /// What an attempt's inputs wait for.
    #[must_use]
    pub fn standing(&self, token: Token) -> Option<String> {
        let shelf = lock(&self.shelf);
        let flights = lock(&self.flights);
        let of_token = |(wanted, _): &(&Wanted, &Flight)| shelf.waits(token, wanted);
        let all: Vec<&str> =
            flights.iter().filter(of_token).map(|(_, flight)| flight.standing.as_str()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Attempts that hold or wait for something.
    #[must_use]
    pub fn users(&self) -> Vec<Token> {
        lock(&self.shelf).tokens().collect()
    }

    /// Takes files from under their names; the shelf's lock is held.
    fn set_aside(&self, blobs: &[BlobId]) -> Vec<PathBuf> {
        blobs.iter().map(|blob| self.store.set_aside(blob)).collect()
    }

    /// Puts a checked blob on the shelf and under its name at once.
    fn put(&self, ready: Ready, claimed: u64) -> io::Result<()> {
        let blob = ready.blob();
        {
            let mut shelf = lock(&self.shelf);
            shelf.unclaim(claimed);
            let (blob, kept) = self.store.put(ready, shelf.kept(&blob))?;
            shelf.put(blob, kept);
            self.gauge(&shelf);
        }
        self.changed.notify_waiters();
        self.store
            .sync()
            .inspect_err(|error| tracing::warn!(%blob, %error, "a blob may not outlive a power cut"))
    }

    /// A blob is not what it was: nobody gets it any more.
    fn quarantine(&self, blob: &BlobId) {
        let mut shelf = lock(&self.shelf);
        if shelf.damaged(blob) {
            self.store.set_apart(blob);
            self.refused();
            tracing::error!(%blob, "a blob was altered on the disk: put apart, and fetched again when it is needed");
        }
        self.gauge(&shelf);
    }

    /// Bytes had another hash than their name.
    fn refused(&self) {
        lock(&self.counts).refused += 1;
        metrics::counter!(meters::INPUTS_REFUSED).increment(1);
    }

    #[allow(clippy::cast_precision_loss)] // A gauge is a float; 2^52 bytes are far away.
    fn gauge(&self, shelf: &Shelf) {
        metrics::gauge!(meters::INPUTS_BYTES).set(shelf.bytes_used() as f64);
    }
}

/// What was kept, held by those that live. All else that an attempt was given is removed.
fn load(store: &Store, inputs: &Path, bytes_max: u64, lives: &BTreeSet<Token>) -> io::Result<Shelf> {
    let mut shelf = Shelf::new(bytes_max);
    for (blob, kept) in store.load()? {
        shelf.put(blob, kept);
    }
    view::sweep(inputs, |token| !lives.contains(&token))?;
    for (token, wanted) in store.held()? {
        if !lives.contains(&token) {
            store.let_go(token);
            continue;
        }
        for wanted in &wanted {
            shelf.adopt(token, wanted);
        }
    }
    // The limit may be a lower one than it was.
    for blob in shelf.shed() {
        Store::discard(&store.set_aside(&blob));
    }
    Ok(shelf)
}

/// Room that is taken for bytes on their way: given back, however that ends.
struct Claim {
    data: Arc<Data>,
    bytes: u64,
}

impl Claim {
    /// Takes room, and removes what has to go for it.
    fn take(data: &Arc<Data>, bytes: u64) -> Result<Self, crate::logic::shelf::NoRoom> {
        let aside = {
            let mut shelf = lock(&data.shelf);
            let goes = shelf.claim(bytes)?;
            data.gauge(&shelf);
            data.set_aside(&goes)
        };
        in_background(move || discard(&aside));
        Ok(Self { data: Arc::clone(data), bytes })
    }

    /// The bytes are there: they are put on the shelf in place of the claim.
    fn fulfil(mut self, ready: Ready) -> io::Result<()> {
        let claimed = std::mem::take(&mut self.bytes);
        self.data.put(ready, claimed)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.bytes > 0 {
            lock(&self.data.shelf).unclaim(self.bytes);
            self.data.changed.notify_waiters();
        }
    }
}

fn discard(aside: &[PathBuf]) {
    aside.iter().for_each(|path| Store::discard(path));
}

/// The disk may take its time; nobody waits for it.
fn in_background(work: impl FnOnce() + Send + 'static) {
    drop(tokio::task::spawn_blocking(work));
}

/// Something with files, off the runtime's threads.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
