//! Who this host is: its keys and certificates under `<data>/identity/`, written once, checked at every start.
//!
//! The directory appears whole or not at all (written beside, synced, renamed). Key files are 0600 from their first
//! byte; a start with a key that others can read is refused. Nothing here talks to the network.
//!
//! `cluster.toml` (ids, names, first peers), `ca.pem`, `ca-key.pem`, `host.pem`, `host-key.pem`.

use super::ca::{self, CaError, Fingerprint};
use super::files::{self, FileError};

pub(super) use super::names::{check_name, is_addr};
use super::pem::{authorities, check_chain, check_pair, malformed, one_certificate, one_key};
use rota_protocol::limits::NAME_BYTES_MAX;
use rota_protocol::{ClusterId, HostId};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The directory inside the data directory.
const DIR: &str = "identity";
const CLUSTER: &str = "cluster.toml";
pub(super) const CA: &str = "ca.pem";
pub(super) const CA_KEY: &str = "ca-key.pem";
pub(super) const HOST: &str = "host.pem";
const HOST_KEY: &str = "host-key.pem";
/// The format of `cluster.toml`.
const FORMAT: u32 = 1;
/// Longest address of a peer, in bytes: a DNS name and a port.
pub(super) const ADDR_BYTES_MAX: usize = 262;
/// Most first peers that are kept: enough to find one that lives.
pub(super) const SEEDS_MAX: usize = 64;

/// Why there is no usable identity. Each message names the file and the next step.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No identity yet.
    #[error("{} does not exist: run `rota init` on the first host or `rota join` on every other, or check the data directory", .0.display())]
    Missing(PathBuf),
    /// `init` or `join` on a host that has one.
    #[error("{} exists: this host already belongs to a cluster; to start anew, move its data directory away first", .0.display())]
    Exists(PathBuf),
    /// A file of it cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file's content is not what it should be.
    #[error("{}: {what}; restore it from a backup, or move the data directory away and join again", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Key and certificate are not a pair.
    #[error("{} is not the key of {}: restore both from the same backup, or join again", key.display(), certificate.display())]
    KeyMismatch {
        /// The key file.
        key: PathBuf,
        /// The certificate file.
        certificate: PathBuf,
    },
    /// The certificate names another cluster or host than `cluster.toml`.
    #[error("{} belongs to {found}, but {wanted} is expected: files of two identities are mixed; restore one of them whole, or join again", path.display())]
    Foreign {
        /// The certificate file.
        path: PathBuf,
        /// Whom it names.
        found: String,
        /// Whom it should name.
        wanted: String,
    },
    /// Outside its validity.
    #[error("{} is {what} by this host's clock, which says {now}; it is valid from {from} to {to}: check the clock", path.display())]
    Validity {
        /// The certificate file.
        path: PathBuf,
        /// `expired` or `not valid yet`.
        what: &'static str,
        /// This host's clock.
        now: String,
        /// When it begins.
        from: String,
        /// When it ends.
        to: String,
    },
    /// A name that cannot be taken.
    #[error(
        "the {what} `{name}` cannot be used: 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`, and a letter or digit first"
    )]
    Name {
        /// Cluster or host name.
        what: &'static str,
        /// What was given.
        name: String,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Ca(#[from] CaError),
}

/// A host's identity: checked, complete. `Debug` shows no key.
#[derive(Clone)]
pub struct Identity {
    /// This host.
    pub host: HostId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// The cluster's name, for people.
    pub cluster_name: String,
    /// This host's name, for people.
    pub host_name: String,
    /// Peers to dial first: id and address, as told at the join.
    pub seeds: Vec<(HostId, String)>,
    pems: Pems,
    /// The one that signs first.
    authorities: Vec<Authority>,
    certificate: CertificateDer<'static>,
    key: Arc<PrivateKeyDer<'static>>,
}

/// A certificate authority with its key.
#[derive(Clone)]
pub(super) struct Authority {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) pem: String,
    pub(super) key_pem: String,
}

/// The four PEM texts; the authorities' may each hold two, in the same order.
#[derive(Clone)]
pub(super) struct Pems {
    pub(super) ca: String,
    pub(super) ca_key: String,
    pub(super) host: String,
    pub(super) host_key: String,
}

