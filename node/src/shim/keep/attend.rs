//! What a keeper tells the agent, and what it does for its sessions' sake.

use super::Keeper;
use crate::io::clock::boottime_ms;
use crate::shim::sessions::{Around, Wish};
use crate::shim::uplink::Sent;
use rota_protocol::spool::ShimEvent;
use rustix::process::Pid;

/// Least time between two messages about grown output, in ms; the first growth after a pause is told at once.
const OUTPUT_GAP_MS: u64 = 50;
/// The same for what a person sees while typing, in ms.
const TYPED_GAP_MS: u64 = 5;

impl Keeper<'_, '_> {
    /// What sessions want for the time being.
    pub(super) fn attend_sessions(&mut self, now_ms: u64) {
        let (grace_ms, shown) = (u64::from(self.order.grace_ms), self.streams.lens()[0]);
        match self.sessions.on_time(&self.processes, grace_ms, shown, now_ms) {
            None => {}
            Some(Wish::Say(line)) => {
                self.streams.say(&line);
                self.sessions.said(self.streams.lens()[0]);
            }
            Some(Wish::EndIdle) => {
                let what = self.life.idle(now_ms);
                self.carry_out(what, now_ms);
            }
            Some(Wish::HangUp) => {
                let what = self.life.hang_up(now_ms);
                self.carry_out(what, now_ms);
            }
        }
    }

    pub(super) fn sessions_ready(&mut self, ready: &[bool]) {
        let around = Around {
            order: self.order,
            oom_default: self.inherited.oom_default,
            groups: &self.groups,
            processes: &mut self.processes,
            buffer: &mut self.buffer,
            open: self.life.is_running(),
            now_ms: boottime_ms(),
            shown: self.streams.lens()[0],
        };
        self.sessions.ready(ready, around);
    }

    pub(super) fn output_grew(&self) -> bool {
        self.output_told != self.streams.lens()
    }

    /// Tells what is due. A message that finds nobody is not repeated: whoever attaches later hears all of it.
    pub(super) fn tell_due(&mut self, now_ms: u64) {
        if self.started_due_ms.is_some_and(|at| now_ms >= at) {
            let event = ShimEvent::Started {
                shim_pid: Pid::as_raw(Some(rustix::process::getpid())).cast_unsigned(),
                task_pid: Pid::as_raw(Some(self.processes.main())).cast_unsigned(),
            };
            if self.link.send(self.token, &event) == Sent::Full {
                return;
            }
            self.started_due_ms = None;
        }
        if self.output_grew() && now_ms >= self.output_due_ms {
            let [stdout, stderr] = self.streams.lens();
            if self.link.send(self.token, &ShimEvent::Output { stdout, stderr }) == Sent::Full {
                return;
            }
            self.output_told = [stdout, stderr];
            self.output_due_ms = now_ms + if self.sessions.has_main() { TYPED_GAP_MS } else { OUTPUT_GAP_MS };
        }
        if self.sessions.news_due(now_ms) && self.link.send(self.token, &ShimEvent::Session) != Sent::Full {
            self.sessions.told(now_ms);
        }
    }
}
