//! What a user knows of a job's pace: how fast it runs on which GPU model, how much work it is, and that it goes on
//! where it stopped. And the rule of a queue for jobs that take turns.

use serde::{Deserialize, Serialize};

/// Highest stated speed: a thousand times an ordinary one.
pub const SPEED_PERMILLE_MAX: u32 = 1_000_000;

/// A job's pace, as far as its user says it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Pace {
    /// When it is ended and started again it goes on where it stopped: it may take turns with others of its queue, and
    /// move to another model.
    pub resumes: bool,
    /// How long it would run alone on its best model, in ms. An estimate: nothing is ended by it.
    pub work_ms: Option<u64>,
    /// Its speed by GPU model, in permille of an ordinary one. Only their ratios count.
    pub speeds: Vec<(String, u32)>,
}

/// Which jobs of a queue take turns, of those that say that they resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Turns {
    /// All: on cards of unlike models for speed, on equal ones so that short work does not wait for long work.
    #[default]
    Auto,
    /// Only those for which models of unlike speed are there.
    Unlike,
    /// None: what runs goes on to its end.
    Off,
}
