//! The course of an attempt in its shim: the host's prolog, the task, the host's epilog.

use super::around;
use super::cage::Held;
use super::hook;
use super::keep::Keeper;
use super::lease_file::LeaseReader;
use super::notes::Notes;
use super::program::launch_failed;
use super::record::OwnRecord;
use super::uplink::{Inherited, Link};
use rota_protocol::job::AttemptEnd;
use rota_protocol::spool::{ExitRecord, LaunchOrder, ShimEvent};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Runs all of it.
pub(super) fn run<'a>(
    inherited: &'a Inherited,
    link: &mut Link<'a>,
    order: &LaunchOrder,
    record: &mut OwnRecord,
    held: &mut Held,
) -> ExitRecord {
    let never = |end: AttemptEnd, stderr_bytes: u64| ExitRecord {
        stderr_bytes,
        ..ExitRecord::never_ran(order.token, end)
    };
    let path = Path::new(OsStr::from_bytes(&order.lease_path));
    let mut lease = match LeaseReader::open(path, &inherited.boot, order.epoch) {
        Ok(lease) => lease,
        Err(error) => return never(launch_failed(format!("cannot read the lease: {error}")), 0),
    };
    let exit = match hook::prolog(inherited, link, order, &mut lease) {
        Ok(()) => match Notes::begin(order).and_then(|notes| around::note_hook(order).map(|()| notes)) {
            Ok(notes) => {
                let free = around::ports_are_free(order).map_err(|reason| (launch_failed(reason), 0));
                let exit =
                    match free.and_then(|()| Keeper::start(inherited, link, order, &notes, lease, held)) {
                        Ok(keeper) => {
                            let exit = keeper.run();
                            around::remove(order, link);
                            ExitRecord { end: around::judged(exit.end, order), ..exit }
                        }
                        Err((end, stderr_bytes)) => {
                            around::forget_hook(order);
                            never(end, stderr_bytes)
                        }
                    };
                notes.clear();
                exit
            }
            Err(error) => never(launch_failed(format!("cannot write the files of the task: {error}")), 0),
        },
        Err(end) => never(end, 0),
    };
    if !order.life.hooks.epilog.is_empty() {
        // First: whatever becomes of this shim now, what the task has done is done.
        let _ = record.end(&exit);
        if let Err(reason) = hook::epilog(inherited, link, order, &exit.end) {
            link.send(order.token, &ShimEvent::EpilogFailed { reason });
        }
    }
    exit
}
