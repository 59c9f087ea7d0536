//! Which provider a probe process serves: named in its arguments, made in it.

use crate::devices::DeviceProvider;
use crate::devices::amd::{self, AmdProvider};
use crate::devices::nvml::NvmlProvider;
use std::ffi::OsString;
use std::path::PathBuf;

/// A provider that may hang, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// AMD cards.
    Amd {
        /// Below which the kernel tells of them; `/` outside tests.
        root: PathBuf,
    },
    /// NVIDIA cards through the library of this path or name.
    Nvml {
        /// The library.
        library: OsString,
        /// Below which the kernel tells of the driver; `/` outside tests.
        root: PathBuf,
    },
}

impl Source {
    /// The provider's short name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Amd { .. } => "amd",
            Self::Nvml { .. } => "nvml",
        }
    }

    /// Whether there is anything to ask. What can be told without asking a driver; when in doubt there is.
    #[must_use]
    pub fn has_any(&self) -> bool {
        match self {
            Self::Amd { root } => amd::is_present(root),
            Self::Nvml { .. } => true,
        }
    }

    /// Makes the provider; touches nothing yet.
    #[must_use]
    pub fn make(&self) -> Box<dyn DeviceProvider> {
        match self {
            Self::Amd { root } => Box::new(AmdProvider::new(root.clone())),
            Self::Nvml { library, root } => Box::new(NvmlProvider::new(library.clone(), root.clone())),
        }
    }

    pub(super) fn args(&self) -> Vec<OsString> {
        match self {
            Self::Amd { root } => vec![self.name().into(), root.into()],
            Self::Nvml { library, root } => vec![self.name().into(), root.into(), library.clone()],
        }
    }

    pub(super) fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let (name, root) = (args.next()?, PathBuf::from(args.next()?));
        match name.to_str()? {
            "amd" => Some(Self::Amd { root }),
            "nvml" => Some(Self::Nvml { library: args.next()?, root }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_its_arguments() {
        let source = Source::Nvml { library: "/opt/lib nvidia.so".into(), root: "/".into() };
        assert_eq!(Source::parse(source.args().into_iter()), Some(source));
        assert_eq!(Source::parse(["odd".into(), "x".into()].into_iter()), None);
        assert_eq!(Source::parse(["nvml".into(), "/".into()].into_iter()), None);
    }
}
