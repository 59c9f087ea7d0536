//! A provider on a thread of the agent's own: for providers that tests make up, and where no program can be started. A
//! thread that hangs inside the kernel cannot be ended, and the agent cannot end completely before it.

use super::Silence;
use super::wire::{Order, Told};
use crate::devices::{DeviceProvider, Progress};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::oneshot;

type Asked = (Order, Arc<Progress>, oneshot::Sender<Told>);

pub(super) struct Thread {
    orders: SyncSender<Asked>,
    thread: JoinHandle<()>,
}

impl Thread {
    pub(super) fn start(name: &str, provider: Box<dyn DeviceProvider>) -> io::Result<Self> {
        // One order waits at most: the caller waits for each answer.
        let (orders, received) = sync_channel(1);
        let name = format!("probe-{name}");
        let thread = thread::Builder::new().name(name).spawn(move || serve(provider, &received))?;
        Ok(Self { orders, thread })
    }

    pub(super) async fn ask(
        &self,
        order: Order,
        deadline: Duration,
        progress: &Arc<Progress>,
    ) -> Result<Told, Silence> {
        let (answer, answered) = oneshot::channel();
        // A full queue means that an earlier caller went away while the thread hangs: same as no answer.
        if self.orders.try_send((order, Arc::clone(progress), answer)).is_err() {
            return Err(if self.thread.is_finished() { Silence::Died } else { Silence::Deadline });
        }
        match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Silence::Died),
            Err(_) => Err(Silence::Deadline),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.thread.is_finished()
    }

    /// Asks it no more: it ends by itself, should the driver ever let go of it.
    pub(super) fn dismiss(self) -> JoinHandle<()> {
        self.thread
    }
}

fn serve(mut provider: Box<dyn DeviceProvider>, orders: &Receiver<Asked>) {
    while let Ok((order, progress, answer)) = orders.recv() {
        provider.attend(progress);
        let told = match order {
            Order::Discover => Told::Found(provider.discover()),
            Order::Read => Told::Readings(provider.read()),
        };
        // An asker that went away is no reason to stop.
        drop(answer.send(told));
    }
}
