"""Telemetry of GPUs through NVML. Finds devices by UUID, creates no CUDA context."""
