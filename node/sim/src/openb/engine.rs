//! What places the arrivals. `Compact` scores fills and nothing else: the fast reference for the production planner,
//! with which it shares the score. No departures, no queue.

use super::lagged::Lagged;
use rota_core::placement::score::{self, Demand, Fill, Policy, Shape, Standing};

use super::trace::Node;

/// Something that takes arrivals one by one.
pub trait Engine {
    /// Places a pod with this ask, for good. Gives the host by its index in the node list, or nothing if it has room
    /// nowhere; the pod is then dropped.
    fn place(&mut self, shape: u32) -> Option<usize>;

    /// Replaces what is expected.
    fn expect(&mut self, demand: Demand);

    /// Looks again at which models are short by now, if the engine does not do so by itself.
    fn reprice(&mut self) {}

    /// What is free on a host, by its index in the node list.
    fn fill(&self, node: usize) -> Fill<'_>;
}

/// Places on compact fills. Scores are kept for each ask and host until the host changes.
#[derive(Debug)]
pub struct Compact {
    policy: Policy,
    shapes: Vec<Shape>,
    demand: Demand,
    /// In the order in which ties are broken.
    hosts: Vec<Host>,
    /// In the same order.
    standings: Vec<Standing>,
    /// Place in `hosts` by index in the node list.
    places: Vec<usize>,
    /// Hosts that changed, oldest first, since the last change of the demand.
    changed: Vec<u32>,
    known: Vec<Known>,
    /// What is left to chance.
    lots: Lagged,
}

#[derive(Debug, Clone)]
struct Host {
    node: usize,
    model: u16,
    cards: Vec<u16>,
    cpus_milli_free: u32,
    cpus_milli: u32,
    mem_mib_free: u64,
    mem_mib: u64,
    classes: u16,
}

/// The scores of all hosts for one ask, right up to a place in `changed`; none if never scored.
#[derive(Debug, Clone, Default)]
struct Known {
    scores: Vec<i64>,
    until: Option<usize>,
}

/// Draws that the published scheduler makes between the arrivals and the prefixes: one for each kind of object that it
/// watches.
const WATCHERS: usize = 10;

/// The score of a host without room.
const NO_ROOM: i64 = i64::MIN;

impl Compact {
    /// An empty cluster. The published policies break ties by names with a random four-digit prefix, drawn once after
    /// the arrivals; our own, which knows no chance, by the order of the node list.
    #[must_use]
    pub fn new(policy: Policy, nodes: &[Node], shapes: &[Shape], demand: Demand, mut lots: Lagged) -> Self {
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        if policy != Policy::Rota {
            for _ in 0..WATCHERS {
                lots.next_u63();
            }
            order.sort_by_key(|node| &nodes[*node].name);
            let prefixes = lots.order(nodes.len());
            // A random choice is made among hosts as they were made known: by name.
            if policy != Policy::Random {
                let mut named: Vec<(usize, usize)> = prefixes.into_iter().zip(order).collect();
                named.sort_unstable();
                order = named.into_iter().map(|(_, node)| node).collect();
            }
        }
        let mut places = vec![0; nodes.len()];
        for (place, node) in order.iter().enumerate() {
            places[*node] = place;
        }
        let hosts: Vec<Host> = order.iter().map(|node| Host::new(*node, &nodes[*node])).collect();
        let standings = hosts.iter().map(|host| Standing::new(&host.fill(), &demand)).collect();
        let known = vec![Known::default(); shapes.len()];
        let shapes = shapes.to_vec();
        Self { policy, shapes, demand, hosts, standings, places, changed: Vec::new(), known, lots }
    }

    /// The best host by the scores kept, brought up to date first.
    fn best(&mut self, index: usize) -> Option<usize> {
        let shape = self.shapes[index];
        let known = &mut self.known[index];
        let rate = |place: usize| {
            let (fill, standing) = (self.hosts[place].fill(), &self.standings[place]);
            let scored = score::score_standing(self.policy, &fill, standing, &shape, &self.demand, 0);
            scored.map_or(NO_ROOM, |scored| scored.score)
        };
        match known.until {
            Some(until) if self.changed.len() - until < self.hosts.len() => {
                for place in &self.changed[until..] {
                    known.scores[*place as usize] = rate(*place as usize);
                }
            }
            _ => {
                known.scores.clear();
                known.scores.extend((0..self.hosts.len()).map(rate));
            }
        }
        known.until = Some(self.changed.len());
        let most = known.scores.iter().copied().max().filter(|most| *most != NO_ROOM)?;
        known.scores.iter().position(|score| *score == most)
    }

