//! To be filled: the shockwave experiment.
