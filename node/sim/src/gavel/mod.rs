//! To be filled: the gavel experiment.
