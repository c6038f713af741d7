"""The production job: epochs with validation, checkpoints and a history.

    resume ─► block │ block │ ... │ validation │ block ...   a block: some steps, timed like a window
                                  └ best       └ checkpoint when due

A resumed run continues from a checkpoint exactly like an uninterrupted one, unless `loader.in_order` is
false: batches by their number, random numbers from the checkpoint, and the history cut to its length at the
checkpoint. With several devices, a checkpoint has the first one's random numbers and accumulated gradients.
The others continue with new random numbers, as does the dropout inside cuDNN's recurrent layers, whose state
torch does not expose.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeper.core.codec import encode
from sweeper.core.contamination import of_host
from sweeper.core.job import Job
from sweeper.core.measurement import FailureKind, Report, Window
from sweeper.core.progress import TRAINING_STAGE, Progress, TrialFailedError
from sweeper.core.training import HISTORY, STOP, Schedule, Training
from sweeper.system.cpu import usable_cpus
from sweeper.system.files import write_atomic
from sweeper.trainer import checkpoint as checkpoints
from sweeper.trainer import device as devices
from sweeper.trainer.checkpoint import Position
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.measure import follow, join_group, run_in_group
from sweeper.trainer.quality import metrics_of, unnoticed, validate
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.group import Group
from sweeper.trainer.step.stepper import Stepper
from sweeper.trainer.timing.conditions import undisturbed_canary_ms
from sweeper.trainer.timing.steady import is_steady
from sweeper.trainer.timing.step_timer import BLOCK_SECONDS as WARM_UP_BLOCK_SECONDS
from sweeper.trainer.timing.step_timer import StepTimer

BLOCK_SECONDS = 2.0
WARM_UP_CAP_SECONDS = 60.0
CANARY_SECONDS = 15.0
"""Seconds between two measurements of the processor's speed, which take 20 ms each."""


def run(job: Job, progress: Progress) -> Report:
    """Trains to the end given by `job.training`, from the run's latest checkpoint.

    Raises:
        TrialFailedError: The loss is not finite, or the configuration cannot run here.
    """
    assert job.training is not None
    checkpoints.recover_best(Path(job.training.folder))
    checkpoint = checkpoints.newest_checkpoint(Path(job.training.folder))
    begin = checkpoints.position_of(checkpoint)

    def restore(stepper: Stepper, loader: Loader) -> None:
        stepper.schedule = schedule_of(job, loader.order.num_batches)
        if checkpoint is not None:
            checkpoints.restore(checkpoint, stepper)

    return run_in_group(
        job,
        lambda group, step_pipe: follow(job, group, step_pipe, begin.steps, restore),
        lambda group: _Run(job, progress, group, begin).train_to_end(checkpoint, restore),
    )


def schedule_of(job: Job, num_batches: int) -> Callable[[int], float] | None:
    """Returns the learning rate as a share of its peak, by optimizer step; None if constant."""
    plan, config = job.training, job.config
    assert plan is not None
    if plan.schedule == "constant":
        return None
    total = max(1, plan.epochs * num_batches // config.accumulate_steps)
    return make_rate(plan.schedule, config.optimizer.warmup_steps, total)


def make_rate(schedule: Schedule, warmup: int, total: int) -> Callable[[int], float]:
    """Returns the share of the peak rate by optimizer step: up over `warmup`, down to `total`."""

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        return 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))

    return share


