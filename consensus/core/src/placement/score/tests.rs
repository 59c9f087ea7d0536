//! Worked examples with numbers that were computed by hand, and the promise that equal counts give equal scores.

use super::*;

/// A host with 32 cores and 64 GiB.
fn fill(cards: &[u16], cpus_milli_free: u32) -> Fill<'_> {
    let (cpus_milli, mem_mib) = (32_000, 65_536);
    Fill { model: 1, cards, cpus_milli_free, cpus_milli, mem_mib_free: mem_mib, mem_mib, classes: 0 }
}

fn ask(cards: u32, card_milli: u32, cpus_milli: u32) -> Shape {
    Shape { cpus_milli, mem_mib: 1024, cards, card_milli, models: ModelSet::ANY }
}

/// One of two asks has half a card and 2 cores, the other a card and 8 cores.
fn halves_and_wholes() -> Demand {
    Demand::from_counts([(ask(1, 500, 2_000), 50), (ask(1, 1000, 8_000), 50)], &[0, 4_000])
}

fn fragment_of(cards: &[u16], cpus_milli_free: u32, demand: &Demand) -> i64 {
    Standing::new(&fill(cards, cpus_milli_free), demand).fragment()
}

#[test]
fn a_fragment_is_what_the_expected_asks_cannot_use() {
    let demand = halves_and_wholes();
    // Everything serves both.
    assert_eq!(fragment_of(&[1000, 1000], 32_000, &demand), 0);
    // Wholes cannot use the half card: 500 x 1/2. Halves can use all of it.
    assert_eq!(fragment_of(&[1000, 500], 32_000, &demand), 250 * PPM);
    // Neither can use 300; wholes not 500 either: 300 + 500 x 1/2.
    assert_eq!(fragment_of(&[500, 300], 32_000, &demand), 550 * PPM);
    // 4 cores are too few for wholes: all 2000 is lost on them.
    assert_eq!(fragment_of(&[1000, 1000], 4_000, &demand), 1000 * PPM);
    // One core is too few for all.
    assert_eq!(fragment_of(&[1000, 1000], 1_000, &demand), 2000 * PPM);
    assert_eq!(fragment_of(&[], 32_000, &demand), 0);
}

#[test]
fn asks_without_cards_and_for_other_models_count_as_lost() {
    let other = Shape { models: ModelSet::NONE.with(2), ..ask(1, 1000, 1_000) };
    let demand = Demand::from_counts(
        [(ask(0, 0, 1_000), 20), (other, 30), (ask(2, 1000, 4_000), 50)],
        &[0, 8_000, 8_000],
    );
    // Model 1: 20 % ask no card, 30 % another model, and half need two whole cards.
    assert_eq!(fragment_of(&[1000, 1000], 32_000, &demand), 1000 * PPM);
    assert_eq!(fragment_of(&[1000, 900], 32_000, &demand), 1900 * PPM);
    let on_two = Fill { model: 2, ..fill(&[1000, 900], 32_000) };
    // There 30 % can use the whole card, but not the 900 milli.
    assert_eq!(Standing::new(&on_two, &demand).fragment(), 1900 * PPM - 300 * PPM);
    let on_unknown = Fill { model: 0, ..fill(&[1000, 1000], 32_000) };
    assert_eq!(Standing::new(&on_unknown, &demand).fragment(), 1000 * PPM);
}

#[test]
fn a_demand_takes_the_common_shapes_until_95_percent() {
    let shapes = [(ask(1, 1000, 1_000), 60), (ask(1, 500, 1_000), 30), (ask(1, 300, 1_000), 6)];
    let rare = [(ask(1, 200, 1_000), 2), (ask(1, 100, 1_000), 2)];
    let demand = Demand::from_counts(shapes.into_iter().chain(rare), &[0, 1_000]);
    let weights: Vec<u32> = demand.shapes().iter().map(|(_, ppm)| *ppm).collect();
    // 60 / 96, 30 / 96 and 6 / 96, and together a million.
    assert_eq!(weights, [625_000, 312_500, 62_500]);
    // Mean CPU by card: 100 cores over 60 + 15 + 1.8 + 0.4 + 0.2 cards.
    assert_eq!(demand.cpus_milli_per_card(), 100_000_000 / 77_400);
}

