"""A training step: autocast, scaler, fused optimiser, CUDA graph, several devices, a clock of its phases."""
