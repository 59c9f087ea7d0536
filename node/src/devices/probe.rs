//! Keeps a provider that may hang away from everyone else (fault G2): it runs on an OS thread of its own, and
//! whoever asks hears after a deadline what was answered until then. A thread that hangs is left behind and replaced,
//! and the device that it hangs on is left alone; with [`STUCK_MAX`] of them left behind, the provider is not asked
//! again until one comes back.
//!
//! Not yet: a separate probe process. A thread that hangs inside the kernel cannot be killed, and the agent cannot
//! end completely before the driver lets go of it.

use super::{DeviceError, DeviceProvider, Found, Progress};
use rota_protocol::device::DeviceReading;
use rota_protocol::ids::DeviceUuid;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a provider may take to answer. A healthy driver needs some 100 ms, even for 16 cards; below the 2,500 ms
/// within which a silent card must be closed to new work.
pub const PROBE_DEADLINE: Duration = Duration::from_millis(2_000);
/// Most threads left hanging per provider: more would only pile up in the same driver lock.
pub const STUCK_MAX: usize = 2;

/// Makes a provider afresh, for the thread that replaces a hanging one.
pub type Make = Box<dyn Fn() -> Box<dyn DeviceProvider> + Send + Sync>;

/// One provider, asked so that the caller never hangs.
pub struct Probe {
    name: String,
    way: Way,
}

enum Way {
    /// Pure computation that cannot hang: asked in place, so that paused clocks of tests stay true.
    Direct(Box<dyn DeviceProvider>),
    Guarded(Guarded),
}

impl Probe {
    /// A provider that only computes.
    #[must_use]
    pub fn direct(provider: Box<dyn DeviceProvider>) -> Self {
        Self { name: provider.name().to_owned(), way: Way::Direct(provider) }
    }

    /// A provider that may hang. Uses real time whatever the runtime's clock says of itself.
    #[must_use]
    pub fn guarded(name: &str, deadline: Duration, make: Make) -> Self {
        let guarded = Guarded { name: name.to_owned(), deadline, make, worker: None, stuck: Vec::new() };
        Self { name: name.to_owned(), way: Way::Guarded(guarded) }
    }

    /// The provider's short name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All devices that the provider shows now. When it misses the deadline: those that had answered, and a doubt
    /// about the others.
    ///
    /// # Errors
    /// When nothing can be said of any of its devices: it failed, missed the deadline with the first, or hangs.
    pub async fn discover(&mut self) -> Result<Found, DeviceError> {
        match &mut self.way {
            Way::Direct(provider) => provider.discover(),
            Way::Guarded(guarded) => {
                let progress = guarded.progress();
                match guarded.ask(Order::Discover, &progress).await {
                    Ok(found) => found,
                    Err(silence) => in_part(silence, &progress),
                }
            }
        }
    }

    /// Live readings; none when the provider does not answer.
    pub async fn read(&mut self) -> Vec<DeviceReading> {
        match &mut self.way {
            Way::Direct(provider) => provider.read(),
            Way::Guarded(guarded) => {
                let progress = guarded.progress();
                guarded.ask(Order::Read, &progress).await.unwrap_or_default()
            }
        }
    }

    /// How many threads hang in the provider now.
    pub fn stuck(&mut self) -> usize {
        match &mut self.way {
            Way::Direct(_) => 0,
            Way::Guarded(guarded) => guarded.reap(),
        }
    }
}

/// What had been answered when the provider fell silent.
fn in_part(silence: DeviceError, progress: &Progress) -> Result<Found, DeviceError> {
    let answered = progress.so_far().answered;
    if answered.devices.is_empty() {
        return Err(silence);
    }
    Ok(Found { doubt: Some(silence.to_string()), ..answered })
}

enum Order {
    Discover(Arc<Progress>, oneshot::Sender<Result<Found, DeviceError>>),
    Read(Arc<Progress>, oneshot::Sender<Vec<DeviceReading>>),
}

struct Guarded {
    name: String,
    deadline: Duration,
    make: Make,
    worker: Option<Worker>,
    stuck: Vec<Stuck>,
}

/// A thread that hangs, and the device it hangs on, if it told.
struct Stuck {
    thread: JoinHandle<()>,
    on: Option<DeviceUuid>,
}

struct Worker {
    orders: SyncSender<Order>,
    thread: JoinHandle<()>,
}

impl Guarded {
    /// A question that leaves those devices alone on which threads hang now.
    fn progress(&mut self) -> Arc<Progress> {
        self.reap();
        let hanging = self.stuck.iter().filter_map(|stuck| stuck.on.clone()).collect();
        Arc::new(Progress::leaving_alone(hanging))
    }