    /// Milli that are free by model.
    fn free_milli(&self) -> Vec<u64> {
        let models = self.hosts.iter().map(|host| usize::from(host.model) + 1).max();
        let mut free = vec![0; models.unwrap_or(0)];
        for host in &self.hosts {
            free[usize::from(host.model)] += host.cards.iter().map(|free| u64::from(*free)).sum::<u64>();
        }
        free
    }

    /// All scores are of another demand.
    fn forget(&mut self) {
        self.changed.clear();
        for known in &mut self.known {
            known.until = None;
        }
    }

    /// A host drawn among those with room, and for a share a card drawn among those with room there.
    fn drawn(&mut self, shape: &Shape) -> Option<(usize, Option<usize>)> {
        let places = 0..self.hosts.len();
        let with_room = places.filter(|place| score::has_room(&self.hosts[*place].fill(), shape));
        let rated: Vec<usize> = with_room.collect();
        // Where there is no choice none is drawn.
        let at = if rated.len() > 1 { self.lots.below(rated.len() as u32) } else { 0 };
        let place = *rated.get(at as usize)?;
        let mut card = None;
        if shape.is_share() {
            let cards = self.hosts[place].cards.iter().enumerate();
            let with_room = cards.filter(|(_, free)| u32::from(**free) >= shape.card_milli);
            for (seen, (index, _)) in (1..).zip(with_room) {
                if self.lots.below(seen) == 0 {
                    card = Some(index);
                }
            }
        }
        Some((place, card))
    }
}

impl Engine for Compact {
    fn place(&mut self, shape: u32) -> Option<usize> {
        let ask = self.shapes[shape as usize];
        let (place, card) = if self.policy == Policy::Random {
            self.drawn(&ask)?
        } else {
            let place = self.best(shape as usize)?;
            (place, score::score(self.policy, &self.hosts[place].fill(), &ask, &self.demand, 0)?.card)
        };
        self.hosts[place].take(&ask, card);
        self.standings[place] = Standing::new(&self.hosts[place].fill(), &self.demand);
        self.changed.push(place as u32);
        Some(self.hosts[place].node)
    }

    fn expect(&mut self, demand: Demand) {
        for (standing, host) in self.standings.iter_mut().zip(&self.hosts) {
            *standing = Standing::new(&host.fill(), &demand);
        }
        self.demand = demand;
        self.demand.reprice(&self.free_milli());
        self.forget();
    }

    fn reprice(&mut self) {
        // The published policies know no prices.
        if self.policy == Policy::Rota {
            self.demand.reprice(&self.free_milli());
            self.forget();
        }
    }

    fn fill(&self, node: usize) -> Fill<'_> {
        self.hosts[self.places[node]].fill()
    }
}

impl Host {
    fn new(index: usize, node: &Node) -> Self {
        Self {
            node: index,
            model: node.model,
            cards: vec![1000; usize::from(node.cards)],
            cpus_milli_free: node.cpus_milli,
            cpus_milli: node.cpus_milli,
            mem_mib_free: node.mem_mib,
            mem_mib: node.mem_mib,
            classes: 0,
        }
    }

    fn fill(&self) -> Fill<'_> {
        Fill {
            model: self.model,
            cards: &self.cards,
            cpus_milli_free: self.cpus_milli_free,
            cpus_milli: self.cpus_milli,
            mem_mib_free: self.mem_mib_free,
            mem_mib: self.mem_mib,
            classes: self.classes,
        }
    }

    fn take(&mut self, ask: &Shape, card: Option<usize>) {
        let taken: Vec<usize> = score::taken(&self.fill(), ask, card).collect();
        for index in taken {
            // At most what the card had free, which fits.
            self.cards[index] -= ask.card_milli as u16;
        }
        self.cpus_milli_free -= ask.cpus_milli;
        self.mem_mib_free -= ask.mem_mib;
        self.classes |= ask.class();
    }
}
