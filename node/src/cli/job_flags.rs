//! The flags by which a job is described: one for each key of the parser, which gives them their meaning.

use super::job_args::Here;
use crate::parse::{JobDraft, Key, Scalar, Value};
use clap::Args;
use rota_protocol::PublicError;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// What a job needs and by which terms it runs.
#[derive(Debug, Args, Default, Clone)]
pub struct JobFlags {
    /// GPUs of each task: whole cards, or a share of one such as 0.5
    #[arg(long, help_heading = "Needs")]
    pub gpus: Option<String>,
    /// Share of the cores of one card, such as 50%
    #[arg(long, value_name = "SHARE", help_heading = "Needs")]
    pub gpu_share: Option<String>,
    /// Accepted GPU models, such as H100 or H100,A100; may be repeated
    #[arg(long, visible_alias = "model", value_name = "MODEL", help_heading = "Needs")]
    pub gpu_model: Vec<String>,
    /// GPU models in order of preference; others fit too
    #[arg(long, value_name = "MODEL", help_heading = "Needs")]
    pub prefer: Vec<String>,
    /// Least memory of each GPU, or memory held on a shared one: 80G; a bare number is MiB
    #[arg(long, value_name = "SIZE", help_heading = "Needs")]
    pub vram: Option<String>,
    /// Least compute capability, such as 8.0
    #[arg(long, value_name = "VERSION", help_heading = "Needs")]
    pub compute_cap: Option<String>,
    /// CPU cores of each task, such as 4 or 0.5 [default: 1]
    #[arg(long, help_heading = "Needs")]
    pub cpus: Option<String>,
    /// Memory of each task: 16G, 1.5G, 512M (powers of 1024); a bare number is MiB. Without it a task has its part of
    /// the host's memory by its CPUs, at least 2 GiB, and that is a limit as well
    #[arg(long, value_name = "SIZE", help_heading = "Needs")]
    pub mem: Option<String>,
    /// How a shared card is shared: time-slice [default] or mps
    #[arg(long, value_name = "MODE", help_heading = "Needs")]
    pub share_mode: Option<String>,
    /// What must be kept apart from others on a shared card: memory, faults, or all
    #[arg(long, value_name = "LEVEL", help_heading = "Needs")]
    pub isolate: Option<String>,
    /// Other devices, such as fpga=1 or mig:1g.10gb=2; may be repeated
    #[arg(long, value_name = "KIND[:MODEL][=COUNT]", help_heading = "Needs")]
    pub device: Vec<String>,
    /// FPGAs of each task
    #[arg(long, help_heading = "Needs")]
    pub fpga: Option<String>,
    /// Only hosts with this label; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Needs")]
    pub label: Vec<String>,
    /// Needs that would do as well, such as "gpus=0 cpus=16"; what they do not name stays; may be repeated
    #[arg(long, value_name = "NEEDS", help_heading = "Needs")]
    pub or: Vec<String>,
    /// Parts that run together, such as 4, or 2..4 if it may lose some
    #[arg(long, value_name = "PARTS", help_heading = "Shape")]
    pub gang: Option<String>,
    /// The same on as many hosts as can be
    #[arg(long, short = 'N', value_name = "HOSTS", help_heading = "Shape")]
    pub nodes: Option<String>,
    /// How tasks lie: any, pack, spread, same-host, same-rack, same-island
    #[arg(long, help_heading = "Shape")]
    pub layout: Option<String>,
    /// Jobs to wait for: ok:12,not-ok:13,any:14,each-ok:15; may be repeated
    #[arg(
        long,
        short = 'd',
        visible_alias = "dependency",
        value_name = "END:JOB,..",
        help_heading = "Start"
    )]
    pub after: Vec<String>,
    /// The queue that it counts for [default: your own]
    #[arg(
        long,
        short = 'q',
        short_alias = 'p',
        alias = "partition",
        value_name = "PATH",
        help_heading = "Start"
    )]
    pub queue: Option<String>,
    /// Not before: now+1h, 10m, 2026-12-01T08:00 (UTC)
    #[arg(long, value_name = "WHEN", help_heading = "Start")]
    pub begin: Option<String>,
    /// Given up if it has not started by then
    #[arg(long, value_name = "WHEN", help_heading = "Start")]
    pub deadline: Option<String>,
    /// Holding its cards idle is intended until then, such as now+2h
    #[arg(long, value_name = "WHEN", help_heading = "End")]
    pub idle_until: Option<String>,
    /// Wait until `rota release`
    #[arg(long, short = 'H', num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "YES|NO", help_heading = "Start")]
    pub hold: Option<String>,
    /// 0 (last) to 100 (first) [default: 50]
    #[arg(long, help_heading = "Start")]
    pub priority: Option<String>,
    /// Longest run: 90s, 30m, 1h30m, HH:MM:SS, D-HH:MM:SS; a bare number is seconds
    #[arg(long, alias = "time-limit", value_name = "TIME", help_heading = "End")]
    pub time: Option<String>,
    /// Time between TERM and KILL whenever it is ended [default: 5s]
    #[arg(long, value_name = "TIME", help_heading = "End")]
    pub grace: Option<String>,
    /// A signal so long before the time limit: USR1@60s; B:USR1@60s only to the first process. Before it is ended to make
    /// room the signal comes at once, TERM after that time or 30 s, whichever is shorter, and KILL after the grace
    #[arg(long, visible_alias = "signal", value_name = "SIGNAL[@TIME]", help_heading = "End")]
    pub warn: Option<String>,
    /// How often a failed task may run again [default: 0]
    #[arg(long, value_name = "COUNT", help_heading = "End")]
    pub retries: Option<String>,
    /// Exit status by which a task asks to be queued again
    #[arg(long, value_name = "STATUS", help_heading = "End")]
    pub requeue_status: Option<String>,
    /// Start it again whenever it ends, until it is cancelled
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "YES|NO", help_heading = "End")]
    pub service: Option<String>,
    /// Whether it may be ended to make room [default: yes]
    #[arg(long, value_name = "YES|NO", help_heading = "End")]
    pub preemptible: Option<String>,
    /// It may not be ended to make room
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "YES|NO", help_heading = "End")]
    pub no_preempt: Option<String>,
    /// Queue it again when it was ended to make room [default]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "YES|NO", help_heading = "End")]
    pub requeue: Option<String>,
    /// Give it up when it was ended to make room
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "YES|NO", help_heading = "End")]
    pub no_requeue: Option<String>,
    /// It goes on where it stopped when it is started again: it may take turns and move to a better GPU model
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "YES|NO", help_heading = "Turns")]
    pub resumes: Option<String>,
    /// How long it would run alone on its best GPU model; an estimate, nothing is ended by it
    #[arg(long, value_name = "TIME", help_heading = "Turns")]
    pub work: Option<String>,
    /// How fast it is on GPU models, such as H100=2.5,A100=1; only the ratios count; may be repeated
    #[arg(long, value_name = "MODEL=SPEED,..", help_heading = "Turns")]
    pub speed: Vec<String>,
    /// A name for people [default: the program's]
    #[arg(long, help_heading = "Process")]
    pub name: Option<String>,
    /// An environment variable, or the name of one of this shell's; may be repeated
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Process")]
    pub env: Vec<OsString>,
    /// Working directory on the host that runs it [default: this one]
    #[arg(long, value_name = "DIR", help_heading = "Process")]
    pub workdir: Option<OsString>,
    /// A file of yours for the output as well, written on the host that runs it: %j job, %a array element, %t attempt,
    /// %h host, %r rank, %x name, %u user; standard error goes there too unless --error says otherwise
    #[arg(long, short = 'o', value_name = "FILE", help_heading = "Output")]
    pub output: Option<OsString>,
    /// The same for standard error
    #[arg(long, short = 'e', value_name = "FILE", help_heading = "Output")]
    pub error: Option<OsString>,
    /// Whether such a file is gone on with or begun anew: append or truncate [default: append]
    #[arg(long, visible_alias = "open-mode", value_name = "MODE", help_heading = "Output")]
    pub output_mode: Option<String>,
    /// How much of each stream is kept for `rota logs`: its head and its tail, such as 10MiB
    #[arg(long, value_name = "SIZE", help_heading = "Output")]
    pub output_max: Option<String>,
    /// A file that becomes standard input, kept with the job (256 KiB at most); - for what comes in here
    #[arg(long, short = 'i', value_name = "FILE", help_heading = "Output")]
    pub stdin: Option<OsString>,
    /// Data that it finds below $ROTA_INPUTS under this name, wherever it runs: `rota data add` prints the hash; may be
    /// repeated
    #[arg(long, value_name = "NAME=sha256:HEX", help_heading = "Process")]
    pub input: Vec<String>,
    /// Run it in this container image, such as docker.io/pytorch/pytorch:2.9
    #[arg(long, help_heading = "Container")]
    pub image: Option<String>,
    /// A path of the host that the container sees, beside the working directory; may be repeated
    #[arg(long, value_name = "PATH[:INSIDE][:ro]", help_heading = "Container")]
    pub mount: Vec<String>,
    /// Working directory in the container [default: the job's, at the same path]
    #[arg(long, value_name = "DIR", help_heading = "Container")]
    pub container_workdir: Option<String>,
    /// Keep the image's entry point; the command becomes its arguments
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "YES|NO", help_heading = "Container")]
    pub entrypoint: Option<String>,
    /// Let nothing be written but what is mounted
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "YES|NO", help_heading = "Container")]
    pub read_only: Option<String>,
}

