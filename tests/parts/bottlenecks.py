"""Defines trainings with a known bottleneck: `model.kind` names the part of a step that takes the time.

input     each row is decoded for a while before it is handed over (processor work, as for JPEG)
compute   a wide network on data in memory
sync      each step waits for an answer from another process

`model.slower` makes each step longer by that share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

FEATURES, ROWS = 64, 20_000
ROW_SECONDS = 1e-4
ANSWER_SECONDS = 4e-3
WIDTH = {"input": 128, "compute": 1024, "sync": 128}


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Draws rows of noise, whose target is their first feature."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": x[:, 0].copy()}, synthetic=True)


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the training that `model.kind` names."""
    kind = str(config.model["kind"])
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in prepared.arrays.items()}
    wait = _waiter() if kind == "sync" else None
    width = WIDTH[kind]

    def decode(i: int) -> Mapping[str, Tensor]:
        end = time.perf_counter() + ROW_SECONDS
        while time.perf_counter() < end:
            pass
        return {name: tensor[i] for name, tensor in tensors.items()}

    slower, ended = float(config.model.get("slower") or 0.0), time.perf_counter()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal ended
        if slower:
            now = time.perf_counter()
            end = now + slower * (now - ended)
            while (ended := time.perf_counter()) < end:
                pass
        if wait is not None:
            wait()
        return nn.functional.mse_loss(model(batch["x"]).squeeze(-1).float(), batch["y"])

    samples = Samples(tensors=tensors, length=ROWS, row=decode if kind == "input" else None)
    return Pipeline(
        model=nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        ),
        train=samples,
        val=samples,
        loss=loss,
    )


class _waiter:  # noqa: N801  (it is called, like a function)
    """Asks another process, which takes its time to answer."""

    def __init__(self) -> None:
        asked, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        if os.fork() == 0:
            # If the trial's end of the pipe stayed open here, this process would never see it close.
            os.close(self._ask)
            while os.read(asked, 1):
                time.sleep(ANSWER_SECONDS)
                os.write(answer, b".")
            os._exit(0)
        os.close(asked)
        os.close(answer)

    def __call__(self) -> None:
        os.write(self._ask, b".")
        os.read(self._answer, 1)
