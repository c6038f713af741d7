"""Samples the machine while a trial runs, and answers questions about its GPUs.

- During a trial: `sampler` reads the `probes`, among them `host.probe`, `nvml.probe` and `nvml.other_gpus`;
  `log` writes what they read.
- At any time: `nvml.devices` (which GPUs there are), `nvml.capabilities` (what NVML reports of one), `room`
  (whether more processes fit) and `gpu_advice` (what keeps a training from the GPUs).
- Both rest on `nvml.binding`.
"""
