//! Containers: what a job says of the image that it runs in. Which runtime makes it is the host's own affair.

use serde::{Deserialize, Serialize};

/// Label of hosts that can run containers; jobs with an image ask for it.
pub const CONTAINERS_LABEL: &str = "containers";
/// Its value.
pub const CONTAINERS_YES: &str = "yes";

/// The image of a job, and how its container looks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// A reference such as `docker.io/pytorch/pytorch:2.9`, or the path of an image file.
    pub image: String,
    /// Folders and files of the host that it sees, beside the working directory.
    pub mounts: Vec<Mount>,
    /// Working directory inside; none for the job's own, which is mounted at the same path.
    pub workdir: Option<String>,
    /// The image's entry point is kept, and the command becomes its arguments.
    pub entrypoint: bool,
    /// Nothing can be written but what is mounted to be written.
    pub read_only: bool,
}

/// A path of the host that a container sees.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mount {
    /// On the host.
    pub source: String,
    /// In the container.
    pub target: String,
    /// It cannot be written.
    pub read_only: bool,
}
