//! Deaths on order, for the chaos tests: `ROTA_FAIL_ACTOR=scheduler:2` makes the actor of that kind panic at its first
//! two messages. Without the variable this is one comparison per message. And starts that take long:
//! `ROTA_STALL_START=shims:7000` stands still for 7 s before the shims are looked for.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Names a kind of actor and how often it dies.
pub const FAIL_ACTOR_ENV: &str = "ROTA_FAIL_ACTOR";

/// Names a step of the agent's start and by how many ms it takes longer.
pub const STALL_ENV: &str = "ROTA_STALL_START";

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

/// Stands still here if that was ordered.
pub(crate) async fn stall(step: &str) {
    let order = std::env::var(STALL_ENV).ok().and_then(|text| parse(&text));
    if let Some((_, ms)) = order.filter(|(wanted, _)| wanted == step) {
        tokio::time::sleep(Duration::from_millis(ms.into_inner().into())).await;
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