    async fn ask<T>(
        &mut self,
        order: impl FnOnce(Arc<Progress>, oneshot::Sender<T>) -> Order,
        progress: &Arc<Progress>,
    ) -> Result<T, DeviceError> {
        let worker = self.ready_worker()?;
        let (answer, answered) = oneshot::channel();
        // A full queue means that an earlier caller went away while the thread hangs: same as no answer.
        let queued = worker.orders.try_send(order(Arc::clone(progress), answer)).is_ok();
        let verdict = if queued { within(self.deadline, answered).await } else { Err(Silence::Deadline) };
        match verdict {
            Ok(found) => Ok(found),
            Err(Silence::Died) => {
                self.worker = None;
                Err(DeviceError::Died)
            }
            Err(Silence::Deadline) => {
                // Dropping the sender lets the thread end by itself, should the driver ever let go of it.
                let on = progress.so_far().at;
                self.stuck.extend(self.worker.take().map(|worker| Stuck { thread: worker.thread, on }));
                let deadline_ms = u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX);
                Err(DeviceError::Deadline { deadline_ms })
            }
        }
    }

    fn reap(&mut self) -> usize {
        self.stuck.retain(|stuck| !stuck.thread.is_finished());
        self.stuck.len()
    }

    fn ready_worker(&mut self) -> Result<&Worker, DeviceError> {
        let dead = self.worker.as_ref().is_some_and(|worker| worker.thread.is_finished());
        if dead {
            self.worker = None;
        }
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => {
                let stuck = self.reap();
                if stuck >= STUCK_MAX {
                    return Err(DeviceError::Stuck { stuck });
                }
                self.spawn()?
            }
        };
        Ok(self.worker.insert(worker))
    }

    fn spawn(&self) -> Result<Worker, DeviceError> {
        // One order waits at most: the caller waits for each answer.
        let (orders, received) = sync_channel(1);
        let provider = (self.make)();
        let thread = thread::Builder::new()
            .name(format!("probe-{}", self.name))
            .spawn(move || serve(provider, &received))
            .map_err(|error| DeviceError::Thread(error.to_string()))?;
        Ok(Worker { orders, thread })
    }
}

enum Silence {
    Deadline,
    Died,
}

async fn within<T>(deadline: Duration, answered: oneshot::Receiver<T>) -> Result<T, Silence> {
    match tokio::time::timeout(deadline, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(Silence::Died),
        Err(_) => Err(Silence::Deadline),
    }
}

fn serve(mut provider: Box<dyn DeviceProvider>, orders: &Receiver<Order>) {
    while let Ok(order) = orders.recv() {
        // An asker that went away is no reason to stop.
        match order {
            Order::Discover(progress, answer) => {
                provider.attend(progress);
                drop(answer.send(provider.discover()));
            }
            Order::Read(progress, answer) => {
                provider.attend(progress);
                drop(answer.send(provider.read()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::sim::SimProvider;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Hangs while the gate is closed.
    struct Gated {
        closed: Arc<AtomicBool>,
        inner: SimProvider,
    }

    impl Gated {
        fn pass(&self) {
            while self.closed.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl DeviceProvider for Gated {
        fn name(&self) -> &str {
            "gated"
        }
        fn discover(&mut self) -> Result<Found, DeviceError> {
            self.pass();
            self.inner.discover()
        }
        fn read(&mut self) -> Vec<DeviceReading> {
            self.pass();
            self.inner.read()
        }
    }

    fn gated(closed: &Arc<AtomicBool>, deadline: Duration) -> Probe {
        let closed = Arc::clone(closed);
        let make = move || -> Box<dyn DeviceProvider> {
            let inner = SimProvider::new("2xH100", "h").expect("fair");
            Box::new(Gated { closed: Arc::clone(&closed), inner })
        };
        Probe::guarded("gated", deadline, Box::new(make))
    }

    #[tokio::test]
    async fn a_provider_that_hangs_costs_the_deadline_and_two_threads_at_most() {
        let closed = Arc::new(AtomicBool::new(false));
        let mut probe = gated(&closed, Duration::from_millis(20));
        closed.store(true, Ordering::SeqCst);
        for _ in 0..STUCK_MAX {
            assert_eq!(probe.discover().await, Err(DeviceError::Deadline { deadline_ms: 20 }));
        }
        for _ in 0..10 {
            assert_eq!(probe.discover().await, Err(DeviceError::Stuck { stuck: STUCK_MAX }));
            assert!(probe.read().await.is_empty());
        }
        closed.store(false, Ordering::SeqCst);
        while probe.stuck() > 0 {
            tokio::task::yield_now().await;
        }
        // The threads are gone; a new one answers as soon as it gets a core.
        let found = loop {
            match probe.discover().await {
                Ok(found) => break found,
                Err(DeviceError::Deadline { .. } | DeviceError::Stuck { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(found.devices.len(), 2);
    }

    #[tokio::test]
    async fn a_provider_that_panics_is_replaced() {
        struct Panics;
        impl DeviceProvider for Panics {
            fn name(&self) -> &str {
                "panics"
            }
            fn discover(&mut self) -> Result<Found, DeviceError> {
                panic!("as a vendor wrapper may")
            }
            fn read(&mut self) -> Vec<DeviceReading> {
                Vec::new()
            }
        }
        let mut probe = Probe::guarded("panics", Duration::from_secs(60), Box::new(|| Box::new(Panics)));
        for _ in 0..3 {
            assert_eq!(probe.discover().await, Err(DeviceError::Died));
        }
        assert_eq!(probe.stuck(), 0);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_harms_no_later_one() {
        let closed = Arc::new(AtomicBool::new(false));
        let mut probe = gated(&closed, Duration::from_secs(60));
        closed.store(true, Ordering::SeqCst);
        let gone = tokio::time::timeout(Duration::from_millis(5), probe.discover()).await;
        assert!(gone.is_err(), "the caller gave up first");
        closed.store(false, Ordering::SeqCst);
        assert_eq!(probe.discover().await.expect("answers again").devices.len(), 2);
    }
}
