//! What an agent does that is not let in by its fellows: it goes on while it holds a lease, and ends once it is clear
//! that no fellow will let it in. Pure.

use rota_protocol::members::NotLetIn;

/// An identity that is in use elsewhere may be let go there, so it is asked for this long, in ms.
pub const IN_USE_PATIENCE_MS: u64 = 5_000;

/// What happened at other doors since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Doors {
    /// Some fellow let this process in.
    let_in: bool,
    /// When it was first turned away for [`NotLetIn::InUse`].
    in_use_since_ms: Option<u64>,
}

impl Doors {
    /// A fellow let this process in.
    pub fn let_in(&mut self) {
        self.let_in = true;
        self.in_use_since_ms = None;
    }

    /// A fellow turned it away. True: the process must end.
    pub fn turned_away(&mut self, why: NotLetIn, holds_lease: bool, now_ms: u64) -> bool {
        // A lease means that a quorum knows it: whoever says otherwise is behind, or lies.
        if holds_lease {
            return false;
        }
        match why {
            NotLetIn::InUse => {
                let since = *self.in_use_since_ms.get_or_insert(now_ms);
                !self.let_in && now_ms.saturating_sub(since) >= IN_USE_PATIENCE_MS
            }
            NotLetIn::Removed | NotLetIn::Copied | NotLetIn::Older | NotLetIn::OtherData => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_outweighs_a_door_and_an_identity_in_use_is_asked_for_again() {
        let mut doors = Doors::default();
        assert!(!doors.turned_away(NotLetIn::Removed, true, 0));
        assert!(doors.turned_away(NotLetIn::Removed, false, 0));
        assert!(doors.turned_away(NotLetIn::OtherData, false, 0));
        assert!(!doors.turned_away(NotLetIn::InUse, false, 10));
        assert!(!doors.turned_away(NotLetIn::InUse, false, 5_009));
        assert!(doors.turned_away(NotLetIn::InUse, false, 5_010));
        // The first one keeps working, whatever a copy of it does elsewhere.
        doors.let_in();
        assert!(!doors.turned_away(NotLetIn::InUse, false, 20_000));
        assert!(!doors.turned_away(NotLetIn::InUse, false, 90_000));
    }
}
