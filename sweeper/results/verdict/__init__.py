"""Says what limits a training, and what would help: signals -> bottleneck -> remedies."""
