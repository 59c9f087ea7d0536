//! The network between peers: what becomes of each datagram or message, link by link, and the one task that delivers.
//!
//! Every link draws from a seed of its own, so that what one link does never changes what another draws.

use crate::world::rng::Rng;
use rota_protocol::HostId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// What a link does to what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weather {
    /// Shortest and longest way, in us.
    pub(super) delay_us: (u64, u64),
    /// Lost.
    pub(super) loss_permille: u64,
    /// Delivered twice.
    pub(super) twice_permille: u64,
    /// Held back behind what is sent later.
    pub(super) late_permille: u64,
    /// Delivered with one bit turned.
    pub(super) flip_permille: u64,
    /// No more than this.
    pub(super) bytes_per_s: Option<u64>,
    /// Longer datagrams vanish.
    pub(super) bytes_max: Option<usize>,
}

impl Weather {
    /// A quiet LAN.
    pub(super) const FAIR: Self = Self {
        delay_us: (200, 900),
        loss_permille: 0,
        twice_permille: 0,
        late_permille: 0,
        flip_permille: 0,
        bytes_per_s: None,
        bytes_max: None,
    };
}

/// How long something is held back behind others.
const LATE: Duration = Duration::from_millis(30);
/// What waits behind a cap for longer than this is dropped, as by a router.
const QUEUE_MAX: Duration = Duration::from_millis(1_500);

struct Link {
    rng: Rng,
    weather: Weather,
    cut: bool,
    /// When a capped link is free again.
    free_at: Option<Instant>,
}

/// One delivery.
pub(super) struct Fate {
    at: Instant,
    /// Which bit is turned, as a draw.
    pub(super) flip: Option<u64>,
}

type Deliver = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Inner {
    seed: u64,
    links: BTreeMap<(HostId, HostId), Link>,
    fair: Option<Weather>,
    /// Hosts that are off.
    down: BTreeSet<HostId>,
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    held: BTreeMap<u64, Deliver>,
    next: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl Inner {
    fn link(&mut self, from: HostId, to: HostId) -> &mut Link {
        let (seed, weather) = (self.seed, self.fair.unwrap_or(Weather::FAIR));
        self.links.entry((from, to)).or_insert_with(|| Link {
            rng: Rng::new(seed ^ from.0.wrapping_mul(0x1_0001) ^ to.0.wrapping_mul(0x1000_0001)),
            weather,
            cut: false,
            free_at: None,
        })
    }
}

impl Link {
    fn fates(&mut self, now: Instant, len: usize, happened: &mut Vec<&'static str>) -> Vec<Fate> {
        let weather = self.weather;
        let gone = if self.cut {
            Some("cut off")
        } else if weather.bytes_max.is_some_and(|max| len > max) {
            Some("too long for the path")
        } else {
            self.rng.chance(weather.loss_permille).then_some("lost")
        };
        if let Some(gone) = gone {
            happened.push(gone);
            return Vec::new();
        }
        let twice = self.rng.chance(weather.twice_permille);
        happened.extend(twice.then_some("delivered twice"));
        let mut fates = Vec::new();
        for _ in 0..=u8::from(twice) {
            let (low, high) = weather.delay_us;
            let mut at = now + Duration::from_micros(self.rng.range(low, high));
            if self.rng.chance(weather.late_permille) {
                at += LATE;
                happened.push("overtaken");
            }
            if let Some(rate) = weather.bytes_per_s {
                let begins = self.free_at.unwrap_or(now).max(now);
                if begins > now + QUEUE_MAX {
                    happened.push("dropped behind a cap");
                    continue;
                }
                let ends = begins + Duration::from_micros(len as u64 * 1_000_000 / rate.max(1));
                self.free_at = Some(ends);
                at = at.max(ends);
            }
            let flip = self.rng.chance(weather.flip_permille).then(|| self.rng.bits());
            happened.extend(flip.map(|_| "a bit turned"));
            fates.push(Fate { at, flip });
        }
        fates
    }
}

/// The network. Clones share it.
#[derive(Clone)]
pub(super) struct Air {
    inner: Arc<Mutex<Inner>>,
    stirred: Arc<Notify>,
}

impl Air {
    /// A quiet network, and the task that delivers.
    pub(super) fn new(seed: u64) -> Self {
        let air = Self {
            inner: Arc::new(Mutex::new(Inner { seed, ..Inner::default() })),
            stirred: Arc::new(Notify::new()),
        };
        tokio::spawn(air.clone().deliver());
        air
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the weather of all links, those to come included.
    pub(super) fn weather(&self, weather: Weather) {
        let mut inner = self.lock();
        inner.fair = Some(weather);
        for link in inner.links.values_mut() {
            link.weather = weather;
        }
    }

    /// Sets the weather from one host to another.
    pub(super) fn weather_on(&self, from: HostId, to: HostId, weather: Weather) {
        self.lock().link(from, to).weather = weather;
    }

    /// Cuts or mends one direction.
    pub(super) fn cut(&self, from: HostId, to: HostId, cut: bool) {
        self.lock().link(from, to).cut = cut;
    }

    /// Cuts a host off from these, both ways.
    pub(super) fn isolate(&self, host: HostId, others: &[HostId]) {
        for other in others.iter().filter(|other| **other != host) {
            self.cut(host, *other, true);
            self.cut(*other, host, true);
        }
    }

    /// Mends everything.
    pub(super) fn heal(&self) {
        let mut inner = self.lock();
        inner.fair = None;
        for link in inner.links.values_mut() {
            link.cut = false;
            link.weather = Weather::FAIR;
            link.free_at = None;
        }
    }

    /// A host is off: nothing reaches it, nothing leaves it.
    pub(super) fn off(&self, host: HostId, off: bool) {
        let mut inner = self.lock();
        if off {
            inner.down.insert(host);
        } else {
            inner.down.remove(&host);
        }
    }

    /// What was done to things on their way.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }

    /// What becomes of something of `len` bytes: one fate for each time that it arrives.
    pub(super) fn fates(&self, from: HostId, to: HostId, len: usize) -> Vec<Fate> {
        let mut inner = self.lock();
        if inner.down.contains(&from) || inner.down.contains(&to) {
            return Vec::new();
        }
        let mut happened = Vec::new();
        let fates = inner.link(from, to).fates(Instant::now(), len, &mut happened);
        for what in happened {
            *inner.counts.entry(what).or_default() += 1;
        }
        fates
    }

    /// Delivers at the fate's time, unless the host is off by then.
    pub(super) fn send(&self, to: HostId, fate: &Fate, deliver: impl FnOnce() + Send + 'static) {
        let air = self.clone();
        let checked = Box::new(move || {
            if !air.lock().down.contains(&to) {
                deliver();
            }
        });
        {
            let mut inner = self.lock();
            inner.next += 1;
            let number = inner.next;
            inner.due.push(Reverse((fate.at, number)));
            inner.held.insert(number, checked);
        }
        self.stirred.notify_one();
    }

    async fn deliver(self) {
        loop {
            let next = self.lock().due.peek().map(|Reverse((at, _))| *at);
            let stirred = self.stirred.notified();
            match next {
                None => stirred.await,
                Some(at) if at > Instant::now() => {
                    tokio::select! {
                        biased;
                        () = sleep_until(at) => {}
                        () = stirred => {}
                    }
                }
                Some(_) => {
                    let one = {
                        let mut inner = self.lock();
                        inner.due.pop().and_then(|Reverse((_, number))| inner.held.remove(&number))
                    };
                    if let Some(deliver) = one {
                        deliver();
                    }
                }
            }
        }
    }
}
