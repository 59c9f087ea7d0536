//! Where the cluster is to be found, in this order; the first that is given wins:
//!
//! 1. `--socket PATH`;
//! 2. `--peer ADDRESS[,ADDRESS..]` with a token from `--token-file`, `ROTA_TOKEN`, or `~/.config/rota/token`;
//! 3. `ROTA_SOCKET`;
//! 4. `ROTA_PEER`, with a token as above;
//! 5. `ROTA_DATA_DIR`, its `api.sock`;
//! 6. the first socket that exists of `/run/rota/api.sock`, `<user's data>/rota/api.sock`, `/var/lib/rota/api.sock`;
//!    if none does, the first is named in the error.
//!
//! Tokens are never taken from an argument: arguments are in every process list.

use rota_protocol::{ErrorCode, PublicError};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where the agent of a package listens.
pub const SYSTEM_SOCKET: &str = "/run/rota/api.sock";
/// Where the agent of a package keeps its data.
pub const SYSTEM_DATA_DIR: &str = "/var/lib/rota";
/// Longest token text, in bytes.
const TOKEN_BYTES_MAX: usize = 1_024;

/// What the flags say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetFlags {
    /// `--socket`
    pub socket: Option<PathBuf>,
    /// `--peer`
    pub peer: Option<String>,
    /// `--token-file`
    pub token_file: Option<PathBuf>,
}

/// Where to connect.
#[derive(Clone, PartialEq, Eq)]
pub enum Target {
    /// An agent on this host.
    Socket(PathBuf),
    /// Peers over the network.
    Peers {
        /// `host:port`, the first one first.
        addrs: Vec<String>,
        /// The secret.
        token: String,
    },
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => f.debug_tuple("Socket").field(path).finish(),
            Self::Peers { addrs, .. } => {
                f.debug_struct("Peers").field("addrs", addrs).finish_non_exhaustive()
            }
        }
    }
}

/// Finds the cluster.
///
/// # Errors
/// A peer is given but no token is found, or its file cannot be read.
pub fn find(flags: &TargetFlags, env: impl Fn(&str) -> Option<OsString>) -> Result<Target, PublicError> {
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(path) = &flags.socket {
        return Ok(Target::Socket(path.clone()));
    }
    if let Some(peer) = &flags.peer {
        return peers(peer, flags, &env);
    }
    if let Some(path) = env("ROTA_SOCKET") {
        return Ok(Target::Socket(path.into()));
    }
    if let Some(peer) = env("ROTA_PEER") {
        return peers(&peer.to_string_lossy(), flags, &env);
    }
    if let Some(dir) = env("ROTA_DATA_DIR") {
        return Ok(Target::Socket(Path::new(&dir).join("api.sock")));
    }
    let mut candidates = vec![PathBuf::from(SYSTEM_SOCKET)];
    candidates.extend(user_data_dir(&env).map(|dir| dir.join("api.sock")));
    candidates.push(Path::new(SYSTEM_DATA_DIR).join("api.sock"));
    let found = candidates.iter().find(|path| path.exists());
    Ok(Target::Socket(found.unwrap_or(&candidates[0]).clone()))
}

/// `$XDG_DATA_HOME/rota` or `~/.local/share/rota`: where `rota dev` keeps its data.
pub fn user_data_dir(env: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let base = match env("XDG_DATA_HOME") {
        Some(base) => PathBuf::from(base),
        None => Path::new(&env("HOME")?).join(".local/share"),
    };
    Some(base.join("rota"))
}

fn peers(
    list: &str,
    flags: &TargetFlags,
    env: &impl Fn(&str) -> Option<OsString>,
) -> Result<Target, PublicError> {
    let addrs: Vec<String> =
        list.split(',').map(|addr| addr.trim().to_owned()).filter(|addr| !addr.is_empty()).collect();
    if addrs.is_empty() {
        return Err(PublicError::invalid("peer", "names no address", "node1:7420"));
    }
    let token = token(flags, env)?;
    Ok(Target::Peers { addrs, token })
}

fn token(flags: &TargetFlags, env: &impl Fn(&str) -> Option<OsString>) -> Result<String, PublicError> {
    if let Some(path) = &flags.token_file {
        return read_token(path);
    }
    if let Some(token) = env("ROTA_TOKEN") {
        return Ok(token.to_string_lossy().trim().to_owned());
    }
    let config = match env("XDG_CONFIG_HOME") {
        Some(base) => Some(PathBuf::from(base)),
        None => env("HOME").map(|home| Path::new(&home).join(".config")),
    };
    match config.map(|base| base.join("rota/token")) {
        Some(path) if path.exists() => read_token(&path),
        _ => Err(PublicError::new(
            ErrorCode::Unauthenticated,
            "a peer is given but no token: set ROTA_TOKEN, or write it to ~/.config/rota/token (an operator makes one with `rota cluster token --user NAME`)",
        )),
    }
}

fn read_token(path: &Path) -> Result<String, PublicError> {
    let refuse = |why: String| {
        PublicError::new(ErrorCode::Unauthenticated, format!("token file {}: {why}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let token = text.trim();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return Err(refuse("is empty or too long to be a token".to_owned()));
    }
    Ok(token.to_owned())
}
