//! What the reconciler hears of processes that cannot be ended and of failed epilogs, passed on to what the host offers.

use crate::logic::cards::Cards;
use crate::logic::dirt::Dirt;
use crate::node::Node;
use rota_protocol::Token;

/// Processes of an attempt are left although they were killed.
pub(super) fn stuck(node: &Node, cards: &Cards, token: Token, left: u32) {
    tracing::error!(%token, left, "processes are left although they were killed; their devices stay held");
    metrics::counter!(crate::meters::ATTEMPTS_STUCK).increment(1);
    let devices = cards.under(token);
    repaint(node, |dirt| dirt.stuck(token, devices, left));
}

/// The host's epilog did not do its work after an attempt.
pub(super) fn epilog_failed(node: &Node, cards: &Cards, token: Token, reason: &str) {
    metrics::counter!(crate::meters::EPILOGS_FAILED).increment(1);
    let devices = cards.under(token);
    repaint(node, |dirt| dirt.epilog_failed(token, devices, reason));
}

/// The last process of an attempt is gone.
pub(super) fn gone(node: &Node, token: Token) {
    repaint(node, |dirt| dirt.gone(token));
}

/// Changes what is dirty; what the host offers is looked at again at once if that is news.
fn repaint(node: &Node, change: impl FnOnce(&mut Dirt) -> bool) {
    if change(&mut node.dirt()) {
        node.doors.devices.send(super::devices::Msg::Look);
    }
}
