"""Tool calls in what a model writes: the formats, one incremental parser for each, and what they find."""
