//! What runs a peer: tokio, with the two things changed that would keep one seed from being one run.
//!
//! openraft takes time, tasks and chance from a type, not from a value. So that a simulation can run many peers in one
//! process and have each draw from a seed of its own, the source of chance goes along from task to task
//! ([`Chance::scope`]); where there is none, as in the product, chance is the system's. The order in which watchers wake
//! is the other thing (`watch.rs`). Work on files runs beside the runtime in the product, and in line under a seed.

use crate::watch;
use openraft::async_runtime::watch as raft_watch;
use openraft::{AsyncRuntime, OptionalSend, OptionalSync, TokioRuntime};
use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::future::Future;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

tokio::task_local! {
    static CHANCE: Chance;
}

/// One peer's source of chance in a simulation. Clones share it.
#[derive(Debug, Clone)]
pub struct Chance(Arc<AtomicU64>);

impl Chance {
    /// The source of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    /// Runs a future, and all tasks that it starts through this crate, with this source: they draw from it, and do
    /// their work on files in line.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        CHANCE.scope(self.clone(), future).await
    }

    fn next(&self) -> u64 {
        mixed(self.0.fetch_add(WEYL, Ordering::Relaxed))
    }

    fn here() -> Option<Self> {
        CHANCE.try_with(Self::clone).ok()
    }
}

const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's mixing of one state.
fn mixed(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of numbers; not for secrets.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub(crate) fn coin(&mut self) -> bool {
        self.0 = self.0.wrapping_add(WEYL);
        mixed(self.0) & 1 == 1
    }
}

impl foca_rand::TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.try_next_u64().map(|bits| (bits >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0 = self.0.wrapping_add(WEYL);
        Ok(mixed(self.0))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for piece in bytes.chunks_mut(8) {
            let bits = self.try_next_u64()?.to_le_bytes();
            piece.copy_from_slice(&bits[..piece.len()]);
        }
        Ok(())
    }
}

/// Starts a task that draws from the same source.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match Chance::here() {
        Some(chance) => tokio::spawn(CHANCE.scope(chance, future)),
        None => tokio::spawn(future),
    }
}

/// Work that ended without a result: it panicked, or the runtime is ending.
#[derive(Debug, thiserror::Error)]
#[error("the work on a file ended early")]
pub(crate) struct Ended;

/// Work on files: beside the runtime, or in line under a seed.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Ended> {
    if Chance::here().is_some() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|_| Ended)
}

/// Tokio as openraft sees it.
#[derive(Debug)]
pub struct Runtime(TokioRuntime);

type Inner = TokioRuntime;

impl AsyncRuntime for Runtime {
    type JoinError = <Inner as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <Inner as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <Inner as AsyncRuntime>::Sleep;
    type Instant = <Inner as AsyncRuntime>::Instant;
    type TimeoutError = <Inner as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <Inner as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = Dice;
    type Mpsc = <Inner as AsyncRuntime>::Mpsc;
    type Watch = Watch;
    type Oneshot = <Inner as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <Inner as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Inner::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Inner::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Inner::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        Inner::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        Inner::is_panic(error)
    }

    fn thread_rng() -> Dice {
        Dice(match Chance::here() {
            Some(chance) => chance.next(),
            // Hashers of the standard library are keyed by the system.
            None => RandomState::new().hash_one(0_u8),
        })
    }

    fn new(threads: usize) -> Self {
        Self(Inner::new(threads))
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }

    async fn spawn_blocking<F, T>(work: F) -> Result<T, std::io::Error>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        blocking(work).await.map_err(std::io::Error::other)
    }
}

/// Our watch channel as openraft sees it.
#[derive(Debug)]
pub struct Watch;

impl raft_watch::Watch for Watch {
    type Sender<T: OptionalSend + OptionalSync> = watch::Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = watch::Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (watch::Sender<T>, watch::Receiver<T>) {
        watch::channel(init)
    }
}

impl<T: OptionalSend + OptionalSync> raft_watch::WatchSender<Watch, T> for watch::Sender<T> {
    fn send(&self, value: T) -> Result<(), raft_watch::SendError<T>> {
        Self::send(self, value).map_err(|unwatched| raft_watch::SendError(unwatched.0))
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        Self::send_if_modified(self, modify)
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.borrow()
    }

    fn subscribe(&self) -> watch::Receiver<T> {
        Self::subscribe(self)
    }
}

impl<T: OptionalSend + OptionalSync> raft_watch::WatchReceiver<Watch, T> for watch::Receiver<T> {
    async fn changed(&mut self) -> Result<(), raft_watch::RecvError> {
        Self::changed(self).await.map_err(|_| raft_watch::RecvError(()))
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.borrow()
    }

    fn borrow_and_update(&mut self) -> watch::Ref<'_, T> {
        Self::borrow_and_update(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foca_rand::TryRng;

    async fn draws(seed: u64) -> Vec<u64> {
        let draw = async || {
            let task = spawn(async { Runtime::thread_rng().try_next_u64().expect("never fails") });
            task.await.expect("runs")
        };
        Chance::new(seed).scope(async { vec![draw().await, draw().await, draw().await] }).await
    }

    #[tokio::test]
    async fn a_seed_goes_along_into_tasks_and_means_one_stream() {
        assert_eq!(draws(7).await, draws(7).await);
        assert_ne!(draws(7).await, draws(8).await);
        let own = || Runtime::thread_rng().try_next_u64().expect("never fails");
        assert_ne!(own(), own(), "without a seed chance is the system's");
        let thread = std::thread::current().id();
        let here = Chance::new(1).scope(blocking(move || std::thread::current().id() == thread)).await;
        assert!(here.expect("ends"), "under a seed work on files is done in line");
    }
}
