//! The filter of system calls: what only administrators of a host need, and what opens parts of the kernel that are
//! rarely needed and often broken, is refused with EPERM. Everything else passes.
//!
//! A deny list, because tasks are ordinary programs of ordinary users who are held by their rights: the filter takes
//! away what rights alone do not. Numbers are sorted and searched by halves, so that a call costs few steps and the
//! kernel prepares the filter quickly. Calls of a foreign processor mode (32 bit, x32), which have other numbers, are
//! refused as a whole.

use crate::io::ffi::cage::FilterStep;
use std::sync::{Arc, OnceLock};

const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ABOVE_OR_EQUAL: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Where the kernel puts number, processor and the low words of the first arguments.
const AT_NUMBER: u32 = 0;
const AT_PROCESSOR: u32 = 4;
const AT_FIRST: u32 = 16;
const AT_SECOND: u32 = 24;

const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
/// As if this kernel did not have it: the C library then uses an older call whose arguments can be seen.
const UNKNOWN: u32 = 0x0005_0000 | libc::ENOSYS as u32;

#[cfg(target_arch = "x86_64")]
const PROCESSOR: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const PROCESSOR: u32 = 0xc000_00b7;
/// Numbers from here on are another mode's.
const NUMBER_END: u32 = 0x4000_0000;

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Refuse,
    Unknown,
    /// Refused if the argument has any of these bits.
    RefuseBits(u32, u32),
    /// Refused if the argument is one of these.
    RefuseValues(u32, &'static [u32]),
}

/// A namespace of its own, of any kind: in one of users it would have every capability again.
const NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;
/// Attach and seize: getting hold of a process that is not one's own child.
const TAKE_HOLD: &[u32] = &[16, 0x4206];
/// Typing into a terminal as if its user did.
const TYPE_IN: &[u32] = &[0x5412];

#[rustfmt::skip]
fn rules() -> Vec<(u32, Verdict)> {
    use Verdict::{Refuse, RefuseBits, RefuseValues, Unknown};
    let refused = [
        libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_move_mount,
        libc::SYS_open_tree, libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount, libc::SYS_fspick,
        libc::SYS_mount_setattr, libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_reboot, libc::SYS_kexec_load,
        libc::SYS_kexec_file_load, libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module,
        libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key,
        libc::SYS_setns, libc::SYS_userfaultfd, libc::SYS_open_by_handle_at, libc::SYS_pidfd_getfd, libc::SYS_acct,
        libc::SYS_quotactl, libc::SYS_syslog, libc::SYS_vhangup, libc::SYS_settimeofday, libc::SYS_clock_settime,
        libc::SYS_adjtimex, libc::SYS_clock_adjtime, libc::SYS_sethostname, libc::SYS_setdomainname,
        libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register,
        #[cfg(target_arch = "x86_64")] libc::SYS_iopl,
        #[cfg(target_arch = "x86_64")] libc::SYS_ioperm,
    ];
    let mut rules: Vec<(i64, Verdict)> = refused.into_iter().map(|number| (number, Refuse)).collect();
    rules.push((libc::SYS_clone3, Unknown));
    rules.push((libc::SYS_clone, RefuseBits(AT_FIRST, NAMESPACES)));
    rules.push((libc::SYS_unshare, RefuseBits(AT_FIRST, NAMESPACES)));
    rules.push((libc::SYS_ptrace, RefuseValues(AT_FIRST, TAKE_HOLD)));
    rules.push((libc::SYS_ioctl, RefuseValues(AT_SECOND, TYPE_IN)));
    let mut rules: Vec<(u32, Verdict)> =
        rules.into_iter().filter_map(|(number, verdict)| Some((u32::try_from(number).ok()?, verdict))).collect();
    rules.sort_unstable_by_key(|(number, _)| *number);
    rules
}

/// The whole program; none on a processor whose numbers are not known here.
pub(super) fn program() -> Option<Vec<FilterStep>> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return None;
    }
    let mut program = vec![
        step(LOAD_WORD, AT_PROCESSOR),
        FilterStep { code: JUMP_EQUAL, jump_true: 1, jump_false: 0, value: PROCESSOR },
        step(RETURN, REFUSE),
        step(LOAD_WORD, AT_NUMBER),
        FilterStep { code: JUMP_ABOVE_OR_EQUAL, jump_true: 0, jump_false: 1, value: NUMBER_END },
        step(RETURN, REFUSE),
    ];
    program.extend(search(&rules()));
    Some(program)
}

/// The same, built once: shims are copies of the fork server, which builds it when it starts.
pub(super) fn shared() -> Option<Arc<[FilterStep]>> {
    static PROGRAM: OnceLock<Option<Arc<[FilterStep]>>> = OnceLock::new();
    PROGRAM.get_or_init(|| program().map(Into::into)).clone()
}