/// What `cluster.toml` says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    format: u32,
    cluster: ClusterId,
    cluster_name: String,
    host: u64,
    host_name: String,
    #[serde(default)]
    peers: Vec<SeedRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeedRow {
    host: u64,
    addr: String,
}

/// The parts of an identity before they are checked.
pub(super) struct Draft {
    pub(super) host: HostId,
    pub(super) cluster: ClusterId,
    pub(super) cluster_name: String,
    pub(super) host_name: String,
    pub(super) seeds: Vec<(HostId, String)>,
    pub(super) pems: Pems,
}

/// Makes a new cluster with this host as its first: `rota init`.
///
/// # Errors
/// A bad name, an identity that is already there, or a disk that refuses; nothing is left behind.
pub fn found_cluster(data: &Path, cluster_name: &str, host_name: &str) -> Result<Identity, IdentityError> {
    let cluster = ClusterId(u128::from_le_bytes(ca::random()?));
    found_as(data, cluster_name, host_name, (cluster, HostId(1)))
}

/// Makes the authority of a cluster and the identity of the host that it begins with.
///
/// # Errors
/// As for [`found_cluster`].
pub fn found_as(
    data: &Path,
    cluster_name: &str,
    host_name: &str,
    (cluster, host): (ClusterId, HostId),
) -> Result<Identity, IdentityError> {
    Identity::check_absent(data)?;
    let dir = Identity::dir(data);
    check_name("cluster name", cluster_name)?;
    check_name("host name", host_name)?;
    let now = SystemTime::now();
    let authority = ca::make(cluster, now)?;
    let key = ca::new_key()?;
    let certificate =
        ca::certify(&authority.key_pem, cluster, host, &ca::public_key_der(&key), now, ca::HOST_LIFE)?;
    let draft = Draft {
        host,
        cluster,
        cluster_name: cluster_name.to_owned(),
        host_name: host_name.to_owned(),
        seeds: Vec::new(),
        pems: Pems {
            ca: authority.certificate_pem,
            ca_key: authority.key_pem,
            host: certificate,
            host_key: key.serialize_pem(),
        },
    };
    let identity = Identity::check(draft, &dir, now)?;
    identity.store(data)?;
    Ok(identity)
}

/// Keeps the keys of this process out of core dumps and away from debuggers of the same user (fault S22). Programs
/// that it starts are not affected.
///
/// # Errors
/// The kernel refuses.
pub fn keep_keys_out_of_dumps() -> std::io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

impl Identity {
    /// Reads and checks `<data>/identity/`.
    ///
    /// # Errors
    /// It is missing, a key can be read by others, or a file is empty, damaged, of another cluster, or expired.
    pub fn load(data: &Path) -> Result<Self, IdentityError> {
        Self::load_at(data, SystemTime::now())
    }

    pub(super) fn dir(data: &Path) -> PathBuf {
        data.join(DIR)
    }

    /// A host belongs to one cluster for good.
    pub(super) fn check_absent(data: &Path) -> Result<(), IdentityError> {
        let dir = Self::dir(data);
        match dir.symlink_metadata() {
            Ok(_) => Err(IdentityError::Exists(dir)),
            Err(_) => Ok(()),
        }
    }

    pub(super) fn load_at(data: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        Self::check(Self::read(data)?, &Self::dir(data), now)
    }

    /// Reads the files; what they say is not checked yet.
    pub(super) fn read(data: &Path) -> Result<Draft, IdentityError> {
        let dir = data.join(DIR);
        if !dir.exists() {
            return Err(IdentityError::Missing(dir));
        }
        let path = dir.join(CLUSTER);
        let file: ClusterFile =
            toml::from_str(&files::read_text(&path)?).map_err(|e| malformed(&path, e.message()))?;
        if file.format != FORMAT {
            return Err(malformed(
                &path,
                &format!("format {} is not {FORMAT}, the one this build reads", file.format),
            ));
        }
        Ok(Draft {
            host: HostId(file.host),
            cluster: file.cluster,
            cluster_name: file.cluster_name,
            host_name: file.host_name,
            seeds: file.peers.into_iter().map(|row| (HostId(row.host), row.addr)).collect(),
            pems: Pems {
                ca: files::read_text(&dir.join(CA))?,
                ca_key: files::read_private(&dir.join(CA_KEY))?,
                host: files::read_text(&dir.join(HOST))?,
                host_key: files::read_private(&dir.join(HOST_KEY))?,
            },
        })
    }

