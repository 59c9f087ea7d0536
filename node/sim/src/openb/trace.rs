//! Reads the node and pod lists of the experiment, and makes the sequence of arrivals of a seed. It places nothing.

use super::lagged::Lagged;
use crate::cluster::HOSTS_MAX;
use crate::field;
use crate::input::{InputError, read_text};
use rota_core::placement::score::{ModelSet, Shape};
use rota_protocol::limits::{HOST_DEVICES_MAX, HOST_MEM_MIB_MAX, NAME_BYTES_MAX};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// Most models a `ModelSet` can tell apart.
const MODELS_MAX: usize = 63;
/// Most pods that arrive in one run: a hundred times those of the largest published list.
const ARRIVALS_MAX: u64 = 2_000_000;
/// Most GPUs of a host, as the scheduler takes them, and so of a pod.
const CARDS: RangeInclusive<u16> = 0..=HOST_DEVICES_MAX as u16;
/// Memory of a host or a pod, in MiB.
const MEM_MIB: RangeInclusive<u64> = 0..=HOST_MEM_MIB_MAX;
/// CPU of a host or a pod, in thousandths of a core: a million cores.
const CPUS_MILLI: RangeInclusive<u32> = 0..=1_000_000_000;

/// Why a list cannot be used.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file is no input.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The header has no such column.
    #[error("{}: no column {column:?} in the header", path.display())]
    Column {
        /// Which file.
        path: PathBuf,
        /// Which column.
        column: &'static str,
    },
    /// A line is shorter than the header.
    #[error("{}:{line}: no field {column:?}", path.display())]
    Missing {
        /// Which file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Which column.
        column: &'static str,
    },
    /// A field is not what it should be.
    #[error("{}:{line}: {column} is {text:?}, want {want}, such as {example}", path.display())]
    Field {
        /// Which file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Which column.
        column: &'static str,
        /// What stands there.
        text: String,
        /// What should stand there.
        want: String,
        /// A value that would do.
        example: &'static str,
    },
    /// More lines than the scheduler takes hosts.
    #[error("{}:{line}: more than {HOSTS_MAX} hosts", path.display())]
    Hosts {
        /// Which file.
        path: PathBuf,
        /// The line of the first that is too many.
        line: usize,
    },
    /// So little is asked by each that more would come than can be kept.
    #[error(
        "{}: num_gpu and gpu_milli ask {milli} thousandths of a GPU over {pods} pods: more than {ARRIVALS_MAX} would come \
         before the cluster of {capacity} thousandths is full",
        path.display()
    )]
    Small {
        /// Which file.
        path: PathBuf,
        /// What all pods ask.
        milli: u64,
        /// How many there are.
        pods: usize,
        /// What the cluster has.
        capacity: u64,
    },
    /// More models than can be told apart.
    #[error("{}: more than {MODELS_MAX} GPU models", path.display())]
    Models {
        /// Which file.
        path: PathBuf,
    },
    /// Nothing to place or nowhere to place it.
    #[error("{}: no {what} with a GPU", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
        /// Host or pod.
        what: &'static str,
    },
}

/// A host of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// CPU, in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory.
    pub mem_mib: u64,
    /// GPUs.
    pub cards: u16,
    /// Index of its model in `Trace::models`, from 1; 0 without GPUs.
    pub model: u16,
}

/// What is read: hosts in the order of the file, pods by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The hosts.
    pub nodes: Vec<Node>,
    /// Names of the models; the id of `models[i]` is `i + 1`.
    pub models: Vec<String>,
    /// The different asks.
    pub shapes: Vec<Shape>,
    /// For each pod, in the order of names, the index of its ask in `shapes`.
    pub pods: Vec<u32>,
    /// The asks without their memory, most common first, as the published scheduler counts them: those that write one
    /// set of models in two ways apart, and of equally common ones the larger first.
    pub ranked: Vec<(Shape, u64)>,
}

impl Trace {
    /// Reads both lists.
    ///
    /// # Errors
    /// A file that cannot be read, or the first field that is wrong.
    pub fn read(nodes: &Path, pods: &Path) -> Result<Self, TraceError> {
        Self::parse((nodes, &read_text(nodes)?), (pods, &read_text(pods)?))
    }

