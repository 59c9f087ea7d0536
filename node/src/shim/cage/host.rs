//! The part of [`ShimHost`] that is about cages.

use super::group::Groups;
use super::place::{CageAsk, Offer, Place};
use super::settings::CageSettings;
use crate::shim::{Adopted, ShimError, ShimHost, ShimNote};
use rota_core::{Attempt, State};
use rota_protocol::Token;
use rota_protocol::cage::Cage;
use rota_protocol::job::JobSpec;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

impl ShimHost {
    /// As [`ShimHost::start_caged`] with default settings, for labs and benches.
    ///
    /// # Errors
    /// As there.
    pub async fn start(
        exe: &Path,
        data_dir: &Path,
        notes: mpsc::Sender<ShimNote>,
    ) -> Result<(Self, Vec<Adopted>), ShimError> {
        Self::start_caged(exe, data_dir, (&CageSettings::default(), Offer::default()), notes).await
    }

    #[cfg(test)]
    pub(in crate::shim) fn shared(&self) -> std::sync::Arc<crate::shim::host::Inner> {
        std::sync::Arc::clone(&self.inner)
    }

    /// What this host has to bound tasks with, and whose processes are whose.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.inner().place
    }

    /// The cage of a new attempt.
    #[must_use]
    pub fn cage(&self, token: Token, ask: CageAsk) -> Cage {
        self.place().cage(token, ask)
    }

    /// The cage of an attempt that was granted on this host.
    #[must_use]
    pub fn cage_for(&self, state: &State, attempt: &Attempt, spec: &JobSpec) -> Cage {
        let devices = state.host(attempt.host).map_or(&[][..], |host| &host.facts.devices);
        self.cage(attempt.token, self.place().ask(devices, attempt, spec))
    }

    /// The groups of an attempt, to count or to enter; empty where there are none.
    #[must_use]
    pub fn groups_of(&self, token: Token) -> Groups {
        self.place().groups_of(token)
    }
}

impl Place {
    /// Ends what dead shims left in groups of attempts that nobody knows any more.
    pub(in crate::shim) fn sweep(&self, living: &BTreeSet<Token>) {
        for token in self.tokens().difference(living).copied() {
            let place = self.clone();
            tokio::spawn(async move { place.end_all(token).await });
        }
    }

    /// Until the groups of an attempt are gone.
    pub(in crate::shim) async fn end_all(&self, token: Token) {
        const PAUSE_MIN: Duration = Duration::from_millis(2);
        const PAUSE_MAX: Duration = Duration::from_millis(500);
        let mut pause = PAUSE_MIN;
        loop {
            let place = self.clone();
            match tokio::task::spawn_blocking(move || place.end(token)).await {
                Ok(0) | Err(_) => return,
                Ok(left) if pause == PAUSE_MAX => {
                    tracing::warn!(%token, left, "processes of a dead shim are left although they were killed");
                }
                Ok(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