    /// Checks that the parts belong together and are valid now. `dir` is for messages.
    pub(super) fn check(draft: Draft, dir: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        let Draft { host, cluster, cluster_name, host_name, seeds, pems } = draft;
        check_name("cluster name", &cluster_name)?;
        check_name("host name", &host_name)?;
        if host.0 == 0 || cluster.0 == 0 {
            return Err(malformed(&dir.join(CLUSTER), "the ids of cluster and host cannot be zero"));
        }
        if seeds.len() > SEEDS_MAX || !seeds.iter().all(|(_, addr)| is_addr(addr)) {
            return Err(malformed(
                &dir.join(CLUSTER),
                "the list of peers is too long or holds a bad address",
            ));
        }
        let authorities = authorities(dir, &pems.ca, &pems.ca_key)?;
        let certificate = one_certificate(&dir.join(HOST), &pems.host)?;
        let key = one_key(&dir.join(HOST_KEY), &pems.host_key)?;
        check_pair(dir, (HOST, &certificate), (HOST_KEY, &key))?;
        let wanted = ca::host_name(cluster, host);
        match ca::named_host(&certificate) {
            Some(named) if named == (cluster, host) => {}
            named => {
                return Err(IdentityError::Foreign {
                    path: dir.join(HOST),
                    found: named.map_or_else(|| "no host".to_owned(), |(c, h)| ca::host_name(c, h)),
                    wanted,
                });
            }
        }
        check_chain(dir, &authorities, &certificate, now)?;
        let key = Arc::new(key);
        Ok(Self { host, cluster, cluster_name, host_name, seeds, pems, authorities, certificate, key })
    }

    /// Writes it, whole or not at all.
    pub(super) fn store(&self, data: &Path) -> Result<(), IdentityError> {
        Self::check_absent(data)?;
        files::write_private_dir(&Self::dir(data), &self.files())?;
        Ok(())
    }

    /// Writes it in the place of the one that is there, whole or not at all.
    pub(super) fn replace(&self, data: &Path) -> Result<(), IdentityError> {
        files::replace_private_dir(&Self::dir(data), &self.files())?;
        Ok(())
    }

    fn files(&self) -> [(&'static str, String); 5] {
        let Pems { ca, ca_key, host, host_key } = self.pems.clone();
        [(CLUSTER, self.cluster_toml()), (CA, ca), (CA_KEY, ca_key), (HOST, host), (HOST_KEY, host_key)]
    }

    /// The authority's fingerprint, as tokens name it.
    #[must_use]
    pub fn ca_fingerprint(&self) -> Fingerprint {
        self.authorities.first().map_or(Fingerprint([0; 32]), |ca| Fingerprint::of(&ca.certificate))
    }

    /// At least one, the one that signs first.
    pub(super) fn authorities(&self) -> &[Authority] {
        &self.authorities
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    pub(super) fn pems(&self) -> &Pems {
        &self.pems
    }

    /// 32 bytes that only this host knows, the same at each start, one value per purpose.
    pub(super) fn derived_secret(&self, purpose: &str) -> [u8; 32] {
        ca::sha256(&[purpose.as_bytes(), &[0], self.key.secret_der()])
    }

    fn cluster_toml(&self) -> String {
        use fmt::Write as _;
        // Names and addresses hold no letter that would need quoting (see `check_name`, `is_addr`).
        let mut text = format!(
            "format = {FORMAT}\ncluster = \"{}\"\ncluster_name = \"{}\"\nhost = {}\nhost_name = \"{}\"\n",
            self.cluster, self.cluster_name, self.host, self.host_name
        );
        for (host, addr) in &self.seeds {
            let _ = write!(text, "\n[[peers]]\nhost = {host}\naddr = \"{addr}\"\n");
        }
        text
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("host", &self.host)
            .field("cluster", &self.cluster)
            .field("host_name", &self.host_name)
            .field("ca", &self.ca_fingerprint())
            .finish_non_exhaustive()
    }
}
