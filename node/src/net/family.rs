//! Identities of a whole cluster at once, for labs and simulations in which all hosts are one process. Nothing is written,
//! and no host asks another.

use super::ca;
use super::identity::{Draft, Identity, IdentityError, Pems};
use rota_protocol::{ClusterId, HostId};
use std::path::Path;
use std::time::SystemTime;

/// A new cluster's hosts 1 to `hosts`, with one authority.
///
/// # Errors
/// A certificate cannot be made.
pub fn family(cluster: ClusterId, hosts: u64) -> Result<Vec<Identity>, IdentityError> {
    let now = SystemTime::now();
    let authority = ca::make(cluster, now)?;
    let one = |host: u64| {
        let key = ca::new_key()?;
        let public = ca::public_key_der(&key);
        let certificate =
            ca::certify(&authority.key_pem, cluster, HostId(host), &public, now, ca::HOST_LIFE)?;
        let draft = Draft {
            host: HostId(host),
            cluster,
            cluster_name: "family".to_owned(),
            host_name: format!("h{host}"),
            seeds: Vec::new(),
            pems: Pems {
                ca: authority.certificate_pem.clone(),
                ca_key: authority.key_pem.clone(),
                host: certificate,
                host_key: key.serialize_pem(),
            },
        };
        Identity::check(draft, Path::new("memory"), now)
    };
    (1..=hosts).map(one).collect()
}