#[test]
fn equal_counts_are_ordered_by_the_shape_and_not_by_the_caller() {
    let shapes = [(ask(1, 500, 1_000), 7), (ask(1, 1000, 1_000), 7), (ask(2, 1000, 1_000), 7)];
    let forth = Demand::from_counts(shapes, &[0, 4_000]);
    let back = Demand::from_counts(shapes.into_iter().rev(), &[0, 4_000]);
    assert_eq!(forth, back);
    // Memory is no part of a shape here, and counts split by it add up.
    let split = shapes
        .into_iter()
        .flat_map(|(shape, count)| [(shape, count - 2), (Shape { mem_mib: 9, ..shape }, 2)]);
    assert_eq!(Demand::from_counts(split, &[0, 4_000]), forth);
}

#[test]
fn the_change_is_the_difference_of_two_fragments() {
    let demand = halves_and_wholes();
    let mut draws = 1_u64;
    let mut next = |below: u64| {
        draws = crate::hash::mix(draws);
        draws % below
    };
    for _ in 0..2_000 {
        let cards: Vec<u16> = (0..4).map(|_| [0, 300, 500, 700, 1000][next(5) as usize]).collect();
        let host = fill(&cards, 1_000 * next(33) as u32);
        let shape =
            [ask(1, 500, 2_000), ask(2, 1000, 3_000), ask(1, 200, 0), ask(0, 0, 4_000)][next(4) as usize];
        if !has_room(&host, &shape) {
            assert_eq!(score(Policy::Rota, &host, &shape, &demand, 0), None);
            continue;
        }
        let standing = Standing::new(&host, &demand);
        let (change, card) = fragment::descent(&host, &standing, &shape, &demand, |change, _| change);
        let mut after = cards.clone();
        let mut count = 0;
        for index in taken(&host, &shape, card) {
            after[index] -= shape.card_milli as u16;
            count += 1;
        }
        assert_eq!(count, shape.cards);
        let left = fill(&after, host.cpus_milli_free - shape.cpus_milli);
        assert_eq!(change, standing.fragment() - Standing::new(&left, &demand).fragment());
    }
}

#[test]
fn a_share_goes_where_a_pattern_is_completed() {
    // 320 with 650 and 470 with 470 fill cards; 470 with 320 leaves 210 for nobody.
    let shares = [(ask(1, 320, 1_000), 40), (ask(1, 650, 1_000), 40), (ask(1, 470, 1_000), 60)];
    let demand = Demand::from_counts(shares, &[0, 100_000]);
    // One of a pair costs half a card, and those of the other pair make one card together.
    assert_eq!(demand.worth_ppm(470), 500_000);
    assert_eq!(demand.worth_ppm(1000), 1_000_000);
    assert_eq!(demand.worth_ppm(319), 0);
    let pair = demand.worth_ppm(320) + demand.worth_ppm(650);
    assert!((999_998..=1_000_000).contains(&pair), "{pair}");
    // The card with 530 free is kept for 470, the one with 350 is not good for it.
    let small = ask(1, 320, 1_000);
    let beside = |cards: &[u16]| {
        score(Policy::Rota, &fill(cards, 32_000), &small, &demand, 0).and_then(|scored| scored.card)
    };
    assert_eq!(beside(&[530, 350]), Some(1));
    assert_eq!(beside(&[350, 530]), Some(0));
}

