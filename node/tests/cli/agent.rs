//! A small agent for tests of the command line: speaks the API on a unix socket, runs each job at once as a process
//! of its own, keeps its output, and can be told to misbehave. No agreement, no placement, no devices.

use rota_node::framing::{FrameReader, client_hello, encode_message, exchange_hello, write_frame};
use rota_protocol::api::{ApiAnswer, ApiCall, ApiReply, ApiRequest, LogChunk, OutputStream, QueueFilter};
use rota_protocol::frame::{FrameKind, VERSION_MAX};
use rota_protocol::ids::{JobId, Token};
use rota_protocol::job::{Actor, AttemptEnd, JobSpec, JobState, Role};
use rota_protocol::output::{LogAsk, LogStart};
use rota_protocol::view::{Accepted, JobRow, JobView, TaskCounts};
use rota_protocol::{ErrorCode, PublicError, RequestId};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};

/// A job of this name waits for ever.
pub(crate) const HELD: &str = "held";
/// A job of this name gets a time limit from its queue.
pub(crate) const CAPPED: &str = "capped";
/// A job whose name ends so is over in this state as soon as it is submitted: the state's two letters.
pub(crate) const ENDS: &str = "ends-";
/// The connection that reads the output of a job of this name is cut once, in the middle.
pub(crate) const CUT: &str = "cut";

const STATES: [JobState; 5] = [
    JobState::TimedOut,
    JobState::Preempted,
    JobState::DependencyFailed,
    JobState::DeadlineMissed,
    JobState::HostLost,
];

/// One job.
#[derive(Default)]
struct Job {
    spec: Option<JobSpec>,
    pid: Option<i32>,
    out: Vec<u8>,
    err: Vec<u8>,
    end: Option<AttemptEnd>,
}

/// What the agent knows.
pub(crate) struct Shared {
    jobs: Mutex<BTreeMap<u64, Job>>,
    requests: Mutex<BTreeMap<RequestId, JobId>>,
    changed: watch::Sender<u64>,
    cut_once: AtomicBool,
}

/// The agent; it ends with the test's process.
pub(crate) struct Agent {
    _dir: tempfile::TempDir,
    pub(crate) socket: PathBuf,
    shared: Arc<Shared>,
}

impl Agent {
    /// Starts one in a thread of its own.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            requests: Mutex::default(),
            changed: watch::Sender::new(0),
            cut_once: AtomicBool::new(true),
        });
        let (path, state) = (socket.clone(), Arc::clone(&shared));
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListener::bind(path).unwrap();
                ready.send(()).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(serve(stream, Arc::clone(&state)));
                }
            });
        });
        is_ready.recv().unwrap();
        Self { _dir: dir, socket, shared }
    }

    /// The spec of each job that was accepted.
    pub(crate) fn specs(&self) -> Vec<JobSpec> {
        let jobs = self.shared.jobs.lock().unwrap();
        jobs.values().filter_map(|job| job.spec.clone()).collect()
    }
}

async fn serve(stream: UnixStream, shared: Arc<Shared>) {
    let (reader, mut writer) = stream.into_split();
    let mut frames = FrameReader::new(reader);
    exchange_hello(&mut frames, &mut writer, &client_hello()).await.unwrap();
    let (queue, mut answers) = mpsc::channel::<ApiAnswer>(64);
    let pump = tokio::spawn(async move {
        while let Some(answer) = answers.recv().await {
            let bytes = encode_message(VERSION_MAX, FrameKind::ApiAnswer, &answer).unwrap();
            if write_frame(&mut writer, &bytes).await.is_err() {
                return;
            }
        }
    });
    let mut calls = tokio::task::JoinSet::new();
    let (cut, mut is_cut) = mpsc::channel::<()>(1);
    loop {
        let call: ApiCall = tokio::select! {
            call = frames.next_message(FrameKind::ApiCall) => match call {
                Ok(Some(call)) => call,
                _ => break,
            },
            Some(()) = is_cut.recv() => break,
        };
        let (shared, queue, cut) = (Arc::clone(&shared), queue.clone(), cut.clone());
        calls.spawn(async move { answer(shared, call, queue, cut).await });
    }
    calls.shutdown().await;
    pump.abort();
}

/// Where the answers to one call go.
struct Answers {
    seq: u32,
    queue: mpsc::Sender<ApiAnswer>,
    cut: mpsc::Sender<()>,
}

impl Answers {
    async fn send(&self, more: bool, result: Result<ApiReply, PublicError>) -> bool {
        let seq = self.seq;
        self.queue.send(ApiAnswer { seq, more, result }).await.is_ok()
    }
}

