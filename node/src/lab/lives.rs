//! Tasks that say ten times a second that they live, outside of anything that Rota writes. It shows what a count of starts
//! does not: whether two attempts of one task ever lived at once (law I1), or one only came after the other (law I12).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that the tasks of a lab write to.
#[derive(Debug, Clone)]
pub struct Lives {
    path: PathBuf,
}

/// First and last sign of life of one attempt, in hundredths of a second since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    first_cs: u64,
    last_cs: u64,
    beats: u32,
}

/// What the file shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lived {
    /// Attempts that lived.
    pub attempts: u64,
    /// Tasks that had more than one.
    pub repeated: u64,
    /// Two attempts of one task that lived at once, in words.
    pub overlaps: Vec<String>,
    /// Least time between two attempts of one task, in ms.
    pub closest_ms: Option<u64>,
    /// The most beats that one attempt of each task has made.
    longest: BTreeMap<String, u32>,
}

impl Lived {
    /// How often one attempt of a task has beaten at most; the task is `JOB/INDEX`.
    #[must_use]
    pub fn beats(&self, task: &str) -> u32 {
        self.longest.get(task).copied().unwrap_or(0)
    }
}

impl Lives {
    /// A file of this name in `dir`.
    #[must_use]
    pub fn new(dir: &Path, name: &str) -> Self {
        Self { path: dir.join(name) }
    }

    /// One beat. The kernel's own count needs no program to be read, and no clock that could be set.
    #[must_use]
    pub fn beat(&self) -> String {
        let file = self.path.display();
        format!(
            "read up rest < /proc/uptime; echo \"$ROTA_JOB_ID/$ROTA_TASK_INDEX $ROTA_TOKEN $up\" >> {file}"
        )
    }

    /// A script that beats until a file is there.
    #[must_use]
    pub fn until(&self, file: &Path) -> String {
        format!("while [ ! -e {} ]; do {}; sleep 0.1; done", file.display(), self.beat())
    }

    /// A script that beats so many times, a tenth of a second apart.
    #[must_use]
    pub fn times(&self, beats: u32) -> String {
        format!("n=0; while [ $n -lt {beats} ]; do {}; n=$((n+1)); sleep 0.1; done", self.beat())
    }

    /// What was written so far.
    #[must_use]
    pub fn judge(&self) -> Lived {
        judge(&std::fs::read_to_string(&self.path).unwrap_or_default())
    }
}

fn judge(text: &str) -> Lived {
    let mut tasks: BTreeMap<&str, BTreeMap<u64, Life>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(task), Some(Ok(token)), Some(up)) =
            (words.next(), words.next().map(str::parse::<u64>), words.next())
        else {
            continue;
        };
        // Always two digits behind the point.
        let Ok(at_cs) = up.replace('.', "").parse() else { continue };
        let life = tasks.entry(task).or_default().entry(token).or_insert(Life {
            first_cs: at_cs,
            last_cs: at_cs,
            beats: 0,
        });
        life.beats += 1;
        life.first_cs = life.first_cs.min(at_cs);
        life.last_cs = life.last_cs.max(at_cs);
    }
    let mut lived = Lived::default();
    for (task, attempts) in &tasks {
        lived.attempts += attempts.len() as u64;
        lived.repeated += u64::from(attempts.len() > 1);
        let most = attempts.values().map(|life| life.beats).max().unwrap_or(0);
        lived.longest.insert((*task).to_owned(), most);
        let mut lives: Vec<(Life, u64)> = attempts.iter().map(|(token, life)| (*life, *token)).collect();
        lives.sort_unstable_by_key(|(life, token)| (life.first_cs, *token));
        // The last sign of any attempt before: a long one may outlive several.
        let mut before: Option<(Life, u64)> = None;
        for (life, token) in lives {
            if let Some((earlier, of)) = before {
                if life.first_cs < earlier.last_cs {
                    lived.overlaps.push(format!(
                        "attempts {of} and {token} of task {task} lived at once for {} ms",
                        (earlier.last_cs.min(life.last_cs) - life.first_cs) * 10
                    ));
                } else {
                    let apart_ms = (life.first_cs - earlier.last_cs) * 10;
                    lived.closest_ms = Some(lived.closest_ms.map_or(apart_ms, |least| least.min(apart_ms)));
                }
            }
            if before.is_none_or(|(earlier, _)| life.last_cs > earlier.last_cs) {
                before = Some((life, token));
            }
        }
    }
    lived
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_live_at_once_are_told_from_those_that_follow_each_other() {
        let lived = judge("1/1 7 100.00\n1/1 7 100.10\n1/1 9 105.50\n1/2 8 100.00\ntorn 1\n");
        let none = Vec::<String>::new();
        assert_eq!((lived.attempts, lived.repeated, lived.closest_ms), (3, 1, Some(5_400)));
        assert_eq!(lived.overlaps, none);
        assert_eq!([lived.beats("1/1"), lived.beats("1/2"), lived.beats("9/9")], [2, 1, 0]);
        // The second begins before the first has ended, whatever the order of the lines.
        let lived = judge("1/1 9 100.05\n1/1 7 100.00\n1/1 9 100.30\n1/1 7 100.10\n");
        assert_eq!(lived.overlaps, ["attempts 7 and 9 of task 1/1 lived at once for 50 ms"]);
        // A third that begins after the second, but within the first.
        let lived = judge("1/1 7 1.00\n1/1 7 9.00\n1/1 8 2.00\n1/1 8 3.00\n1/1 9 4.00\n");
        assert_eq!(lived.overlaps.len(), 2, "{lived:?}");
        assert_eq!(judge(""), Lived::default());
    }

    #[test]
    fn the_scripts_beat() {
        let dir = tempfile::tempdir().unwrap();
        let lives = Lives::new(dir.path(), "lives");
        let run = |script: &str, token: &str| {
            let status = std::process::Command::new("/bin/sh")
                .args(["-c", script])
                .env("ROTA_JOB_ID", "1")
                .env("ROTA_TASK_INDEX", "2")
                .env("ROTA_TOKEN", token)
                .status();
            assert!(status.unwrap().success());
        };
        run(&lives.times(2), "5");
        run(&lives.until(dir.path()), "6");
        assert_eq!((lives.judge().attempts, lives.judge().repeated), (1, 0), "the file was there");
        run(&lives.beat(), "7");
        assert_eq!((lives.judge().attempts, lives.judge().repeated), (2, 1));
        assert_eq!(lives.judge().overlaps, Vec::<String>::new());
    }
}
