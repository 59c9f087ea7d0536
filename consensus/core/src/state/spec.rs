//! What a job keeps of its submission: the process to be started is packed into one piece of memory, since nobody looks
//! at it before the job starts; everything else is as it came, and one for all jobs that are alike in it.
//!
//! What this is not: no format. Snapshots have the [`JobSpec`] itself.

mod lent;

use crate::hash::Digest;
use rota_protocol::ask::Ask;
use rota_protocol::job::JobSpec;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

/// A [`JobSpec`] in little memory, used as if it were one. Only `argv`, `env` and `workdir` are empty: whoever wants
/// those takes [`Self::whole`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "JobSpec")]
pub struct Spec {
    rest: Arc<JobSpec>,
    /// Working directory, arguments, key and value of each variable: each as its length (u32, little-endian) and its
    /// bytes. Before them all, in the same way, the number of arguments.
    process: Box<[u8]>,
}

impl Spec {
    /// All of it, as it was submitted.
    #[must_use]
    pub fn whole(&self) -> JobSpec {
        let (args, mut texts) = self.texts();
        let mut text = || texts.next().map(<[u8]>::to_vec);
        let workdir = text().unwrap_or_default();
        let argv = (0..args).map_while(|_| text()).collect();
        let env = std::iter::from_fn(|| Some((text()?, text()?))).collect();
        JobSpec { argv, env, workdir, ..(*self.rest).clone() }
    }

    /// The number of arguments; then the working directory, the arguments, key and value of each variable.
    fn texts(&self) -> (u32, Texts<'_>) {
        let mut at = &*self.process;
        let args = u32_of(&mut at).unwrap_or_default();
        (args, Texts(at))
    }

    /// Sets the time limit, in ms: for jobs that are only imagined.
    pub(crate) fn limit(&mut self, time_limit_ms: u64) {
        Arc::make_mut(&mut self.rest).time_limit_ms = Some(time_limit_ms);
    }

    /// Sets what each task asks and, of a gang, how many parts: for jobs that are only imagined.
    pub(crate) fn ask_only(&mut self, ask: Ask, parts: Option<u32>) {
        let rest = Arc::make_mut(&mut self.rest);
        (rest.ask, rest.alternatives) = (ask, Vec::new());
        if let (Some(parts), Some(gang)) = (parts, &mut rest.gang) {
            (gang.min, gang.max) = (parts, parts);
        }
    }
}

/// Submissions that came lately: a job that differs from one of them only in the process to be started shares all else
/// with it. What is shared is nobody's business but that of memory: a table with other ones in it is an equal table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pool(VecDeque<(u64, Arc<JobSpec>)>);

/// Different ones that are remembered: those of the few people who submit just now.
const POOL_MAX: usize = 32;

impl Pool {
    /// Shares what can be shared.
    pub(crate) fn share(&mut self, spec: &mut Spec) {
        let mark = mark(&spec.rest);
        match self.0.iter().position(|(known, rest)| *known == mark && *rest == spec.rest) {
            Some(at) => {
                spec.rest = Arc::clone(&self.0[at].1);
                self.0.swap(0, at);
            }
            None => {
                self.0.truncate(POOL_MAX - 1);
                self.0.push_front((mark, Arc::clone(&spec.rest)));
            }
        }
    }
}

/// Tells most submissions apart by what mostly differs: comparing whole ones with all that are remembered would cost
/// more than the rest of a submission's `apply`.
fn mark(spec: &JobSpec) -> u64 {
    let mut mark = Digest::new(0);
    mark.write(spec.name.as_bytes());
    mark.write(spec.queue.as_bytes());
    for figure in [spec.ask.gpu_milli, spec.ask.cpus_milli, u32::from(spec.priority)] {
        mark.write_u64(u64::from(figure));
    }
    mark.write_u64(spec.ask.mem_mib);
    mark.write_u64(spec.time_limit_ms.unwrap_or(0));
    mark.finish()
}

impl PartialEq for Pool {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Pool {}

/// Byte strings, each behind its length.
#[derive(Clone)]
struct Texts<'a>(&'a [u8]);

impl<'a> Iterator for Texts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = u32_of(&mut self.0)?;
        let (text, after) = self.0.split_at_checked(len as usize)?;
        self.0 = after;
        Some(text)
    }
}

fn u32_of(at: &mut &[u8]) -> Option<u32> {
    let (bytes, after) = at.split_first_chunk()?;
    *at = after;
    Some(u32::from_le_bytes(*bytes))
}

/// Submissions are bounded far below 4 GiB, as is every frame.
fn u32_bytes(count: usize) -> [u8; 4] {
    u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes()
}

impl From<JobSpec> for Spec {
    fn from(mut rest: JobSpec) -> Self {
        let (argv, env) = (std::mem::take(&mut rest.argv), std::mem::take(&mut rest.env));
        let workdir = std::mem::take(&mut rest.workdir);
        let variables = env.iter().flat_map(|(key, value)| [key, value]);
        let texts = std::iter::once(&workdir).chain(&argv).chain(variables);
        let bytes = 4 + texts.clone().map(|text| 4 + text.len()).sum::<usize>();
        let mut process = Vec::with_capacity(bytes);
        process.extend_from_slice(&u32_bytes(argv.len()));
        for text in texts {
            process.extend_from_slice(&u32_bytes(text.len()));
            process.extend_from_slice(text);
        }
        Self { rest: Arc::new(rest), process: process.into() }
    }
}

