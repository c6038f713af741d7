"""Records a training so that it can be compared with another run of it, bit for bit.

Each line of the record is an event as JSON, in order: a batch, the end of a pass, a loss, a step. A run
that is cut off is compared as far as it got.

Recording waits for the device, since nothing is timed meanwhile. Once the record is complete, the process
goes on as one that is only watched, and can be timed.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..changes.rows.generators import states
from ..metering import Channel
from . import FOLDER_VARIABLE
from .model import CallObserver
from .observer import TrainingObserver
from .seeding import cut_passes, seed, whole_pass
from .shares import StepShares

RECORDING_VARIABLE = "SWEEPER_RECORDING"
"""Environment variable with the terms (`sweeper.core.recording`) as JSON."""

RECORD = "record-{}.jsonl"
"""File in the trial's folder, by rank, and also by name for processes that the script starts itself."""

DONE, EXIT, LATE = "done", "exit", "late"
"""Reasons why a record ends: it is complete, its process has exited, or its time is up, which cuts it off."""

EARLY_STEPS = 4
"""Number of first steps with sums of each gradient and update; later ones may differ by rounding alone."""

PASSES, STEPS_AFTER = 2, 3
"""Training passes, and steps of the next pass, after which a record of passes that are cut short ends."""

MIN_RECORDED = 8
"""Fewest steps of a record, however long they take."""

SUMMED = 1_000_000
"""Maximum number of elements of a gradient or update that enter its sums."""


