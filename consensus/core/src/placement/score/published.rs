//! The policies that Weng et al. (USENIX ATC 2023) compare, with the truncation to whole numbers that their results
//! depend on: it makes ties, and ties go to the first host. Each gives 0..=100.

use super::{CARD_MILLI, Demand, Fill, Scored, Shape, Standing, cards, fragment};

/// The largest host of their cluster, by which scores are normalised.
const CPUS_MILLI_MOST: i64 = 128_000;
/// Likewise, in milli of a card.
const GPU_MILLI_MOST: i64 = 8_000;
/// `CPUS_MILLI_MOST / GPU_MILLI_MOST`, for one denominator.
const CPUS_PER_GPU: i64 = CPUS_MILLI_MOST / GPU_MILLI_MOST;

/// Where `100 x sigmoid(x)` reaches 51, 52, .. 99: `ln(k / (100 - k))` for x in cards, in milli x ppm.
const SIGMOID_STEPS: [i64; 49] = [
    40_005_335,
    80_042_708,
    120_144_312,
    160_342_650,
    200_670_695,
    241_162_057,
    281_851_152,
    322_773_392,
    363_965_377,
    405_465_108,
    447_312_218,
    489_548_225,
    532_216_814,
    575_364_145,
    619_039_208,
    663_294_217,
    708_185_058,
    753_771_802,
    800_119_300,
    847_297_860,
    895_384_047,
    944_461_609,
    994_622_575,
    1_045_968_555,
    1_098_612_289,
    1_152_679_510,
    1_208_311_206,
    1_265_666_373,
    1_324_925_415,
    1_386_294_361,
    1_450_010_176,
    1_516_347_489,
    1_585_627_264,
    1_658_228_077,
    1_734_601_055,
    1_815_289_967,
    1_900_958_761,
    1_992_430_165,
    2_090_741_097,
    2_197_224_577,
    2_313_634_929,
    2_442_347_035,
    2_586_689_344,
    2_751_535_313,
    2_944_438_979,
    3_178_053_830,
    3_476_098_690,
    3_891_820_298,
    4_595_119_850,
];

/// Least new fragment, `int(100 x sigmoid((before - after) / card))`.
pub(super) fn fgd(fill: &Fill<'_>, standing: &Standing, shape: &Shape, demand: &Demand) -> Scored {
    let (score, card) = fragment::descent(fill, standing, shape, demand, |change, _| sigmoid_percent(change));
    Scored { score, card }
}

/// `int(100 x (1 - half the share of CPU left - half the share of GPU left))`, after the placement.
pub(super) fn best_fit(fill: &Fill<'_>, shape: &Shape) -> Scored {
    let cpus_left = i64::from(fill.cpus_milli_free) - i64::from(shape.cpus_milli);
    let gpu_left = free_milli(fill) - shape.gpu_milli() as i64;
    let whole = 2 * CPUS_MILLI_MOST;
    let score = 100 * (whole - cpus_left - CPUS_PER_GPU * gpu_left) / whole;
    Scored { score, card: cards::fullest(fill, shape) }
}

/// `int(100 x (1 - (cpu left x cpu asked + gpu left x gpu asked) / 2))`, each by the largest host, before the placement.
pub(super) fn dot_product(fill: &Fill<'_>, shape: &Shape) -> Scored {
    let cpus = i64::from(fill.cpus_milli_free) * i64::from(shape.cpus_milli);
    let gpu = free_milli(fill) * shape.gpu_milli() as i64;
    let whole = 2 * CPUS_MILLI_MOST * CPUS_MILLI_MOST;
    let score = 100 * (whole - cpus - CPUS_PER_GPU * CPUS_PER_GPU * gpu) / whole;
    Scored { score, card: cards::fullest(fill, shape) }
}

/// Used cards first (50..=100, fuller better), then free cards of used hosts (33..=50), then empty hosts.
pub(super) fn packing(fill: &Fill<'_>, shape: &Shape) -> Scored {
    let card = cards::fullest(fill, shape);
    if shape.cards == 0 {
        return Scored { score: 0, card };
    }
    let whole = fill.cards.iter().filter(|free| is_whole(**free)).count();
    if whole == fill.cards.len() {
        let whole = whole as i64;
        return Scored { score: (33 - whole).max(whole), card };
    }
    // The fullest cards that do. A share takes one of them, and only whole cards are asked for in numbers.
    let (mut of_whole, mut percent_free) = (0, 0);
    if let Some(index) = card {
        of_whole = i64::from(is_whole(fill.cards[index]));
        percent_free = i64::from(fill.cards[index]) * 100 / i64::from(CARD_MILLI);
    } else {
        for index in cards::taken(fill, shape, None) {
            of_whole += i64::from(is_whole(fill.cards[index]));
            percent_free += i64::from(fill.cards[index]) * 100 / i64::from(CARD_MILLI);
        }
    }
    let score = if of_whole > 0 { (50 - of_whole).max(33) } else { (100 - percent_free / 10).max(50) };
    Scored { score, card }
}

/// In bands of 25: hosts with only this kind of work, with this and others, empty ones, with others only; in a band the
/// fuller first.
pub(super) fn clustering(fill: &Fill<'_>, shape: &Shape) -> Scored {
    let card = cards::fullest(fill, shape);
    let class = shape.class();
    if class == 0 {
        return Scored { score: 0, card };
    }
    let band = if fill.classes & class != 0 {
        if fill.classes == class { 75 } else { 50 }
    } else if fill.classes == 0 {
        25
    } else {
        0
    };
    let within = 25 * (GPU_MILLI_MOST - free_milli(fill)) / GPU_MILLI_MOST;
    Scored { score: band + within, card }
}

/// The draw itself; a share gets any card with room.
pub(super) fn random(fill: &Fill<'_>, shape: &Shape, draw: u64) -> Scored {
    // One bit off, to stay positive.
    let score = (draw >> 1) as i64;
    if !shape.is_share() {
        return Scored { score, card: None };
    }
    let with_room =
        || fill.cards.iter().enumerate().filter(|(_, free)| u32::from(**free) >= shape.card_milli);
    let nth = crate::hash::mix(draw) % (with_room().count() as u64).max(1);
    Scored { score, card: with_room().nth(nth as usize).map(|(index, _)| index) }
}

/// `int(100 x sigmoid(x))` for x in milli x ppm of a card.
fn sigmoid_percent(x: i64) -> i64 {
    if x >= 0 {
        return 50 + SIGMOID_STEPS.partition_point(|step| *step <= x) as i64;
    }
    // Below the middle the same steps count down: 49 is reached until -ln(51 / 49).
    49 - SIGMOID_STEPS.partition_point(|step| *step < -x) as i64
}

fn free_milli(fill: &Fill<'_>) -> i64 {
    fill.cards.iter().map(|free| i64::from(*free)).sum()
}

fn is_whole(free: u16) -> bool {
    u32::from(free) == CARD_MILLI
}
