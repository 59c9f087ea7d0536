//! Which cards of a chosen host an ask takes.

use super::{Fill, Shape};

/// The indices in `Fill::cards` of what the ask takes: for a share the card that was scored, for whole cards the
/// first ones that are free enough. Fewer than asked come out only if the ask has no room there.
pub fn taken<'a>(
    fill: &Fill<'a>,
    shape: &Shape,
    card: Option<usize>,
) -> impl Iterator<Item = usize> + use<'a> {
    let (milli, cards) = (shape.card_milli, if card.is_some() { 0 } else { shape.cards as usize });
    let free = fill.cards.iter().enumerate().filter(move |(_, free)| u32::from(**free) >= milli);
    card.into_iter().chain(free.map(|(index, _)| index).take(cards))
}

/// The fullest card that still has room for a share, the first of equals.
pub(super) fn fullest(fill: &Fill<'_>, shape: &Shape) -> Option<usize> {
    if !shape.is_share() {
        return None;
    }
    let with_room = fill.cards.iter().enumerate().filter(|(_, free)| u32::from(**free) >= shape.card_milli);
    with_room.min_by_key(|(index, free)| (**free, *index)).map(|(index, _)| index)
}
