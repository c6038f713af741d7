"""Places jobs: `submit(folder)` returns a `Handle`. A launcher knows nothing about what a worker does."""
