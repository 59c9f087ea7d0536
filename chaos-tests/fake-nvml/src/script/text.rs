//! Scripts as lines, and lines as scripts. Lines that say nothing are passed over; numbers that are none are zero.

use super::{Card, Ecc, Faults, Links, List, Process, Profile, Ramp, Remap, Script, Slice};
use std::io::{self, Write};

impl Script {
    /// The script as a file's content.
    pub(super) fn render(&self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        writeln!(out, "init={}\ndriver={}\nlibrary={}", self.init, self.driver, self.library)?;
        if let Some(count) = self.count {
            writeln!(out, "count={count}")?;
        }
        self.faults.render(&mut out)?;
        for card in &self.cards {
            card.render(&mut out)?;
        }
        Ok(out)
    }

    /// Reads a script.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut script = Self::default();
        for line in bytes.split(|b| *b == b'\n') {
            let Some(at) = line.iter().position(|b| *b == b'=') else { continue };
            let (key, value) = (String::from_utf8_lossy(&line[..at]), &line[at + 1..]);
            match (key.as_ref(), script.cards.last_mut()) {
                ("card", _) => script.cards.push(Card { uuid: value.to_vec(), ..Card::default() }),
                (key, Some(card)) => card.set(key, value),
                ("init", None) => script.init = small(value),
                ("driver", None) => script.driver = text(value),
                ("library", None) => script.library = text(value),
                ("count", None) => script.count = Some(small(value)),
                (key, None) => script.faults.set(key, value),
            }
        }
        script
    }
}

impl Faults {
    fn render(&self, out: &mut Vec<u8>) -> io::Result<()> {
        for (call, code) in &self.fail {
            writeln!(out, "fail.{call}={code}")?;
        }
        for call in &self.hang {
            writeln!(out, "hang={call}")?;
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        if key == "hang" {
            self.hang.insert(text(value));
        } else if let Some(call) = key.strip_prefix("fail.") {
            self.fail.insert(call.to_owned(), small(value));
        }
    }
}

impl Card {
    fn render(&self, out: &mut Vec<u8>) -> io::Result<()> {
        for (key, value) in [("card", &self.uuid), ("name", &self.name), ("bus", &self.bus)] {
            write!(out, "{key}=")?;
            out.extend_from_slice(value);
            out.push(b'\n');
        }
        writeln!(out, "total={}\nused={}\nbusy={}", self.total, self.used, self.busy)?;
        writeln!(out, "temperature={}\npower={}", self.temperature, self.power)?;
        writeln!(out, "capability={}\nmig={}", self.capability, u8::from(self.mig))?;
        let numbers = [
            ("minor", self.minor),
            ("power_limit", self.power_limit),
            ("recovery", self.recovery),
            ("processes", self.processes_said),
            ("nvlink", self.nvlink),
            ("switch", self.switch),
            ("slots", self.slots),
        ];
        for (key, number) in numbers {
            if let Some(number) = number {
                writeln!(out, "{key}={number}")?;
            }
        }
        self.render_signs(out)?;
        for p in &self.processes {
            let bytes = p.bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
            writeln!(out, "process={} {bytes} {}", p.pid, list_name(p.list))?;
        }
        for s in &self.slices {
            out.extend_from_slice(b"slice=");
            out.extend_from_slice(&s.uuid);
            writeln!(out, " {} {} {} {}", s.bytes, s.gpu_slices, s.compute_slices, s.profile)?;
        }
        for p in &self.profiles {
            writeln!(out, "profile={} {} {} {}", p.number, p.slices, p.mib, p.count)?;
        }
        self.faults.render(out)
    }

