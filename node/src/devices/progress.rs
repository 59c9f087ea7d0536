//! How far one question to a provider has come. The provider notes each step; whoever gives up on it at the deadline
//! reads what was answered until then, and which device the call is about that does not return. That device is left
//! alone as long as it hangs, and asked last afterwards, so that one broken card is one card.

use super::Found;
use rota_protocol::ids::DeviceUuid;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shared between whoever asks the devices and whoever waits for it.
#[derive(Default)]
pub struct Progress {
    skip: BTreeSet<DeviceUuid>,
    last: BTreeSet<DeviceUuid>,
    steps: Mutex<Steps>,
    tell: Option<Tell>,
}

/// Hears each step at once.
type Tell = Box<dyn Fn(ProgressStep<'_>) + Send + Sync>;

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressStep<'s> {
    /// The next calls are about this device.
    Asking(&'s DeviceUuid),
    /// They have returned, with this.
    Answered(&'s Found),
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
        Self { skip, ..Self::default() }
    }

    /// The same, with these devices after all others.
    #[must_use]
    pub fn asking_last(self, last: BTreeSet<DeviceUuid>) -> Self {
        Self { last, ..self }
    }

    /// The same, with somebody who hears each step.
    #[must_use]
    pub fn telling(self, tell: impl Fn(ProgressStep<'_>) + Send + Sync + 'static) -> Self {
        Self { tell: Some(Box::new(tell)), ..self }
    }

    /// Whether to leave a device alone.
    #[must_use]
    pub fn skips(&self, uuid: &DeviceUuid) -> bool {
        self.skip.contains(uuid)
    }

    /// Whether to ask a device after all others.
    #[must_use]
    pub fn is_last(&self, uuid: &DeviceUuid) -> bool {
        self.last.contains(uuid)
    }

    /// The devices to leave alone, and those to ask last.
    pub(super) fn apart(&self) -> (BTreeSet<DeviceUuid>, BTreeSet<DeviceUuid>) {
        (self.skip.clone(), self.last.clone())
    }

    /// The next calls are about this device.
    pub fn asking(&self, uuid: &DeviceUuid) {
        self.steps().at = Some(uuid.clone());
        if let Some(tell) = &self.tell {
            tell(ProgressStep::Asking(uuid));
        }
    }

    /// The calls about the device have returned, with this about it or its slices.
    pub fn answered(&self, part: &Found) {
        {
            let mut steps = self.steps();
            steps.answered.add(part.clone());
            steps.at = None;
        }
        if let Some(tell) = &self.tell {
            tell(ProgressStep::Answered(part));
        }
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

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("skip", &self.skip).field("last", &self.last).finish_non_exhaustive()
    }
}
