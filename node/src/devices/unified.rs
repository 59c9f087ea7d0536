//! Chips on which processor and GPU share one memory (R022): the driver tells no memory of the GPU's own, or the host's.
//! Known by name alone: on any other card a missing figure means that nobody knows.

/// Parts of names of such chips, in small letters. Not among them: GH200 and GB200, whose GPU memory is its own and told.
const SHARED_MEMORY: [&str; 8] = ["gb10", "orin", "xavier", "thor", "tegra", "jetson", "mi300a", "igpu"];

/// Whether the GPU of this model has the host's memory as its own. A word of the name must be one of those known: a
/// model such as `GB102` is another one.
#[must_use]
pub fn is_shared(model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    let mut words = model.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| SHARED_MEMORY.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_chips_share() {
        for shared in
            ["NVIDIA GB10", "Orin (nvgpu)", "NVIDIA Jetson AGX Thor", "AMD Instinct MI300A", "Xavier"]
        {
            assert!(is_shared(shared), "{shared}");
        }
        for own in
            ["NVIDIA A100-SXM4-80GB", "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB102", "", "AMD MI300X"]
        {
            assert!(!is_shared(own), "{own}");
        }
    }
}
