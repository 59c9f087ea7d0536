//! Lines of the kernel's log: which of them are the driver's Xids, and whether some were thrown away unread. Total over
//! whatever stands in a line.

use std::fmt;

/// Longest line that is looked at, in bytes: the kernel's own records are no longer.
pub const LINE_BYTES_MAX: usize = 8_192;
/// Longest text of the driver that is kept, in bytes.
const TEXT_BYTES_MAX: usize = 200;

/// Where a card sits: PCI domain, bus, device. The function is not told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bus {
    domain: u32,
    bus: u8,
    device: u8,
}

impl Bus {
    /// From `0000:3b:00`, `00000000:3B:00.0` or `3b:00.0`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.split('.').next()?;
        let parts: Vec<&str> = text.split(':').collect();
        let (domain, bus, device) = match parts[..] {
            [domain, bus, device] => (domain, bus, device),
            [bus, device] => ("0", bus, device),
            _ => return None,
        };
        let fair = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
        if ![domain, bus, device].into_iter().all(fair) {
            return None;
        }
        Some(Self {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
        })
    }
}

impl fmt::Display for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

/// One Xid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XidLine {
    /// Of which card.
    pub bus: Bus,
    /// Which.
    pub xid: u32,
    /// The process that the driver names.
    pub pid: Option<u32>,
    /// The driver's own words.
    pub text: String,
}

/// What one record of the kernel's log is to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number, where it has one: they are given without a gap.
    pub sequence: Option<u64>,
    /// The Xid in it.
    pub xid: Option<XidLine>,
}

/// Reads one line of `/dev/kmsg`, or of a plain log.
#[must_use]
pub fn read(line: &[u8]) -> Record {
    let line = &line[..line.len().min(LINE_BYTES_MAX)];
    let text = String::from_utf8_lossy(line);
    let (sequence, message) = match text.split_once(';') {
        Some((head, message)) => match sequence(head) {
            Some(number) => (Some(number), message),
            None => (None, &*text),
        },
        None => (None, &*text),
    };
    Record { sequence, xid: xid(message) }
}

/// `4,17,1234567,-`: priority, sequence, microseconds, flags.
fn sequence(head: &str) -> Option<u64> {
    let mut fields = head.split(',');
    fields.next()?.parse::<u64>().ok()?;
    let number = fields.next()?.parse().ok()?;
    fields.next()?.parse::<u64>().ok()?;
    Some(number)
}

/// `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.`
fn xid(message: &str) -> Option<XidLine> {
    // Only at the beginning of the message, a time in brackets aside: a program that writes such words elsewhere is
    // no driver.
    let message = message.trim_start();
    let message = match message.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.1.trim_start(),
        None => message,
    };
    let rest = message.strip_prefix("NVRM: Xid (PCI:")?;
    let (bus, rest) = rest.split_once("):")?;
    let bus = Bus::parse(bus.trim())?;
    let rest = rest.trim_start();
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let xid = rest[..digits].parse().ok()?;
    let rest = rest[digits..].trim_start_matches([',', ' ']);
    let pid = rest.split(',').find_map(|field| {
        let value = field.trim().strip_prefix("pid=")?;
        value.trim_matches('\'').parse().ok()
    });
    Some(XidLine { bus, xid, pid, text: words(rest) })
}

/// Printable, and not too long.
fn words(text: &str) -> String {
    let mut kept = String::new();
    for letter in text.trim().chars().filter(|letter| !letter.is_control()) {
        if kept.len() + letter.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        kept.push(letter);
    }
    kept
}

/// What the driver advises, as an Xid 154 says it in words.
#[must_use]
pub fn advice(text: &str) -> Option<&'static str> {
    // `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`
    let (_, to) = text.rsplit_once(" to ")?;
    let known = [
        ("Node Reboot", "reboot"),
        ("Drain and Reset", "reset"),
        ("GPU Reset", "reset"),
        ("Drain P2P", "fabric"),
        ("None", "none"),
    ];
    known.into_iter().find(|(words, _)| to.contains(words)).map(|(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(text: &str) -> XidLine {
        read(text.as_bytes()).xid.unwrap_or_else(|| panic!("no Xid: {text}"))
    }

    #[test]
    fn the_drivers_lines_are_read_as_it_writes_them() {
        let full = "4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.";
        let found = line(full);
        assert_eq!((found.bus.to_string().as_str(), found.xid, found.pid), ("0000:3b:00", 79, Some(4_711)));
        assert!(found.text.contains("fallen off"));
        assert_eq!(read(full.as_bytes()).sequence, Some(1_234));
        for (text, xid, pid) in [
            ("NVRM: Xid (PCI:0000:3b:00): 31, pid=12, name=a, Ch 00000008", 31, Some(12)),
            ("NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, lost", 79, None),
            ("NVRM: Xid (PCI:0000:3b:00.0): 48", 48, None),
            ("NVRM: Xid (PCI:0000:3b:00): 43, Ch 00000010, pid=9", 43, Some(9)),
            ("[  123.456789] NVRM: Xid (PCI:0000:3b:00): 13, pid='77', name=x", 13, Some(77)),
        ] {
            let found = line(text);
            assert_eq!((found.bus, found.xid, found.pid), (Bus::parse("0:3b:0").expect("fair"), xid, pid));
        }
        assert_eq!(Bus::parse("00000000:3B:00.0"), Bus::parse("0000:3b:00"));
    }

    #[test]
    fn what_is_no_xid_is_none() {
        for text in [
            "",
            ";",
            "4,1,2,-;",
            "4,1,2,-;usb 1-1: new device",
            " SUBSYSTEM=pci",
            "6,1,2,-;python says NVRM: Xid (PCI:0000:3b:00): 79",
            "NVRM: Xid (PCI:0000:3b:00): ",
            "NVRM: Xid (PCI:0000:3b:00): x79",
            "NVRM: Xid (PCI:0000:3b:00): 99999999999",
            "NVRM: Xid (PCI:zz:3b:00): 79",
            "NVRM: Xid (PCI:0000:3b:00:11): 79",
            "NVRM: Xid (PCI:0000:+3:00): 79",
            "[ NVRM: Xid (PCI:0000:3b:00): 79",
        ] {
            assert_eq!(read(text.as_bytes()).xid, None, "{text}");
        }
        assert_eq!(read(b"1,x,3;NVRM: Xid (PCI:0000:3b:00): 79").xid, None, "no record's head, no message");
    }

    #[test]
    fn advice_is_the_last_word() {
        let changed = |to| format!("GPU recovery action changed from 0x1 (GPU Reset Required) to {to}");
        assert_eq!(advice(&changed("0x2 (Node Reboot Required)")), Some("reboot"));
        assert_eq!(advice(&changed("0x0 (None)")), Some("none"));
        assert_eq!(advice(&changed("0x3 (Drain P2P)")), Some("fabric"));
        assert_eq!(advice(&changed("0x4 (Drain and Reset)")), Some("reset"));
        assert_eq!(advice(&changed("0x9 (Something)")), None);
        assert_eq!(advice("nothing of it"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }

        #[test]
        fn any_end_of_a_line_is_read(tail in "\\PC{0,80}", cut in 0..60_usize) {
            let head = "4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=";
            let text = format!("{}{tail}", &head[..cut.min(head.len())]);
            if let Some(found) = read(text.as_bytes()).xid {
                prop_assert!(found.text.len() <= TEXT_BYTES_MAX);
            }
            let _ = advice(&tail);
        }
    }
}
