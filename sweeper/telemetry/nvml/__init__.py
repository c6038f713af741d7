"""Telemetry of GPUs through NVML. Finds devices by UUID, makes no CUDA context."""
