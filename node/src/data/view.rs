//! What a task sees of its inputs: a folder of its own below `<data>/inputs`, by the names that its job gives them.
//!
//! Folders and files are the agent's and read-only. Where the task runs as another user than the agent the files are hard
//! links to the blobs: who does not own a file can neither write it nor change its mode. A task of the agent's own user
//! could, so it gets copies (which cost no bytes where the file system shares them): what it does to them nobody else
//! sees. The folder's name carries a number that only the task is told, so that no other user finds it.

use super::store::Store;
use rota_protocol::Token;
use rota_protocol::data::Input;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Everybody may pass, nobody but the agent may look.
const INPUTS_MODE: u32 = 0o711;
const FOLDER_MODE: u32 = 0o555;
const FILE_MODE: u32 = 0o444;

/// Where a new attempt's inputs are to be. Another place at every call.
pub(super) fn draw(inputs: &Path, token: Token) -> PathBuf {
    inputs.join(format!("{token}-{:032x}", rand::random::<u128>()))
}

/// Makes the folder, whole or not at all.
pub(super) fn build(store: &Store, view: &Path, inputs: &[Input], copies: bool) -> io::Result<()> {
    let parent = view.parent().ok_or(io::ErrorKind::InvalidInput)?;
    make_folder(parent, INPUTS_MODE)?;
    fs::DirBuilder::new().mode(0o700).create(view)?;
    let filled = fill(store, view, inputs, copies);
    if filled.is_err() {
        let _ = remove(view);
    }
    filled
}

fn fill(store: &Store, view: &Path, inputs: &[Input], copies: bool) -> io::Result<()> {
    let mut folders = BTreeSet::from([view.to_owned()]);
    for Input { name, blob } in inputs {
        let path = view.join(name);
        let above = path.ancestors().skip(1).take_while(|above| *above != view).map(Path::to_owned);
        folders.extend(above);
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        // Another file system, or too many links: a copy is as good.
        if copies || fs::hard_link(store.path(blob), &path).is_err() {
            fs::copy(store.path(blob), &path)?;
            fs::set_permissions(&path, Permissions::from_mode(FILE_MODE))?;
        }
    }
    folders.iter().try_for_each(|folder| fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE)))
}

fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Whatever the mask was.
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Removes what an attempt was given.
pub(super) fn remove_of(inputs: &Path, token: Token) -> io::Result<()> {
    sweep(inputs, |of| of == token)
}

/// Removes what the attempts that are meant were given, and whatever is nobody's.
pub(super) fn sweep(inputs: &Path, is_over: impl Fn(Token) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(inputs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let token = path.file_name().and_then(|name| name.to_str()?.split_once('-')?.0.parse().ok());
        if token.map(Token).is_none_or(&is_over) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// All of it is the agent's, so no link in it leads elsewhere.
fn remove(view: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        open_up(view)?;
    }
    fs::remove_dir_all(view)
}

/// Who is not root must be allowed to write a folder to empty it.
fn open_up(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}