fn step(code: u16, value: u32) -> FilterStep {
    FilterStep { code, jump_true: 0, jump_false: 0, value }
}

/// Halves the rules until one is left. Every way through it ends in a return.
fn search(rules: &[(u32, Verdict)]) -> Vec<FilterStep> {
    match rules {
        [] => vec![step(RETURN, ALLOW)],
        [(number, verdict)] => {
            let tail = end(*verdict);
            let mut steps =
                vec![FilterStep { code: JUMP_EQUAL, jump_true: 1, jump_false: 0, value: *number }];
            steps.push(step(RETURN, ALLOW));
            steps.extend(tail);
            steps
        }
        _ => {
            let (low, high) = rules.split_at(rules.len() / 2);
            let (below, above) = (search(low), search(high));
            // Above comes first, so that its length bounds the jump; all rules together are far below 255 steps.
            let over = u8::try_from(above.len()).unwrap_or(u8::MAX);
            let first = high.first().map_or(0, |(number, _)| *number);
            let mut steps =
                vec![FilterStep { code: JUMP_ABOVE_OR_EQUAL, jump_true: 0, jump_false: over, value: first }];
            steps.extend(above);
            steps.extend(below);
            steps
        }
    }
}

fn end(verdict: Verdict) -> Vec<FilterStep> {
    match verdict {
        Verdict::Refuse => vec![step(RETURN, REFUSE)],
        Verdict::Unknown => vec![step(RETURN, UNKNOWN)],
        Verdict::RefuseBits(at, bits) => vec![
            step(LOAD_WORD, at),
            FilterStep { code: JUMP_ANY_BIT, jump_true: 0, jump_false: 1, value: bits },
            step(RETURN, REFUSE),
            step(RETURN, ALLOW),
        ],
        Verdict::RefuseValues(at, values) => {
            let mut steps = vec![step(LOAD_WORD, at)];
            for value in values {
                steps.push(FilterStep { code: JUMP_EQUAL, jump_true: 0, jump_false: 1, value: *value });
                steps.push(step(RETURN, REFUSE));
            }
            steps.push(step(RETURN, ALLOW));
            steps
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer.
    fn ask(program: &[FilterStep], processor: u32, number: u32, first: u32, second: u32) -> u32 {
        let (mut at, mut loaded, mut steps) = (0, 0, 0);
        loop {
            let step = program[at];
            steps += 1;
            assert!(steps < 40, "call {number} takes too many steps");
            at += 1;
            let holds = match step.code {
                LOAD_WORD => {
                    loaded = match step.value {
                        AT_NUMBER => number,
                        AT_PROCESSOR => processor,
                        AT_FIRST => first,
                        AT_SECOND => second,
                        other => panic!("loads {other}"),
                    };
                    continue;
                }
                RETURN => return step.value,
                JUMP_EQUAL => loaded == step.value,
                JUMP_ABOVE_OR_EQUAL => loaded >= step.value,
                JUMP_ANY_BIT => loaded & step.value != 0,
                other => panic!("step {other:#x}"),
            };
            at += usize::from(if holds { step.jump_true } else { step.jump_false });
        }
    }

    #[test]
    fn every_call_gets_the_verdict_of_its_rule_and_all_others_pass() {
        let program = program().unwrap();
        assert!(program.len() < 255, "{} steps", program.len());
        let rules: std::collections::BTreeMap<u32, Verdict> = rules().into_iter().collect();
        for number in 0..600 {
            let free = ask(&program, PROCESSOR, number, 0, 0);
            let loaded = ask(&program, PROCESSOR, number, u32::MAX, 0x5412);
            let (quiet, loud) = match rules.get(&number) {
                None => (ALLOW, ALLOW),
                Some(Verdict::Refuse) => (REFUSE, REFUSE),
                Some(Verdict::Unknown) => (UNKNOWN, UNKNOWN),
                Some(Verdict::RefuseBits(..)) => (ALLOW, REFUSE),
                Some(Verdict::RefuseValues(at, _)) => (ALLOW, if *at == AT_SECOND { REFUSE } else { ALLOW }),
            };
            assert_eq!((free, loaded), (quiet, loud), "call {number}");
        }
        let ptrace = u32::try_from(libc::SYS_ptrace).unwrap();
        assert_eq!(ask(&program, PROCESSOR, ptrace, 16, 0), REFUSE);
        assert_eq!(ask(&program, PROCESSOR, ptrace, 0, 0), ALLOW, "a debugger may start what it debugs");
    }

    #[test]
    fn a_foreign_mode_is_refused_as_a_whole() {
        let program = program().unwrap();
        assert_eq!(ask(&program, 0x4000_0003, 1, 0, 0), REFUSE);
        assert_eq!(ask(&program, PROCESSOR, NUMBER_END + 1, 0, 0), REFUSE);
    }
}
