//! Small numbers for GPU models, and the expected workload in the scorer's own terms. Both follow from the hosts and
//! the replicated counts alone.

use super::pace::given_permille;
use super::score::{Demand, ModelSet, Shape};
use super::view::View;
use crate::fit;
use crate::state::demand::AskShape;
use crate::state::speeds::model_digest;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::DeviceKind;
use std::collections::BTreeMap;

/// Models that can be told apart; the scorer has a bit for each. Rarer ones share the last number.
const MODELS_MAX: usize = 62;

/// The models of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Models {
    /// Sorted; a model's number is its position plus one.
    names: Vec<String>,
    numbers: BTreeMap<u64, u16>,
    /// The fastest that a host's label says of each model, permille, in the order of names.
    given_permille: Vec<u32>,
    /// No host says of its cards that they are faster or slower than others.
    all_even: bool,
}

impl Models {
    /// Every model that some host has.
    pub(super) fn of(view: &View) -> Self {
        let gpus = |row: &super::view::HostView| {
            let devices = row.host.facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
            devices.map(|d| d.model.clone()).collect::<Vec<String>>()
        };
        let mut names: Vec<String> = Vec::new();
        for row in &view.hosts {
            for name in gpus(row) {
                if let Err(at) = names.binary_search(&name)
                    && names.len() < MODELS_MAX
                {
                    names.insert(at, name);
                }
            }
        }
        let mut given = view.hosts.iter().map(|row| given_permille(&row.host.facts));
        let all_even = given.next().is_none_or(|first| given.all(|other| other == first));
        let numbers = (1..).zip(&names).map(|(id, name)| (model_digest(name), id)).collect();
        let mut models = Self { given_permille: vec![0; names.len()], names, numbers, all_even };
        for row in &view.hosts {
            let given = given_permille(&row.host.facts);
            for name in gpus(row) {
                if let Ok(at) = models.names.binary_search(&name) {
                    models.given_permille[at] = models.given_permille[at].max(given);
                }
            }
        }
        models
    }

    /// The number of a model that has one of its own.
    pub(super) fn known(&self, name: &str) -> Option<u16> {
        self.names.binary_search_by(|known| known.as_str().cmp(name)).ok().map(|at| at as u16 + 1)
    }

    /// A model's number.
    pub(super) fn id(&self, name: &str) -> u16 {
        let at = self.names.binary_search_by(|known| known.as_str().cmp(name));
        at.map_or(MODELS_MAX as u16 + 1, |at| at as u16 + 1)
    }

    /// The number of a model by the digest of its name, if a list of accepted names lets it in.
    pub(super) fn by_digest(&self, digest: u64, accepted: &[String]) -> Option<u16> {
        let id = *self.numbers.get(&digest)?;
        fit::model_accepted(&self.names[usize::from(id) - 1], accepted).then_some(id)
    }

    /// Numbers and names of models that a list of accepted names lets in.
    pub(super) fn accepted_names<'m>(&'m self, accepted: &[String]) -> impl Iterator<Item = (u16, &'m str)> {
        let names = (1..).zip(&self.names).filter(move |(_, name)| fit::model_accepted(name, accepted));
        names.map(|(id, name)| (id, name.as_str()))
    }

    /// The fastest that labels say of accepted models, permille; 0 if there are none, or all hosts say the same.
    pub(super) fn best_given(&self, accepted: &[String]) -> u32 {
        if self.all_even {
            return 0;
        }
        let known = self.names.iter().zip(&self.given_permille);
        known
            .filter(|(name, _)| fit::model_accepted(name, accepted))
            .map(|(_, given)| *given)
            .max()
            .unwrap_or(0)
    }

    /// The speed of a model in permille of the fastest, as labels say it.
    pub(super) fn given_of(&self, id: u16) -> u32 {
        let best = self.given_permille.iter().copied().max().unwrap_or(0).max(1);
        let given = usize::from(id).checked_sub(1).and_then(|at| self.given_permille.get(at)).copied();
        (u64::from(given.unwrap_or(best)) * 1_000 / u64::from(best)).clamp(1, 1_000) as u32
    }

    /// The models that a list of accepted names lets in.
    fn accepted(&self, names: &[String]) -> ModelSet {
        if names.is_empty() {
            return ModelSet::ANY;
        }
        let known = (1..).zip(&self.names).filter(|(_, model)| fit::model_accepted(model, names));
        known.fold(ModelSet::NONE, |set, (id, _)| set.with(id))
    }

    /// An ask in the scorer's terms.
    pub(super) fn shape(&self, ask: &Ask) -> Shape {
        Shape {
            cpus_milli: ask.cpus_milli,
            mem_mib: ask.mem_mib,
            cards: ask.gpus(),
            card_milli: ask.card_milli(),
            models: self.accepted(&ask.gpu_models),
        }
    }

    /// The expected workload.
    pub(super) fn demand(&self, view: &View) -> Demand {
        let mut free_milli = vec![0_u64; self.names.len() + 1];
        for (model, free) in &view.demand.free_milli {
            if let Some(sum) = free_milli.get_mut(usize::from(self.id(model))) {
                *sum += free;
            }
        }
        let shape = |shape: &AskShape| Shape {
            cpus_milli: shape.cpus_milli,
            mem_mib: 0,
            cards: shape.gpu_milli.div_ceil(CARD_MILLI),
            card_milli: shape.gpu_milli.min(CARD_MILLI),
            models: self.accepted(&shape.gpu_models),
        };
        Demand::from_counts(view.demand.counts.iter().map(|(key, count)| (shape(key), *count)), &free_milli)
    }
}
