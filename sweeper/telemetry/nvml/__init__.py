"""The GPU through NVML: found by UUID and never by index; no CUDA context is made."""
