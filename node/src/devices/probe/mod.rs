//! Keeps a provider that may hang away from everyone else (fault G2): it runs in a process of its own ([`process`]), and
//! whoever asks hears after a deadline what was answered until then. A process that hangs is given up, ended if it can be,
//! and replaced; with [`STUCK_MAX`] of them left behind, the provider is not asked again until one is gone. The device that
//! a call hung on is left alone for a while, then asked after all others. A provider that failed as a whole is asked by a
//! fresh process, so that a library or driver that was changed meanwhile is met as it is now (fault G5).
//!
//! Where no program can be started, the provider runs on a thread instead ([`thread`]).

mod process;
mod server;
mod source;
mod thread;
mod wire;

pub use process::Program;
pub use server::probe_main;
pub use source::Source;

use super::{DeviceError, DeviceProvider, Found, Progress};
use process::{Leaving, Process};
use rota_protocol::device::DeviceReading;
use rota_protocol::ids::DeviceUuid;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thread::Thread;
use wire::{Order, Told};

/// How long a provider may take to answer. A healthy driver needs some 100 ms, even for 16 cards; below the 2,500 ms
/// within which a silent card must be closed to new work.
pub const PROBE_DEADLINE: Duration = Duration::from_millis(2_000);
/// Most processes or threads left hanging per provider: more would only pile up in the same driver lock.
pub const STUCK_MAX: usize = 2;
/// The hidden argument that turns the binary into a probe process.
pub const PROBE_ARG: &str = "probed";
/// Names a program that is a probe with [`PROBE_ARG`], for tests whose own program is none.
pub const PROGRAM_ENV: &str = "ROTA_PROBE_PROGRAM";
/// For how long a device is left alone after a call about it hung; twice as long after each further time.
const REST: Duration = Duration::from_millis(4_000);
/// The longest such time.
const REST_MAX: Duration = Duration::from_secs(32);
/// A fresh process is started at most this often while the provider fails as a whole.
const RENEW_EVERY: Duration = Duration::from_millis(3_000);

/// How often a hanging call is worth a line in the log.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Whether this program turns into a probe when it is started with [`PROBE_ARG`].
static IS_PROBE_PROGRAM: AtomicBool = AtomicBool::new(false);

/// Notes that this very program does [`probe_main`] when it is started with [`PROBE_ARG`].
pub fn this_program_probes() {
    IS_PROBE_PROGRAM.store(true, Ordering::SeqCst);
}

/// The program for probe processes: named by the environment, else this very one. `None` when this one is no probe.
#[must_use]
pub fn program() -> Option<Program> {
    let named = std::env::var_os(PROGRAM_ENV).filter(|path| !path.is_empty()).map(PathBuf::from);
    // By this link the same build is started even after the file was replaced.
    let own = || IS_PROBE_PROGRAM.load(Ordering::SeqCst).then(|| PathBuf::from("/proc/self/exe"));
    named.or_else(own).map(|file| Program { file, args: Vec::new() })
}

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
    Guarded(Box<Guarded>),
}

impl Probe {
    /// A provider that only computes.
    #[must_use]
    pub fn direct(provider: Box<dyn DeviceProvider>) -> Self {
        Self { name: provider.name().to_owned(), way: Way::Direct(provider) }
    }

    /// A provider that may hang, on a thread.
    #[must_use]
    pub fn guarded(name: &str, deadline: Duration, make: Make) -> Self {
        Self::of(name, deadline, Place::Thread(make))
    }

    /// A provider that may hang, in a process of this program.
    #[must_use]
    pub fn process(source: Source, program: Program, deadline: Duration) -> Self {
        Self::of(source.name(), deadline, Place::Process(program, source))
    }

    /// A provider that may hang: in a process if there is a program for it, else on a thread.
    #[must_use]
    pub fn apart(source: Source, deadline: Duration) -> Self {
        match program() {
            Some(program) => Self::process(source, program, deadline),
            None => Self::guarded(source.name(), deadline, Box::new(move || source.make())),
        }
    }

    fn of(name: &str, deadline: Duration, place: Place) -> Self {
        let guarded = Guarded {
            name: name.to_owned(),
            deadline,
            place,
            seat: None,
            stuck: Vec::new(),
            leaving: Vec::new(),
            resting: BTreeMap::new(),
            renewed: None,
            told: None,
        };
        Self { name: name.to_owned(), way: Way::Guarded(Box::new(guarded)) }
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
                if guarded.has_nothing() {
                    return Ok(Found::default());
                }
                let progress = guarded.progress();
                match guarded.ask(Order::Discover, &progress).await {
                    Ok(Told::Found(found)) => {
                        guarded.judge(&found);
                        found
                    }
                    Ok(_) => Err(DeviceError::Died),
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
                if guarded.has_nothing() {
                    return Vec::new();
                }
                let progress = guarded.progress();
                match guarded.ask(Order::Read, &progress).await {
                    Ok(Told::Readings(readings)) => readings,
                    _ => Vec::new(),
                }
            }
        }
    }

    /// How many processes or threads hang in the provider now.
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

/// Where a provider runs.
enum Place {
    Thread(Make),
    Process(Program, Source),
}

/// A provider that runs.
enum Seat {
    Thread(Thread),
    Process(Box<Process>),
}

struct Guarded {
    name: String,
    deadline: Duration,
    place: Place,
    seat: Option<Seat>,
    stuck: Vec<Stuck>,
    /// Processes that were told to end and did not hang.
    leaving: Vec<Leaving>,
    resting: BTreeMap<DeviceUuid, Rest>,
    renewed: Option<Instant>,
    told: Option<Instant>,
}

