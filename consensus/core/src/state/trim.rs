//! Which bounds of a queue are broken by what runs, where its rule is to end work for that. The planner, `apply` and the
//! question whether there is anything to plan go by these.

use super::queue::Queue;
use rota_protocol::queue::{Amounts, Ceiling, Excess};

impl Queue {
    /// Whose bound is broken: the queue's own, then that of each user; nobody's where work may run to its end.
    pub fn to_trim(&self) -> impl Iterator<Item = Option<&str>> {
        let trims = self.spec.excess == Excess::RequeueYoungest;
        let broken = move |whom: Option<&str>| {
            let (held, bound) = self.held_and_bound(whom);
            !held.within(&bound)
        };
        let own = (trims && broken(None)).then_some(None);
        let each_user = trims && self.spec.user_ceiling != Ceiling::default();
        let users = self.users.keys().filter(move |_| each_user).map(|user| Some(user.as_str()));
        own.into_iter().chain(users.filter(move |user| broken(*user)))
    }

    /// What the queue holds and may, or what one user of it does; without what a lowered bound has left.
    pub(crate) fn held_and_bound(&self, user: Option<&str>) -> (Amounts, Amounts) {
        match user {
            None => (self.held, self.bound()),
            Some(user) => {
                let held = self.users.get(user).map(|share| share.held).unwrap_or_default();
                (held, self.spec.user_ceiling.amounts())
            }
        }
    }
}
