//! What a decider may do about its own host.

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Place nothing new here, for this reason.
    Drain(String),
    /// Place work here again.
    Undrain,
}
