//! How far one question to a provider has come. The provider notes each step; whoever gives up on it at the deadline
//! reads what was answered until then, and which device the call is about that does not return. That device is left
//! alone as long as it hangs, so that one broken card is one card.

use super::Found;
use rota_protocol::ids::DeviceUuid;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shared between the thread that asks and whoever waits for it.
#[derive(Debug, Default)]
pub struct Progress {
    skip: BTreeSet<DeviceUuid>,
    steps: Mutex<Steps>,
}

/// The steps until now.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Steps {
    /// What was answered.
    pub answered: Found,
    /// The device that is being asked.
    pub at: Option<DeviceUuid>,
}

impl Progress {
    /// A question that leaves these devices alone.
    #[must_use]
    pub fn leaving_alone(skip: BTreeSet<DeviceUuid>) -> Self {
        Self { skip, steps: Mutex::default() }
    }

    /// Whether to leave a device alone.
    #[must_use]
    pub fn skips(&self, uuid: &DeviceUuid) -> bool {
        self.skip.contains(uuid)
    }

    /// The next calls are about this device.
    pub fn asking(&self, uuid: &DeviceUuid) {
        self.steps().at = Some(uuid.clone());
    }

    /// The calls about the device have returned, with this about it or its slices.
    pub fn answered(&self, part: &Found) {
        let mut steps = self.steps();
        steps.answered.add(part.clone());
        steps.at = None;
    }

    /// The steps until now.
    #[must_use]
    pub fn so_far(&self) -> Steps {
        self.steps().clone()
    }

    /// A panic while it was held leaves whole steps behind.
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