class Recorder(TrainingObserver):
    """An observer that records what it sees."""

    def __init__(self, torch: Any, channel: Channel) -> None:
        super().__init__(torch, channel)
        self._has_fast_path = False
        self._terms = json.loads(os.environ.get(RECORDING_VARIABLE) or "{}")
        self._is_on, self._is_over, self._is_skipped = True, False, False
        self._file: Any = None
        self._num_steps = self._num_passes = self._steps_after = 0
        self._began_s = 0.0
        self._before: dict[int, list[Any]] = {}
        self._evaluated: dict[int, CallObserver] = {}
        self._first: dict[int, tuple[Any, list[Any]]] = {}
        seed(
            torch,
            self._terms.get("seed", 0),
            self._terms.get("shift", 0),
            deterministic=self._terms.get("deterministic", False),
        )

    def begin(self) -> None:
        """Starts to cut passes short, if the terms ask for it."""
        super().begin()
        if self._terms.get("batches"):
            cut_passes(self._torch, self.points, self._terms["batches"], self._is_cut)

    def _is_cut(self, iterator: Any) -> bool:
        """Returns whether the passes of a loader's iterator are cut.

        The pass in which the record ends is whole: workers would already have asked for its last batch.
        """
        is_last = self._num_passes >= PASSES and self.sample_counter.trains(iterator)
        return not self._is_over and not is_last

    def restart(self) -> None:
        """Forgets everything in a forked child, which records nothing if its parent already does."""
        super().restart()
        # Python's generator takes a new seed in each child.
        random.seed(self._terms.get("seed", 0))
        if self._file is not None:
            self._is_on, self._file = False, None

    # -- events ------------------------------------------------------------------------------------

    def fetch(self, original: Any, iterator: Any) -> Any:
        """Returns the script's next batch, and records it."""
        if not self._is_on:
            return super().fetch(original, iterator)
        try:
            batch = original(iterator)
        except StopIteration:
            self._pass_ended(iterator)
            raise
        self._record({"batch": self._digest(_tensors(self._torch, batch))})
        return batch

    def _pass_ended(self, iterator: Any) -> None:
        trains = self.sample_counter.trains(iterator)
        self._num_passes += trains
        self._record({"pass": whole_pass(iterator), "trains": trains, "random": self._random_digest()})

    def evaluation_begins(self, module: Any) -> None:
        """Records that a module was put into evaluation mode."""
        super().evaluation_begins(module)
        if not self._is_on:
            return
        buffers = [buffer.detach() for buffer in module.buffers()]
        size = self._norm([buffer for buffer in buffers if buffer.is_floating_point()])
        self._record({"eval": type(module).__name__, "state": size, "result": self._digest(buffers)})
        if id(module) not in self._evaluated:
            # Not a hook of the module: a script may save it whole.
            self._evaluated[id(module)] = CallObserver(module, lambda: None, self._record_output)

    def _record_output(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not self._is_on or module.training:
            return
        try:
            tensors = [part.detach() for part in _tensors(self._torch, result) if self._torch.is_tensor(part)]
            numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
            self._record(
                {"output": len(tensors), "sizes": self._norm(numbers), "result": self._digest(tensors)}
            )
        except Exception as error:
            # Otherwise the script would fail.
            self.points.fail(error)

    def backward_begins(self, tensors: Any) -> None:
        """Records the losses of a backward pass that is about to run."""
        super().backward_begins(tensors)
        if not self._is_on:
            return
        losses = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        if not self.is_capturing():
            self._record({"loss": [_exact_text(loss) for loss in losses]})

    def step_begins(self, optimizer: Any = None, *_: Any) -> None:
        """Records the gradients of an optimizer that is about to step."""
        is_capturing = self.is_capturing()
        self._is_skipped = (
            self._is_on and not is_capturing and bool(getattr(optimizer, "found_inf", None) or 0)
        )
        if self._is_skipped:
            # A fused optimizer skips these steps itself; for others, a GradScaler does.
            return
        super().step_begins()
        if not self._is_on or optimizer is None or is_capturing:
            return
        parameters = list(_parameters(optimizer))
        key = id(optimizer)
        if key not in self._first:
            # On the host: the script may need all of the device's memory.
            self._first[key] = (
                optimizer,
                [parameter.detach().to("cpu", copy=True) for parameter in parameters],
            )
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # A fused optimizer also divides the gradients by the scale itself, as it steps.
        scale = float(getattr(optimizer, "grad_scale", None) or 1.0)
        norms = [
            0.0 if parameter.grad is None else self._norm([parameter.grad]) / scale
            for parameter in parameters
        ]
        total = sum(norm * norm for norm in norms) ** 0.5
        event: dict[str, Any] = {"gradients": len(gradients), "norm": total, "norms": norms}
        if self._num_steps < EARLY_STEPS:
            event["sums"] = [
                [0.0, 0.0]
                if parameter.grad is None
                else [value / scale for value in self._sums(parameter.grad)]
                for parameter in parameters
            ]
        self._before[key] = [_part(parameter).clone() for parameter in parameters]
        self._record(event)

    def step_ended(self, optimizer: Any, *_: Any) -> None:
        """Records the updates of an optimizer that has stepped."""
        if self._is_skipped:
            return
        super().step_ended(optimizer)
        self._record_step(optimizer)

    def _complete_step(self, optimizer: Any, num_steps: int = 1) -> None:
        super()._complete_step(optimizer, num_steps)
        if optimizer is None:
            # Parameters that are updated by hand are not known; the losses of later steps reflect them.
            self._record_step(None)

    def _record_step(self, optimizer: Any) -> None:
        if not self._is_on:
            return
        self._num_steps += 1
        event: dict[str, Any] = {
            "step": self._num_steps,
            "samples": self._last_samples,
            "rates": [_to_float(group.get("lr")) for group in getattr(optimizer, "param_groups", ())],
            "random": self._random_digest(),
        }
        before = self._before.pop(id(optimizer), None)
        if before is not None:
            moved = [_part(now) - then for now, then in zip(_parameters(optimizer), before)]
            event["moved"] = [bool(update.any()) for update in moved]
            if self._num_steps <= EARLY_STEPS:
                event["sums"] = [self._sums(update) for update in moved]
        self._record(event)
        if self._num_passes >= PASSES:
            self._steps_after += 1
        batches, steps, seconds = (self._terms.get(name) or 0 for name in ("batches", "steps", "seconds"))
        # If no pass ends, the number of steps is limited instead.
        steps = steps or (PASSES + 1) * batches
        now = time.perf_counter()
        self._began_s = self._began_s or now
        if (batches and self._steps_after >= STEPS_AFTER) or (steps and self._num_steps >= steps):
            self._end(DONE)
        elif seconds and now - self._began_s >= seconds and self._num_steps >= MIN_RECORDED:
            self._end(LATE)

    def finish(self) -> None:
        """Ends the record when the process exits."""
        super().finish()
        self._end(EXIT)

    def _end(self, why: str) -> None:
        if not self._is_on or self._file is None:
            return
        if why != LATE:
            moved = [
                not self._torch.equal(now.detach().cpu(), then)
                for optimizer, first in self._first.values()
                for now, then in zip(_parameters(optimizer), first)
            ]
            parameters = (
                parameter.detach()
                for optimizer, _ in self._first.values()
                for parameter in _parameters(optimizer)
            )
            self._record({"end": why, "parameters": self._digest(parameters), "moved": moved})
        self._is_on, self._is_over = False, True
        self._first.clear()
        self._before.clear()
        for call in self._evaluated.values():
            call.remove()
        self._evaluated.clear()
        if why != EXIT:
            # A script that ends by itself must end after the same number of steps.
            self._go_on()

    def _go_on(self) -> None:
        """Goes on as an observer that records nothing, with the memory that it had before."""
        self._has_fast_path = True
        if self._torch.cuda.is_initialized():
            self._torch.cuda.empty_cache()
        self._send()
        self.tell({"recorded": self._num_steps})
        # Its next stretch begins here.
        self._resumed_s = time.perf_counter()
        self._shares = StepShares()

    # -- the record --------------------------------------------------------------------------------

    def _record(self, event: dict[str, Any]) -> None:
        if not self._is_on:
            return
        if self._file is None:
            folder = Path(os.environ.get(FOLDER_VARIABLE) or os.getcwd())
            path = folder / RECORD.format(_place())
            try:
                # Another process with the same name is another program, such as a launcher's.
                self._file = path.open("x", encoding="ascii")
            except FileExistsError:
                self._is_on = False
                return
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def _digest(self, tensors: Iterable[Any]) -> str:
        digest = hashlib.blake2b(digest_size=12)
        for part in tensors:
            if not self._torch.is_tensor(part):
                digest.update(repr(part).encode())
                continue
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            digest.update(_bytes(self._torch, part))
        return digest.hexdigest()

    def _random_digest(self) -> str:
        digest = hashlib.blake2b(digest_size=12)
        for state in states():
            digest.update(state)
        if self._torch.cuda.is_initialized():
            digest.update(bytes(self._torch.cuda.get_rng_state().tolist()))
        return digest.hexdigest()

    def _norm(self, gradients: list[Any]) -> float:
        # A copy in double precision might not fit beside the model.
        norm, double = self._torch.linalg.vector_norm, self._torch.float64
        return float(sum(float(norm(_to_dense(part), dtype=double)) ** 2 for part in gradients) ** 0.5)

    def _sums(self, tensor: Any) -> list[float]:
        """Returns the norm of a tensor, and its product with a fixed pattern."""
        flat = _part(tensor).double()
        pattern = self._torch.arange(flat.numel(), device=flat.device, dtype=flat.dtype).cos()
        return [float(flat.norm()), float((flat * pattern).sum())]


def _place() -> str:
    """Returns a name for this process of a training, the same in each run."""
    rank, name = os.environ.get("RANK") or "0", multiprocessing.current_process().name
    # Children are numbered in the order in which they are made.
    return rank if name == "MainProcess" else f"{rank}-{re.sub('[^A-Za-z0-9]+', '-', name)}"


def _bytes(torch: Any, tensor: Any) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    if plain.is_sparse or plain.is_quantized or not plain.numel():
        return repr(plain).encode()
    raw = (
        plain.flatten().view(torch.uint8)
        if plain.dtype is not torch.bool
        else plain.flatten().to(torch.uint8)
    )
    try:
        return bytes(raw.numpy().tobytes())
    except RuntimeError:
        # numpy is not installed.
        return bytes(raw.tolist())


def _exact_text(loss: Any) -> Any:
    """Returns a loss as text with all its bits; None if it is not a single number."""
    try:
        return float(loss.detach().double().item()).hex()
    except (AttributeError, RuntimeError, ValueError, TypeError):
        return None


def _to_float(value: Any) -> Any:
    return float(value) if isinstance(value, (int, float)) or hasattr(value, "item") else None


def _part(tensor: Any) -> Any:
    return _to_dense(tensor).detach().flatten()[:SUMMED]


def _to_dense(tensor: Any) -> Any:
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _tensors(torch: Any, part: Any) -> Iterator[Any]:
    """Yields the parts of a batch: its tensors, its keys, and plain values."""
    if torch.is_tensor(part):
        yield part
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield key
            yield from _tensors(torch, value)
    elif isinstance(part, (list, tuple)):
        for item in part:
            yield from _tensors(torch, item)
    elif isinstance(part, (str, bytes, int, float, bool, type(None))):
        yield part
    else:
        # The part is a data class or the like.
        for value in getattr(part, "__dict__", {}).values():
            yield from _tensors(torch, value)
