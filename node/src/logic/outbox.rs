//! What a host has to tell the log about its attempts, kept until the log has it: at least once, in bounded batches.
//! Not durable by itself: after a restart the same facts are found again in the attempts' records.

use rota_protocol::Token;
use rota_protocol::cage::Used;
use rota_protocol::job::AttemptEnd;
use rota_protocol::limits::REPORTS_MAX;
use rota_protocol::report::{AttemptFact, AttemptReport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most facts beside start and end that wait: words for people, which may be lost.
const BESIDE_MAX: usize = 4_096;

/// Facts that wait for the log.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    waiting: BTreeMap<Token, AttemptFact>,
    /// What is told beside start and end, oldest first; told before the end of the same attempt.
    beside: VecDeque<AttemptReport>,
    beside_under_way: Vec<AttemptReport>,
    /// What the batch under way carries, to tell what became of it.
    under_way: BTreeMap<Token, AttemptFact>,
    /// Ends that the log has: late facts of these are not told again.
    told: BTreeSet<Token>,
}

impl Outbox {
    /// Nothing to tell.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A process runs. Forgotten when the end is known too: the end says enough.
    pub fn started(&mut self, token: Token, pid: u32) {
        let fact = AttemptFact::Started { pid };
        let ended = is_end(self.waiting.get(&token));
        if ended || self.told.contains(&token) || self.under_way.contains_key(&token) {
            return;
        }
        self.waiting.insert(token, fact);
    }

    /// Every process is gone. The first end told for a token stays.
    pub fn ended(&mut self, token: Token, end: AttemptEnd, ran_ms: u64) {
        self.ended_with(token, end, ran_ms, Used::default());
    }

    /// The same, with what the kernel counted.
    pub fn ended_with(&mut self, token: Token, end: AttemptEnd, ran_ms: u64, used: Used) {
        if is_end(self.waiting.get(&token))
            || is_end(self.under_way.get(&token))
            || self.told.contains(&token)
        {
            return;
        }
        let fact = match used.is_empty() {
            true => AttemptFact::Ended { end, ran_ms },
            false => AttemptFact::EndedWith { end, ran_ms, used },
        };
        self.waiting.insert(token, fact);
    }

    /// Something beside start and end. Lost with this process; of one attempt told in order.
    pub fn beside(&mut self, token: Token, fact: AttemptFact) {
        if self.beside.len() >= BESIDE_MAX {
            self.beside.pop_front();
        }
        self.beside.push_back(AttemptReport { token, fact });
    }

    /// The next batch, oldest tokens first; none while one is under way or nothing waits.
    pub fn next_batch(&mut self) -> Option<Vec<AttemptReport>> {
        let nothing = self.waiting.is_empty() && self.beside.is_empty();
        if !self.under_way.is_empty() || !self.beside_under_way.is_empty() || nothing {
            return None;
        }
        let first = self.beside.len().min(REPORTS_MAX);
        let mut batch = Vec::with_capacity((self.waiting.len() + first).min(REPORTS_MAX));
        batch.extend(self.beside.drain(..first));
        self.beside_under_way.clone_from(&batch);
        while batch.len() < REPORTS_MAX
            && let Some((token, fact)) = self.waiting.pop_first()
        {
            batch.push(AttemptReport { token, fact: fact.clone() });
            self.under_way.insert(token, fact);
        }
        Some(batch)
    }

    /// The log has the batch under way. Returns the attempts whose end it brought.
    pub fn committed(&mut self) -> Vec<Token> {
        let mut ended = Vec::new();
        self.beside_under_way.clear();
        for (token, fact) in std::mem::take(&mut self.under_way) {
            if is_end(Some(&fact)) {
                self.told.insert(token);
                ended.push(token);
            }
        }
        ended
    }

    /// The batch under way failed, or nobody knows: its facts are told again unless newer ones took their place.
    pub fn failed(&mut self) {
        for report in std::mem::take(&mut self.beside_under_way).into_iter().rev() {
            self.beside.push_front(report);
        }
        for (token, fact) in std::mem::take(&mut self.under_way) {
            self.waiting.entry(token).or_insert(fact);
        }
    }