#[test]
fn work_without_cards_goes_where_it_strands_none() {
    let demand = halves_and_wholes();
    // 50 x 2 + 50 x 8 cores over 75 cards.
    assert_eq!(demand.cpus_milli_per_card(), 6_666);
    let cpu_only = ask(0, 0, 8_000);
    let rate = |cards: &[u16], free| {
        score(Policy::Rota, &fill(cards, free), &cpu_only, &demand, 0).map(|scored| scored.score)
    };
    // With all cards taken nothing can be lost; with 32 cores for one card nothing is; 8 cores for one card are all used up.
    assert_eq!(rate(&[0, 0], 8_000), Some(0));
    assert_eq!(rate(&[1000], 32_000), Some(0));
    assert!(rate(&[1000], 8_000) < Some(-1000 * PPM));
    assert_eq!(rate(&[0, 0], 7_999), None);
}

#[test]
fn a_short_model_is_spared() {
    let bound = Shape { models: ModelSet::NONE.with(1), ..ask(1, 1000, 1_000) };
    let open = ask(1, 1000, 1_000);
    // Half of the demand names model 1, which is a fifth of the cluster.
    let demand = Demand::from_counts([(bound, 500), (open, 500)], &[0, 200_000, 800_000]);
    assert_eq!(demand.scarcity_ppm(1), 1_000_000);
    // Nobody is bound to model 2. What was not seen yet stands for little: 30 x 0.8 x 0.2 of 1030 cards, over 0.8 of all.
    // As the rest fills up it is not the model that is spared.
    assert_eq!(demand.scarcity_ppm(2), 5_825);
    let mut later = demand.clone();
    later.reprice(&[0, 200_000, 0]);
    assert_eq!(later.scarcity_ppm(1), 485_436);
    let on = |model| {
        let host = Fill { model, ..fill(&[1000, 1000], 32_000) };
        score(Policy::Rota, &host, &open, &demand, 0).map(|scored| scored.score)
    };
    assert!(on(2) > on(1));
    assert_eq!(score(Policy::Rota, &Fill { model: 2, ..fill(&[1000], 32_000) }, &bound, &demand, 0), None);
}

#[test]
fn whole_cards_are_kept_together_for_those_who_need_them() {
    // 2 asks for four cards are 8 of 108 cards: 74,074 ppm.
    let demand = Demand::from_counts([(ask(4, 1000, 1_000), 2), (ask(1, 1000, 1_000), 100)], &[0, 100_000]);
    let wide = demand.wide(1);
    assert_eq!(wide.worth(3), 0);
    assert_eq!(wide.worth(4), 4000 * 74_074);
    assert_eq!((wide.worth(7), wide.worth(8)), (4000 * 74_074, 8000 * 74_074));
    let one = ask(1, 1000, 1_000);
    let on = |cards: &[u16]| score(Policy::Rota, &fill(cards, 32_000), &one, &demand, 0).map(|s| s.score);
    assert!(on(&[1000, 1000, 1000, 0]) > on(&[1000, 1000, 1000, 1000]));
}

#[test]
fn nothing_learned_yet_still_scores() {
    let demand = Demand::from_counts([], &[]);
    for policy in Policy::ALL {
        let scored = score(policy, &fill(&[1000, 400], 32_000), &ask(1, 400, 1_000), &demand, 9);
        assert!(scored.is_some_and(|scored| scored.card.is_some()), "{policy}");
    }
    assert_eq!(demand.scarcity_ppm(7), 0);
}

#[test]
fn scores_are_pinned_over_all_policies() {
    // A change of any policy, rounding or order shows here. All replicas must agree on this number.
    let shares = [810, 470, 320, 650, 230, 160].into_iter().zip([50, 40, 30, 20, 10, 5]);
    let shares = shares.map(|(milli, count)| (ask(1, milli, 4_000), count));
    let whole = [(ask(1, 1000, 8_000), 90), (ask(2, 1000, 20_000), 3)];
    let demand = Demand::from_counts(shares.chain(whole), &[0, 200_000]);
    let mut digest = crate::hash::Digest::new(0);
    for policy in Policy::ALL {
        for cards in [&[1000, 1000][..], &[1000, 500], &[700, 300], &[500, 0]] {
            for shape in [ask(1, 1000, 8_000), ask(1, 300, 2_000), ask(0, 0, 4_000)] {
                let scored = score(policy, &fill(cards, 16_000), &shape, &demand, 5);
                digest.write_u64(scored.map_or(u64::MAX, |scored| scored.score as u64));
                digest.write_u64(scored.and_then(|scored| scored.card).map_or(u64::MAX, |card| card as u64));
            }
        }
    }
    assert_eq!(digest.finish(), 12_189_258_072_443_141_327);
}

