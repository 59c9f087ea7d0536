//! Streams of events: in order, each change once, none left out, the same at every peer (I10).

use rota_consensus::{AppliedNote, Consensus};
use rota_protocol::HostId;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast::error::RecvError;

/// A stretch of a stream without a break.
#[derive(Debug)]
struct Stretch {
    host: HostId,
    notes: Vec<(u64, u64)>,
}

/// All streams of a run. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<Vec<Stretch>>>);

impl Streams {
    /// Listens to a life, for as long as it lasts.
    pub(super) fn listen(&self, host: HostId, peer: &Consensus) {
        let (mut events, all) = (peer.events(), self.0.clone());
        let begin = move |all: &mut Vec<Stretch>| {
            all.push(Stretch { host, notes: Vec::new() });
            all.len() - 1
        };
        tokio::spawn(async move {
            let lock = || all.lock().unwrap_or_else(PoisonError::into_inner);
            let mut at = begin(&mut lock());
            loop {
                match events.recv().await {
                    Ok(note) if note.resync => at = begin(&mut lock()),
                    Ok(note) => lock()[at].notes.push((note.index, told(&note))),
                    Err(RecvError::Lagged(_)) => at = begin(&mut lock()),
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    /// What does not hold, and how many notes were looked at.
    pub(super) fn judge(&self) -> (Vec<String>, usize) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wrong = Vec::new();
        let mut known: BTreeMap<u64, u64> = BTreeMap::new();
        for (index, told) in all.iter().flat_map(|stretch| &stretch.notes) {
            if *known.entry(*index).or_insert(*told) != *told {
                wrong.push(format!("I10: peers tell different events of index {index}"));
            }
        }
        for Stretch { host, notes } in all.iter() {
            let rises = notes.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if !rises {
                wrong.push(format!("I10: the events of host {host} come out of order or twice"));
            }
            if let (Some((first, _)), Some((last, _))) = (notes.first(), notes.last())
                && rises
            {
                let whole = known.range(first..=last).count();
                if whole != notes.len() {
                    wrong.push(format!(
                        "I10: the events of host {host} from {first} to {last} have a gap: {} of {whole}",
                        notes.len()
                    ));
                }
            }
        }
        wrong.truncate(20);
        (wrong, all.iter().map(|stretch| stretch.notes.len()).sum())
    }
}

fn told(note: &AppliedNote) -> u64 {
    // The keys of this hasher are fixed.
    let mut hasher = DefaultHasher::new();
    format!("{:?}", note.events).hash(&mut hasher);
    hasher.finish()
}
