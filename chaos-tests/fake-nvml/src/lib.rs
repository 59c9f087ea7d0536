//! A stand-in for NVIDIA's `libnvidia-ml.so`, driven by a text file ([`script`]) that is read anew at each call. Tests
//! load it through the real wrapper, so that everything above the C interface is the product's own code.
//!
//! It behaves as the real one where that matters: the list of cards is made when the library is started and stays
//! until it is started anew; a card that has gone since then answers "GPU is lost"; values are read live; an event is
//! heard only by who had registered before it.
//! It is no emulator: it knows the calls that Rota makes and no others.
//!
//! Tests set a driver up with [`stage::Stage`], and the kernel's messages with [`kmsg::Kmsg`]:
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use fake_nvml::script::{Card, code};
//! let folder = std::path::Path::new("/tmp/driver");
//! let driver = fake_nvml::stage::Stage::in_folder(folder, vec![Card::new("GPU-a"), Card::new("GPU-b")])?;
//! // The agent: `nvml_library = "/tmp/driver/libnvidia-ml.so.1"` and, under `[devices]`, `kmsg_path = "/tmp/driver/kmsg"`.
//! driver.shows(vec![Card::new("GPU-a").failing("*", code::GPU_IS_LOST), Card::new("GPU-b").hanging("memory")])?;
//! let mut kernel = fake_nvml::kmsg::Kmsg::open(&folder.join("kmsg"))?;
//! kernel.xid("0000:3b:00", 79, Some((4711, "python")), "GPU has fallen off the bus.")?;
//! # Ok(())
//! # }
//! ```

mod abi;
pub mod kmsg;
mod place;
pub mod script;
pub mod stage;

use std::path::{Path, PathBuf};

/// The built library, found beside the running test's own executable or one folder above.
///
/// # Errors
/// The paths that were looked at, when it is at none of them.
pub fn library() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let folders: Vec<&Path> = exe.ancestors().skip(1).take(2).collect();
    folders
        .iter()
        .flat_map(|folder| [folder.join("libfake_nvml.so"), folder.join("deps/libfake_nvml.so")])
        .find(|path| path.is_file())
        .ok_or_else(|| format!("libfake_nvml.so is not in any of {folders:?}"))
}
