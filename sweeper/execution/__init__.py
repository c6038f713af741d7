"""Placing workers: `submit(folder) -> Handle`; a launcher knows nothing of what a worker does."""
