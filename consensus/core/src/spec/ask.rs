//! One ask alone: amounts in range, and nothing that contradicts itself.

use super::check_name;
use crate::fit::{DEVICE_KINDS, device_kind};
use rota_protocol::PublicError;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::limits::{GPUS_PER_TASK_MAX, HOST_DEVICES_MAX};

/// Most entries of a list or map inside an ask: models, labels, device kinds.
const ASK_ENTRIES_MAX: usize = 64;
/// Largest memory ask, in MiB (1 PiB): more is a typing error, and sums stay far from overflow.
const MEM_MIB_MAX: u64 = 1 << 30;
/// Highest compute capability that can be asked, in tenths.
const COMPUTE_CAP_MAX: u16 = 999;

/// Checks one ask.
///
/// # Errors
/// The first field at fault.
pub(super) fn check(ask: &Ask) -> Result<(), PublicError> {
    if ask.gpu_milli > CARD_MILLI && !ask.gpu_milli.is_multiple_of(CARD_MILLI) {
        let message = format!(
            "{} GPUs is neither whole cards nor a share of one card",
            crate::fit::milli(u64::from(ask.gpu_milli))
        );
        return Err(PublicError::invalid("ask.gpus", message, "2, or 0.5"));
    }
    if ask.gpus() > GPUS_PER_TASK_MAX {
        let message = format!("{} GPUs are above {GPUS_PER_TASK_MAX} for one task", ask.gpus());
        return Err(PublicError::invalid("ask.gpus", message, "8"));
    }
    if ask.gpus() == 0 && ask.vram_mib > 0 {
        let message = format!("{} MiB of GPU memory but no GPU is asked", ask.vram_mib);
        return Err(PublicError::invalid("ask.vram", message, "gpus=1 vram=20GiB"));
    }
    if ask.share_milli().is_some() && ask.devices.keys().any(|kind| kind.starts_with("mig")) {
        let message = "a share of a card and slices cannot be asked together";
        return Err(PublicError::invalid("ask.devices", message, "mig=1 without gpus"));
    }
    let models = || ask.gpu_models.iter().chain(&ask.gpu_models_preferred);
    if ask.gpus() == 0 && models().next().is_some() {
        let named: Vec<&str> = models().map(String::as_str).collect();
        let message = format!("model {} but no GPU is asked", named.join("|"));
        return Err(PublicError::invalid("ask.model", message, "gpus=1 model=H100"));
    }
    if ask.compute_cap_min > 0 && ask.gpus() == 0 {
        let message = format!("{} but no GPU is asked", crate::fit::tenths(ask.compute_cap_min));
        return Err(PublicError::invalid("ask.compute_cap", message, "gpus=1 compute-cap=8.0"));
    }
    if ask.compute_cap_min > COMPUTE_CAP_MAX {
        let message = format!("{} is above {}", ask.compute_cap_min, COMPUTE_CAP_MAX);
        return Err(PublicError::invalid("ask.compute_cap", message, "8.0"));
    }
    for (field, amount) in [("ask.vram", ask.vram_mib), ("ask.mem", ask.mem_mib)] {
        if amount > MEM_MIB_MAX {
            let message = format!("{amount} MiB is above {MEM_MIB_MAX}");
            return Err(PublicError::invalid(field, message, "16GiB"));
        }
    }
    check_lists(ask)
}

fn check_lists(ask: &Ask) -> Result<(), PublicError> {
    let lists = [
        ("ask.model", ask.gpu_models.len()),
        ("ask.prefer", ask.gpu_models_preferred.len()),
        ("ask.devices", ask.devices.len()),
        ("ask.labels", ask.labels.len()),
    ];
    for (field, n) in lists {
        if n > ASK_ENTRIES_MAX {
            return Err(PublicError::invalid(
                field,
                format!("{n} entries are above {ASK_ENTRIES_MAX}"),
                "1 entry",
            ));
        }
    }
    for model in ask.gpu_models.iter().chain(&ask.gpu_models_preferred) {
        check_name("ask.model", model)?;
        if model.trim().is_empty() {
            return Err(PublicError::invalid("ask.model", "is empty", "H100"));
        }
    }
    for (key, value) in &ask.labels {
        check_name("ask.labels", key)?;
        check_name("ask.labels", value)?;
        if key.is_empty() {
            return Err(PublicError::invalid("ask.labels", "a label without a name", "rack=a1"));
        }
    }
    for (kind, count) in &ask.devices {
        check_kind(kind, *count)?;
    }
    Ok(())
}

fn check_kind(kind: &str, count: u32) -> Result<(), PublicError> {
    let known = || DEVICE_KINDS.map(|(name, _)| name).join(", ");
    if matches!(kind, "gpu" | "gpus") {
        return Err(PublicError::invalid("ask.devices", "GPUs have a field of their own", "gpus=1"));
    }
    check_name("ask.devices", kind)?;
    if device_kind(kind).is_none() {
        let shown: String = kind.chars().filter(|c| !c.is_control()).take(32).collect();
        let message = format!("unknown kind '{shown}', known are: {}", known());
        return Err(PublicError::invalid("ask.devices", message, "fpga=1"));
    }
    if count == 0 || count as usize > HOST_DEVICES_MAX {
        let message = format!("{count} {kind} is not between 1 and {HOST_DEVICES_MAX}");
        return Err(PublicError::invalid("ask.devices", message, "fpga=1"));
    }
    Ok(())
}
