//! What stays of released attempts: by age, failed ones longer than others; within a size and a number, successes going
//! before failures, the oldest first. Nothing else removes output: neither a replacement nor a restart.
//!
//! The decider is pure; deleting is batched and off the hot path.

use super::pieces::{Stream, more_name};
use super::record::record_name;
use rota_protocol::Token;
use rota_protocol::api::OutputStream;
use std::collections::VecDeque;
use std::path::Path;

/// Past the number that stays, deleted at once: rarely and many. Where files are made and deleted side by side, ext4
/// passes over each freshly deleted inode for minutes before it finds a free one; that was an eighth of the cost of a
/// short task.
const BATCH: usize = 2_000;

/// How long and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepRules {
    /// Age to which output of attempts that succeeded stays, in ms.
    pub succeeded_ms: u64,
    /// The same for all others.
    pub failed_ms: u64,
    /// Bytes of output of all of them.
    pub bytes_max: u64,
    /// How many of them.
    pub attempts_max: usize,
}

impl Default for KeepRules {
    fn default() -> Self {
        const DAY_MS: u64 = 24 * 3_600 * 1_000;
        Self { succeeded_ms: 7 * DAY_MS, failed_ms: 30 * DAY_MS, bytes_max: 10 << 30, attempts_max: 10_000 }
    }
}

/// Why output was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Older than a success may be.
    Age,
    /// Older than a failure may be.
    Failed,
    /// More bytes than may stay.
    Size,
    /// More attempts than may stay.
    Number,
}

impl Rule {
    const ALL: [Self; 4] = [Self::Age, Self::Failed, Self::Size, Self::Number];

    /// The setting in which the rule is written.
    pub(super) fn setting(self) -> &'static str {
        match self {
            Self::Age => "output.keep",
            Self::Failed => "output.keep_failed",
            Self::Size => "output.keep_bytes",
            Self::Number => "output.keep_attempts",
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Age => 1,
            Self::Failed => 2,
            Self::Size => 3,
            Self::Number => 4,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.code() == code)
    }
}

/// One attempt's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) token: Token,
    /// Bytes on the disk.
    pub(crate) bytes: u64,
    /// When it ended, ms since the epoch.
    pub(crate) ended_ms: u64,
    /// The attempt did what it was asked.
    pub(crate) succeeded: bool,
}

/// Released attempts by how they ended, each in the order of release, which is nearly that of their ends.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    rules: KeepRules,
    succeeded: VecDeque<Kept>,
    others: VecDeque<Kept>,
    bytes: u64,
}

impl Retention {
    pub(crate) fn set_rules(&mut self, rules: KeepRules) {
        self.rules = rules;
    }

    /// One more stays. Returns those that are to be deleted now.
    pub(crate) fn keep(&mut self, kept: Kept) -> Vec<(Token, Rule)> {
        self.bytes += kept.bytes;
        if kept.succeeded { &mut self.succeeded } else { &mut self.others }.push_back(kept);
        let mut old = Vec::new();
        let many =
            self.len() >= self.rules.attempts_max.saturating_add(BATCH.min(self.rules.attempts_max / 4 + 1));
        if !many && self.bytes <= self.rules.bytes_max {
            return old;
        }
        // The newest stays, however large it is.
        while self.len() > 1 {
            let rule = match (self.bytes > self.rules.bytes_max, many && self.len() > self.rules.attempts_max)
            {
                (true, _) => Rule::Size,
                (_, true) => Rule::Number,
                _ => break,
            };
            let newest_alone = self.succeeded.len() == 1 && kept.succeeded;
            let from_others = self.succeeded.is_empty() || (newest_alone && !self.others.is_empty());
            let list = if from_others { &mut self.others } else { &mut self.succeeded };
            let Some(gone) = list.pop_front() else { break };
            self.bytes -= gone.bytes;
            old.push((gone.token, rule));
        }
        old
    }

