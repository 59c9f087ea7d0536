//! Ends that wait until the attempt's cards are clean: the reconciler's side of giving cards back. No actor.

use super::warden;
use crate::logic::cards::Cards;
use crate::node::Node;
use rota_protocol::spool::ExitRecord;
use rota_protocol::{DeviceUuid, Token};
use std::collections::{BTreeMap, BTreeSet};

/// What waits, and what was given back already.
#[derive(Debug, Default)]
pub(super) struct Returning {
    pending: BTreeMap<Token, (ExitRecord, Vec<DeviceUuid>)>,
    done: BTreeSet<Token>,
    /// Cards of these are dirty still.
    dirty: BTreeSet<Token>,
}

impl Returning {
    pub(super) fn is_pending(&self, token: Token) -> bool {
        self.pending.contains_key(&token)
    }

    /// Its cards were given back, clean or dirty.
    pub(super) fn is_done(&self, token: Token) -> bool {
        self.done.contains(&token)
    }

    /// Cards of an attempt that are to be given back. None is the usual case, and costs nothing.
    pub(super) fn cards_of(&self, node: &Node, cards: &Cards, token: Token) -> Vec<DeviceUuid> {
        if self.done.contains(&token) {
            return Vec::new();
        }
        match cards.devices(token) {
            Some([]) => Vec::new(),
            Some(devices) => node.watched_of(devices),
            // It ended before this agent knew of it.
            None => {
                let devices =
                    node.consensus.read(|replica| replica.attempt(token).map(|a| a.devices.clone()));
                node.watched_of(&devices.unwrap_or_default())
            }
        }
    }

    pub(super) fn begin(&mut self, node: &Node, record: ExitRecord, cards: Vec<DeviceUuid>) {
        ask(node, &record, &cards);
        self.pending.insert(record.token, (record, cards));
    }

    /// The warden may have been started anew, and knows nothing then; asked again, it does nothing twice.
    pub(super) fn ask_again(&self, node: &Node) {
        for (record, cards) in self.pending.values() {
            ask(node, record, cards);
        }
    }

    /// The warden has answered; `dirty` if not all cards are clean.
    pub(super) fn finish(&mut self, token: Token, dirty: bool) -> Option<ExitRecord> {
        if dirty {
            self.dirty.insert(token);
        }
        let (record, _) = self.pending.remove(&token)?;
        self.done.insert(token);
        Some(record)
    }

    /// The last of its cards is clean.
    pub(super) fn back(&mut self, token: Token) {
        self.dirty.remove(&token);
    }

    /// The log is done with it. False while the warden still has its cards.
    pub(super) fn release(&mut self, token: Token) -> bool {
        self.done.remove(&token);
        !self.pending.contains_key(&token) && !self.dirty.contains(&token)
    }
}

fn ask(node: &Node, record: &ExitRecord, cards: &[DeviceUuid]) {
    node.doors.warden.send(warden::Msg::GiveBack(record.token, cards.to_vec(), record.ran_ms));
}
