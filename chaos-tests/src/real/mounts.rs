//! Small file systems for one host of a lab each, so that its disk can be full or turn read-only without the machine's:
//! a tmpfs, or an ext4 in a file. They go with the value, whatever still holds files there.

use rota_node::lab::{LabError, io};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How often, and how far apart, a broken file system is unmounted: what its agent left behind ends by itself.
const UNMOUNT_TRIES: u32 = 100;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(100);

/// A mounted file system.
#[derive(Debug)]
pub(super) struct Mounted {
    place: PathBuf,
}

/// Why file systems cannot be mounted here; none if they can.
pub(super) fn cannot_mount() -> Option<&'static str> {
    (!rustix::process::geteuid().is_root()).then_some("mounting a file system needs root")
}

fn run(program: &str, args: &[&str]) -> Result<(), LabError> {
    let output = Command::new(program).args(args).output().map_err(io(program))?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(LabError::Command { command: format!("{program} {}", args.join(" ")), output })
}

impl Mounted {
    /// A tmpfs of so many MiB at a folder, which is made.
    pub(super) fn tmpfs(place: &Path, mib: u64) -> Result<Self, LabError> {
        std::fs::create_dir_all(place).map_err(io("cannot make a mount point"))?;
        let size = format!("size={mib}m");
        run("mount", &["-t", "tmpfs", "-o", &size, "rota-lab", &place.to_string_lossy()])?;
        Ok(Self { place: place.to_owned() })
    }

    /// A new ext4 of so many MiB in a file beside the folder.
    pub(super) fn ext4(place: &Path, mib: u64) -> Result<Self, LabError> {
        std::fs::create_dir_all(place).map_err(io("cannot make a mount point"))?;
        let image = place.with_extension("img");
        let file = File::create(&image).map_err(io("cannot make an image"))?;
        file.set_len(mib << 20).map_err(io("cannot size an image"))?;
        run("mkfs.ext4", &["-q", "-F", &image.to_string_lossy()])?;
        let mounted = Self::loop_at(place)?;
        // A host's folder begins empty.
        std::fs::remove_dir(place.join("lost+found")).map_err(io("cannot empty the file system"))?;
        Ok(mounted)
    }

    fn loop_at(place: &Path) -> Result<Self, LabError> {
        std::fs::create_dir_all(place).map_err(io("cannot make a mount point"))?;
        let image = place.with_extension("img");
        run("mount", &["-o", "loop", &image.to_string_lossy(), &place.to_string_lossy()])?;
        Ok(Self { place: place.to_owned() })
    }

    /// Makes an ext4 refuse every write from now on, as it does by itself after an error of its device.
    pub(super) fn turn_read_only(&self) -> Result<(), LabError> {
        run("mount", &["-o", "remount,abort", &self.place.to_string_lossy()])
    }

    /// Mounts the ext4 anew, checked and writable.
    pub(super) fn mend(self) -> Result<Self, LabError> {
        let place = self.place.clone();
        let text = place.to_string_lossy().into_owned();
        // As long as anything holds a file there, the broken file system lives on, and would be what is mounted again.
        for _ in 0..UNMOUNT_TRIES {
            if run("umount", &[&text]).is_ok() {
                std::mem::forget(self);
                return Self::loop_at(&place);
            }
            std::thread::sleep(UNMOUNT_PAUSE);
        }
        run("umount", &[&text]).and(Ok(self))
    }

    /// Takes all the room that is left. Removing the returned file gives it back.
    pub(super) fn fill(&self) -> Result<PathBuf, LabError> {
        let path = self.place.join("filler");
        let mut file =
            File::options().create(true).append(true).open(&path).map_err(io("cannot make a filler"))?;
        for piece in [1 << 20, 4_096, 1] {
            let bytes = vec![1; piece];
            // Until the disk refuses.
            while file.write_all(&bytes).is_ok() {}
        }
        Ok(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a shim may still hold a file there.
        let _ = run("umount", &["-l", &self.place.to_string_lossy()]);
    }
}
