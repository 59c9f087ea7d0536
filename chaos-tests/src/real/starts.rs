//! Second starts of a task, judged by the fencing token of the attempt: which of them break a law, and which are what a
//! lease that really expired is for.

use std::collections::{BTreeMap, BTreeSet};

/// What the witness lines show.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Starts {
    /// What breaks a law, in words.
    pub(super) wrong: Vec<String>,
    /// Attempts that came after one whose lease had expired: allowed, and told.
    pub(super) after_expiry: u64,
}

/// What was written of one task so far.
#[derive(Default)]
struct Task<'a> {
    /// In the order of their starts.
    tokens: Vec<&'a str>,
    ended: BTreeSet<&'a str>,
}

impl Task<'_> {
    /// The attempt before this one, if another has begun since.
    fn is_past(&self, token: &str) -> bool {
        self.tokens.last().is_some_and(|last| *last != token)
    }
}

/// Judges the lines `start JOB INDEX TOKEN` and `end JOB INDEX TOKEN`, which stand in the order in which they were
/// written, and what signs of life show
/// to have lived at once. `expired` says of a token whether the lease that it ran under did.
pub(super) fn judge(witness: &str, overlaps: &[String], expired: impl Fn(u64) -> bool) -> Starts {
    let mut found = Starts { wrong: overlaps.to_vec(), ..Starts::default() };
    let mut tasks: BTreeMap<(&str, &str), Task<'_>> = BTreeMap::new();
    for line in witness.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, job, index, token] = words[..] else { continue };
        let task = tasks.entry((job, index)).or_default();
        match what {
            "start" if task.tokens.contains(&token) => {
                found.wrong.push(format!("task {job}_{index} was started twice as attempt {token}"));
            }
            "start" => {
                if let Some(before) = task.tokens.last().copied() {
                    if before.parse().is_ok_and(&expired) {
                        found.after_expiry += 1;
                    } else {
                        let end = if task.ended.contains(before) { "had ended" } else { "had not ended" };
                        found.wrong.push(format!(
                            "task {job}_{index} was started again as attempt {token}: {before} {end}, and no lease expired"
                        ));
                    }
                }
                task.tokens.push(token);
            }
            "end" => {
                if task.is_past(token) {
                    found.wrong.push(format!(
                        "attempt {token} of task {job}_{index} still ran when the next one had begun"
                    ));
                }
                task.ended.insert(token);
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: &[&str], expired: &[u64]) -> Starts {
        judge(&lines.join("\n"), &[], |token| expired.contains(&token))
    }

    #[test]
    fn the_same_token_twice_is_wrong_whatever_expired() {
        for expired in [&[][..], &[7]] {
            let found = judged(&["start 1 0 7", "end 1 0 7", "start 1 0 7", "end 1 0 7"], expired);
            assert_eq!(found.wrong, ["task 1_0 was started twice as attempt 7"]);
            assert_eq!(found.after_expiry, 0);
        }
    }

    #[test]
    fn two_runs_at_once_are_wrong_whatever_expired() {
        let found = judged(&["start 1 0 7", "start 1 0 9", "end 1 0 7", "end 1 0 9"], &[7]);
        assert_eq!(found.wrong, ["attempt 7 of task 1_0 still ran when the next one had begun"]);
        // One that is ended leaves no last line; its signs of life show it.
        let lived = ["attempts 7 and 9 lived at once".to_owned()];
        let found = judge("start 1 0 7\nstart 1 0 9\nend 1 0 9", &lived, |token| token == 7);
        assert_eq!(found.wrong, ["attempts 7 and 9 lived at once"]);
    }

    #[test]
    fn a_second_token_is_wrong_unless_the_lease_of_the_first_expired() {
        let lines = ["start 1 0 7", "start 1 0 9", "end 1 0 9"];
        let found = judged(&lines, &[]);
        assert_eq!(
            found.wrong,
            ["task 1_0 was started again as attempt 9: 7 had not ended, and no lease expired"]
        );
        // That of another attempt is no excuse.
        assert_eq!(judged(&lines, &[8, 9]).wrong.len(), 1);
        assert_eq!(judged(&lines, &[7]), Starts { wrong: Vec::new(), after_expiry: 1 });
    }

    #[test]
    fn a_third_start_needs_an_expiry_of_its_own() {
        let lines = ["start 1 0 7", "start 1 0 8", "start 1 0 9", "end 1 0 9"];
        assert_eq!(judged(&lines, &[7, 8]).after_expiry, 2);
        let found = judged(&lines, &[7]);
        assert_eq!((found.wrong.len(), found.after_expiry), (1, 1));
    }

    #[test]
    fn other_tasks_and_torn_lines_are_no_second_start() {
        let lines = ["start 1 0 7", "start 1 1 8", "start 2 0 9", "end 1 0 7", "start 1", ""];
        assert_eq!(judged(&lines, &[]), Starts::default());
    }
}
