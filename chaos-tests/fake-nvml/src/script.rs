//! The text that says what the fake library answers.
//!
//! ```text
//! init=0                       what nvmlInit returns; 0 is success
//! driver=580.95.05
//! card=GPU-a                   starts a card; the keys below belong to it
//! name=NVIDIA H100 80GB HBM3
//! bus=00000000:3B:00.0
//! total=85520809984            bytes
//! used=4194304                 bytes
//! busy=7                       percent
//! temperature=33               degrees Celsius
//! power=71000                  mW
//! capability=90                compute capability in tenths
//! slice=MIG-a1 10737418240     a MIG slice and its bytes; a card with slices is in MIG mode
//! fail.memory=15               the return code of one call, or of all with `fail.*`
//! hang=temperature             a call that does not return as long as this line is here, or all with `*`
//! ```
//!
//! Calls are `handle uuid name bus memory utilization temperature power mig capability`. Values are bytes up to the line's end.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::{fs, io};

/// Return codes of the C interface that scripts use.
pub mod code {
    /// Success.
    pub const SUCCESS: u32 = 0;
    /// The argument names nothing.
    pub const INVALID_ARGUMENT: u32 = 2;
    /// The card cannot do this.
    pub const NOT_SUPPORTED: u32 = 3;
    /// Nothing of this name.
    pub const NOT_FOUND: u32 = 6;
    /// The caller's buffer is too small.
    pub const INSUFFICIENT_SIZE: u32 = 7;
    /// The kernel module is not loaded.
    pub const DRIVER_NOT_LOADED: u32 = 9;
    /// The card fell off the bus.
    pub const GPU_IS_LOST: u32 = 15;
    /// The card must be reset.
    pub const RESET_REQUIRED: u32 = 16;
    /// Kernel module and library differ.
    pub const LIB_RM_VERSION_MISMATCH: u32 = 18;
    /// Anything.
    pub const UNKNOWN: u32 = 999;
}

/// What the library answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// Return code of the start.
    pub init: u32,
    /// The driver's version.
    pub driver: String,
    /// The cards, in the driver's order.
    pub cards: Vec<Card>,
}

/// One card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card {
    /// Its UUID.
    pub uuid: Vec<u8>,
    /// Its model.
    pub name: Vec<u8>,
    /// Its PCI address.
    pub bus: Vec<u8>,
    /// Memory, in bytes.
    pub total: u64,
    /// Memory in use, in bytes.
    pub used: u64,
    /// Busy share, in percent.
    pub busy: u32,
    /// In degrees Celsius.
    pub temperature: u32,
    /// In mW.
    pub power: u32,
    /// Compute capability in tenths.
    pub capability: u32,
    /// MIG slices: UUID and memory in bytes.
    pub slices: Vec<(Vec<u8>, u64)>,
    /// Return code by call.
    pub fail: BTreeMap<String, u32>,
    /// The call that does not return.
    pub hang: Option<String>,
}

impl Card {
    /// A healthy card of 80 GiB.
    #[must_use]
    pub fn new(uuid: &str) -> Self {
        Self {
            uuid: uuid.into(),
            name: b"NVIDIA H100 80GB HBM3".to_vec(),
            bus: b"00000000:3B:00.0".to_vec(),
            total: 80 << 30,
            used: 4 << 20,
            busy: 7,
            temperature: 33,
            power: 71_000,
            capability: 90,
            ..Self::default()
        }
    }

    /// The same card with a call that fails.
    #[must_use]
    pub fn failing(mut self, call: &str, code: u32) -> Self {
        self.fail.insert(call.to_owned(), code);
        self
    }

    /// The same card with a call that does not return.
    #[must_use]
    pub fn hanging(mut self, call: &str) -> Self {
        self.hang = Some(call.to_owned());
        self
    }

    /// The return code that the script gives a call.
    #[must_use]
    pub fn code_of(&self, call: &str) -> u32 {
        self.fail.get(call).or_else(|| self.fail.get("*")).copied().unwrap_or(code::SUCCESS)
    }

    /// Whether the script lets a call hang.
    #[must_use]
    pub fn hangs_in(&self, call: &str) -> bool {
        self.hang.as_deref().is_some_and(|hang| hang == call || hang == "*")
    }
}

impl Script {
    /// A library that starts, with these cards.
    #[must_use]
    pub fn of(cards: Vec<Card>) -> Self {
        Self { init: code::SUCCESS, driver: "580.95.05".to_owned(), cards }
    }

    /// Writes the script so that a reader sees the old one or the new one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("new");
        fs::write(&beside, self.render()?)?;
        fs::rename(beside, path)
    }

    fn render(&self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        writeln!(out, "init={}\ndriver={}", self.init, self.driver)?;
        let mut line = |key: &str, value: &[u8]| {
            out.extend_from_slice(key.as_bytes());
            out.push(b'=');
            out.extend_from_slice(value);
            out.push(b'\n');
        };
        for card in &self.cards {
            line("card", &card.uuid);
            line("name", &card.name);
            line("bus", &card.bus);
            line("total", card.total.to_string().as_bytes());
            line("used", card.used.to_string().as_bytes());
            line("busy", card.busy.to_string().as_bytes());
            line("temperature", card.temperature.to_string().as_bytes());
            line("power", card.power.to_string().as_bytes());
            line("capability", card.capability.to_string().as_bytes());
            for (uuid, bytes) in &card.slices {
                line("slice", &[uuid, b" ".as_slice(), bytes.to_string().as_bytes()].concat());
            }
            for (call, code) in &card.fail {
                line(&format!("fail.{call}"), code.to_string().as_bytes());
            }
            if let Some(call) = &card.hang {
                line("hang", call.as_bytes());
            }
        }
        Ok(out)
    }

    /// Reads a script. Lines that say nothing are passed over; numbers that are none are zero.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut script = Self::default();
        for line in bytes.split(|b| *b == b'\n') {
            let Some(at) = line.iter().position(|b| *b == b'=') else {
                continue;
            };
            let (key, value) = (String::from_utf8_lossy(&line[..at]), &line[at + 1..]);
            match (key.as_ref(), script.cards.last_mut()) {
                ("card", _) => script.cards.push(Card { uuid: value.to_vec(), ..Card::default() }),
                ("init", None) => script.init = small(value),
                ("driver", None) => script.driver = String::from_utf8_lossy(value).into_owned(),
                (key, Some(card)) => card.set(key, value),
                (_, None) => {}
            }
        }
        script
    }
}

impl Card {
    fn set(&mut self, key: &str, value: &[u8]) {
        match key {
            "name" => self.name = value.to_vec(),
            "bus" => self.bus = value.to_vec(),
            "total" => self.total = number(value),
            "used" => self.used = number(value),
            "busy" => self.busy = small(value),
            "temperature" => self.temperature = small(value),
            "power" => self.power = small(value),
            "capability" => self.capability = small(value),
            "slice" => {
                let at = value.iter().position(|b| *b == b' ').unwrap_or(value.len());
                self.slices.push((value[..at].to_vec(), number(&value[(at + 1).min(value.len())..])));
            }
            "hang" => self.hang = Some(String::from_utf8_lossy(value).into_owned()),
            other => {
                if let Some(call) = other.strip_prefix("fail.") {
                    self.fail.insert(call.to_owned(), small(value));
                }
            }
        }
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn small(value: &[u8]) -> u32 {
    u32::try_from(number(value)).unwrap_or(u32::MAX)
}