    /// Those that are too old at this time.
    pub(crate) fn expired(&mut self, now_ms: u64) -> Vec<(Token, Rule)> {
        let mut old = Vec::new();
        let ages = [(self.rules.succeeded_ms, Rule::Age), (self.rules.failed_ms, Rule::Failed)];
        for (list, (age_ms, rule)) in [&mut self.succeeded, &mut self.others].into_iter().zip(ages) {
            while let Some(first) = list.front().filter(|kept| kept.ended_ms.saturating_add(age_ms) <= now_ms)
            {
                self.bytes -= first.bytes;
                old.push((first.token, rule));
                list.pop_front();
            }
        }
        old
    }

    fn len(&self) -> usize {
        self.succeeded.len() + self.others.len()
    }
}

/// Deletes the files of released attempts, and notes why.
pub(crate) fn delete(dir: &Path, old: &[(Token, Rule)], now_ms: u64) {
    // First the note: it is true a moment later, and a crash in between leaves no unexplained gap.
    if let Err(error) = super::removed::note(dir, old, now_ms) {
        tracing::warn!(%error, "it cannot be noted which output was removed");
    }
    for (token, _) in old {
        // The record last: while it is there the token counts as used.
        let record = || match std::fs::remove_file(dir.join(record_name(*token))) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let removed = Stream::new(dir, *token, OutputStream::Stdout)
            .remove()
            .and_then(|()| Stream::new(dir, *token, OutputStream::Stderr).remove())
            .and_then(|()| match std::fs::remove_dir(dir.join(more_name(*token))) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            })
            .and_then(|()| record());
        if let Err(error) = removed {
            tracing::warn!(%token, %error, "old output cannot be deleted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(token: u64, bytes: u64, succeeded: bool) -> Kept {
        Kept { token: Token(token), bytes, ended_ms: token, succeeded }
    }

    fn with(rules: KeepRules) -> Retention {
        Retention { rules, ..Retention::default() }
    }

    #[test]
    fn a_failure_outlives_any_number_of_later_successes() {
        let rules = KeepRules { attempts_max: 8_000, ..KeepRules::default() };
        let mut retention = with(rules);
        let mut deleted = retention.keep(kept(0, 1, false));
        for token in 1..30_000 {
            deleted.extend(retention.keep(kept(token, 1, true)));
        }
        assert!(retention.len() >= 8_000 && retention.len() < 8_000 + BATCH);
        assert_eq!(deleted.first(), Some(&(Token(1), Rule::Number)), "report R056");
        assert_eq!(deleted.len() + retention.len(), 30_000);
        assert_eq!(retention.others.len(), 1);
    }

    #[test]
    fn size_takes_successes_first_then_failures_and_never_the_newest() {
        let mut retention = with(KeepRules { bytes_max: 100, ..KeepRules::default() });
        for (token, succeeded) in [(1, false), (2, true), (3, false), (4, true)] {
            assert!(retention.keep(kept(token, 25, succeeded)).is_empty());
        }
        assert_eq!(retention.keep(kept(5, 25, true)), [(Token(2), Rule::Size)]);
        assert_eq!(retention.keep(kept(6, 75, true)).iter().map(|(t, _)| t.0).collect::<Vec<_>>(), [4, 5, 1]);
        assert_eq!(retention.keep(kept(7, 1_000, true)).iter().map(|(t, _)| t.0).collect::<Vec<_>>(), [6, 3]);
        assert_eq!(retention.bytes, 1_000, "one large output stays alone");
    }

    #[test]
    fn age_is_counted_from_the_end_and_failures_may_be_older() {
        let mut retention = with(KeepRules { succeeded_ms: 10, failed_ms: 50, ..KeepRules::default() });
        for token in 100..104 {
            retention.keep(kept(token, 1, token % 2 == 0));
        }
        assert!(retention.expired(109).is_empty());
        assert_eq!(retention.expired(110), [(Token(100), Rule::Age)]);
        assert_eq!(retention.expired(150), [(Token(102), Rule::Age)]);
        assert_eq!(retention.expired(153), [(Token(101), Rule::Failed), (Token(103), Rule::Failed)]);
        assert_eq!((retention.len(), retention.bytes), (0, 0));
    }
}
