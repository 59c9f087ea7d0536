//! Small lists of our own.
