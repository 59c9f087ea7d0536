//! Who calls: the kernel vouches for callers on the unix socket, a token for those on QUIC.
//!
//! On a socket, root and the user that runs the agent are administrators; everybody else submits, and each user is
//! a tenant of its own name. Tokens carry their actor in the replicated state.

use crate::net::hash_secret;
use crate::node::Node;
use crate::shim::cage::CageSettings;
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

    /// The numeric user and group that this caller's tasks run as; none for the agent's own.
    ///
    /// # Errors
    /// The agent is root, and a token is no reason to make its owner root on every host, and so master of the
    /// cluster's keys. Unless it is an administrator's, tasks run as its user where this host knows that, and else as a
    /// number from the configured range that is always the same for that name.
    pub fn task_user(&self, cages: &CageSettings) -> Result<Option<(u32, u32)>, PublicError> {
        let own = rustix::process::geteuid().as_raw();
        let passwd = || std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        self.task_user_of(own, passwd, cages)
    }

    fn task_user_of(
        &self,
        own: u32,
        passwd: impl FnOnce() -> String,
        cages: &CageSettings,
    ) -> Result<Option<(u32, u32)>, PublicError> {
        let user = &self.actor.user;
        match self.uid_gid {
            Some((uid, _)) if own != 0 && uid != own && uid != 0 => {
                let message = format!(
                    "this host's agent is not root and cannot run tasks as {user}: submit as the agent's own user, or \
                     run the agent as root"
                );
                return Err(PublicError::new(ErrorCode::Forbidden, message));
            }
            // Only root can change to a user, even to itself.
            Some(ids) => return Ok(Some(ids).filter(|(uid, _)| *uid != 0 && *uid != own)),
            None if own != 0 || self.actor.role >= Role::Admin => return Ok(None),
            None => {}
        }
        let known = passwd().lines().find_map(|line| {
            let mut fields = line.split(':');
            let known = fields.next()? == user;
            let (uid, gid) = (fields.nth(1)?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?);
            known.then_some((uid, gid))
        });
        match known {
            Some((0, _)) => {
                let message = format!("{user} is root on this host, and root is for administrators' tokens");
                Err(PublicError::new(ErrorCode::Forbidden, message))
            }
            Some(ids) => Ok(Some(ids)),
            None => {
                let uid = cages.dynamic_uid(user);
                Ok(Some((uid, uid)))
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_as_their_submitter_and_never_as_root_by_a_users_token() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\nbad\nann:x:1001:100::/home/ann:/bin/sh\ntoor:x:0:0::/:/bin/sh\n";
        let of = |user: &str, role, uid_gid| Caller {
            actor: Actor { tenant: user.into(), user: user.into(), role },
            uid_gid,
        };
        let cages = CageSettings::default();
        let by_token = |user, role| {
            of(user, role, None).task_user_of(0, || passwd.to_owned(), &cages).map_err(|e| e.code)
        };
        assert_eq!(by_token("ann", Role::Submitter), Ok(Some((1001, 100))));
        for user in ["root", "toor"] {
            assert_eq!(by_token(user, Role::Operator), Err(ErrorCode::Forbidden), "{user}");
        }
        for user in ["bob", "bad", "an"] {
            let (uid, gid) = by_token(user, Role::Operator).unwrap().unwrap();
            assert!(cages.is_dynamic(uid) && uid == gid, "{user} is nobody's number: {uid}");
        }
        assert_eq!(by_token("bob", Role::Admin), Ok(None));
        assert_eq!(
            of("bob", Role::Submitter, None).task_user_of(1001, || passwd.to_owned(), &cages),
            Ok(None)
        );
        assert_eq!(
            of("ann", Role::Submitter, Some((7, 8))).task_user_of(0, || passwd.to_owned(), &cages),
            Ok(Some((7, 8)))
        );
        assert_eq!(
            of("ann", Role::Admin, Some((1001, 100))).task_user_of(1001, || passwd.to_owned(), &cages),
            Ok(None)
        );
        let other =
            of("bob", Role::Submitter, Some((1002, 100))).task_user_of(1001, || passwd.to_owned(), &cages);
        assert_eq!(other.map_err(|e| e.code), Err(ErrorCode::Forbidden), "only root can become another user");
        assert_eq!(
            of("root", Role::Admin, Some((0, 0))).task_user_of(0, || passwd.to_owned(), &cages),
            Ok(None)
        );
    }
}
