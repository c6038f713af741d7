"""One training step, as fast as PyTorch allows: autocast, scaler, fused optimiser, no host sync.

data ─► h2d ─► forward ─► backward ─► [unscale, clip] optimiser, every `accumulate_steps`
   mark    mark       mark        mark                        mark
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sweeper.core.config import OptimizerConfig, TrialConfig
from sweeper.trainer.data import Loader
from sweeper.trainer.pipeline import Batch, Pipeline

DATA, H2D, FORWARD, BACKWARD, OPTIMIZER = range(5)

_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Clock(Protocol):
    """Is told where each phase of a step ends."""

    def start(self) -> None:
        """A step begins."""

    def mark(self, phase: int) -> None:
        """The phase has ended, and the next begins."""


class NoClock:
    """Measures nothing."""

    def start(self) -> None:
        """Passes over it."""

    def mark(self, phase: int) -> None:
        """Passes over it."""


class HostClock:
    """Phase times on the host's clock: true where operations are synchronous (the CPU)."""

    def __init__(self) -> None:
        self.seconds = [0.0] * 5
        self._last = 0.0

    def start(self) -> None:
        """Begins a step."""
        self._last = time.perf_counter()

    def mark(self, phase: int) -> None:
        """Adds the time since the last mark to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now


class EventClock:
    """Phase times on the device's own timeline, read after the last step; no sync in between.

    The host's waits show as idle time of the device between two events, so that the phases of
    consecutive steps add up to the wall.
    """

    def __init__(self) -> None:
        self._steps: list[list[torch.cuda.Event]] = []

    def _record(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._steps[-1].append(event)

    def start(self) -> None:
        """Begins a step."""
        self._steps.append([])
        self._record()

    def mark(self, phase: int) -> None:
        """Notes the end of a phase; they come in order."""
        del phase
        self._record()

    @property
    def seconds(self) -> list[float]:
        """Seconds by phase; call after synchronising."""
        totals = [0.0] * 5
        for events in self._steps:
            for phase, (begin, end) in enumerate(itertools.pairwise(events)):
                totals[phase] += begin.elapsed_time(end) / 1e3
        return totals


def make_optimizer(config: OptimizerConfig, lr: float, parameters: Sequence[nn.Parameter]) -> Any:
    """Returns the optimiser, fused where it was asked for and this torch has it for the device."""
    common: dict[str, Any] = {"lr": lr, "weight_decay": config.weight_decay}
    kind: Callable[..., Any] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
    }[config.name]
    if config.name == "sgd":
        common["momentum"] = 0.9
    return kind(parameters, **common, fused=True if config.fused else None)


class Stepper:
    """Owns model, optimiser and scaler of a trial, and takes training steps.

    Attributes:
        model: The model as it was built; `compiled` is what steps call.
        last_loss: The last micro-batch's loss, on the device.
        skipped: Optimiser steps the scaler left out, counted on the device.
    """

    def __init__(self, pipeline: Pipeline, config: TrialConfig, device: torch.device) -> None:
        self.pipeline, self.config, self.device = pipeline, config, device
        self.model = pipeline.model.to(device)
        if config.memory_format == "channels_last":
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compiled: nn.Module = self.model
        if config.compile.mode != "eager":
            mode = None if config.compile.mode == "default" else config.compile.mode
            self.compiled = torch.compile(self.model, mode=mode)  # type: ignore[assignment]
        self.initial = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.reset()

    def reset(self) -> None:
        """Back to the seed's weights, with a new optimiser: what the quality pass begins from."""
        config = self.config
        torch.manual_seed(config.seed)
        self.model.load_state_dict(self.initial)
        self.model.train()
        self.peak_lr = config.optimizer.lr_at(config.global_batch)
        self.optimizer = make_optimizer(config.optimizer, self.peak_lr, self.parameters)
        self.scaler = torch.amp.GradScaler(self.device.type) if config.precision.amp == "fp16" else None
        self.micro_steps = 0
        self.updates = 0
        self.skipped = torch.zeros((), device=self.device)
        self.last_loss: Tensor = torch.zeros((), device=self.device)
        self.optimizer.zero_grad(set_to_none=True)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the autocast context of the trial's precision."""
        dtype = _AMP.get(self.config.precision.amp)
        return torch.autocast(self.device.type, dtype=dtype) if dtype else contextlib.nullcontext()

    def step(self, loader: Loader, clock: Clock) -> int:
        """Fetches one micro-batch from `loader`, trains on it and returns its number of samples."""
        clock.start()
        batch = loader.next()
        clock.mark(DATA)
        batch = loader.to_device(batch)
        clock.mark(H2D)
        self.train(batch, clock, self.compiled)
        return len(next(iter(batch.values())))

    def train(self, batch: Batch, clock: Clock, model: nn.Module) -> None:
        """Trains on `batch` (on the device) through `model`, compiled or not."""
        with self.autocast():
            loss = self.pipeline.loss(model, batch)
        self.last_loss = loss.detach()
        if self.config.accumulate_steps > 1:
            loss = loss / self.config.accumulate_steps
        clock.mark(FORWARD)
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        clock.mark(BACKWARD)
        self.micro_steps += 1
        if self.micro_steps % self.config.accumulate_steps == 0:
            self._update()
        clock.mark(OPTIMIZER)

    def finish(self) -> None:
        """Takes the optimiser step for micro-batches that are left over of an accumulation."""
        if self.micro_steps % self.config.accumulate_steps:
            self._update()

    def _update(self) -> None:
        optimizer, scaler, config = self.optimizer, self.scaler, self.config.optimizer
        if self.updates <= config.warmup_steps and config.warmup_steps:
            for group in optimizer.param_groups:
                group["lr"] = self.peak_lr * min(1.0, (self.updates + 1) / config.warmup_steps)
        if config.clip_norm:
            if scaler:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.parameters, config.clip_norm)
        if scaler:
            scaler.step(optimizer)
            for found in scaler._found_inf_per_device(optimizer).values():
                self.skipped += found
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.updates += 1
