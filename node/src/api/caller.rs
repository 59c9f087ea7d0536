//! Who calls: the kernel vouches for callers on the unix socket, a token for those on QUIC.
//!
//! On a socket, root and the user that runs the agent are administrators; everybody else submits, and each user is
//! a tenant of its own name. Tokens carry their actor in the replicated state.

use crate::net::hash_secret;
use crate::node::Node;
use rota_protocol::command::{Command, least_role};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::job::{Actor, Role};
use std::os::fd::AsFd;

/// A caller whose identity is established.
#[derive(Debug, Clone)]
pub struct Caller {
    /// As whom it acts.
    pub actor: Actor,
    /// The numeric user and group, when the kernel told them.
    pub uid_gid: Option<(u32, u32)>,
}

impl Caller {
    /// The process at the other end of a unix socket.
    ///
    /// # Errors
    /// The kernel does not say who it is.
    pub fn of_socket(stream: &impl AsFd) -> std::io::Result<Self> {
        let credentials = rustix::net::sockopt::socket_peercred(stream)?;
        let (uid, gid) = (credentials.uid.as_raw(), credentials.gid.as_raw());
        let own = rustix::process::getuid().as_raw();
        let user = user_name(uid);
        let role = if uid == 0 || uid == own { Role::Admin } else { Role::Submitter };
        Ok(Self { actor: Actor { tenant: user.clone(), user, role }, uid_gid: Some((uid, gid)) })
    }

    /// The owner of a token's secret text.
    ///
    /// # Errors
    /// Unknown, expired, or not a user's token: one answer for all.
    pub fn of_token(node: &Node, secret: &str) -> Result<Self, PublicError> {
        let hash = hash_secret(secret);
        let now_ms = crate::io::clock::wall_ms();
        node.consensus
            .read(|state| state.user_token(&hash, now_ms).cloned())
            .map(|actor| Self { actor, uid_gid: None })
            .ok_or_else(|| PublicError::new(ErrorCode::Unauthenticated, "the token is unknown or expired"))
    }

    /// Refuses commands above the caller's rights before they travel.
    ///
    /// # Errors
    /// Names the role that is needed.
    pub fn may(&self, command: &Command) -> Result<(), PublicError> {
        self.at_least(least_role(command))
    }

    /// Refuses callers below a role.
    ///
    /// # Errors
    /// Names the role that is needed.
    pub fn at_least(&self, role: Role) -> Result<(), PublicError> {
        if self.actor.role >= role {
            return Ok(());
        }
        Err(PublicError::new(
            ErrorCode::Forbidden,
            format!("this needs the role {role:?}, {} has {:?}", self.actor.user, self.actor.role),
        ))
    }

    /// Whether this caller may see what a tenant owns. Exact match, never a prefix.
    #[must_use]
    pub fn sees(&self, tenant: &str) -> bool {
        self.actor.role >= Role::Operator || self.actor.tenant == tenant
    }
}

/// The name of a user id in the password file; `uid-<n>` for one that is not there.
fn user_name(uid: u32) -> String {
    let wanted = uid.to_string();
    std::fs::read_to_string("/etc/passwd")
        .ok()
        .and_then(|text| {
            text.lines().find_map(|line| {
                let mut fields = line.split(':');
                let name = fields.next()?;
                (fields.nth(1)? == wanted).then(|| name.to_owned())
            })
        })
        .unwrap_or_else(|| format!("uid-{uid}"))
}
