//! Which GPUs of a model the chosen jobs get: on one host if they fit there, where they were if they can stay. It
//! neither adds nor drops a job. Hosts are given as free GPUs by host, all of one model.

/// A chosen job that needs GPUs of this model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// How many.
    pub workers: u32,
    /// Where it ran in the last round: host and GPUs there. Empty if it did not run on this model.
    pub was: Vec<(usize, u32)>,
}

/// GPUs by host for each guest, in the order given; empty for one that does not fit (the sum of workers was too large).
/// Those who can stay do, widest first; then the widest choose the fullest host that holds them whole, and are spread
/// over the hosts with most free GPUs only if none does.
#[must_use]
pub fn seats(guests: &[Guest], free: &[u32]) -> Vec<Vec<(usize, u32)>> {
    let mut left = free.to_vec();
    let mut seats = vec![Vec::new(); guests.len()];
    let mut order: Vec<usize> = (0..guests.len()).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(guests[*at].workers), *at));
    for &at in &order {
        let guest = &guests[at];
        let held: u32 = guest.was.iter().map(|(_, count)| count).sum();
        // One that was spread moves together if it can; it is looked at again below.
        let stays = guest.was.len() == 1 && held == guest.workers;
        if stays && guest.was.iter().all(|(host, count)| left[*host] >= *count) {
            seats[at].clone_from(&guest.was);
            take(&mut left, &guest.was);
        }
    }
    for &at in &order {
        if seats[at].is_empty() {
            seats[at] = place(guests[at].workers, &left);
            take(&mut left, &seats[at]);
        }
    }
    seats
}

fn take(left: &mut [u32], seats: &[(usize, u32)]) {
    for (host, count) in seats {
        left[*host] -= count;
    }
}

fn place(workers: u32, left: &[u32]) -> Vec<(usize, u32)> {
    let whole = (0..left.len()).filter(|host| left[*host] >= workers);
    if let Some(host) = whole.min_by_key(|host| (left[*host], *host)) {
        return vec![(host, workers)];
    }
    if left.iter().sum::<u32>() < workers {
        return Vec::new();
    }
    let mut hosts: Vec<usize> = (0..left.len()).filter(|host| left[*host] > 0).collect();
    hosts.sort_by_key(|host| (std::cmp::Reverse(left[*host]), *host));
    let mut missing = workers;
    let mut seats = Vec::new();
    for host in hosts {
        let count = missing.min(left[host]);
        seats.push((host, count));
        missing -= count;
        if missing == 0 {
            break;
        }
    }
    seats
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(workers: u32) -> Guest {
        Guest { workers, was: Vec::new() }
    }

    #[test]
    fn gangs_sit_together_and_small_jobs_fill_gaps() {
        let seated = seats(&[new(1), new(4), new(3)], &[4, 4]);
        assert_eq!(seated, vec![vec![(1, 1)], vec![(0, 4)], vec![(1, 3)]]);
    }

    #[test]
    fn those_who_can_stay_do() {
        let stayer = Guest { workers: 2, was: vec![(1, 2)] };
        assert_eq!(seats(&[new(2), stayer], &[2, 2])[1], vec![(1, 2)]);
    }

    #[test]
    fn a_spread_gang_moves_together_when_it_can() {
        let spread = Guest { workers: 2, was: vec![(0, 1), (1, 1)] };
        assert_eq!(seats(std::slice::from_ref(&spread), &[1, 2])[0], vec![(1, 2)]);
        assert_eq!(seats(&[spread], &[1, 1])[0], vec![(0, 1), (1, 1)]);
        assert_eq!(seats(&[new(3)], &[1, 1])[0], vec![]);
    }
}