    /// Takes both lists as path and text.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn parse(nodes: (&Path, &str), pods: (&Path, &str)) -> Result<Self, TraceError> {
        let mut models = Vec::new();
        let nodes = parse_nodes(&Table::new(nodes.0, nodes.1), &mut models)?;
        let path = pods.0;
        let (shapes, pods, ranked) = parse_pods(&Table::new(path, pods.1), &mut models)?;
        let trace = Self { nodes, models, shapes, pods, ranked };
        let milli: u64 = trace.pods.iter().map(|shape| trace.shapes[*shape as usize].gpu_milli()).sum();
        let (pods, capacity) = (trace.pods.len(), trace.capacity_milli().iter().sum::<u64>());
        if capacity / milli.max(1) * pods as u64 > ARRIVALS_MAX {
            return Err(TraceError::Small { path: path.to_owned(), milli, pods, capacity });
        }
        Ok(trace)
    }

    /// Milli of all cards by model id.
    #[must_use]
    pub fn capacity_milli(&self) -> Vec<u64> {
        let mut milli = vec![0; self.models.len() + 1];
        for node in &self.nodes {
            milli[usize::from(node.model)] += u64::from(node.cards) * 1000;
        }
        milli
    }

    /// The arrivals of a seed, as indices of asks, drawn as published: all pods shuffled, then tuned to `tune_percent` of
    /// the cluster's GPUs. A list that asks for more loses pods by lot until it does not; to one that asks for less, pods
    /// are drawn with replacement until one card of the next would be too much.
    #[must_use]
    pub fn arrivals(&self, lots: &mut Lagged, tune_percent: u64) -> Vec<u32> {
        let most: u64 = self.capacity_milli().iter().sum::<u64>() * tune_percent / 100;
        let mut arrivals = self.pods.clone();
        // Theirs goes to a line of their log.
        lots.next_u63();
        lots.shuffle(&mut arrivals);
        let mut asked: u64 = arrivals.iter().map(|shape| self.shapes[*shape as usize].gpu_milli()).sum();
        if asked >= most {
            // Ends for sure: no pods ask for nothing.
            while asked > most {
                let pod = arrivals.remove(lots.below(arrivals.len() as u32) as usize);
                asked -= self.shapes[pod as usize].gpu_milli();
            }
            return arrivals;
        }
        // Ends for sure: a pod list has at least one pod with a GPU.
        loop {
            let pod = self.pods[lots.below(self.pods.len() as u32) as usize];
            let shape = &self.shapes[pod as usize];
            if asked + u64::from(shape.card_milli) > most {
                return arrivals;
            }
            asked += shape.gpu_milli();
            arrivals.push(pod);
        }
    }
}

fn parse_nodes(table: &Table<'_>, models: &mut Vec<String>) -> Result<Vec<Node>, TraceError> {
    let columns = ["sn", "cpu_milli", "memory_mib", "gpu"];
    let [name, cpus, mem, cards] = table.columns(columns)?;
    let model = table.column("model")?;
    let mut nodes = Vec::new();
    for row in table.rows() {
        let cards = row.number(cards, &CARDS, "8")?;
        let known = if cards == 0 { 0 } else { table.model_id(models, row.model(model)?)? };
        if nodes.len() == HOSTS_MAX {
            return Err(TraceError::Hosts { path: table.path.to_owned(), line: row.line });
        }
        nodes.push(Node {
            name: row.text(name)?.to_owned(),
            cpus_milli: row.number(cpus, &CPUS_MILLI, "64000")?,
            mem_mib: row.number(mem, &MEM_MIB, "262144")?,
            cards,
            model: known,
        });
    }
    if nodes.iter().all(|node| node.cards == 0) {
        return Err(TraceError::Empty { path: table.path.to_owned(), what: "host" });
    }
    Ok(nodes)
}

/// Different asks, the pods as indices of them, and the asks as they are ranked.
type Pods = (Vec<Shape>, Vec<u32>, Vec<(Shape, u64)>);

