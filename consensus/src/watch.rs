//! A value that others watch. The methods are those of tokio's channel of this name, and mean the same.
//!
//! Why it is not that channel: tokio draws lots for the order in which waiters wake, so that one seed would not be one run
//! (see `runtime.rs`). Here they wake in the order in which they came.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};

/// All senders are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody changes this value any more")]
pub struct Closed;

/// The value could not be sent, because nobody watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody watches")]
pub struct Unwatched<T>(pub T);

/// Changes the value; clones change the same one.
pub struct Sender<T>(Arc<Shared<T>>);

/// Watches the value; a clone has seen what this one has seen.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The value, for as long as it is looked at. Senders wait meanwhile.
pub struct Ref<'a, T>(RwLockReadGuard<'a, T>);

impl<T: fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

struct Shared<T> {
    value: RwLock<T>,
    /// Counts changes; raised while the value is locked for writing.
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    waiting: Mutex<Waiting>,
}

/// Who waits, in the order in which they came.
#[derive(Default)]
struct Waiting {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl<T> Shared<T> {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it holds this lock half-way.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn borrow(&self) -> Ref<'_, T> {
        // A change that panicked half-way is its author's; the value is still one.
        Ref(self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn wake_all(&self) {
        let woken = std::mem::take(&mut self.waiting().wakers);
        for waker in woken.into_values() {
            waker.wake();
        }
    }

    /// Waits until the version is not `seen` any more.
    async fn next(&self, seen: u64) -> Result<u64, Closed> {
        let mut place = Place { shared: self, ticket: None };
        poll_fn(|cx| place.poll(cx, seen)).await
    }
}

/// A place among those who wait; given up when dropped.
struct Place<'a, T> {
    shared: &'a Shared<T>,
    ticket: Option<u64>,
}

impl<T> Place<'_, T> {
    fn poll(&mut self, cx: &Context<'_>, seen: u64) -> Poll<Result<u64, Closed>> {
        // Looked at under the lock: whoever changes the value afterwards finds this waker.
        let mut waiting = self.shared.waiting();
        let version = self.shared.version.load(Ordering::Acquire);
        if version != seen {
            return Poll::Ready(Ok(version));
        }
        if self.shared.senders.load(Ordering::Acquire) == 0 {
            return Poll::Ready(Err(Closed));
        }
        let ticket = *self.ticket.get_or_insert_with(|| {
            waiting.next += 1;
            waiting.next
        });
        waiting.wakers.insert(ticket, cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.waiting().wakers.remove(&ticket);
        }
    }
}

/// A value with its first watcher.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    /// A value that nobody watches yet.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Shared {
            value: RwLock::new(value),
            version: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
            waiting: Mutex::default(),
        }))
    }

    /// Replaces the value, if anybody watches.
    ///
    /// # Errors
    /// Nobody does: the value comes back, and the old one stays.
    pub fn send(&self, value: T) -> Result<(), Unwatched<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(Unwatched(value));
        }
        self.send_replace(value);
        Ok(())
    }

    /// Replaces the value, whether or not anybody watches.
    pub fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|held| std::mem::swap(held, &mut value));
        value
    }

    /// Changes the value.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|held| {
            change(held);
            true
        });
    }

    /// Changes the value, and wakes those who wait only if the closure says that it did.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        {
            let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
            if !change(&mut value) {
                return false;
            }
            self.0.version.fetch_add(1, Ordering::Release);
        }
        self.0.wake_all();
        true
    }

    /// The value now.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.0.borrow()
    }

    /// One more watcher, who has seen the value as it is.
    pub fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.fetch_add(1, Ordering::AcqRel);
        Receiver { seen: self.0.version.load(Ordering::Acquire), shared: self.0.clone() }
    }
}

impl<T> Receiver<T> {
    /// The value now; it does not count as seen.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// The value now; it counts as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.borrow();
        // Under the lock of the value, so that no change comes in between.
        self.seen = self.shared.version.load(Ordering::Acquire);
        value
    }

    /// What is there now counts as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.version.load(Ordering::Acquire);
    }

    /// Waits for a value that was not seen yet; it then counts as seen.
    ///
    /// # Errors
    /// All senders are gone.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        self.seen = self.shared.next(self.seen).await?;
        Ok(())
    }

    /// Waits until the value is as wanted; it then counts as seen.
    ///
    /// # Errors
    /// All senders are gone, and it is not.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        let Self { shared, seen } = self;
        loop {
            {
                let value = shared.borrow();
                *seen = shared.version.load(Ordering::Acquire);
                if wanted(&value) {
                    return Ok(value);
                }
            }
            *seen = shared.next(*seen).await?;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::AcqRel);
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.wake_all();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::AcqRel);
        Self { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiters_wake_in_the_order_in_which_they_came() {
        let sender = Sender::new(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|number| {
                let (mut receiver, order) = (sender.subscribe(), order.clone());
                tokio::spawn(async move {
                    receiver.changed().await.expect("changes");
                    order.lock().expect("not poisoned").push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        sender.send_replace(1);
        for task in tasks {
            task.await.expect("runs");
        }
        assert_eq!(*order.lock().expect("not poisoned"), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn it_tells_what_was_not_seen_and_that_nobody_is_left() {
        let (sender, mut receiver) = channel(1);
        assert_eq!(*receiver.borrow_and_update(), 1);
        assert!(!sender.send_if_modified(|_| false));
        sender.send_modify(|value| *value = 2);
        let mut late = receiver.clone();
        receiver.changed().await.expect("changed");
        assert_eq!(*receiver.borrow(), 2);
        assert_eq!(late.wait_for(|value| *value == 2).await.map(|value| *value), Ok(2));
        late.mark_unchanged();
        let waits = tokio::spawn(async move { late.wait_for(|value| *value == 9).await.map(|value| *value) });
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(waits.await.expect("runs"), Err(Closed));
        assert_eq!(receiver.changed().await, Err(Closed));
    }

    #[tokio::test]
    async fn what_nobody_watches_is_not_sent_and_who_gave_up_leaves_no_trace() {
        let sender = Sender::new(1);
        assert_eq!(sender.send(2), Err(Unwatched(2)));
        assert_eq!(*sender.borrow(), 1);
        let mut receiver = sender.subscribe();
        for _ in 0..3 {
            let gone = tokio::time::timeout(std::time::Duration::from_millis(1), receiver.changed()).await;
            assert!(gone.is_err());
        }
        assert!(sender.0.waiting().wakers.is_empty());
        sender.send(2).expect("watched");
        assert_eq!(*receiver.borrow(), 2);
    }

    /// No change is missed, whatever the threads do.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_last_value_is_always_seen() {
        let (sender, receiver) = channel(0);
        let watchers: Vec<_> = (0..8)
            .map(|_| {
                let mut receiver = receiver.clone();
                tokio::spawn(async move { receiver.wait_for(|value| *value == 10_000).await.map(|v| *v) })
            })
            .collect();
        for value in 1..=10_000 {
            sender.send_replace(value);
            if value % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        for watcher in watchers {
            assert_eq!(watcher.await.expect("runs"), Ok(10_000));
        }
    }
}