/// What hangs, and the device it hangs on, if it told.
struct Stuck {
    what: Hanging,
    on: Option<DeviceUuid>,
}

enum Hanging {
    Thread(JoinHandle<()>),
    Process(Leaving),
}

/// A device is left alone until then.
struct Rest {
    until: Instant,
    lasts: Duration,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// Why an answer did not come.
enum Silence {
    Deadline,
    Died,
}

impl Guarded {
    /// No process is kept for a host without such devices; when the last one is gone, its process is.
    fn has_nothing(&mut self) -> bool {
        let nothing = matches!(&self.place, Place::Process(_, source) if !source.has_any());
        if nothing {
            self.dismiss();
            self.reap();
        }
        nothing
    }

    /// A question that leaves those devices alone on which calls hang, or hung a short time ago.
    fn progress(&mut self) -> Arc<Progress> {
        self.reap();
        let now = Instant::now();
        let (mut skip, mut last) = (BTreeSet::new(), BTreeSet::new());
        for (uuid, rest) in &self.resting {
            let place = if rest.until > now { &mut skip } else { &mut last };
            place.insert(uuid.clone());
        }
        skip.extend(self.stuck.iter().filter_map(|stuck| stuck.on.clone()));
        Arc::new(Progress::leaving_alone(skip).asking_last(last))
    }

    async fn ask(&mut self, order: Order, progress: &Arc<Progress>) -> Result<Told, DeviceError> {
        let deadline = self.deadline;
        let verdict = match self.ready_seat()? {
            Seat::Thread(thread) => thread.ask(order, deadline, progress).await,
            Seat::Process(process) => process.ask(order, deadline, progress).await,
        };
        match verdict {
            Ok(told) => Ok(told),
            Err(Silence::Died) => {
                self.dismiss();
                Err(DeviceError::Died)
            }
            Err(Silence::Deadline) => {
                self.give_up(progress.so_far().at);
                let deadline_ms = u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX);
                Err(DeviceError::Deadline { deadline_ms })
            }
        }
    }

    /// Leaves a provider behind that hangs on this device.
    fn give_up(&mut self, on: Option<DeviceUuid>) {
        if let Some(uuid) = &on {
            let lasts = self.resting.get(uuid).map_or(REST, |rest| (rest.lasts * 2).min(REST_MAX));
            // A thread says by itself when it is back.
            if matches!(self.seat, Some(Seat::Process(_))) {
                self.resting.insert(uuid.clone(), Rest { until: Instant::now() + lasts, lasts });
            }
        }
        let what = match self.seat.take() {
            Some(Seat::Thread(thread)) => Hanging::Thread(thread.dismiss()),
            Some(Seat::Process(process)) => Hanging::Process(process.abandon()),
            None => return,
        };
        if self.told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            tracing::warn!(
                provider = self.name,
                ?on,
                "a call into the driver does not return; it is left behind"
            );
        }
        self.stuck.push(Stuck { what, on });
    }

    /// What a whole answer says of those who answered: a device that did is not asked last any more; a provider that
    /// failed is asked by a fresh process next time.
    fn judge(&mut self, found: &Result<Found, DeviceError>) {
        match found {
            Ok(found) => self.resting.retain(|uuid, _| !found.signs.contains_key(uuid)),
            Err(_) if matches!(self.place, Place::Process(..)) => {
                if self.renewed.is_none_or(|at| at.elapsed() >= RENEW_EVERY) {
                    self.renewed = Some(Instant::now());
                    self.dismiss();
                }
            }
            Err(_) => {}
        }
    }

    fn dismiss(&mut self) {
        if let Some(Seat::Process(process)) = self.seat.take() {
            self.leaving.push(process.dismiss());
        }
    }

    fn reap(&mut self) -> usize {
        self.stuck.retain_mut(|stuck| match &mut stuck.what {
            Hanging::Thread(thread) => !thread.is_finished(),
            Hanging::Process(process) => !process.is_gone(),
        });
        self.leaving.retain_mut(|leaving| !leaving.is_gone());
        self.stuck.len()
    }

    fn ready_seat(&mut self) -> Result<&mut Seat, DeviceError> {
        let dead = match &mut self.seat {
            Some(Seat::Thread(thread)) => thread.is_gone(),
            Some(Seat::Process(process)) => process.is_gone(),
            None => false,
        };
        if dead {
            self.dismiss();
            self.seat = None;
        }
        let seat = match self.seat.take() {
            Some(seat) => seat,
            None => {
                let stuck = self.reap();
                if stuck >= STUCK_MAX {
                    return Err(DeviceError::Stuck { stuck });
                }
                self.start()?
            }
        };
        Ok(self.seat.insert(seat))
    }

    fn start(&self) -> Result<Seat, DeviceError> {
        let started = match &self.place {
            Place::Thread(make) => Thread::start(&self.name, make()).map(Seat::Thread),
            Place::Process(program, source) => match Process::start(program, source) {
                Ok(process) => Ok(Seat::Process(Box::new(process))),
                Err(error) => {
                    tracing::warn!(%error, program = %program.file.display(), "no probe process; a thread does it");
                    Thread::start(&self.name, source.make()).map(Seat::Thread)
                }
            },
        };
        started.map_err(|error| DeviceError::Thread(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::sim::SimProvider;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

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
