//! Which requests of clients change something, and which only look.

use crate::api::ApiRequest;

impl ApiRequest {
    /// Changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        match self {
            Self::Submit { .. }
            | Self::SubmitNoted { .. }
            | Self::Cancel { .. }
            | Self::Signal { .. }
            | Self::Drain { .. }
            | Self::DrainWith { .. }
            | Self::Undrain { .. }
            | Self::MintToken { .. }
            | Self::SetQueue { .. }
            | Self::RemoveQueue { .. }
            | Self::Adjust { .. }
            | Self::Reserve { .. }
            | Self::Unreserve { .. }
            | Self::Tend { .. }
            | Self::MoveLead { .. }
            | Self::ChangeTrust { .. }
            | Self::Members(_)
            | Self::Data(_)
            | Self::Session(_) => false,
            Self::Authenticate { .. }
            | Self::Queue { .. }
            | Self::Show { .. }
            | Self::Why { .. }
            | Self::Watch { .. }
            | Self::Logs { .. }
            | Self::Output { .. }
            | Self::Hosts { .. }
            | Self::Devices { .. }
            | Self::Cluster { .. }
            | Self::Doctor
            | Self::Digest { .. }
            | Self::Me
            | Self::Queues { .. }
            | Self::Idle(_)
            | Self::Usage(_)
            | Self::Changes { .. }
            | Self::Trust(_)
            | Self::Reservations { .. } => true,
        }
    }
}
