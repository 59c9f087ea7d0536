//! Whether what clients of one job saw can have happened one thing after the other (I10): Wing and Gong's search with
//! Lowe's memory, over the operations of one key. What nobody heard the end of may have happened at any later time, or
//! never. A search that finds no answer within its budget counts as a failure.

use std::collections::HashSet;
use std::fmt;

/// Operations of one key that the search takes.
pub(super) const OPS_MAX: usize = 120;
/// Steps of one search.
const STEPS_MAX: usize = 400_000;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// The job, always under the same request id.
    Submit,
    /// Another priority.
    Set(u16),
    Cancel,
    Read,
}

/// What a reader saw of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    pub(super) job: u64,
    pub(super) priority: u16,
    pub(super) over: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Got {
    /// Nobody heard.
    Open,
    Job(u64),
    Done,
    Refused,
    Seen(Option<View>),
}

/// One operation. Times are places in the order of all calls and returns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    pub(super) called: u64,
    pub(super) returned: u64,
    pub(super) ask: Ask,
    pub(super) got: Got,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}..{}] {:?} -> {:?}", self.called, self.returned, self.ask, self.got)
    }
}

/// What the search says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    Broken,
    /// It gave up.
    Unknown,
}

/// The job, as the model has it; its number is unknown until somebody heard it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Job {
    number: Option<u64>,
    priority: u16,
    over: bool,
}

type State = Option<Job>;

/// Priority of a fresh job.
pub(super) const PRIORITY: u16 = 50;

/// The state after an operation, if it can have had this answer.
fn step(state: State, op: &Op) -> Option<State> {
    let is = |known: Option<u64>, said: u64| known.is_none_or(|known| known == said);
    match (op.ask, op.got) {
        (Ask::Submit, Got::Open) => {
            Some(Some(state.unwrap_or(Job { number: None, priority: PRIORITY, over: false })))
        }
        (Ask::Submit, Got::Job(said)) => {
            let job = state.unwrap_or(Job { number: None, priority: PRIORITY, over: false });
            is(job.number, said).then_some(Some(Job { number: Some(said), ..job }))
        }
        (Ask::Set(priority), Got::Open) => {
            Some(state.map(|job| if job.over { job } else { Job { priority, ..job } }))
        }
        (Ask::Set(priority), Got::Done) => {
            state.filter(|job| !job.over).map(|job| Some(Job { priority, ..job }))
        }
        (Ask::Set(_), Got::Refused) => state.filter(|job| job.over).map(Some),
        (Ask::Cancel, Got::Open) => Some(state.map(|job| Job { over: true, ..job })),
        (Ask::Cancel, Got::Done) => state.map(|job| Some(Job { over: true, ..job })),
        (Ask::Read, Got::Seen(None)) => state.is_none().then_some(state),
        (Ask::Read, Got::Seen(Some(view))) => state
            .filter(|job| is(job.number, view.job) && job.priority == view.priority && job.over == view.over)
            .map(|job| Some(Job { number: Some(view.job), ..job })),
        _ => None,
    }
}

/// Searches for an order.
pub(super) fn check(ops: &[Op]) -> Verdict {
    if ops.len() > OPS_MAX {
        return Verdict::Unknown;
    }
    let closed = |op: &Op| op.got != Got::Open;
    let all: u128 =
        ops.iter().enumerate().filter(|(_, op)| closed(op)).fold(0, |mask, (at, _)| mask | 1 << at);
    let mut seen: HashSet<(u128, State)> = HashSet::new();
    let mut open: Vec<(u128, State)> = vec![(0, None)];
    let mut steps = 0;
    while let Some((done, state)) = open.pop() {
        if done & all == all {
            return Verdict::Fine;
        }
        steps += 1;
        if steps > STEPS_MAX {
            return Verdict::Unknown;
        }
        let left = || ops.iter().enumerate().filter(|(at, _)| done & (1 << at) == 0);
        // Whatever was called after this had returned cannot come before it.
        let first = left().filter(|(_, op)| closed(op)).map(|(_, op)| op.returned).min().unwrap_or(u64::MAX);
        for (at, op) in left().filter(|(_, op)| op.called < first) {
            if let Some(next) = step(state, op) {
                let next = (done | 1 << at, next);
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
    }
    Verdict::Broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(called: u64, returned: u64, ask: Ask, got: Got) -> Op {
        Op { called, returned, ask, got }
    }

    fn seen(job: u64, priority: u16, over: bool) -> Got {
        Got::Seen(Some(View { job, priority, over }))
    }

    #[test]
    fn what_can_have_happened_is_fine() {
        let ops = [
            op(0, 9, Ask::Submit, Got::Open),
            op(1, 2, Ask::Read, Got::Seen(None)),
            op(3, 4, Ask::Submit, Got::Job(7)),
            op(5, 8, Ask::Set(9), Got::Done),
            op(6, 7, Ask::Read, seen(7, 50, false)),
            op(10, 11, Ask::Read, seen(7, 9, false)),
            op(12, 20, Ask::Cancel, Got::Open),
            op(21, 22, Ask::Set(3), Got::Refused),
            op(23, 24, Ask::Read, seen(7, 9, true)),
        ];
        assert_eq!(check(&ops), Verdict::Fine);
        // The cancel that nobody heard of need not have happened.
        assert_eq!(check(&ops[..7]), Verdict::Fine);
    }

    #[test]
    fn what_cannot_have_happened_is_broken() {
        let stale = [
            op(0, 1, Ask::Submit, Got::Job(7)),
            op(2, 3, Ask::Set(9), Got::Done),
            op(4, 5, Ask::Read, seen(7, 50, false)),
        ];
        assert_eq!(check(&stale), Verdict::Broken);
        let lost = [op(0, 1, Ask::Submit, Got::Job(7)), op(2, 3, Ask::Read, Got::Seen(None))];
        assert_eq!(check(&lost), Verdict::Broken);
        let twice = [op(0, 1, Ask::Submit, Got::Job(7)), op(2, 3, Ask::Submit, Got::Job(8))];
        assert_eq!(check(&twice), Verdict::Broken);
        let back = [
            op(0, 1, Ask::Submit, Got::Job(7)),
            op(2, 9, Ask::Set(9), Got::Open),
            op(3, 4, Ask::Read, seen(7, 9, false)),
            op(5, 6, Ask::Read, seen(7, 50, false)),
        ];
        assert_eq!(check(&back), Verdict::Broken);
    }

    #[test]
    fn a_search_that_is_too_large_is_no_success() {
        let many = vec![op(0, 1, Ask::Read, Got::Seen(None)); OPS_MAX + 1];
        assert_eq!(check(&many), Verdict::Unknown);
    }
}