impl JobFlags {
    /// What the flags say.
    ///
    /// # Errors
    /// Anything that the parser refuses.
    pub(super) fn draft(&self, array: Option<&str>, here: &Here) -> Result<JobDraft, PublicError> {
        let mut draft = JobDraft::default();
        for (key, text) in self.single().into_iter().chain([(Key::Array, array)]) {
            if let Some(text) = text {
                draft.set(key, &Value::text(text))?;
            }
        }
        let paths = [
            (Key::Workdir, &self.workdir),
            (Key::Output, &self.output),
            (Key::Error, &self.error),
            (Key::Stdin, &self.stdin),
        ];
        for (key, path) in paths {
            if let Some(path) = path {
                draft.set(key, &Value::text(path.as_bytes()))?;
            }
        }
        for (key, texts) in self.lists() {
            if !texts.is_empty() {
                let list = texts.iter().map(|text| Scalar::Text(text.clone().into_bytes()));
                draft.set(key, &Value::List(list.collect()))?;
            }
        }
        for pair in &self.env {
            let mut pair = pair.as_bytes().to_vec();
            if !pair.contains(&b'=') {
                let value = here.var(&pair).ok_or_else(|| {
                    let name = String::from_utf8_lossy(&pair);
                    PublicError::invalid("env", format!("{name:?} is not set in this environment"), "SEED=7")
                })?;
                pair.push(b'=');
                pair.extend_from_slice(value.as_bytes());
            }
            draft.set(Key::Env, &Value::text(pair))?;
        }
        Ok(draft)
    }

