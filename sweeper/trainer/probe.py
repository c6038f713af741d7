"""The probe job: finds out what this device supports, so that a search leaves out the rest."""

from __future__ import annotations

import time

import torch

from sweeper.core.codec import encode
from sweeper.core.job import Job
from sweeper.core.measurement import Report
from sweeper.core.progress import Progress
from sweeper.system.cpu import usable_cpus
from sweeper.trainer import device as devices
from sweeper.trainer.support import lacks
from sweeper.trainer.timing.conditions import CANARIES, canary_ms


def run(job: Job, progress: Progress) -> Report:
    """Returns the devices, the usable cores, and the choices that the first device cannot take.

    `job.device` is a device's name or `auto`, which finds the GPUs visible to this process, or else
    the CPU. `lacks` maps `field=value` to the reason; everything else can be tried. `canary_ms` is
    the best time of the canary.
    """
    progress.stage("probe")
    if job.device == "auto":
        torch_devices = [torch.device("cuda", i) for i in range(devices.num_visible())]
    else:
        torch_devices = [devices.open_device(job.device)]
    infos = [devices.describe(device) for device in torch_devices or [torch.device("cpu")]]
    info = infos[0]
    progress.device(info)
    return Report(
        values={
            "devices": encode(infos),
            "usable_cpus": usable_cpus(),
            "lacks": lacks(info),
            "versions": dict(devices.versions()),
            "canary_ms": min(canary_ms() for _ in range(CANARIES)),
        },
        finished_at=time.time(),
    )
