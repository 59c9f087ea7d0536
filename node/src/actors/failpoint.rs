//! Deaths on order, for the chaos tests: `ROTA_FAIL_ACTOR=scheduler:2` makes the actor of that kind panic at its first
//! two messages. Without the variable this is one comparison per message.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a kind of actor and how often it dies.
pub const FAIL_ACTOR_ENV: &str = "ROTA_FAIL_ACTOR";

static ORDER: OnceLock<Option<(String, AtomicU32)>> = OnceLock::new();

/// Dies here if that was ordered.
///
/// # Panics
/// On order only.
pub fn hit(kind: &str) {
    let order = ORDER.get_or_init(|| parse(&std::env::var(FAIL_ACTOR_ENV).ok()?));
    if let Some((wanted, left)) = order
        && wanted == kind
        && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    {
        panic!("ordered to die");
    }
}

fn parse(text: &str) -> Option<(String, AtomicU32)> {
    let (kind, times) = text.split_once(':')?;
    Some((kind.to_owned(), AtomicU32::new(times.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_names_a_kind_and_a_number() {
        let (kind, times) = parse("scheduler:2").unwrap();
        assert_eq!((kind.as_str(), times.into_inner()), ("scheduler", 2));
        assert!(parse("scheduler").is_none() && parse("scheduler:x").is_none());
    }
}
