//! Xids by the library's events. Events are heard only by who waits for them, and sets of events live no longer than
//! the started library, so that a thread of its own listens for as long as the library is open.

use crate::devices::signs::XIDS_MAX;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::{EventSet, Nvml};
use rota_protocol::ids::DeviceUuid;
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often events are asked for.
const LISTEN_EVERY: Duration = Duration::from_millis(100);
/// How long the listener may take to begin or to end before nobody waits for it any more.
const PATIENCE: Duration = Duration::from_millis(500);
/// The Xid that stands for one that the library does not name.
const XID_UNKNOWN: u32 = 999;

/// Xids by card since they were last taken.
pub(super) type Heard = BTreeMap<DeviceUuid, Vec<u32>>;

/// A thread that listens.
pub(super) struct Listener {
    stop: Arc<AtomicBool>,
    heard: Arc<Mutex<Heard>>,
    thread: JoinHandle<()>,
}

impl Listener {
    /// Begins to listen to these cards; `None` when there is nothing to listen to or no thread to do it. What happens
    /// from this call's return on is heard.
    pub(super) fn begin(nvml: &Arc<Nvml>, cards: Vec<DeviceUuid>) -> Option<Self> {
        let can = nvml.lib().nvmlEventSetCreate.is_ok() && nvml.lib().nvmlEventSetFree.is_ok();
        if cards.is_empty() || !can {
            return None;
        }
        let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Heard::new())));
        let (ready, begun) = channel();
        let (nvml, own_stop, own_heard) = (Arc::clone(nvml), Arc::clone(&stop), Arc::clone(&heard));
        let thread = thread::Builder::new()
            .name("nvml-events".to_owned())
            .spawn(move || listen(&nvml, &cards, &ready, &own_stop, &own_heard))
            .ok()?;
        // One that hangs here hears nothing, and costs only itself.
        let _ = begun.recv_timeout(PATIENCE);
        Some(Self { stop, heard, thread })
    }

    /// What was heard since the last time.
    pub(super) fn take(&self) -> Heard {
        mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the listening. Gives what was heard until now, and whether the thread ended: the library must stay open for
    /// one that hangs.
    pub(super) fn end(self) -> (Heard, bool) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        let until = Instant::now() + PATIENCE;
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let heard = self.take();
        (heard, self.thread.is_finished() && self.thread.join().is_ok())
    }
}

fn listen(nvml: &Nvml, cards: &[DeviceUuid], ready: &Sender<()>, stop: &AtomicBool, heard: &Mutex<Heard>) {
    // A set for each card: the wrapper gives a set up when a card cannot be added to it.
    let sets: Vec<(&DeviceUuid, EventSet<'_>)> =
        cards.iter().filter_map(|card| Some((card, set_of(nvml, card)?))).collect();
    // Nobody may wait any longer.
    let _ = ready.send(());
    loop {
        // Read before the events, so that none of the time before the end goes unheard.
        let last = stop.load(Ordering::SeqCst);
        for (card, set) in &sets {
            // A card that floods does not keep the others waiting.
            for event in (0..XIDS_MAX).map_while(|_| set.wait(0).ok()) {
                match event.event_data {
                    Some(XidError::Value(value)) => {
                        note(heard, card, u32::try_from(value).unwrap_or(XID_UNKNOWN))
                    }
                    Some(XidError::Unknown) => note(heard, card, XID_UNKNOWN),
                    None => {}
                }
            }
        }
        if last {
            return;
        }
        thread::park_timeout(LISTEN_EVERY);
    }
}

fn set_of<'n>(nvml: &'n Nvml, card: &DeviceUuid) -> Option<EventSet<'n>> {
    let device = nvml.device_by_uuid(card.0.as_str()).ok()?;
    let set = nvml.create_event_set().ok()?;
    device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()
}

fn note(heard: &Mutex<Heard>, card: &DeviceUuid, xid: u32) {
    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    let xids = heard.entry(card.clone()).or_default();
    if xids.len() < XIDS_MAX {
        xids.push(xid);
    }
}