fn parse_pods(table: &Table<'_>, models: &mut Vec<String>) -> Result<Pods, TraceError> {
    let columns = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
    let [name, cpus, mem, cards, milli] = table.columns(columns)?;
    // Some lists know no constraints.
    let spec = table.column("gpu_spec").ok();
    let mut known: BTreeMap<Shape, u32> = BTreeMap::new();
    let mut shapes = Vec::new();
    let mut named: Vec<(&str, u32)> = Vec::new();
    let mut written: BTreeMap<(u32, u32, u32, &str), (Shape, u64)> = BTreeMap::new();
    for row in table.rows() {
        let mut set = ModelSet::NONE;
        let spec = spec.map_or(Ok(""), |spec| row.model(spec))?;
        for model in spec.split('|').filter(|model| !model.is_empty()) {
            set = set.with(table.model_id(models, model)?);
        }
        let models = if set == ModelSet::NONE { ModelSet::ANY } else { set };
        let cards = u32::from(row.number(cards, &CARDS, "1")?);
        let card_milli: u32 = if cards == 0 { 0 } else { row.number(milli, &(0..=1_000), "460")? };
        if (cards > 0 && card_milli == 0) || (cards > 1 && card_milli < 1000) {
            return Err(row.wrong(milli, "1 to 1000, and 1000 for several GPUs", "1000"));
        }
        let (cpus_milli, mem_mib) =
            (row.number(cpus, &CPUS_MILLI, "12000")?, row.number(mem, &MEM_MIB, "16384")?);
        let shape = Shape { cpus_milli, mem_mib, cards, card_milli, models };
        let index = *known.entry(shape).or_insert_with(|| {
            shapes.push(shape);
            shapes.len() as u32 - 1
        });
        named.push((row.text(name)?, index));
        let spec = if cards == 0 { "" } else { spec };
        let one = (Shape { mem_mib: 0, ..shape }, 0);
        written.entry((shape.cpus_milli, card_milli, cards, spec)).or_insert(one).1 += 1;
    }
    if shapes.iter().all(|shape| shape.cards == 0) {
        return Err(TraceError::Empty { path: table.path.to_owned(), what: "pod" });
    }
    named.sort_by_key(|(name, _)| *name);
    let mut ranked: Vec<(Shape, u64)> = written.into_values().rev().collect();
    ranked.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Ok((shapes, named.into_iter().map(|(_, index)| index).collect(), ranked))
}

/// A column by its place and name.
#[derive(Clone, Copy)]
struct Column(usize, &'static str);

/// A comma-separated text with a header. No quotes: the lists have none.
struct Table<'a> {
    path: &'a Path,
    text: &'a str,
}

impl<'a> Table<'a> {
    fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text }
    }

    fn column(&self, name: &'static str) -> Result<Column, TraceError> {
        let header = self.text.lines().next().unwrap_or_default();
        let place = header.split(',').position(|column| column.trim() == name);
        let missing = TraceError::Column { path: self.path.to_owned(), column: name };
        place.map(|place| Column(place, name)).ok_or(missing)
    }

    fn columns<const N: usize>(&self, names: [&'static str; N]) -> Result<[Column; N], TraceError> {
        let mut columns = [Column(0, ""); N];
        for (column, name) in columns.iter_mut().zip(names) {
            *column = self.column(name)?;
        }
        Ok(columns)
    }

    fn rows(&self) -> impl Iterator<Item = Row<'a>> {
        let path = self.path;
        let lines = (1..).zip(self.text.lines()).skip(1).filter(|(_, line)| !line.trim().is_empty());
        lines.map(move |(line, text)| Row { path, line, fields: text.split(',').map(str::trim).collect() })
    }

    fn model_id(&self, models: &mut Vec<String>, name: &str) -> Result<u16, TraceError> {
        let known = models.iter().position(|model| model == name);
        if known.is_none() && models.len() == MODELS_MAX {
            return Err(TraceError::Models { path: self.path.to_owned() });
        }
        let index = known.unwrap_or_else(|| {
            models.push(name.to_owned());
            models.len() - 1
        });
        // At most 63, so that it fits.
        Ok(index as u16 + 1)
    }
}

struct Row<'a> {
    path: &'a Path,
    line: usize,
    fields: Vec<&'a str>,
}

impl<'a> Row<'a> {
    fn text(&self, column: Column) -> Result<&'a str, TraceError> {
        let missing =
            || TraceError::Missing { path: self.path.to_owned(), line: self.line, column: column.1 };
        self.fields.get(column.0).copied().ok_or_else(missing)
    }

    /// Models are names, as the scheduler takes them.
    fn model(&self, column: Column) -> Result<&'a str, TraceError> {
        let text = self.text(column)?;
        let named = |model: &str| model.len() <= NAME_BYTES_MAX && !model.chars().any(char::is_control);
        match text.split('|').all(named) {
            true => Ok(text),
            false => Err(self.wrong(column, "names of models without control characters", "V100M16|V100M32")),
        }
    }

    fn number<T: FromStr + PartialOrd + Display>(
        &self,
        column: Column,
        bounds: &RangeInclusive<T>,
        example: &'static str,
    ) -> Result<T, TraceError> {
        let read = field::number(String::new, column.1, self.text(column)?, bounds, example);
        read.map_err(|error| self.wrong(column, error.want, example))
    }

    fn wrong(&self, column: Column, want: impl Into<String>, example: &'static str) -> TraceError {
        let (path, line, want) = (self.path.to_owned(), self.line, want.into());
        let text = self.fields.get(column.0).copied().unwrap_or_default().to_owned();
        TraceError::Field { path, line, column: column.1, text, want, example }
    }
}
