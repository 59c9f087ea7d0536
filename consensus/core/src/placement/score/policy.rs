//! The policies by name. What each computes is in `rota.rs` and `published.rs`.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// How hosts are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Our own: least new fragment, least stranded GPU, sparing scarce models.
    Rota,
    /// Fragmentation gradient descent as published, with its rounding.
    Fgd,
    /// Least CPU and GPU left.
    BestFit,
    /// Used cards before free ones, used hosts before empty ones.
    Packing,
    /// Hosts that run the same kind of work first.
    Clustering,
    /// Least product of what is asked and what is free.
    DotProd,
    /// Any host that does.
    Random,
}

/// A name that is no policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown policy {0:?}, want one of rota, fgd, bestfit, packing, clustering, dotprod, random")]
pub struct UnknownPolicy(pub String);

impl Policy {
    /// All of them, our own first.
    pub const ALL: [Self; 7] =
        [Self::Rota, Self::Fgd, Self::BestFit, Self::Packing, Self::Clustering, Self::DotProd, Self::Random];

    /// The name by which it is chosen.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rota => "rota",
            Self::Fgd => "fgd",
            Self::BestFit => "bestfit",
            Self::Packing => "packing",
            Self::Clustering => "clustering",
            Self::DotProd => "dotprod",
            Self::Random => "random",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}
