//! Attempts whose devices or programs are known to have failed, until their ends are told: a process that dies of its
//! card must not be told as a failure of its own because the state heard of the card a moment later.

use super::BLAME_MS;
use rota_protocol::ids::Token;
use rota_protocol::job::AttemptEnd;
use std::collections::BTreeMap;

/// Most attempts that are remembered.
const FAULTS_MAX: usize = 4_096;

/// Attempts with what was found.
#[derive(Debug, Default)]
pub struct Faults {
    map: BTreeMap<Token, (AttemptEnd, u64)>,
}

impl Faults {
    /// Something was found about these attempts.
    pub fn note(&mut self, ends: Vec<(Token, AttemptEnd)>, now_ms: u64) {
        self.map.retain(|_, (_, at_ms)| now_ms.saturating_sub(*at_ms) < BLAME_MS);
        let room = FAULTS_MAX.saturating_sub(self.map.len());
        self.map.extend(ends.into_iter().take(room).map(|(token, end)| (token, (end, now_ms))));
    }

    /// How an attempt ended, given how its process did. Work that was done is done, and what somebody else ended is
    /// told as that.
    #[must_use]
    pub fn end_of(&mut self, token: Token, end: AttemptEnd, now_ms: u64) -> AttemptEnd {
        let Some((found, at_ms)) = self.map.remove(&token) else {
            return end;
        };
        let by_itself = match &end {
            AttemptEnd::Exited { code } => *code != 0,
            AttemptEnd::Signalled { .. } => true,
            AttemptEnd::DeviceFault { reason } | AttemptEnd::ProgramFault { reason } => reason.is_empty(),
            _ => false,
        };
        if by_itself && now_ms.saturating_sub(at_ms) < BLAME_MS { found } else { end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_soon_after_are_blamed_on_the_device() {
        let fault = AttemptEnd::DeviceFault { reason: "Xid 48".into() };
        let empty = AttemptEnd::DeviceFault { reason: String::new() };
        for (end, after_ms, blamed) in [
            (AttemptEnd::Exited { code: 1 }, 0, true),
            (AttemptEnd::Signalled { signal: 6 }, BLAME_MS - 1, true),
            (AttemptEnd::Exited { code: 1 }, BLAME_MS, false),
            (AttemptEnd::Exited { code: 0 }, 0, false),
            (AttemptEnd::Cancelled, 0, false),
            (AttemptEnd::TimeLimit, 0, false),
            (empty, 0, true),
        ] {
            let mut faults = Faults::default();
            faults.note(vec![(Token(1), fault.clone())], 1_000);
            assert_eq!(faults.end_of(Token(2), end.clone(), 1_000), end);
            let told = faults.end_of(Token(1), end.clone(), 1_000 + after_ms);
            assert_eq!(told == fault, blamed, "{end:?} after {after_ms}");
            assert_eq!(
                faults.end_of(Token(1), AttemptEnd::Exited { code: 1 }, 1_000),
                AttemptEnd::Exited { code: 1 }
            );
        }
    }
}