    /// The attempt was released: nothing about it matters any more.
    pub fn forget(&mut self, token: Token) {
        self.waiting.remove(&token);
        self.told.remove(&token);
        self.beside.retain(|report| report.token != token);
    }

    /// How many facts the next batch would carry, were there room for all; 0 while one is under way.
    #[must_use]
    pub fn ready(&self) -> usize {
        match self.under_way.is_empty() && self.beside_under_way.is_empty() {
            true => self.waiting.len() + self.beside.len(),
            false => 0,
        }
    }

    /// How many facts the log does not have yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.under_way.len() + self.beside.len() + self.beside_under_way.len()
    }

    /// The log has everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn is_end(fact: Option<&AttemptFact>) -> bool {
    matches!(fact, Some(AttemptFact::Ended { .. } | AttemptFact::EndedWith { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: AttemptEnd = AttemptEnd::Exited { code: 0 };

    #[test]
    fn an_end_survives_any_number_of_failed_batches() {
        let mut outbox = Outbox::new();
        outbox.ended(Token(1), OK, 5);
        for _ in 0..10 {
            assert_eq!(outbox.next_batch().unwrap().len(), 1);
            assert_eq!(outbox.next_batch(), None, "one batch at a time");
            outbox.failed();
        }
        outbox.next_batch().unwrap();
        assert_eq!(outbox.committed(), [Token(1)]);
        assert!(outbox.is_empty());
        outbox.ended(Token(1), OK, 5);
        assert!(outbox.is_empty(), "told once it stays told until released");
    }

    #[test]
    fn an_end_replaces_a_start_and_outlives_a_failed_batch_of_it() {
        let mut outbox = Outbox::new();
        outbox.started(Token(1), 10);
        outbox.next_batch().unwrap();
        outbox.ended(Token(1), OK, 5);
        outbox.failed();
        let batch = outbox.next_batch().unwrap();
        assert_eq!(batch.len(), 1);
        assert!(matches!(batch[0].fact, AttemptFact::Ended { .. }));
        outbox.started(Token(1), 10);
        outbox.committed();
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_was_counted_travels_with_the_end_and_is_told_once() {
        let mut outbox = Outbox::new();
        let used = Used { peak_mib: 7, limit_mib: 8, oom_kills: 1 };
        outbox.ended_with(Token(1), OK, 5, used);
        outbox.ended(Token(1), AttemptEnd::Cancelled, 5);
        outbox.started(Token(1), 10);
        let batch = outbox.next_batch().unwrap();
        assert_eq!(batch[0].fact, AttemptFact::EndedWith { end: OK, ran_ms: 5, used });
        assert_eq!((batch.len(), outbox.committed()), (1, vec![Token(1)]));
    }

    #[test]
    fn what_is_told_beside_comes_before_the_end_and_is_told_again() {
        let mut outbox = Outbox::new();
        let note = |text: &str| AttemptFact::Noted { text: text.into() };
        outbox.ended(Token(1), OK, 5);
        outbox.beside(Token(1), note("a"));
        outbox.beside(Token(2), note("b"));
        let facts = |batch: Option<Vec<AttemptReport>>| -> Vec<AttemptFact> {
            batch.unwrap().into_iter().map(|report| report.fact).collect()
        };
        let end = AttemptFact::Ended { end: OK, ran_ms: 5 };
        let all = [note("a"), note("b"), end];
        assert_eq!(facts(outbox.next_batch()), all);
        assert_eq!(outbox.next_batch(), None);
        outbox.failed();
        assert_eq!(facts(outbox.next_batch()), all);
        outbox.committed();
        assert!(outbox.is_empty());
        outbox.beside(Token(2), note("c"));
        outbox.forget(Token(2));
        assert!(outbox.is_empty());
    }

    #[test]
    fn batches_are_bounded_and_oldest_first() {
        let mut outbox = Outbox::new();
        let all = REPORTS_MAX as u64 + 5;
        for token in (0..all).rev() {
            outbox.ended(Token(token), OK, 0);
        }
        let batch = outbox.next_batch().unwrap();
        assert_eq!(batch.len(), REPORTS_MAX);
        assert_eq!(batch[0].token, Token(0));
        assert_eq!(outbox.committed().len(), REPORTS_MAX);
        assert_eq!(outbox.next_batch().unwrap().len(), 5);
    }
}
