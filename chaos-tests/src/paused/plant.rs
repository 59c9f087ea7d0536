//! Defects planted on purpose (fault I24), each of which the laws must see.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rota_consensus::inspect::{appended, feigned_success};
use rota_consensus::{Faults, LinkError, PeerLink};
use rota_protocol::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::sync::Arc;
use std::time::Duration;

/// One planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Plant {
    /// A leader takes entries for durable at a follower that has not answered yet.
    AckBeforeQuorum,
    /// A vote is given before it is durable.
    VoteNotSynced,
    /// Request ids are forgotten.
    SkipDedup,
    /// A peer that believes that it leads serves reads without asking a quorum.
    StaleRead,
    /// Apply goes through the proposals of an entry as a hash map would.
    DisorderedApply,
    /// A snapshot is installed although its checksums are wrong.
    UncheckedSnapshot,
    /// Copies of the state are never compared.
    BlindCompare,
    /// A host shows the certificate of another one, as if nobody looked at names.
    Impostor,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::AckBeforeQuorum,
        Self::VoteNotSynced,
        Self::SkipDedup,
        Self::StaleRead,
        Self::DisorderedApply,
        Self::UncheckedSnapshot,
        Self::BlindCompare,
        Self::Impostor,
    ];

    /// What of it is in the product's own code.
    /// The rows that see it, where storms rarely would.
    pub(super) fn rows(self) -> &'static [&'static str] {
        match self {
            Self::UncheckedSnapshot => &["D11", "D11b"],
            Self::BlindCompare => &["R8"],
            Self::Impostor => &["N14"],
            _ => &[],
        }
    }

    pub(super) fn faults(plant: Option<Self>) -> Faults {
        Faults {
            skip_dedup: plant == Some(Self::SkipDedup),
            disorder: plant == Some(Self::DisorderedApply),
            trusting: plant == Some(Self::UncheckedSnapshot),
            blind: plant == Some(Self::BlindCompare),
        }
    }
}

/// A link that says that entries arrived before they have.
pub(super) struct Hasty(pub(super) Arc<dyn PeerLink>);

impl PeerLink for Hasty {
    fn call(
        &self,
        to: HostId,
        request: PeerRequest,
        ttl: Duration,
    ) -> BoxFuture<'static, Result<PeerReply, LinkError>> {
        let hasty = appended(&request).is_some_and(|entries| entries > 0);
        let call = self.0.call(to, request, ttl);
        if !hasty {
            return call;
        }
        tokio::spawn(call);
        std::future::ready(Ok(feigned_success())).boxed()
    }
}
