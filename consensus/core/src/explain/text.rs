//! Spans of time and lists of names, as sentences have them. Points in time are left to whoever has a calendar.

/// Names shown before it is said how many more there are.
const NAMES_SHOWN: usize = 4;

/// A span for a sentence, rounded up to what matters: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`.
pub(crate) fn span(ms: u64) -> String {
    const MINUTE_S: u64 = 60;
    const HOUR_S: u64 = 3_600;
    const DAY_S: u64 = 86_400;
    let two = |whole: u64, unit: &str, rest: u64, part: &str| match rest {
        0 => format!("{whole} {unit}"),
        rest => format!("{whole} {unit} {rest} {part}"),
    };
    let seconds = ms.div_ceil(1_000);
    match seconds {
        0..MINUTE_S => format!("{seconds} s"),
        MINUTE_S..600 => two(seconds / MINUTE_S, "min", seconds % MINUTE_S, "s"),
        600..HOUR_S => format!("{} min", seconds.div_ceil(MINUTE_S)),
        HOUR_S..DAY_S => {
            let minutes = seconds.div_ceil(MINUTE_S);
            two(minutes / 60, "h", minutes % 60, "min")
        }
        _ => {
            let hours = seconds.div_ceil(HOUR_S);
            two(hours / 24, "d", hours % 24, "h")
        }
    }
}

/// `1 host`, `2 hosts`.
pub(super) fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// The first few names, each once, then how many more.
pub(super) fn names(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    let mut more = 0;
    let mut last = None;
    for name in all {
        if shown.contains(&name) || last.as_ref() == Some(&name) {
            continue;
        }
        if shown.len() < NAMES_SHOWN {
            shown.push(name);
        } else {
            more += 1;
            last = Some(name);
        }
    }
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_say_what_matters() {
        for (ms, text) in [
            (0, "0 s"),
            (1, "1 s"),
            (59_001, "1 min"),
            (90_000, "1 min 30 s"),
            (3_599_000, "60 min"),
            (3_600_000, "1 h"),
            (12_000_000, "3 h 20 min"),
            (187_200_000, "2 d 4 h"),
        ] {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn lists_are_short() {
        let many = (0..9).flat_map(|n| [format!("h{n}"), format!("h{n}")]);
        assert_eq!(names(many), ["h0", "h1", "h2", "h3", "5 more"]);
        assert_eq!(names(["a".to_owned(), "a".to_owned()].into_iter()), ["a"]);
    }
}
