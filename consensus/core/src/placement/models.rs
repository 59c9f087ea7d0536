//! Small numbers for GPU models, and the expected workload in the scorer's own terms. Both follow from the hosts and
//! the replicated counts alone.

use super::score::{Demand, ModelSet, Shape};
use super::view::View;
use crate::fit;
use crate::state::demand::AskShape;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::DeviceKind;

/// Models that can be told apart; the scorer has a bit for each. Rarer ones share the last number.
const MODELS_MAX: usize = 62;

/// Names of models, sorted; a model's number is its position plus one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Models(Vec<String>);

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
        Self(names)
    }

    /// The number of a model that has one of its own.
    pub(super) fn known(&self, name: &str) -> Option<u16> {
        self.0.binary_search_by(|known| known.as_str().cmp(name)).ok().map(|at| at as u16 + 1)
    }

    /// A model's number.
    pub(super) fn id(&self, name: &str) -> u16 {
        let at = self.0.binary_search_by(|known| known.as_str().cmp(name));
        at.map_or(MODELS_MAX as u16 + 1, |at| at as u16 + 1)
    }

    /// The models that a list of accepted names lets in.
    fn accepted(&self, names: &[String]) -> ModelSet {
        if names.is_empty() {
            return ModelSet::ANY;
        }
        let known = (1..).zip(&self.0).filter(|(_, model)| fit::model_accepted(model, names));
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
        let mut free_milli = vec![0_u64; self.0.len() + 1];
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
