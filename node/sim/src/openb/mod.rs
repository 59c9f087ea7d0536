//! To be filled: the openb experiment.
