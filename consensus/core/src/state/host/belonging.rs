//! How a host belongs to the cluster: whether it was removed, which data directory speaks for it, and whether an
//! operator wants it to vote.

use rota_protocol::members::{DataLife, NotLetIn, Removal};
use serde::{Deserialize, Serialize};

/// A host's place in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Belonging {
    /// It was removed: its id is never used again.
    pub removed: Option<Removal>,
    /// The last start of its agent that the log knows.
    pub life: DataLife,
    /// It shall vote, before others.
    pub wished: bool,
}

impl Belonging {
    /// Whether a start of an agent may speak for this host: the one that is known, or a later one on the same data.
    ///
    /// # Errors
    /// Why not, for good.
    pub fn check(&self, life: &DataLife) -> Result<(), NotLetIn> {
        let known = &self.life;
        if self.removed.is_some() {
            return Err(NotLetIn::Removed);
        }
        // Never told: a host that joined, or a state of an older format.
        if known.data == 0 {
            return Ok(());
        }
        if known.data != life.data {
            return Err(NotLetIn::OtherData);
        }
        match life.starts.cmp(&known.starts) {
            std::cmp::Ordering::Less => Err(NotLetIn::Older),
            std::cmp::Ordering::Equal if life.session != known.session => Err(NotLetIn::Copied),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(data: u128, starts: u64, session: u128) -> DataLife {
        DataLife { data, starts, session }
    }

    /// Faults D12, R6, R082: a wiped host, one from an old backup, and a copy are told apart from a restart.
    #[test]
    fn only_the_next_start_on_the_same_data_speaks_for_a_host() {
        let fresh = Belonging::default();
        assert_eq!(fresh.check(&life(7, 1, 1)), Ok(()));
        let known = Belonging { life: life(7, 4, 9), ..Belonging::default() };
        assert_eq!(known.check(&life(7, 4, 9)), Ok(()));
        assert_eq!(known.check(&life(7, 5, 2)), Ok(()));
        assert_eq!(known.check(&life(7, 4, 8)), Err(NotLetIn::Copied));
        assert_eq!(known.check(&life(7, 3, 9)), Err(NotLetIn::Older));
        assert_eq!(known.check(&life(8, 5, 2)), Err(NotLetIn::OtherData));
        let removal = Removal { at_ms: 1, by: "root".into(), reason: "gone".into() };
        let removed = Belonging { removed: Some(removal), ..known };
        assert_eq!(removed.check(&life(7, 5, 2)), Err(NotLetIn::Removed));
    }
}
