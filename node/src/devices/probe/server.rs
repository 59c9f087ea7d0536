//! The probe process (`rota probed`): asks a provider and tells each step. Its first thread only listens, so that it
//! notices the agent's end also while a call hangs; the provider has a thread of its own.

use super::source::Source;
use super::wire::{self, LENGTH_BYTES, Order, Question, Step, Told};
use crate::devices::{Progress, ProgressStep};
use rustix::process::{Signal, getpid, kill_process};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Questions that may wait: the agent asks the next one only after an answer or a deadline.
const QUESTIONS_MAX: usize = 16;
/// How long the provider may take to let its library go when the agent is done with it.
const FAREWELL: Duration = Duration::from_millis(300);

/// The way out: whole frames, also from several threads.
type Out = Arc<Mutex<UnixStream>>;

/// Serves the agent on the other end of standard input until it closes it.
#[must_use]
pub fn probe_main(args: impl Iterator<Item = OsString>) -> i32 {
    let Some(source) = Source::parse(args) else {
        eprintln!("rota: `probed` is started by the agent alone");
        return 2;
    };
    match serve(&source) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("rota: the probe of {} ends: {error}", source.name());
            1
        }
    }
}

fn serve(source: &Source) -> io::Result<()> {
    let mut stream = UnixStream::from(rustix::io::dup(rustix::stdio::stdin())?);
    let out: Out = Arc::new(Mutex::new(stream.try_clone()?));
    let (orders, received) = sync_channel(QUESTIONS_MAX);
    let (gone, ended) = sync_channel::<()>(1);
    let own = source.clone();
    thread::Builder::new().name(format!("probe-{}", source.name())).spawn(move || {
        answer_all(&own, &received, &out);
        drop(gone);
    })?;
    let heard = listen(&mut stream, &orders);
    drop(orders);
    // A driver that hangs is no reason to stay; nothing of it is ended in an orderly way then.
    if ended.recv_timeout(FAREWELL) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let _ = kill_process(getpid(), Signal::KILL);
    }
    heard
}

/// Hands questions on until the agent closes its end.
fn listen(stream: &mut UnixStream, orders: &SyncSender<Question>) -> io::Result<()> {
    loop {
        let mut head = [0; LENGTH_BYTES];
        match stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut body = vec![0; wire::length(head)?];
        stream.read_exact(&mut body)?;
        match orders.try_send(wire::value(&body)?) {
            // A full queue means that a call hangs: the agent will give this process up.
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => return Err(io::Error::other("the provider's thread died")),
        }
    }
}

fn answer_all(source: &Source, received: &Receiver<Question>, out: &Out) {
    let mut provider = source.make();
    while let Ok(question) = received.recv() {
        let number = question.number;
        let steps = Arc::clone(out);
        let tell = move |step: ProgressStep<'_>| {
            let told = match step {
                ProgressStep::Asking(uuid) => Told::Asking(uuid.clone()),
                ProgressStep::Answered(part) => Told::Answered(part.clone()),
            };
            send(&steps, &Step { number, told });
        };
        let progress = Progress::leaving_alone(question.skip).asking_last(question.last).telling(tell);
        provider.attend(Arc::new(progress));
        let told = match question.order {
            Order::Discover => Told::Found(provider.discover()),
            Order::Read => Told::Readings(provider.read()),
        };
        send(out, &Step { number, told });
    }
}

/// An agent that is gone hears nothing; the listening thread notices it.
fn send(out: &Out, step: &Step) {
    let Ok(bytes) = wire::frame(step) else { return };
    let mut stream = out.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = stream.write_all(&bytes);
}