    fn render_signs(&self, out: &mut Vec<u8>) -> io::Result<()> {
        if let Some((now, most)) = self.clock {
            writeln!(out, "clock={now} {most}")?;
        }
        if let Some(bits) = self.throttle {
            writeln!(out, "throttle={bits}")?;
        }
        if let Some(e) = self.ecc {
            let (v, a) = (e.volatile_uncorrected, e.aggregate_uncorrected);
            writeln!(out, "ecc={} {v} {} {a}", e.volatile_corrected, e.aggregate_corrected)?;
        }
        if let Some(r) = self.ecc_ramp {
            writeln!(out, "ecc_ramp={} {} {}", r.corrected_per_s, r.uncorrected_per_s, r.since_ms)?;
        }
        if let Some(r) = self.remap {
            let (pending, failed) = (u8::from(r.pending), u8::from(r.failed));
            writeln!(out, "remap={} {} {pending} {failed}", r.corrected, r.uncorrected)?;
        }
        if let Some(l) = self.links {
            writeln!(out, "links={} {} {}", l.count, l.up, l.errors)?;
        }
        for (number, xid) in &self.xids {
            writeln!(out, "xid={number} {xid}")?;
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        match key {
            "name" => self.name = value.to_vec(),
            "bus" => self.bus = value.to_vec(),
            "minor" => self.minor = Some(small(value)),
            "total" => self.total = number(value),
            "used" => self.used = number(value),
            "busy" => self.busy = small(value),
            "temperature" => self.temperature = small(value),
            "power" => self.power = small(value),
            "power_limit" => self.power_limit = Some(small(value)),
            "capability" => self.capability = small(value),
            "recovery" => self.recovery = Some(small(value)),
            "processes" => self.processes_said = Some(small(value)),
            "nvlink" => self.nvlink = Some(small(value)),
            "switch" => self.switch = Some(small(value)),
            "mig" => self.mig = number(value) != 0,
            "slots" => self.slots = Some(small(value)),
            "throttle" => self.throttle = Some(number(value)),
            _ => self.set_words(key, value),
        }
    }

    /// Keys with several words.
    fn set_words(&mut self, key: &str, value: &[u8]) {
        let words: Vec<&[u8]> = value.split(|b| *b == b' ').collect();
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let long = |at: usize| number(word(at));
        let short = |at: usize| small(word(at));
        match key {
            "clock" => self.clock = Some((short(0), short(1))),
            "ecc" => {
                self.ecc = Some(Ecc {
                    volatile_corrected: long(0),
                    volatile_uncorrected: long(1),
                    aggregate_corrected: long(2),
                    aggregate_uncorrected: long(3),
                });
            }
            "ecc_ramp" => {
                self.ecc_ramp =
                    Some(Ramp { corrected_per_s: long(0), uncorrected_per_s: long(1), since_ms: long(2) });
            }
            "remap" => {
                let (corrected, uncorrected) = (short(0), short(1));
                self.remap =
                    Some(Remap { corrected, uncorrected, pending: long(2) != 0, failed: long(3) != 0 });
            }
            "links" => self.links = Some(Links { count: short(0), up: short(1), errors: long(2) }),
            "xid" => self.xids.push((long(0), long(1))),
            "process" => {
                let bytes = (word(1) != b"-").then(|| long(1));
                self.processes.push(Process { pid: short(0), bytes, list: list_of(word(2)) });
            }
            "slice" => self.slices.push(Slice {
                uuid: word(0).to_vec(),
                bytes: long(1),
                gpu_slices: short(2),
                compute_slices: short(3),
                profile: text(word(4)),
            }),
            "profile" => self.profiles.push(Profile {
                number: short(0),
                slices: short(1),
                mib: long(2),
                count: short(3),
            }),
            _ => self.faults.set(key, value),
        }
    }
}

fn list_name(list: List) -> &'static str {
    match list {
        List::Compute => "compute",
        List::Graphics => "graphics",
        List::Mps => "mps",
    }
}

fn list_of(name: &[u8]) -> List {
    match name {
        b"graphics" => List::Graphics,
        b"mps" => List::Mps,
        _ => List::Compute,
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn small(value: &[u8]) -> u32 {
    u32::try_from(number(value)).unwrap_or(u32::MAX)
}
