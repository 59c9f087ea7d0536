//! The production scheduler as an engine: every pod is submitted as a job, a round is planned and committed, and a
//! job that was not started is cancelled, as the experiment drops pods without room.

use super::engine::Engine;
use super::trace::{Node, Trace};
use crate::cluster::{Cluster, ClusterError, HostKind};
use rota_core::placement::PlanConfig;
use rota_core::placement::score::{Demand, Fill, ModelSet, Policy, Shape};
use rota_core::state::demand::AskShape;
use rota_protocol::ask::Ask;
use rota_protocol::device::DeviceKind;
use rota_protocol::job::JobSpec;
use rota_protocol::plan::Move;

/// The production scheduler.
#[derive(Debug)]
pub struct Product<'t> {
    trace: &'t Trace,
    cluster: Cluster,
    /// Free milli of the cards of each host, as the reference measures them.
    fills: Vec<(Vec<u16>, Node)>,
    /// What went wrong, if anything did: a replay without an answer is no result.
    pub failure: Option<ClusterError>,
}

impl<'t> Product<'t> {
    /// An empty cluster of the trace's hosts. `known` is what it is told of the workload beforehand; nothing if it is
    /// to learn from what it sees.
    ///
    /// # Errors
    /// A host that the scheduler does not take.
    pub fn new(trace: &'t Trace, policy: Policy, known: &[(u32, u64)]) -> Result<Self, ClusterError> {
        let kind = |node: &Node| HostKind {
            cpus_milli: node.cpus_milli,
            mem_mib: node.mem_mib,
            cards: u32::from(node.cards),
            model: model_name(trace, node.model),
            vram_mib: None,
        };
        let kinds: Vec<HostKind> = trace.nodes.iter().map(kind).collect();
        let config = PlanConfig { policy, evicts: false, promises_max: 0, ..PlanConfig::default() };
        let mut cluster = Cluster::new(&kinds, config)?;
        let known = known.iter().map(|(shape, count)| {
            let ask = ask(trace, &trace.shapes[*shape as usize]);
            (AskShape::of(&ask), *count)
        });
        cluster.state_mut().expect_demand(known);
        let fills = trace.nodes.iter().map(|node| (vec![1_000; usize::from(node.cards)], node.clone()));
        let fills = fills.collect();
        Ok(Self { trace, cluster, fills, failure: None })
    }

    fn try_place(&mut self, shape: &Shape) -> Result<Option<usize>, ClusterError> {
        let spec = JobSpec { argv: vec![b"pod".to_vec()], ask: ask(self.trace, shape), ..JobSpec::default() };
        let job = self.cluster.submit("openb", "pods", spec)?;
        let moves = self.cluster.round()?;
        let host = moves.iter().find_map(|one| match one {
            Move::Place { task, host, .. } if task.job == job => Some(*host),
            _ => None,
        });
        let Some(host) = host else {
            self.cluster.cancel(job)?;
            return Ok(None);
        };
        let at = host.0 as usize - 2;
        self.measure(at);
        Ok(Some(at))
    }

    fn measure(&mut self, at: usize) {
        let Some(host) = self.cluster.state().host(rota_protocol::HostId(at as u64 + 2)) else {
            return;
        };
        let (cards, node) = &mut self.fills[at];
        let gpus = host.facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
        for (free, device) in cards.iter_mut().zip(gpus) {
            let held = host.used.devices.get(&device.uuid).map_or(0, |held| held.milli());
            *free = 1_000_u32.saturating_sub(held) as u16;
        }
        node.cpus_milli = host.facts.cpus_milli - host.used.cpus_milli as u32;
        node.mem_mib = host.facts.mem_mib - host.used.mem_mib;
    }
}

impl Engine for Product<'_> {
    fn place(&mut self, shape: u32) -> Option<usize> {
        if self.failure.is_some() {
            return None;
        }
        let shape = self.trace.shapes[shape as usize];
        self.try_place(&shape).unwrap_or_else(|error| {
            self.failure = Some(error);
            None
        })
    }

    /// It learns by itself.
    fn expect(&mut self, _: Demand) {}

    fn fill(&self, node: usize) -> Fill<'_> {
        let (cards, free) = &self.fills[node];
        Fill {
            model: free.model,
            cards,
            cpus_milli_free: free.cpus_milli,
            cpus_milli: self.trace.nodes[node].cpus_milli,
            mem_mib_free: free.mem_mib,
            mem_mib: self.trace.nodes[node].mem_mib,
            classes: 0,
        }
    }
}

fn model_name(trace: &Trace, id: u16) -> String {
    let at = usize::from(id).checked_sub(1);
    at.and_then(|at| trace.models.get(at)).cloned().unwrap_or_default()
}

fn ask(trace: &Trace, shape: &Shape) -> Ask {
    // Who asks no card asks no model of one.
    let names = shape.cards > 0 && shape.models != ModelSet::ANY;
    let accepted = |id: &u16| names && shape.models.contains(*id);
    let models = (1..=trace.models.len() as u16).filter(accepted).map(|id| model_name(trace, id));
    Ask {
        gpu_milli: shape.gpu_milli() as u32,
        gpu_models: models.collect(),
        cpus_milli: shape.cpus_milli,
        mem_mib: shape.mem_mib,
        ..Ask::default()
    }
}
