//! Which attempts still have processes on which of this host's devices, by the host's own knowledge. The log may have
//! given a device away again (a lease that expired) while a process on it cannot be killed: before a device is used
//! again, nothing may be left on it but what shares it.

use rota_protocol::{DeviceUuid, Token};
use std::collections::{BTreeMap, BTreeSet};

/// What may be done about a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    /// Its devices are free of processes.
    Open,
    /// An earlier attempt still has processes on one of them; look again.
    Wait,
    /// It did so for too long: the launch has failed, and this is why.
    Refuse(String),
}

/// Devices under processes of attempts that have not ended here.
#[derive(Debug, Clone, Default)]
pub struct Cards {
    /// None for an attempt whose devices are not known any more: it may be on any.
    under: BTreeMap<Token, Option<Vec<DeviceUuid>>>,
    waiting_since: BTreeMap<Token, u64>,
}

impl Cards {
    /// An attempt may have processes from now on.
    pub fn taken(&mut self, token: Token, devices: Option<Vec<DeviceUuid>>) {
        self.under.entry(token).or_insert(devices);
    }

    /// The devices under an attempt, as far as known.
    #[must_use]
    pub fn under(&self, token: Token) -> Vec<DeviceUuid> {
        self.under.get(&token).cloned().flatten().unwrap_or_default()
    }

    /// Whether [`Cards::taken`] was said of it.
    #[must_use]
    pub fn knows(&self, token: Token) -> bool {
        self.under.contains_key(&token)
    }

    /// The devices of an attempt, if they are known.
    #[must_use]
    pub fn devices(&self, token: Token) -> Option<&[DeviceUuid]> {
        self.under.get(&token)?.as_deref()
    }

    /// Its last process is gone, but these devices of its are not clean yet; the others are.
    pub fn left_dirty(&mut self, token: Token, devices: Vec<DeviceUuid>) {
        self.under.insert(token, Some(devices));
    }

    /// The last process of an attempt is gone, or it never had one.
    pub fn left(&mut self, token: Token) {
        self.under.remove(&token);
        self.waiting_since.remove(&token);
    }

    /// Whether `token` may start on `devices` at `now_ms`; it waits at most `patience_ms` for what is in its way.
    ///
    /// `live` is what the log has on this host, `token` included: two of them on one device share it, since the log
    /// never grants more of a device than there is. Only what the log has given up is in the way.
    pub fn gate(
        &mut self,
        token: Token,
        devices: &[DeviceUuid],
        live: &BTreeSet<Token>,
        now_ms: u64,
        patience_ms: u64,
    ) -> Gate {
        let in_the_way = self.under.iter().find(|(other, under)| {
            !live.contains(other)
                && **other != token
                && !devices.is_empty()
                && under.as_ref().is_none_or(|under| under.iter().any(|device| devices.contains(device)))
        });
        let Some((other, _)) = in_the_way else {
            self.waiting_since.remove(&token);
            return Gate::Open;
        };
        let since_ms = *self.waiting_since.entry(token).or_insert(now_ms);
        if now_ms.saturating_sub(since_ms) < patience_ms {
            return Gate::Wait;
        }
        Gate::Refuse(format!(
            "processes of attempt {other} are still on a granted device and cannot be ended"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str) -> Vec<DeviceUuid> {
        vec![DeviceUuid(name.into())]
    }

    /// What the log has here.
    fn live(tokens: &[u64]) -> BTreeSet<Token> {
        tokens.iter().map(|token| Token(*token)).collect()
    }

    #[test]
    fn a_device_is_used_again_only_when_nothing_is_left_on_it() {
        let mut cards = Cards::default();
        cards.taken(Token(1), Some(card("a")));
        assert_eq!(cards.gate(Token(2), &card("b"), &live(&[2]), 0, 100), Gate::Open);
        assert_eq!(cards.gate(Token(2), &card("a"), &live(&[2]), 0, 100), Gate::Wait);
        assert_eq!(cards.gate(Token(2), &card("a"), &live(&[2]), 99, 100), Gate::Wait);
        assert!(matches!(cards.gate(Token(2), &card("a"), &live(&[2]), 100, 100), Gate::Refuse(_)));
        cards.left(Token(1));
        assert_eq!(cards.gate(Token(2), &card("a"), &live(&[2]), 101, 100), Gate::Open);
    }

    #[test]
    fn an_attempt_of_unknown_devices_is_in_the_way_of_every_device_but_not_of_none() {
        let mut cards = Cards::default();
        cards.taken(Token(1), None);
        assert_eq!(cards.gate(Token(2), &card("a"), &live(&[2]), 0, 100), Gate::Wait);
        assert_eq!(cards.gate(Token(3), &[], &live(&[3]), 0, 100), Gate::Open);
        // Itself is not in its own way.
        assert_eq!(cards.gate(Token(1), &card("a"), &live(&[]), 0, 100), Gate::Open);
    }

    #[test]
    fn shares_of_one_device_start_beside_each_other_and_not_beside_what_the_log_gave_up() {
        let mut cards = Cards::default();
        cards.taken(Token(1), Some(card("a")));
        assert_eq!(cards.gate(Token(2), &card("a"), &live(&[1, 2]), 0, 100), Gate::Open);
        cards.taken(Token(2), Some(card("a")));
        // The first one is lost to the log, and its processes are still there.
        assert_eq!(cards.gate(Token(3), &card("a"), &live(&[2, 3]), 0, 100), Gate::Wait);
        cards.left(Token(1));
        assert_eq!(cards.gate(Token(3), &card("a"), &live(&[2, 3]), 1, 100), Gate::Open);
    }
}
