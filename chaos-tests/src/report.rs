//! What a sweep found, for people and for programs. Deciding whether that is good is the caller's.

use crate::world::sweep::{Run, Sweep};
use serde_json::{Value, json};
use std::fmt::{Display, Write};

/// One line about a fault that was injected: its row in the catalogue, the stated bound, what was measured.
#[must_use]
pub fn row(row: &str, bound: impl Display, measured: impl Display) -> String {
    format!("{row}, {bound}, {measured}")
}

/// How to see a run again.
#[must_use]
pub fn reproduce(seed: u64) -> String {
    format!("rota-chaos world --seed {seed}")
}

/// For people. `seconds` is real time.
#[must_use]
pub fn text(sweep: &Sweep, missing: &[&str], seconds: f64) -> String {
    let mut out = String::new();
    let virtual_s = sweep.virtual_ms / 1_000;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} seeds, {} steps, {virtual_s} virtual seconds in {seconds:.1} s, {} violations",
        sweep.seeds,
        sweep.steps,
        sweep.failed.iter().map(|run| run.violations.len()).sum::<usize>()
    );
    for run in &sweep.failed {
        for violation in &run.violations {
            let _ = writeln!(out, "seed {}: {violation}", run.seed);
        }
        let _ = writeln!(out, "  reproduce: {}", reproduce(run.seed));
    }
    for (what, count) in sweep.reach.iter() {
        let _ = writeln!(out, "  {count:>9}  {what}");
    }
    for what in missing {
        let _ = writeln!(out, "not exercised: {what}");
    }
    out
}

/// For programs.
#[must_use]
pub fn json(sweep: &Sweep, missing: &[&str], seconds: f64) -> Value {
    let failed = |run: &Run| {
        json!({
            "seed": run.seed,
            "reproduce": reproduce(run.seed),
            "violations": run.violations.iter().map(|v| json!({
                "law": v.law.to_string(), "at_ms": v.at_ms, "what": v.what,
            })).collect::<Vec<_>>(),
        })
    };
    json!({
        "seeds": sweep.seeds,
        "steps": sweep.steps,
        "virtual_ms": sweep.virtual_ms,
        "seconds": seconds,
        "failed": sweep.failed.iter().map(failed).collect::<Vec<_>>(),
        "reach": sweep.reach.iter().collect::<std::collections::BTreeMap<_, _>>(),
        "not_exercised": missing,
    })
}
