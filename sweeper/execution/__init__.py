"""Places jobs: `submit(folder) -> Handle`. A launcher knows nothing about what a worker does."""