    fn single(&self) -> [(Key, Option<&str>); 37] {
        [
            (Key::Gpus, self.gpus.as_deref()),
            (Key::GpuShare, self.gpu_share.as_deref()),
            (Key::Vram, self.vram.as_deref()),
            (Key::ComputeCap, self.compute_cap.as_deref()),
            (Key::Cpus, self.cpus.as_deref()),
            (Key::Mem, self.mem.as_deref()),
            (Key::Fpga, self.fpga.as_deref()),
            (Key::Gang, self.gang.as_deref()),
            (Key::Nodes, self.nodes.as_deref()),
            (Key::Layout, self.layout.as_deref()),
            (Key::Queue, self.queue.as_deref()),
            (Key::Begin, self.begin.as_deref()),
            (Key::Deadline, self.deadline.as_deref()),
            (Key::Hold, self.hold.as_deref()),
            (Key::Priority, self.priority.as_deref()),
            (Key::Time, self.time.as_deref()),
            (Key::Grace, self.grace.as_deref()),
            (Key::Warn, self.warn.as_deref()),
            (Key::Retries, self.retries.as_deref()),
            (Key::RequeueStatus, self.requeue_status.as_deref()),
            (Key::Service, self.service.as_deref()),
            (Key::Preemptible, self.preemptible.as_deref()),
            (Key::NoPreempt, self.no_preempt.as_deref()),
            (Key::Requeue, self.requeue.as_deref()),
            (Key::NoRequeue, self.no_requeue.as_deref()),
            (Key::Name, self.name.as_deref()),
            (Key::OutputMode, self.output_mode.as_deref()),
            (Key::OutputMax, self.output_max.as_deref()),
            (Key::Image, self.image.as_deref()),
            (Key::ContainerWorkdir, self.container_workdir.as_deref()),
            (Key::Entrypoint, self.entrypoint.as_deref()),
            (Key::ReadOnly, self.read_only.as_deref()),
            (Key::ShareMode, self.share_mode.as_deref()),
            (Key::Isolate, self.isolate.as_deref()),
            (Key::IdleUntil, self.idle_until.as_deref()),
            (Key::Resumes, self.resumes.as_deref()),
            (Key::Work, self.work.as_deref()),
        ]
    }

    fn lists(&self) -> [(Key, &[String]); 9] {
        [
            (Key::GpuModel, &self.gpu_model),
            (Key::Prefer, &self.prefer),
            (Key::Device, &self.device),
            (Key::Label, &self.label),
            (Key::Or, &self.or),
            (Key::After, &self.after),
            (Key::Mount, &self.mount),
            (Key::Speed, &self.speed),
            (Key::Input, &self.input),
        ]
    }
}