async fn answer(shared: Arc<Shared>, call: ApiCall, queue: mpsc::Sender<ApiAnswer>, cut: mpsc::Sender<()>) {
    let answers = Answers { seq: call.seq, queue, cut };
    let result = match call.request {
        ApiRequest::Submit { jobs } => {
            let accepted = jobs.into_iter().map(|(request, spec)| Ok(shared.accept(request, spec)));
            Ok(ApiReply::Submitted(accepted.collect()))
        }
        ApiRequest::SubmitNoted { jobs } => {
            let accepted = jobs.into_iter().map(|(request, spec)| Ok(shared.accept_noted(request, spec)));
            Ok(ApiReply::Accepted(accepted.collect()))
        }
        ApiRequest::Queue { filter, .. } => Ok(shared.page(&filter)),
        ApiRequest::Me => {
            let last = shared.jobs.lock().unwrap().keys().last().copied().map(JobId);
            let actor = Actor { tenant: "t".into(), user: "u1".into(), role: Role::Submitter };
            Ok(ApiReply::Me { actor, last })
        }
        ApiRequest::Watch { job }
        | ApiRequest::Output { ask: LogAsk { job, .. } }
        | ApiRequest::Show { job, .. }
        | ApiRequest::Cancel { job, .. }
        | ApiRequest::Signal { job, .. }
            if !shared.jobs.lock().unwrap().contains_key(&job.0) =>
        {
            Err(PublicError::new(ErrorCode::NotFound, format!("no job {job}")))
        }
        ApiRequest::Watch { job } => return shared.watch(job, answers).await,
        ApiRequest::Output { ask: LogAsk { job, stream, start, follow, after, .. } } => {
            let offset = match start {
                LogStart::Offset(offset) => offset,
                LogStart::Lines(lines) => panic!("the last {lines} lines are not looked for here"),
            };
            // Each job has one attempt.
            if after.is_some() {
                answers.send(false, Ok(ApiReply::Done)).await;
                return;
            }
            return shared.logs(job, stream, offset, follow, answers).await;
        }
        ApiRequest::Show { job, .. } => Ok(ApiReply::Job(Box::new(shared.view(job)))),
        ApiRequest::Cancel { job, .. } => Ok(ApiReply::Cancelling { live: shared.cancel(job) }),
        ApiRequest::Signal { job, signal, .. } => {
            shared.signal(job, signal);
            Ok(ApiReply::Done)
        }
        other => Err(PublicError::new(ErrorCode::Internal, format!("not here: {other:?}"))),
    };
    answers.send(false, result).await;
}

impl Shared {
    async fn watch(&self, job: JobId, answers: Answers) {
        let mut changes = self.changed.subscribe();
        let mut shown = None;
        loop {
            let row = self.row(job);
            let more = !row.state.is_terminal();
            let reply = ApiReply::Changed(Box::new(row.clone()));
            if shown.as_ref() != Some(&row) && !answers.send(more, Ok(reply)).await {
                return;
            }
            shown = Some(row);
            if !more || changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn logs(&self, job: JobId, stream: OutputStream, mut offset: u64, follow: bool, answers: Answers) {
        let mut changes = self.changed.subscribe();
        loop {
            let (mut bytes, over) = self.output(job, stream, offset);
            if bytes.is_empty() {
                if over || !follow {
                    answers.send(false, Ok(ApiReply::Done)).await;
                    return;
                }
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let to_cut = self.row(job).name == CUT;
            if to_cut {
                bytes.truncate(bytes.len().div_ceil(2));
            }
            let attempt = Token(job.0 << 20);
            let chunk = LogChunk { attempt, offset, bytes, last: false };
            offset += chunk.bytes.len() as u64;
            if !answers.send(true, Ok(ApiReply::Log(chunk))).await {
                return;
            }
            if to_cut && self.cut_once.swap(false, Ordering::SeqCst) {
                // Long enough for the half to arrive; nothing is asserted about the time.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                let _ = answers.cut.send(()).await;
                return;
            }
        }
    }

    /// Pages of two, so that the client has to turn them.
    fn page(&self, filter: &QueueFilter) -> ApiReply {
        let ids: Vec<u64> = self.jobs.lock().unwrap().keys().copied().collect();
        let after = filter.after.map_or(0, |job| job.0);
        let page: Vec<u64> = ids.iter().copied().filter(|id| *id > after).take(2).collect();
        let next = page.last().copied().filter(|last| ids.iter().any(|id| id > last));
        let rows = page.into_iter().map(|id| self.row(JobId(id)));
        let rows = rows.filter(|row| filter.all || !row.state.is_terminal()).collect();
        ApiReply::Queue { index: 1, rows, next: next.map(JobId) }
    }

    fn accept(self: &Arc<Self>, request: RequestId, spec: JobSpec) -> JobId {
        let mut requests = self.requests.lock().unwrap();
        let next = JobId(requests.len() as u64 + 1);
        let job = *requests.entry(request).or_insert(next);
        if job == next {
            let held = spec.name == HELD || spec.name.starts_with(ENDS);
            self.jobs.lock().unwrap().insert(job.0, Job { spec: Some(spec.clone()), ..Job::default() });
            if !held {
                tokio::spawn(Arc::clone(self).carry_out(job, spec));
            }
        }
        job
    }

    /// A job of the name [`CAPPED`] meets a queue's rule.
    fn accept_noted(self: &Arc<Self>, request: RequestId, spec: JobSpec) -> Accepted {
        let capped = spec.name == CAPPED;
        let time_limit_ms = spec.time_limit_ms.or(capped.then_some(3_600_000));
        let notes = if capped { vec!["time limit 1h: the rule of queue t".to_owned()] } else { Vec::new() };
        Accepted { job: self.accept(request, spec), queue: "t".into(), time_limit_ms, notes }
    }

    async fn carry_out(self: Arc<Self>, job: JobId, spec: JobSpec) {
        // Tests that were started in the background ignore interrupts, and a shell cannot trap what was ignored when it
        // began. A caught signal is reset for a new program, so it is caught here.
        let _caught = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).unwrap();
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let mut command = tokio::process::Command::new(text(&spec.argv[0]));
        command.args(spec.argv[1..].iter().map(|word| text(word)));
        command.env_clear().envs(spec.env.iter().map(|(k, v)| (text(k), text(v))));
        command.current_dir(text(&spec.workdir));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let end = AttemptEnd::LaunchFailed { reason: error.to_string() };
                return self.change(job, |job| job.end = Some(end));
            }
        };
        let pid = child.id().map(|pid| i32::try_from(pid).unwrap());
        self.change(job, |job| job.pid = pid);
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (mut from_out, mut from_err) = (vec![0; 8_192], vec![0; 8_192]);
        let (mut out_open, mut err_open) = (true, true);
        while out_open || err_open {
            tokio::select! {
                read = out.read(&mut from_out), if out_open => {
                    let read = read.unwrap();
                    out_open = read > 0;
                    self.change(job, |job| job.out.extend_from_slice(&from_out[..read]));
                }
                read = err.read(&mut from_err), if err_open => {
                    let read = read.unwrap();
                    err_open = read > 0;
                    self.change(job, |job| job.err.extend_from_slice(&from_err[..read]));
                }
            }
        }
        let status = child.wait().await.unwrap();
        let end = match (status.code(), status.signal()) {
            (Some(code), _) => AttemptEnd::Exited { code: u8::try_from(code).unwrap() },
            (None, signal) => AttemptEnd::Signalled { signal: u8::try_from(signal.unwrap()).unwrap() },
        };
        self.change(job, |job| {
            job.pid = None;
            job.end.get_or_insert(end);
        });
    }

