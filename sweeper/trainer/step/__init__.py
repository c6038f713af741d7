"""A training step: autocast, scaler, fused optimizer, CUDA graph, several devices, a clock of its phases."""
