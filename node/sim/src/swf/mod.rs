//! To be filled: the swf experiment.
