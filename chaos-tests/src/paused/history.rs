//! What all clients asked and heard, in one order of calls and returns; judged at the end (I3, I4, I10).

use super::linear::{self, Ask, Got, Op, Verdict};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The key of a job: the number of its request.
pub(super) type Key = u64;

#[derive(Default)]
struct Inner {
    /// Places in the order.
    clock: u64,
    ops: BTreeMap<Key, Vec<Op>>,
    /// Jobs that somebody heard of, by key.
    jobs: BTreeMap<Key, u64>,
    /// When a write was last heard to be done, in virtual ms.
    acked_ms: Vec<u64>,
    wrong: Vec<String>,
}

/// The history. Clones share it.
#[derive(Clone, Default)]
pub(super) struct History(Arc<Mutex<Inner>>);

/// An operation under way.
pub(super) struct Call {
    key: Key,
    ask: Ask,
    called: u64,
}

impl Call {
    /// No other call has it; never 1.
    pub(super) fn number(&self) -> u64 {
        self.called + 1
    }
}

impl History {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody asks.
    pub(super) fn call(&self, key: Key, ask: Ask) -> Call {
        let mut inner = self.lock();
        inner.clock += 1;
        Call { key, ask, called: inner.clock }
    }

    /// Somebody heard. What surely did not happen is none of this.
    pub(super) fn heard(&self, call: Call, got: Got, now_ms: u64) {
        let mut inner = self.lock();
        inner.clock += 1;
        let op = Op { called: call.called, returned: inner.clock, ask: call.ask, got };
        if let Got::Job(job) = got {
            inner.jobs.insert(call.key, job);
        }
        if matches!(got, Got::Job(_) | Got::Done | Got::Refused) {
            inner.acked_ms.push(now_ms);
        }
        if call.ask != Ask::Read || got != Got::Open {
            inner.ops.entry(call.key).or_default().push(op);
        }
    }

    /// Something that no order can explain.
    pub(super) fn wrong(&self, what: String) {
        let mut inner = self.lock();
        if inner.wrong.len() < 20 {
            inner.wrong.push(what);
        }
    }

    /// The job of a key, if somebody heard of it.
    pub(super) fn job(&self, key: Key) -> Option<u64> {
        self.lock().jobs.get(&key).copied()
    }

    /// How many operations a key has.
    pub(super) fn len(&self, key: Key) -> usize {
        self.lock().ops.get(&key).map_or(0, Vec::len)
    }

    /// All acknowledged jobs.
    pub(super) fn acknowledged(&self) -> BTreeMap<Key, u64> {
        self.lock().jobs.clone()
    }

    /// How many operations were heard to be done.
    pub(super) fn done(&self) -> usize {
        self.lock().acked_ms.len()
    }

    /// How many operations nobody heard the end of.
    pub(super) fn unknown(&self) -> usize {
        self.lock().ops.values().flatten().filter(|op| op.got == Got::Open).count()
    }

    /// How many submissions were made again.
    pub(super) fn repeated(&self) -> usize {
        let submissions =
            |ops: &Vec<Op>| ops.iter().filter(|op| op.ask == Ask::Submit).count().saturating_sub(1);
        self.lock().ops.values().map(submissions).sum()
    }

    /// The longest time without a write that was heard to be done, within these bounds, in virtual ms.
    pub(super) fn longest_gap(&self, from_ms: u64, to_ms: u64) -> u64 {
        let inner = self.lock();
        let within = inner.acked_ms.iter().copied().filter(|at| (from_ms..=to_ms).contains(at));
        let mut last = from_ms;
        let mut gap = 0;
        for at in within.chain([to_ms]) {
            gap = gap.max(at.saturating_sub(last));
            last = at;
        }
        gap
    }

    /// How many writes were heard to be done within these bounds.
    pub(super) fn done_within(&self, from_ms: u64, to_ms: u64) -> usize {
        self.lock().acked_ms.iter().filter(|at| (from_ms..=to_ms).contains(*at)).count()
    }

    /// What does not hold.
    pub(super) fn judge(&self) -> Vec<String> {
        let inner = self.lock();
        let mut wrong = inner.wrong.clone();
        for (key, ops) in &inner.ops {
            let verdict = linear::check(ops);
            if verdict != Verdict::Fine {
                let story: Vec<String> = ops.iter().map(ToString::to_string).collect();
                wrong.push(format!("I10: key {key} is {verdict:?}: {}", story.join(", ")));
            }
        }
        wrong.extend(numbers(&inner.ops));
        wrong
    }
}

/// The previous value: a job that was asked for after another was acknowledged has a greater number (I3).
fn numbers(ops: &BTreeMap<Key, Vec<Op>>) -> Option<String> {
    let first = |ops: &Vec<Op>| {
        let called = ops.iter().filter(|op| op.ask == Ask::Submit).map(|op| op.called).min()?;
        let heard = ops.iter().filter_map(|op| match op.got {
            Got::Job(job) => Some((op.returned, job)),
            _ => None,
        });
        heard.min().map(|(returned, job)| (called, returned, job))
    };
    let mut known: Vec<_> = ops.values().filter_map(first).collect();
    known.sort_unstable();
    let mut ends: Vec<_> = known.iter().map(|(_, returned, job)| (*returned, *job)).collect();
    ends.sort_unstable();
    let (mut at, mut greatest) = (0, 0);
    for (called, _, job) in known {
        while ends.get(at).is_some_and(|(returned, _)| *returned < called) {
            greatest = greatest.max(ends[at].1);
            at += 1;
        }
        if job <= greatest {
            return Some(format!("I3: job {job} was asked for after job {greatest} had been acknowledged"));
        }
    }
    None
}
