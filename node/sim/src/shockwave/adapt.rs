//! How jobs change their batch size as they train. Two rules: one uses large batches outside of critical phases
//! (Accordion), one doubles the batch at measured epochs (gradient noise scale). The epochs are facts of the data set,
//! taken from the published experiment; the rules are those of Zheng et al., NSDI 2023.

/// How a job adapts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Never.
    Static,
    /// Large batches outside of critical phases.
    Accordion,
    /// Doublings at measured epochs.
    Gns,
}

/// What a model trains on: name, samples per epoch, largest batch (0: never adapts).
const MODELS: [(&str, u64, u64); 5] = [
    ("ResNet-18", 50_000, 256),
    ("ResNet-50", 100_000, 128),
    ("Transformer", 10_000, 0),
    ("LM", 59_675, 80),
    ("Recommendation", 117_907, 8192),
];

/// Model, first batch, GPUs, and the epochs at which the batch doubles.
const DOUBLINGS: [(&str, u64, u32, &[u64]); 33] = [
    ("ResNet-18", 16, 1, &[31, 41, 51, 71]),
    ("ResNet-18", 32, 1, &[21, 31, 51]),
    ("ResNet-18", 64, 1, &[11, 31]),
    ("ResNet-18", 128, 1, &[11]),
    ("ResNet-18", 16, 2, &[21, 31, 91, 111]),
    ("ResNet-18", 32, 2, &[11, 21, 41]),
    ("ResNet-18", 64, 2, &[21, 41]),
    ("ResNet-18", 128, 2, &[41]),
    ("ResNet-18", 16, 4, &[11, 21, 81, 91]),
    ("ResNet-18", 32, 4, &[21, 31, 61]),
    ("ResNet-18", 64, 4, &[11, 61]),
    ("ResNet-18", 128, 4, &[11]),
    ("ResNet-50", 64, 1, &[101]),
    ("ResNet-50", 32, 2, &[101, 111]),
    ("ResNet-50", 64, 2, &[81]),
    ("ResNet-50", 32, 4, &[131, 221]),
    ("ResNet-50", 64, 4, &[191]),
    ("LM", 5, 1, &[31, 41, 61, 71]),
    ("LM", 10, 1, &[11, 21, 41]),
    ("LM", 20, 1, &[11, 41]),
    ("LM", 40, 1, &[11]),
    ("LM", 5, 2, &[31, 51, 61, 71]),
    ("LM", 10, 2, &[11, 31, 41]),
    ("LM", 20, 2, &[31, 41]),
    ("LM", 40, 2, &[11]),
    ("LM", 5, 4, &[11, 31, 71, 91]),
    ("LM", 10, 4, &[11, 31, 61]),
    ("LM", 20, 4, &[11, 61]),
    ("LM", 40, 4, &[61]),
    ("Recommendation", 512, 1, &[21, 41, 71, 91]),
    ("Recommendation", 1024, 1, &[21, 51, 91]),
    ("Recommendation", 2048, 1, &[21, 41]),
    ("Recommendation", 4096, 1, &[41]),
];

/// The models whose data are known.
pub(super) fn models() -> Vec<&'static str> {
    MODELS.iter().map(|(name, _, _)| *name).collect()
}

/// A model's samples per epoch.
#[must_use]
pub(super) fn samples(model: &str) -> Option<u64> {
    MODELS.iter().find(|(name, _, _)| *name == model).map(|(_, samples, _)| *samples)
}

/// The largest batch to which a model adapts; none if it never does.
#[must_use]
pub(super) fn batch_max(model: &str) -> Option<u64> {
    MODELS.iter().find(|(name, _, max)| *name == model && *max > 0).map(|(_, _, max)| *max)
}

/// The batch that the doubling rule reaches at an epoch of a job that began with `first`.
#[must_use]
pub(super) fn doubled(model: &str, first: u64, gpus: u32, epoch: u64) -> u64 {
    let row =
        DOUBLINGS.iter().find(|(name, batch, size, _)| *name == model && *batch == first && *size == gpus);
    let times = row.map_or(0, |(_, _, _, epochs)| epochs.iter().filter(|at| epoch >= **at).count());
    (first << times).min(batch_max(model).unwrap_or(first))
}

/// Whether an epoch is in a critical phase, in which the first batch is kept.
#[must_use]
pub(super) fn critical(model: &str, first: u64, epoch: u64) -> bool {
    match model {
        "LM" => epoch < 10,
        "Recommendation" if first <= 1024 => epoch < 30,
        "Recommendation" if first == 2048 => epoch < 40,
        "Recommendation" => epoch < 10,
        "ResNet-50" => epoch % 30 < 10,
        "ResNet-18" => {
            epoch < if first == 256 { 20 } else { 10 }
                || (150..160).contains(&epoch)
                || (250..260).contains(&epoch)
        }
        _ => true,
    }
}

/// The batch of every epoch as the experiment foresees it, from which a job's time alone is reckoned. It differs from
/// what jobs do in two points of the published code: the first 30 % of an Accordion job count as critical (and two
/// more phases of Recommendation), and the last epoch of a job that doubled twice or more keeps its first batch.
pub(super) fn foreseen(
    model: &str,
    first: u64,
    gpus: u32,
    epochs: u64,
    mode: Mode,
) -> impl Iterator<Item = u64> + use<'_> {
    let at = move |epoch: u64| match mode {
        Mode::Static => first,
        Mode::Accordion => {
            let later = model == "Recommendation" && ((60..70).contains(&epoch) || (80..90).contains(&epoch));
            let early = epoch as f64 <= epochs as f64 * 0.3;
            if critical(model, first, epoch) || later || early {
                first
            } else {
                batch_max(model).unwrap_or(first)
            }
        }
        Mode::Gns => {
            let batch = doubled(model, first, gpus, epoch);
            if epoch + 1 == epochs && batch > 2 * first { first } else { batch }
        }
    };
    (0..epochs).map(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_double_up_to_the_largest() {
        assert_eq!(doubled("LM", 10, 1, 10), 10);
        assert_eq!(doubled("LM", 10, 1, 11), 20);
        assert_eq!(doubled("LM", 10, 1, 500), 80);
        assert_eq!(doubled("LM", 80, 1, 500), 80);
        assert_eq!(doubled("Transformer", 16, 1, 500), 16);
    }

    #[test]
    fn foreseen_batches_follow_the_mode() {
        let batches = |epochs, mode| foreseen("LM", 10, 1, epochs, mode).collect::<Vec<u64>>();
        assert_eq!(batches(3, Mode::Static), [10; 3]);
        let accordion = batches(20, Mode::Accordion);
        assert_eq!((accordion[9], accordion[10]), (10, 80));
        let gns = batches(60, Mode::Gns);
        assert_eq!((gns[12], gns[58], gns[59]), (20, 80, 10));
    }
}
