"""Production runs: an exported configuration trained to its end, and held to what it promised."""
