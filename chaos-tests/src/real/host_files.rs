//! Hosts of a lab with files of their own: settings, and another boot id. The lab's `rota` is a small script that looks
//! for them in the data directory and then becomes the program.

use super::Bench;
use rota_node::lab::{Lab, LabError, LabOptions, Peer, io};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Settings of one host.
const SETTINGS: &str = "rota.toml";
/// What its kernel says of the boot, in place of the real one.
const BOOT: &str = "boot_id";

/// A lab whose agents look for files of their own.
pub(super) async fn lab_with_files(bench: &Bench, scenario: &str, peers: usize) -> Result<Lab, LabError> {
    let mut refused = None;
    let lab = bench.lab(scenario, peers, |options| refused = look_for_files(bench, options).err()).await;
    match refused {
        Some(error) => Err(error),
        None => lab,
    }
}

fn look_for_files(bench: &Bench, options: &mut LabOptions) -> Result<(), LabError> {
    std::fs::create_dir_all(&options.dir).map_err(io("the lab's folder"))?;
    let script = options.dir.join("rota.sh");
    // The mount is seen by this agent and what it starts, and by nobody else.
    let text = format!(
        "data=\"\"; last=\"\"\n\
         for word in \"$@\"; do [ \"$last\" = --data-dir ] && data=$word; last=$word; done\n\
         case \" $* \" in *\" agent \"*) ;; *) exec {exe} \"$@\" ;; esac\n\
         [ -f \"$data/{SETTINGS}\" ] && set -- \"$@\" --config \"$data/{SETTINGS}\"\n\
         [ -f \"$data/{BOOT}\" ] || exec {exe} \"$@\"\n\
         exec unshare -m sh -c 'mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"' \"$data/{BOOT}\" {exe} \"$@\"",
        exe = bench.exe.display(),
    );
    program(&script, &text)?;
    options.exe = script;
    Ok(())
}

/// Gives a host that does not run settings of its own.
pub(super) fn set_settings(peer: &Peer, toml: &str) -> Result<(), LabError> {
    std::fs::write(peer.dir.join(SETTINGS), toml).map_err(io("settings"))
}

/// Gives a host that does not run another boot id.
pub(super) fn set_boot(peer: &Peer, number: u64) -> Result<(), LabError> {
    let text = format!("{number:08x}-0000-4000-8000-000000000000\n");
    std::fs::write(peer.dir.join(BOOT), text).map_err(io("boot id"))
}

/// A program in a folder.
pub(super) fn program(path: &Path, script: &str) -> Result<(), LabError> {
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).map_err(io("a program"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).map_err(io("a program"))
}
