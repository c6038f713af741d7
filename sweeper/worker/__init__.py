"""One job in a process of its own: config.json -> outcome.json."""