mod published_scores {
    use super::*;

    fn value(policy: Policy, fill: &Fill<'_>, shape: &Shape) -> Option<i64> {
        score(policy, fill, shape, &halves_and_wholes(), 0).map(|scored| scored.score)
    }

    #[test]
    fn fgd_truncates_a_sigmoid() {
        // A half from a whole card: before 0, after 500 x 1/2 = 0.25 cards lost. sigmoid(-0.25) = 0.4378.
        assert_eq!(value(Policy::Fgd, &fill(&[1000], 32_000), &ask(1, 500, 2_000)), Some(43));
        // The other half: 0.25 cards less lost. sigmoid(0.25) = 0.5622.
        assert_eq!(value(Policy::Fgd, &fill(&[500], 32_000), &ask(1, 500, 2_000)), Some(56));
        // A whole card changes nothing for the others.
        assert_eq!(value(Policy::Fgd, &fill(&[1000], 32_000), &ask(1, 1000, 8_000)), Some(50));
    }

    #[test]
    fn best_fit_and_dot_product_are_parts_of_the_largest_host() {
        // 16 of 128 cores and 1 of 8 cards are left: 100 x (1 - 1/16 - 1/16) = 87.5.
        assert_eq!(value(Policy::BestFit, &fill(&[1000, 1000], 32_000), &ask(1, 1000, 16_000)), Some(87));
        // 32 x 16 / 128^2 = 1/32 and 2 x 1 / 8^2 = 1/32: 100 x (1 - 1/32) = 96.9.
        assert_eq!(value(Policy::DotProd, &fill(&[1000, 1000], 32_000), &ask(1, 1000, 16_000)), Some(96));
    }

    #[test]
    fn packing_prefers_used_cards_then_used_hosts() {
        let share = ask(1, 400, 1_000);
        assert_eq!(value(Policy::Packing, &fill(&[1000, 500], 32_000), &share), Some(95));
        assert_eq!(value(Policy::Packing, &fill(&[1000, 300], 32_000), &share), Some(49));
        assert_eq!(value(Policy::Packing, &fill(&[1000, 1000], 32_000), &share), Some(31));
        assert_eq!(value(Policy::Packing, &fill(&[1000, 0], 32_000), &ask(0, 0, 1_000)), Some(0));
    }

    #[test]
    fn clustering_has_four_bands() {
        let share = ask(1, 400, 1_000);
        let host = |classes| Fill { classes, ..fill(&[1000, 1000], 32_000) };
        let one = ask(1, 1000, 1_000).class();
        // 2 of 8 cards are free: 25 x 6 / 8 = 18 in each band.
        assert_eq!(value(Policy::Clustering, &host(share.class()), &share), Some(93));
        assert_eq!(value(Policy::Clustering, &host(share.class() | one), &share), Some(68));
        assert_eq!(value(Policy::Clustering, &host(0), &share), Some(43));
        assert_eq!(value(Policy::Clustering, &host(one), &share), Some(18));
    }

    #[test]
    fn random_follows_the_draw() {
        let host = fill(&[1000, 1000, 100, 1000], 32_000);
        let (demand, share) = (halves_and_wholes(), ask(1, 400, 1_000));
        let drawn = |draw| score(Policy::Random, &host, &share, &demand, draw);
        let cards: std::collections::BTreeSet<usize> =
            (0..64).filter_map(|draw| drawn(draw).and_then(|scored| scored.card)).collect();
        assert_eq!(cards.into_iter().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(drawn(40).map(|scored| scored.score), Some(20));
    }

    #[test]
    fn names_are_read_back() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert_eq!("fdg".parse::<Policy>(), Err(UnknownPolicy("fdg".to_owned())));
    }
}
