"""Production runs: train an exported configuration to the end and hold it to its promise."""
