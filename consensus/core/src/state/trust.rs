//! Whom the cluster trusts, and the version of its words. Keys and authorities are known by their SHA-256; whether a
//! certificate is one is for those who see it.

use super::State;
use crate::hash::Digest;
use crate::state::host::HostLife;
use rota_protocol::HostId;
use rota_protocol::command::SecretHash;
use rota_protocol::trust::{AuditRow, CaStage, Print};
use rota_protocol::version;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Lines of the audit log that are kept; each is under 600 bytes.
pub const AUDIT_ROWS_MAX: usize = 2_000;
/// Longest certificate of an authority, in bytes: real ones have 500.
pub(crate) const CERTIFICATE_BYTES_MAX: usize = 4_096;

/// A certificate authority of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    /// SHA-256 of its certificate in DER.
    pub ca: Print,
    /// Its certificate, PEM.
    pub certificate_pem: String,
    /// When that ends, ms since the epoch.
    pub ends_ms: u64,
}

/// Why a host is trusted no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// For people.
    pub reason: String,
    /// Who said so.
    pub by: String,
    /// When, in log time.
    pub at_ms: u64,
}

/// The table. None of it is in snapshots before version 3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustTable {
    pub(crate) version: u16,
    /// At most two; the first one signs.
    pub(crate) authorities: Vec<Authority>,
    pub(crate) stage: CaStage,
    /// Hosts that have done their part of the stage.
    pub(crate) took: BTreeSet<HostId>,
    pub(crate) keys: BTreeMap<HostId, Print>,
    pub(crate) revoked: BTreeMap<HostId, Revoked>,
    /// Who made a token, and when.
    pub(crate) made: BTreeMap<SecretHash, (String, u64)>,
    pub(crate) audit: VecDeque<AuditRow>,
    /// The hash before the oldest line kept.
    pub(crate) audit_before: u64,
}

impl Default for TrustTable {
    fn default() -> Self {
        Self {
            version: version::FIRST,
            authorities: Vec::new(),
            stage: CaStage::Settled,
            took: BTreeSet::new(),
            keys: BTreeMap::new(),
            revoked: BTreeMap::new(),
            made: BTreeMap::new(),
            audit: VecDeque::new(),
            audit_before: 0,
        }
    }
}

impl TrustTable {
    /// The newest words that the log may hold.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The authorities that count, the one that signs first.
    #[must_use]
    pub fn authorities(&self) -> &[Authority] {
        &self.authorities
    }

    /// Where a change of authorities stands.
    #[must_use]
    pub fn stage(&self) -> CaStage {
        self.stage
    }

    /// The authority that is to be the only one when the change is over.
    #[must_use]
    pub fn next_authority(&self) -> Option<&Authority> {
        match self.stage {
            CaStage::Settled => None,
            CaStage::Trusting => self.authorities.get(1),
            CaStage::Issuing => self.authorities.first(),
        }
    }

    /// Whether a host has done its part of the stage.
    #[must_use]
    pub fn took(&self, host: HostId) -> bool {
        self.took.contains(&host)
    }

    /// SHA-256 of a host's public key, once it is recorded.
    #[must_use]
    pub fn key(&self, host: HostId) -> Option<&Print> {
        self.keys.get(&host)
    }

    /// All recorded keys.
    pub fn keys(&self) -> impl Iterator<Item = (HostId, &Print)> {
        self.keys.iter().map(|(host, key)| (*host, key))
    }

    /// Why a host is trusted no more, if it is not.
    #[must_use]
    pub fn revoked(&self, host: HostId) -> Option<&Revoked> {
        self.revoked.get(&host)
    }

    /// All of those.
    pub fn all_revoked(&self) -> impl Iterator<Item = (HostId, &Revoked)> {
        self.revoked.iter().map(|(host, why)| (*host, why))
    }

    /// The audit log, oldest line first.
    pub fn audit(&self) -> impl Iterator<Item = &AuditRow> {
        self.audit.iter()
    }

    /// Whether each line's hash follows from the line before.
    #[must_use]
    pub fn audit_is_whole(&self) -> bool {
        let mut before = self.audit_before;
        self.audit.iter().all(|row| {
            let follows = row.hash == audit_hash(before, row);
            before = row.hash;
            follows
        })
    }

    /// The cluster begins anew: it has another authority, and its first host another key. Both are told again.
    pub(crate) fn begin_anew(&mut self) {
        self.authorities.clear();
        self.stage = CaStage::Settled;
        self.took.clear();
        self.keys.clear();
    }

    /// Adds a line to the audit log.
    pub(crate) fn note(&mut self, mut row: AuditRow) {
        if self.version < 3 {
            return;
        }
        let before = self.audit.back().map_or(self.audit_before, |last| last.hash);
        row.hash = audit_hash(before, &row);
        self.audit.push_back(row);
        while self.audit.len() > AUDIT_ROWS_MAX {
            self.audit_before = self.audit.pop_front().map_or(0, |gone| gone.hash);
        }
    }
}

fn audit_hash(before: u64, row: &AuditRow) -> u64 {
    let mut digest = Digest::new(before);
    digest.write_u64(row.index);
    digest.write_u64(row.at_ms);
    for text in [&row.actor, &row.what, &row.result] {
        digest.write(text.as_bytes());
    }
    digest.finish()
}

impl State {
    /// Whom the cluster trusts.
    #[must_use]
    pub fn trust(&self) -> &TrustTable {
        &self.trust
    }

    /// The newest words that the log may hold.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.trust.version
    }

    /// Hosts of which a change of authorities waits: all that ever came up, are trusted, and have not done their part.
    #[must_use]
    pub fn behind_in_ca(&self) -> Vec<HostId> {
        let table = &self.trust;
        let counts = |id: &HostId| !table.revoked.contains_key(id) && !table.took.contains(id);
        self.hosts()
            .filter(|host| host.life != HostLife::Joining && host.belonging.removed.is_none())
            .map(|host| host.id)
            .filter(counts)
            .collect()
    }

    /// Hosts that came up, are trusted, and read nothing as new as this version.
    #[must_use]
    pub fn behind_in_version(&self, wanted: u16) -> Vec<HostId> {
        self.hosts()
            .filter(|host| host.life != HostLife::Joining && host.belonging.removed.is_none())
            .filter(|host| self.trust.revoked(host.id).is_none())
            .filter(|host| host.facts.notes.reads.max(version::FIRST) < wanted)
            .map(|host| host.id)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u64) -> AuditRow {
        AuditRow {
            index: n,
            at_ms: n,
            actor: "ann".into(),
            what: "drain".into(),
            result: "done".into(),
            hash: 0,
        }
    }

    /// S16: a line that is changed, taken out or put in is seen; the log is bounded.
    #[test]
    fn the_audit_log_is_a_chain() {
        let mut table = TrustTable { version: 3, ..TrustTable::default() };
        for n in 0..AUDIT_ROWS_MAX as u64 + 10 {
            table.note(row(n));
        }
        assert_eq!(table.audit().count(), AUDIT_ROWS_MAX);
        assert!(table.audit_is_whole());
        let mut changed = table.clone();
        changed.audit[7].actor = "bob".into();
        assert!(!changed.audit_is_whole());
        let mut shorter = table.clone();
        shorter.audit.remove(7);
        assert!(!shorter.audit_is_whole());
        let mut older = TrustTable::default();
        older.note(row(1));
        assert_eq!(older.audit().count(), 0, "nothing is written before version 3");
    }
}
