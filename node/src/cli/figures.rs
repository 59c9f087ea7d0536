//! What the figures of `rota bench` are called, for its help.

/// One line each.
pub const FIGURES: &str = "\
Names of figures:
  _p50_ms, _p99_ms, _max_ms   half, 99 of 100, all took no longer, in ms
  _per_s                      so many a second
  fork_exec_ms, fork_exec_per_s, ratio_to_fork_exec
                              the machine's own fork and exec, measured in the same run, and how many times that it took
  gap_median_ms, gap_max_ms   longest time without an answered submit around each kill or move of the lead
  accepted, busy, lost        jobs in the log of a majority; asked to come again; accepted and gone (must be 0)
  rss_mib, _kib_per_job       memory of a peer; what one more job costs it
  agent_cpu_us_per_attempt    processor time of the agent for one attempt, in microseconds
  kept_ and leaked_           what is there after the run: by intention, and not (must be 0)
  alone_, beside_             the same clients without the flood and beside it; p99_ratio is the second by the first
  plan_ms                     wall time of the planner alone for one round
  etcd_, asked                the yardstick in the same run; the way of asking (leader, all peers) that was faster

With --json all of them stand in one flat object.";
