//! Who may ask for which priority: one rule for a submit and for a change. Up to the default, and up to what the queue
//! allows, anybody; above that an operator.

use super::submit::known_queue;
use crate::state::State;
use rota_protocol::job::{Actor, JobSpec, Role};
use rota_protocol::limits::PRIORITY_DEFAULT;
use rota_protocol::queue::QueueId;
use rota_protocol::{ErrorCode, PublicError};

/// From this version of a cluster on, a submit is held to the rule when it is applied. What the log of an older one has is
/// applied as it was then; there the host that is asked refuses it.
const SINCE: u16 = 3;

/// The rule for a submit, where `apply` may go by it.
pub(super) fn check_submit(
    state: &State,
    actor: &Actor,
    queue: Option<QueueId>,
    spec: &JobSpec,
) -> Result<(), PublicError> {
    if state.version() < SINCE { Ok(()) } else { check(state, actor, queue, PRIORITY_DEFAULT, spec.priority) }
}

/// The rule for a submit, for the host that is asked for one, where `apply` does not go by it.
///
/// # Errors
/// No such queue; or the priority, the highest that may be asked, and who can raise it.
pub fn check_at_edge(state: &State, actor: &Actor, spec: &JobSpec) -> Result<(), PublicError> {
    if state.version() >= SINCE || spec.priority <= PRIORITY_DEFAULT {
        return Ok(());
    }
    check(state, actor, known_queue(state, actor, &spec.queue)?, PRIORITY_DEFAULT, spec.priority)
}

/// The rule itself: `own` is what anybody may ask, whatever the queue says. A queue that is not made yet has no rules.
pub(super) fn check(
    state: &State,
    actor: &Actor,
    queue: Option<QueueId>,
    own: u16,
    asked: u16,
) -> Result<(), PublicError> {
    let known = queue.and_then(|id| state.queues.get(id));
    let most = known.map_or(own, |queue| state.queues.priority_max(queue.id).max(own));
    if asked <= most || actor.role >= Role::Operator {
        return Ok(());
    }
    let name = known.map_or(&actor.tenant, |queue| &queue.spec.name);
    let message = format!(
        "{asked} is above {most}, the highest that a submitter may ask in queue '{name}': an operator may ask more, or \
         raise what the queue allows (`rota queues set {name} --priority-max {asked}`)"
    );
    let error = PublicError::new(ErrorCode::Forbidden, message);
    Err(PublicError { field: Some("priority".into()), example: Some(most.to_string()), ..error })
}