    fn change(&self, job: JobId, how: impl FnOnce(&mut Job)) {
        how(self.jobs.lock().unwrap().get_mut(&job.0).unwrap());
        self.changed.send_modify(|version| *version += 1);
    }

    fn cancel(&self, job: JobId) -> u32 {
        let live = u32::from(self.jobs.lock().unwrap()[&job.0].pid.is_some());
        self.change(job, |job| {
            job.end.get_or_insert(AttemptEnd::Cancelled);
        });
        self.signal(job, 9);
        live
    }

    fn signal(&self, job: JobId, signal: u8) {
        let pid = self.jobs.lock().unwrap()[&job.0].pid;
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let signal = rustix::process::Signal::from_named_raw(i32::from(signal)).unwrap();
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    fn output(&self, job: JobId, stream: OutputStream, offset: u64) -> (Vec<u8>, bool) {
        let jobs = self.jobs.lock().unwrap();
        let job = &jobs[&job.0];
        let bytes = match stream {
            OutputStream::Stdout => &job.out,
            OutputStream::Stderr => &job.err,
        };
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let to = bytes.len().min(from + 65_536);
        (bytes[from..to].to_vec(), job.end.is_some() && job.pid.is_none())
    }

    fn row(&self, id: JobId) -> JobRow {
        let jobs = self.jobs.lock().unwrap();
        let job = &jobs[&id.0];
        let spec = job.spec.as_ref().unwrap();
        let ended =
            spec.name.strip_prefix(ENDS).and_then(|code| STATES.into_iter().find(|s| s.code() == code));
        let (state, place) = match (&job.end, job.pid) {
            _ if ended.is_some() => (ended.unwrap(), "(job 1 failed, not ok)"),
            (Some(_), Some(_)) => (JobState::Ending, "n1"),
            (Some(AttemptEnd::Cancelled), None) => (JobState::Cancelled, ""),
            (Some(end), None) if end.is_success() => (JobState::Succeeded, ""),
            (Some(_), None) => (JobState::Failed, ""),
            (None, Some(_)) => (JobState::Running, "n1"),
            (None, None) => (JobState::Pending, "(gpus_busy)"),
        };
        JobRow {
            job: id,
            name: spec.name.clone(),
            tenant: "t".into(),
            user: "u1".into(),
            state,
            priority: spec.priority,
            submitted_ms: 1,
            started_ms: None,
            ended_ms: None,
            tasks: TaskCounts { live: 1, ..TaskCounts::default() },
            ask: "1 cpu".into(),
            place: place.into(),
        }
    }

    fn view(&self, id: JobId) -> JobView {
        let row = self.row(id);
        let jobs = self.jobs.lock().unwrap();
        let job = &jobs[&id.0];
        JobView {
            index: 1,
            row,
            spec: job.spec.clone().unwrap(),
            attempts: Vec::new(),
            attempts_forgotten: 0,
            exit_status: job.end.as_ref().map(AttemptEnd::shell_status),
            host_deaths: 0,
            held_for_deaths: false,
            paused: None,
        }
    }
}
