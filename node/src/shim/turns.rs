//! A shim's attempts, one after the other: each from its record's first byte to its end.

use super::cage::{Held, bases_of, tidy};
use super::conclude::conclude;
use super::course;
use super::program::launch_failed;
use super::record::{OwnRecord, record_name};
use super::seats::{Next, Seat};
use super::uplink::{Inherited, Link};
use super::wire;
use rota_protocol::Token;
use rota_protocol::job::AttemptEnd;
use rota_protocol::spool::{ExitRecord, LaunchOrder, ShimEvent, ShimRecord};
use rustix::process::Pid;
use std::io;
use std::path::{Path, PathBuf};

/// Of a shim that ended while it sat.
const SAT: i32 = 71;

/// Keeps attempts. Returns the exit code of the shim: 0 when all that was to be said of the last is said or written.
pub(super) fn keep(inherited: &Inherited, token: Token, order: &[u8], seat: Option<Seat>) -> i32 {
    // In its own session nothing that is sent to the agent's terminal or group reaches it.
    let prepared = rustix::process::setsid()
        .and_then(|_| rustix::process::set_child_subreaper(Some(rustix::process::getpid())))
        .and_then(|()| rustix::thread::set_name(c"rota-shim"));
    if let Err(error) = prepared {
        return fail(inherited, token, format!("cannot prepare the shim: {error}")).code;
    }
    let mut held = Held::new(seat.is_some());
    let mut after = keep_one(inherited, token, order, &mut held);
    let mut bases = std::mem::take(&mut after.bases);
    let mut seat = seat;
    while let Some(seat) = seat.as_mut().filter(|_| after.plain) {
        match seat.next(&inherited.signals) {
            Next::Serve(token, order) => {
                after = keep_one(inherited, token, &order, &mut held);
                if !after.bases.is_empty() {
                    bases = std::mem::take(&mut after.bases);
                }
            }
            Next::End => break,
            Next::EndSat => {
                after.code = SAT;
                break;
            }
        }
    }
    tidy(&bases, true);
    after.code
}

/// What is left of an attempt that is over.
struct After {
    code: i32,
    /// The shim is as it was before: another attempt can be served.
    plain: bool,
    /// The folders of its agent's groups.
    bases: Vec<PathBuf>,
}

fn fail(inherited: &Inherited, token: Token, reason: String) -> After {
    let end = launch_failed(reason);
    inherited.tell_surely(token, &ShimEvent::Ended(ExitRecord::never_ran(token, end)));
    After { code: 0, plain: false, bases: Vec::new() }
}

fn keep_one(inherited: &Inherited, token: Token, order: &[u8], held: &mut Held) -> After {
    let order = match wire::decode_order(order) {
        Ok(order) => order,
        Err(error) => return fail(inherited, token, format!("the launch order cannot be read: {error}")),
    };
    let record = ShimRecord {
        cluster: order.cluster,
        token,
        epoch: order.epoch,
        boot: inherited.boot,
        shim_pid: Pid::as_raw(Some(rustix::process::getpid())).cast_unsigned(),
    };
    let mut record = match OwnRecord::create(Path::new(&record_name(token)), &record, order.task) {
        Ok(record) => record,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            inherited.tell_surely(token, &ShimEvent::Exists);
            return After { code: 0, plain: false, bases: Vec::new() };
        }
        Err(error) => return fail(inherited, token, format!("cannot write the attempt's record: {error}")),
    };
    let mut link = Link::new(inherited);
    let exit = course::run(inherited, &mut link, &order, &mut record, held);
    let heard = conclude(record, link, &exit);
    let plain = heard && is_plain(&order) && matches!(exit.end, AttemptEnd::Exited { .. });
    After { code: 0, plain, bases: bases_of(&order.cage) }
}

/// Nothing but a program was run for it, and nothing but the shim's one thread worked for it.
fn is_plain(order: &LaunchOrder) -> bool {
    let (life, output) = (&order.life, &order.output);
    let hooked = !life.hooks.prolog.is_empty() || !life.hooks.epilog.is_empty();
    let copied = !output.stdout.is_empty() || !output.stderr.is_empty();
    !hooked && !copied && life.session.is_none() && order.around.runtime.is_none() && output.stdin.is_empty()
}