impl Deref for Spec {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.rest
    }
}

/// Written without being put together first: a snapshot has a million of them.
impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        lent::serialize(self, serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::container::ContainerSpec;
    use rota_protocol::job::ArraySpec;
    use rota_protocol::work::{Dependency, GangSpec, Layout, Warning};

    #[test]
    fn what_is_kept_is_what_was_submitted() {
        let text = |text: &str| text.as_bytes().to_vec();
        let full = JobSpec {
            name: "n".into(),
            argv: vec![text("sh"), text(""), b"\xff\0".to_vec(), vec![b'x'; 70_000]],
            env: vec![(text("A"), text("")), (text("B"), text("b c"))],
            workdir: text("/w"),
            ask: Ask { gpu_milli: 500, ..Ask::default() },
            array: Some(ArraySpec { start: 1, end: 9, step: 2, parallel_max: 3 }),
            priority: 7,
            time_limit_ms: Some(1),
            grace_ms: Some(2),
            retries: 3,
            uid_gid: Some((4, 5)),
            alternatives: vec![Ask { gpu_milli: 1_000, ..Ask::default() }],
            gang: Some(GangSpec { min: 2, max: 3 }),
            layout: Layout::Pack,
            after: vec![Dependency {
                job: rota_protocol::JobId(6),
                relation: rota_protocol::work::Relation::Any,
                each: true,
            }],
            queue: "a/b".into(),
            begin_ms: Some(8),
            deadline_ms: Some(9),
            hold: true,
            service: true,
            preemptible: false,
            requeue: false,
            warning: Some(Warning { signal: 10, before_ms: 11, leader_only: true }),
            requeue_status: Some(99),
            output: Some(Box::new(rota_protocol::output::OutputSpec {
                bytes_max: Some(1 << 20),
                stdout: Some(text("%j.out")),
                stderr: Some(text("%j.err")),
                replace: true,
                stdin: Some(vec![0, 255]),
            })),
            session: Some(Box::new(rota_protocol::session::SessionSpec {
                size: rota_protocol::session::TerminalSize { rows: 24, cols: 80 },
                hold_ms: Some(12),
            })),
            container: Some(Box::new(ContainerSpec { image: "i".into(), ..ContainerSpec::default() })),
            idle_until_ms: Some(12),
            pace: Some(Box::new(rota_protocol::pace::Pace {
                resumes: true,
                work_ms: Some(13),
                speeds: vec![("A100".into(), 14)],
            })),
            inputs: [rota_protocol::data::Input {
                name: "a/b".into(),
                blob: rota_protocol::data::BlobId([15; 32]),
            }]
            .into(),
        };
        let bare = JobSpec { workdir: Vec::new(), ..JobSpec::default() };
        let no_args = JobSpec { argv: Vec::new(), ..full.clone() };
        let no_env = JobSpec { env: Vec::new(), array: None, ..full.clone() };
        for spec in [full, bare, no_args, no_env, JobSpec::default()] {
            let kept = Spec::from(spec.clone());
            assert_eq!(kept.whole(), spec);
            assert_eq!((kept.tasks(), kept.ask_at(1)), (spec.tasks(), spec.ask_at(1)));
            // Snapshots have what was submitted.
            let bytes = rota_protocol::codec::encode(&kept).expect("bytes");
            assert_eq!(bytes, rota_protocol::codec::encode(&spec).expect("bytes"));
            assert_eq!(rota_protocol::codec::decode::<Spec>(&bytes, 1 << 20).expect("a spec"), kept);
        }
    }

    #[test]
    fn what_is_alike_is_kept_once() {
        let mut pool = Pool::default();
        let job =
            |name: &str, arg: u8| JobSpec { name: name.into(), argv: vec![vec![arg]], ..JobSpec::default() };
        let mut shared = |spec: JobSpec| {
            let mut kept = Spec::from(spec.clone());
            pool.share(&mut kept);
            assert_eq!(kept.whole(), spec);
            kept
        };
        let (first, second) = (shared(job("a", 1)), shared(job("a", 2)));
        assert!(Arc::ptr_eq(&first.rest, &second.rest));
        assert!(!Arc::ptr_eq(&first.rest, &shared(job("b", 1)).rest));
        assert!(Arc::ptr_eq(&first.rest, &shared(job("a", 3)).rest));
        // One that is changed is changed alone.
        let mut changed = second.clone();
        changed.limit(5);
        assert_eq!((changed.time_limit_ms, second.time_limit_ms), (Some(5), None));
        // The number of those that are remembered is bounded.
        for number in 0..POOL_MAX {
            shared(job(&format!("other {number}"), 1));
        }
        assert!(!Arc::ptr_eq(&first.rest, &shared(job("a", 1)).rest));
        assert_eq!(pool.0.len(), POOL_MAX);
    }
}
