"""The host: the machine as a whole, and the tree of processes that is the trial."""
