//! Telling systemd how the service does: `READY=1`, `STOPPING=1`, `WATCHDOG=1` as datagrams to `NOTIFY_SOCKET`. Nothing
//! here fails the agent: without systemd it says nothing, and a socket that does not answer is a warning.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The line to systemd, or none.
#[derive(Debug, Default)]
pub struct Notify {
    line: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// What systemd set in the environment.
    #[must_use]
    pub fn from_env() -> Self {
        Self::new(
            std::env::var_os("NOTIFY_SOCKET"),
            std::env::var_os("WATCHDOG_USEC"),
            std::env::var_os("WATCHDOG_PID"),
        )
    }

    /// From the three variables; what is odd is warned of and ignored.
    #[must_use]
    pub fn new(
        socket: Option<OsString>,
        watchdog_usec: Option<OsString>,
        watchdog_pid: Option<OsString>,
    ) -> Self {
        let line = socket.filter(|name| !name.is_empty()).and_then(|name| match open(&name) {
            Ok(line) => Some(line),
            Err(error) => {
                tracing::warn!(socket = ?name, %error, "cannot reach the service manager");
                None
            }
        });
        let watchdog = watchdog(watchdog_usec.as_deref(), watchdog_pid.as_deref());
        Self { watchdog: watchdog.filter(|_| line.is_some()), line }
    }

    /// The service is ready for work.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// The service is about to end.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// One sign of life. Only to be sent by whoever knows that the parts behind it are alive.
    pub fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// One line for `systemctl status`.
    pub fn status(&self, text: &str) {
        self.say(&format!("STATUS={}", text.replace(['\n', '\r'], " ")));
    }

    /// How often to call [`Self::alive`]: half of what systemd waits. `None` when it does not wait.
    #[must_use]
    pub fn alive_every(&self) -> Option<Duration> {
        self.watchdog.map(|waits| waits / 2)
    }

    fn say(&self, text: &str) {
        if let Some((socket, manager)) = &self.line
            && let Err(error) = socket.send_to_addr(text.as_bytes(), manager)
        {
            tracing::warn!(%error, text, "the service manager does not listen");
        }
    }
}

fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let manager = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path nor an abstract name"));
        }
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not hold the agent up.
    socket.set_nonblocking(true)?;
    Ok((socket, manager))
}

fn watchdog(usec: Option<&OsStr>, pid: Option<&OsStr>) -> Option<Duration> {
    let number = |text: &OsStr| text.to_str().and_then(|text| text.parse::<u64>().ok());
    let usec = usec.filter(|text| !text.is_empty())?;
    let Some(micros) = number(usec).filter(|micros| *micros > 0) else {
        tracing::warn!(value = ?usec, "WATCHDOG_USEC is not a number of microseconds");
        return None;
    };
    // Inherited from a parent that the watchdog was meant for.
    let meant_for_other = pid.is_some_and(|pid| number(pid) != Some(u64::from(std::process::id())));
    (!meant_for_other).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(manager: &UnixDatagram) -> String {
        let mut buffer = [0u8; 256];
        let length = manager.recv(&mut buffer).expect("a datagram");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn a_path_and_an_abstract_name_both_hear_everything() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("bindable");
        let name = format!("rota-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("short");
        let by_name = UnixDatagram::bind_addr(&address).expect("bindable");
        for (manager, socket) in [(by_path, path.into_os_string()), (by_name, format!("@{name}").into())] {
            let notify = Notify::new(Some(socket), Some("30000000".into()), None);
            notify.ready();
            notify.status("leads\nREADY=0");
            notify.alive();
            notify.stopping();
            let all: Vec<String> = (0..4).map(|_| heard(&manager)).collect();
            assert_eq!(all, ["READY=1", "STATUS=leads READY=0", "WATCHDOG=1", "STOPPING=1"]);
            assert_eq!(notify.alive_every(), Some(Duration::from_secs(15)));
        }
    }

    #[test]
    fn a_bogus_socket_or_none_holds_nobody_up() {
        let long = "/".to_owned() + &"x".repeat(300);
        for bogus in ["", "relative", "/nonexistent/notify", "@", long.as_str()] {
            let notify = Notify::new(Some(bogus.into()), Some("1000".into()), None);
            notify.ready();
            notify.alive();
        }
        let none = Notify::new(None, Some("1000000".into()), None);
        none.ready();
        assert_eq!(none.alive_every(), None, "without a socket there is nobody to tell");
    }

    #[test]
    fn an_odd_watchdog_is_none() {
        let watch = |usec: &str, pid: Option<&str>| watchdog(Some(usec.as_ref()), pid.map(AsRef::as_ref));
        let own = std::process::id().to_string();
        assert_eq!(watch("10", None), Some(Duration::from_micros(10)));
        assert_eq!(watch("10", Some(&own)), Some(Duration::from_micros(10)));
        for (usec, pid) in
            [("", None), ("0", None), ("-1", None), ("1s", None), ("10", Some("1")), ("10", Some(""))]
        {
            assert_eq!(watch(usec, pid), None, "{usec:?} {pid:?}");
        }
        assert_eq!(watchdog(None, None), None);
        assert_eq!(watchdog(Some(OsStr::from_bytes(b"\xff")), None), None);
    }
}