class _Run:
    def __init__(self, job: Job, progress: Progress, group: Group, begin: Position) -> None:
        assert job.training is not None
        self.job, self.progress, self.group = job, progress, group
        self.plan: Training = job.training
        self.folder = Path(self.plan.folder)
        self.at = begin
        self.began = time.perf_counter()
        # Counted before the configuration may limit them.
        self.usable_cpus = usable_cpus()
        self.before = begin.seconds
        self.blocks: list[float] = []
        self.steady = False
        self.canary_ms, self.canary_at = 0.0, -math.inf
        self.saved_at = time.perf_counter()

    def train_to_end(self, checkpoint: Path | None, restore: Callable[[Stepper, Loader], None]) -> Report:
        """Trains to the end and returns the run's result."""
        self.progress.stage("build")
        self.pipeline, self.stepper, _ = set_up(self.job, self.progress)
        self.loader: Loader = join_group(self.job, self.group, self.pipeline, self.stepper, self.at.steps)
        self.batches = self.loader.order.num_batches
        restore(self.stepper, self.loader)
        info = devices.describe(self.stepper.device)
        self.history = _History(
            self.folder / HISTORY,
            self.at.history_bytes,
            {"steps": self.at.steps, "seconds": self.before, "pid": os.getpid(), "device": info},
        )
        if checkpoint is not None:
            # Before the first batch: a pipeline's rows may draw random numbers.
            checkpoints.restore_random(checkpoint, self.stepper.device)
        self.loader.start()
        self.timer = StepTimer(self.stepper, self.loader, self.group)
        self.progress.device(info)
        self.progress.stage(TRAINING_STAGE)
        ended = self._train()
        self.loader.close()
        self.group.close()
        return Report(
            values={
                "ended": ended,
                "epochs": self.at.steps / self.batches,
                "train_loss": self.stepper.last_loss.item(),
                "train_samples": self.pipeline.train.length,
                "device": encode(info),
                "usable_cpus": self.usable_cpus,
                "versions": dict(devices.versions()),
                "gpu_mem_peak_gib": devices.peak_memory_gib(self.stepper.device),
                **encode(self.at),
            },
            finished_at=time.time(),
        )

    def _train(self) -> str:
        plan = self.plan
        last = plan.epochs * self.batches
        while True:
            if self.at.steps >= last:
                ended = "epochs"
            elif plan.patience and self.at.stale >= plan.patience:
                ended = "patience"
            elif plan.max_seconds and self._seconds() >= plan.max_seconds:
                ended = "time"
            elif (self.folder / STOP).exists():
                ended = "stopped"
            else:
                self._train_block()
                if self.at.steps % (plan.validate_epochs * self.batches) == 0:
                    self._validate()
                if time.perf_counter() - self.saved_at >= plan.checkpoint_seconds:
                    self._save()
                continue
            if ended != "stopped" and self.at.validated_at != self.at.steps:
                self._validate()
            self._save()
            return ended

    def _train_block(self) -> None:
        """Takes some steps, at most to the end of the epoch."""
        left = self.batches - self.at.steps % self.batches
        length = BLOCK_SECONDS if self.steady else WARM_UP_BLOCK_SECONDS
        if self.steady and time.perf_counter() - self.canary_at >= CANARY_SECONDS:
            self.canary_ms, self.canary_at = undisturbed_canary_ms(), time.perf_counter()
        timed_window = self.timer.take_window(NoClock(), length, self.job.config.global_batch, left)
        window = dataclasses.replace(timed_window.window, canary_ms=self.canary_ms)
        loss = self.stepper.last_loss.item()
        if not math.isfinite(loss):
            raise TrialFailedError(
                FailureKind.NON_FINITE,
                f"the training loss became {loss} after {self.at.samples:,} samples",
            )
        is_timed = self.steady
        self._count(window)
        self.history.write(
            steps=self.at.steps,
            samples=self.at.samples,
            epochs=self.at.steps / self.batches,
            seconds=self._seconds(),
            throughput=window.samples / window.seconds,
            loss=loss,
            lr=float(self.stepper.optimizer.param_groups[0]["lr"]),
            steady=is_timed,
        )

    def _count(self, window: Window) -> None:
        at = self.at
        changes: dict[str, Any] = {"steps": at.steps + window.steps, "samples": at.samples + window.samples}
        if self.steady:
            flags = of_host(window, self.job.plan.quiet_canary_ms)
            disturbed = dict(at.disturbed)
            for flag in flags:
                disturbed[flag] = disturbed.get(flag, 0.0) + window.seconds
            changes |= {
                "timed_samples": at.timed_samples + window.samples,
                "timed_seconds": at.timed_seconds + window.seconds,
                "disturbed": disturbed,
            }
        else:
            self.blocks.append(window.seconds / window.steps)
            seen = self.stepper.has_seen(self.loader.num_shapes)
            late = time.perf_counter() - self.began > WARM_UP_CAP_SECONDS
            self.steady = seen and (is_steady(self.blocks) or late)
        self.at = dataclasses.replace(at, **changes)

    def _validate(self) -> None:
        with unnoticed(self.stepper):
            loss = validate(self.pipeline, self.stepper, self.stepper.model)
            metrics = metrics_of(self.pipeline, self.stepper)
        epoch = round(self.at.steps / self.batches)
        better = math.isfinite(loss) and (self.at.best_loss is None or loss < self.at.best_loss)
        if better:
            facts = {
                "val_loss": loss,
                "metrics": metrics,
                "epoch": epoch,
                "steps": self.at.steps,
                "samples": self.at.samples,
            }
            checkpoints.save_best(self.folder, self.stepper.model, facts)
        self.at = dataclasses.replace(
            self.at,
            val_loss=loss,
            metrics=metrics,
            validated_at=self.at.steps,
            best_loss=loss if better else self.at.best_loss,
            best_epoch=epoch if better else self.at.best_epoch,
            stale=0 if better else self.at.stale + 1,
        )
        self.history.write(
            steps=self.at.steps,
            samples=self.at.samples,
            seconds=self._seconds(),
            epoch=epoch,
            val_loss=loss,
            metrics=metrics,
        )

    def _save(self) -> None:
        self.at = dataclasses.replace(self.at, seconds=self._seconds(), history_bytes=self.history.flush())
        # A slow file system must not count as a stall.
        with self.progress.steps.paused():
            checkpoints.save(self.folder, self.stepper, self.at, self.plan.keep)
        self.saved_at = time.perf_counter()

    def _seconds(self) -> float:
        return self.before + time.perf_counter() - self.began


class _History:
    """A file of JSON lines: those up to the checkpoint, one about this attempt, then new ones."""

    def __init__(self, path: Path, length: int, begin: Mapping[str, Any]) -> None:
        self._path = path
        kept = path.read_text(encoding="utf-8")[:length] if path.exists() else ""
        # Rewritten in one go, so that readers see that another attempt has started, and where.
        write_atomic(path, kept + _line(begin))

    def write(self, **facts: Any) -> None:
        """Adds a line."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(_line(facts))

    def flush(self) -> int:
        """Returns the file's length, once all of it is on disk."""
        with open(self._path, "a", encoding="utf-8") as file:
            os.fsync(file.fileno())
            return file.tell()


def _line(facts: Mapping[str, Any]) -> str:
    return json.dumps({"at": time.time(), **encode(facts)}, allow_nan=False) + "\n"
