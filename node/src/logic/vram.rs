//! Does a task keep to the memory that it asked of a shared card? Nothing in the driver holds a time-sliced task to it,
//! so the host looks at what the task's own processes have there, and the one that has more is ended, not its neighbour
//! (report R032).

use rota_protocol::Token;
use rota_protocol::care::HostCause;
use std::collections::BTreeMap;

/// How long it must be above at every look, in ms: one look alone may have caught two processes in passing.
pub const OVER_MS: u64 = 1_000;

/// A share of a card, and what is used of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// In MiB.
    pub asked_mib: u64,
    /// Of all its processes together, in MiB.
    pub used_mib: u64,
}

/// What is known between looks.
#[derive(Debug, Clone, Default)]
pub struct VramWatch {
    /// Since when, and whether it was named.
    over: BTreeMap<Token, (u64, bool)>,
}

impl VramWatch {
    /// Takes in the shares of one look, none left out; gives those that are over their ask, once each. `slack_mib` above
    /// it does not count.
    pub fn looked(
        &mut self,
        uses: &BTreeMap<Token, Use>,
        slack_mib: u64,
        now_ms: u64,
    ) -> Vec<(Token, HostCause)> {
        self.over.retain(|token, _| uses.contains_key(token));
        let mut offenders = Vec::new();
        for (token, Use { asked_mib, used_mib }) in uses {
            // Without a known ask (a card of unknown memory) there is nothing to keep to.
            if *asked_mib == 0 || *used_mib <= asked_mib.saturating_add(slack_mib) {
                self.over.remove(token);
                continue;
            }
            let (since_ms, named) = self.over.entry(*token).or_insert((now_ms, false));
            if !*named && now_ms.saturating_sub(*since_ms) >= OVER_MS {
                *named = true;
                let cause = HostCause::Vram { asked_mib: *asked_mib, used_mib: *used_mib };
                offenders.push((*token, cause));
            }
        }
        offenders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(watch: &mut VramWatch, now_ms: u64, used: &[(u64, u64)]) -> Vec<(Token, HostCause)> {
        let one =
            |(token, used_mib): &(u64, u64)| (Token(*token), Use { asked_mib: 20_480, used_mib: *used_mib });
        watch.looked(&used.iter().map(one).collect(), 512, now_ms)
    }

    #[test]
    fn the_offender_is_named_once_with_both_figures_and_the_neighbour_never() {
        let mut watch = VramWatch::default();
        assert_eq!(look(&mut watch, 0, &[(1, 31_744), (2, 20_480)]), []);
        assert_eq!(look(&mut watch, OVER_MS - 1, &[(1, 31_744), (2, 20_480)]), []);
        let offender = (Token(1), HostCause::Vram { asked_mib: 20_480, used_mib: 31_744 });
        assert_eq!(look(&mut watch, OVER_MS, &[(1, 31_744), (2, 20_992)]), [offender]);
        assert_eq!(look(&mut watch, 9_000, &[(1, 31_744), (2, 20_992)]), []);
    }

    #[test]
    fn one_look_alone_and_a_little_more_do_not_count() {
        let mut watch = VramWatch::default();
        for at in 0..5 {
            assert_eq!(look(&mut watch, at * 4_000, &[(1, 31_744)]), []);
            assert_eq!(look(&mut watch, at * 4_000 + 2_000, &[(1, 20_992)]), []);
        }
        look(&mut watch, 50_000, &[(1, 31_744)]);
        assert_eq!(look(&mut watch, 51_000, &[]), []);
        assert_eq!(look(&mut watch, 52_000, &[(1, 31_744)]), [], "what is gone is forgotten");
        let unknown = BTreeMap::from([(Token(1), Use { asked_mib: 0, used_mib: 9_999 })]);
        for at in [0, 60_000] {
            assert_eq!(watch.looked(&unknown, 0, at), []);
        }
    }
}
