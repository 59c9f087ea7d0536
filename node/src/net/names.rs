//! What a name and an address may look like.

use super::identity::{ADDR_BYTES_MAX, IdentityError};
use rota_protocol::limits::NAME_BYTES_MAX;

/// Checks the name of a host or a cluster.
pub(super) fn check_name(what: &'static str, name: &str) -> Result<(), IdentityError> {
    let tail_ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let first_ok = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if first_ok && name.len() <= NAME_BYTES_MAX && name.bytes().all(tail_ok) {
        return Ok(());
    }
    let name = name.chars().take(NAME_BYTES_MAX).collect();
    Err(IdentityError::Name { what, name })
}

/// Whether a text can be an address: `host:port`, without anything that needs quoting.
pub fn is_addr(addr: &str) -> bool {
    let plain =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'[' | b']' | b'%');
    addr.len() <= ADDR_BYTES_MAX
        && addr.bytes().all(plain)
        && addr
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0))
}
